"""What is fixed about a job, what it is asked for and what is told of it."""
