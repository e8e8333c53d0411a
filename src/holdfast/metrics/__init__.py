"""Metrics under PyFlink's name: what `runtime_context.get_metrics_group()` makes."""

from holdfast.metrics.metricbase import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
