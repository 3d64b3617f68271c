"""Memory: which allocations are granted, whose bytes are on a card, and whose turn it is when not all fit."""
