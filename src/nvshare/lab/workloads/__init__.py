"""``python -m nvshare.lab.workloads`` is ``python -m nvshare.bench.workloads``."""
