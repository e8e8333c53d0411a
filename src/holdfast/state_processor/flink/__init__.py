"""Savepoints of Flink: what is in them, without Java."""
