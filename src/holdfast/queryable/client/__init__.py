"""The query clients, blocking and asynchronous, and their common core without I/O."""
