"""The demonstration workloads: plain CUDA driver-API programs. ``python -m nvshare.bench.workloads add`` runs one."""
