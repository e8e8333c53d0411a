"""What a query of Spark has left in its checkpoint directory: its logs, the positions of its sources, its state."""
