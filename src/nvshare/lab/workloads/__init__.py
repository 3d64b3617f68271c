"""The workloads by the name that manifests, images and scripts use: ``python -m nvshare.lab.workloads``."""
