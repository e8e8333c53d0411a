"""Base classes of user functions, sources and sinks, and the metrics of functions."""
