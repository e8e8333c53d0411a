"""What a dispatcher decides: events in, instructions out, no I/O."""
