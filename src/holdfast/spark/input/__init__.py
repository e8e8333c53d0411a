"""Inputs of a job on Spark: their frames, what each of them reads, and where it stands."""
