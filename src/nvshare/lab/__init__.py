"""An older name of ``nvshare.bench``: manifests and images of users start the workloads by it."""
