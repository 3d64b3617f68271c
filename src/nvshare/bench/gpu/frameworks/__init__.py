"""Every framework under nvshare: memory, results, quotas, and what sharing costs."""
