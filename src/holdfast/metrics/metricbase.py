"""Metrics under their path in PyFlink."""

from holdfast.runtime.function.metric import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
