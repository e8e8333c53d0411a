"""From a pointer or a path back to a checkpoint."""
