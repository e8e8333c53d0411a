"""State of completed checkpoints and savepoints over REST."""
