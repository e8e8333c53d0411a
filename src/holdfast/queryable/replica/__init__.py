"""What a server holds of completed checkpoints."""
