"""The services of a cluster as a whole, and which type an option names."""
