"""Policies of memory: pure functions over plain values. They never import state."""
