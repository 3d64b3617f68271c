"""``nvshare bench compute``: what tasks that share a card get of it, against their quotas and against native runs."""
