"""The scheduler as a pure state machine: events in, commands out. Knows no clock, socket, file or environment."""
