"""One task in a worker process: its steps, their input, their state and its report."""
