"""The wire protocol: messages and codec. Knows no sockets."""
