"""Options of checkpoints, and when failures fail the job."""
