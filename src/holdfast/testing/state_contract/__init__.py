"""The parts of the contract of state backends."""
