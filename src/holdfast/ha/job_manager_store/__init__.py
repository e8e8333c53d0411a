"""Stores of a job manager: plans, results, blobs and handles of state."""
