"""What is counted and told of checkpoints."""
