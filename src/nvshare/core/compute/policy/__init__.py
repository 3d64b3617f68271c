"""Policies of compute: pure functions over plain values. They never import state."""
