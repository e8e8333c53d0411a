"""What a checkpoint is: its kind, its document, its pointer."""
