"""Compute: which clients may use a card's engines now, in slices of milliseconds, and what they are billed."""
