"""Checks: pure functions from facts to verdicts. One that cannot judge, because something else is broken, is silent."""
