"""High availability within one process, for tests and mini clusters: everything is memory."""
