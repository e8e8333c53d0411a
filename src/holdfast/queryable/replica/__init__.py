"""Completed checkpoints as a server reads them."""
