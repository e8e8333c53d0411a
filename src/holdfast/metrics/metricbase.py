"""Metrics under the name of PyFlink's module."""

from holdfast.runtime.function.metric import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
