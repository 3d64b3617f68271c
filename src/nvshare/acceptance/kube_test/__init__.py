"""``nvshare kube-test``: pods that share GPUs on whatever cluster the kubeconfig names, and what came of it."""
