"""The model: the real scheduler core against modelled clients and cards, in virtual time, in one process.

Exact and deterministic: no clock, no threads, no randomness but seeded. ``engine`` is virtual time, ``card`` the
hardware, ``link`` what the interposer does, ``shell`` what the daemon does, ``task`` a workload, ``run`` all together.
"""
