"""The master of a job: attempts, restarts, the job's end, and its client."""
