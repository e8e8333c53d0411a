"""Read savepoints of Flink without Java."""
