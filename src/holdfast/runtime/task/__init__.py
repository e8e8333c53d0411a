"""One task in a worker process: its steps, what they read and what they report."""
