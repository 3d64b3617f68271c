"""Policies of the whole scheduler, each named after what the field calls it. They never import state."""
