"""The demonstration workloads: plain CUDA driver-API programs. ``python -m nvshare.lab.workloads add`` runs one."""
