"""Rules of sleep, as pure functions."""
