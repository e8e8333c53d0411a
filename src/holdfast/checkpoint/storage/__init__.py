"""Where checkpoints and savepoints are written."""
