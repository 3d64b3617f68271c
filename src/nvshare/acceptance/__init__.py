"""Acceptance runs: ``verify``, ``stress``, ``kube-test``. Each judges a running nvshare and reports findings."""
