"""One verb of the command a file."""
