"""The coordinator's state machine: events in, instructions out, no I/O."""
