"""Compute: who may use the engines of a card now, in slices of milliseconds, and who pays for it."""
