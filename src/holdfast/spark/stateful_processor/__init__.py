"""Spark's `StatefulProcessor` on Holdfast's state: what `transformWithState` runs, unchanged."""
