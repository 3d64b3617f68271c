"""The kubelet's gRPC interfaces: messages made from the published definitions, and how their methods are called."""
