"""The retained checkpoints, and the counter of ids."""
