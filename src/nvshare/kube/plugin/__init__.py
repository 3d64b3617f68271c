"""The device plugin: offers shares of the node's GPUs to the kubelet and says which one a container had best get."""
