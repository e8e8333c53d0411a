"""A job's requests, engine interface, leadership, options and progress."""
