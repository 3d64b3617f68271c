"""The stress test of leases, launches and shutdown: ``nvshare stress``, also as ``test_gpu_allocation.py``."""
