"""Who leads a job, starts its attempts anew, and ends it."""
