"""Metrics under PyFlink's name: the classes behind `runtime_context.get_metrics_group()`."""

from holdfast.metrics.metricbase import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
