"""Coordinator, completed checkpoints, savepoints, restore, retention."""
