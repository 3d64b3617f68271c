"""Workloads, scenarios and measurements: in the model, on simulated cards and on real ones."""
