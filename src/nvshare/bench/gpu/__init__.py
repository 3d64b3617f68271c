"""Measurements on a real card, from a source tree: README.md says which figure comes from where."""
