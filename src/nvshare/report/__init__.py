"""Rows to tables, pages and comparisons. Pure functions."""
