"""Kubernetes: what stands between the kubelet, the API server and the scheduler of a node.

Needs the packages of the extra ``kube``; nothing else of nvshare imports this.
"""
