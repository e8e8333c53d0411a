"""The directory of a job, and how files in it are named."""
