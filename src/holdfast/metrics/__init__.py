"""Metrics under PyFlink's name: the classes behind `runtime_context.get_metrics_group()`.

The metrics of the system itself are declared in `runtime/master/metric_catalog.py`.
"""

from holdfast.metrics.metricbase import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
