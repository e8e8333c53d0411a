"""The parts of the contract of sinks."""
