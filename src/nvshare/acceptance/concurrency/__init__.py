"""Did tasks run in parallel, in turns, or both? Told from the logs of a scheduler and its tasks."""
