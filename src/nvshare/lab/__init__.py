"""Workloads, scenarios, measurements and reports: nvshare in the model, simulated and on a real card."""
