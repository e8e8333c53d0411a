"""Stores of a job manager: plans, results, blobs and handles of state. A job by itself uses none of them yet."""
