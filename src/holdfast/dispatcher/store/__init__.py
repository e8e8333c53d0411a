"""What outlives a dispatcher: plans, files and results of jobs, and where it is reached."""
