"""Reports metrics to OpenTelemetry, by OTLP over HTTP. Only this module imports its packages.

It reports the of_metric samples that Prometheus reads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast import __version__
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger, without_credentials
from holdfast.rest.metric_samples import collect_samples
from holdfast.runtime.job.options import OTLP_ENDPOINT, OTLP_INTERVAL
from holdfast.runtime.master.job_master import JobMaster, JobObserver
from holdfast.runtime.master.metric_catalog import Sample

logger = get_logger(__name__)
_TIMEOUT_MS: Final = 5_000
_CLOSE_SECONDS: Final = 6.0


class OtlpReporter:
    """Sends samples to a collector at an interval, in a thread of its own.

    Args:
        collect: Returns the samples.
        endpoint: The collector's URL for metrics, such as ``http://collector:4318/v1/metrics``.
        seconds: Seconds between two reports.
        resource: The attributes of the OpenTelemetry resource.

    Raises:
        ConfigurationError: The packages are not installed, or the endpoint is not a URL.
    """

    def __init__(
        self, collect: Callable[[], list[Sample]], endpoint: str, seconds: float, resource: Mapping[str, str]
    ) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{OTLP_ENDPOINT.key} is {endpoint!r}, and must be a URL such as http://collector:4318/v1/metrics."
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError as error:
            raise ConfigurationError(
                f"{OTLP_ENDPOINT.key} needs further packages: pip install 'holdfast[otel]'. {error}."
            ) from error
        self._collect = collect
        self._endpoint = endpoint
        self._seconds = seconds
        self._resource = dict(resource)
        self._started_ns = time.time_ns()
        # The exporter logs every failed report; this class logs the first one only.
        logging.getLogger(OTLPMetricExporter.__module__).setLevel(logging.CRITICAL)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_TIMEOUT_MS / 1000)
        self._ended = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send the last report and stop. Blocks for a few seconds at most."""
        self._ended.set()
        self._thread.join(_CLOSE_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._report()
        self._report()

    def _report(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        try:
            result = self._exporter.export(self._to_metrics_data(self._collect()), timeout_millis=_TIMEOUT_MS)
            problem = (
                None if result is MetricExportResult.SUCCESS else "the collector refused the report or did not answer"
            )
        except Exception as error:  # noqa: BLE001 - later reports must go on
            problem = repr(error)
        if problem is not None and not self._has_failed:
            logger.warning(
                "Metrics cannot be sent to %s: %s", without_credentials(self._endpoint), without_credentials(problem)
            )
        self._has_failed = problem is not None

    def _to_metrics_data(self, samples: Sequence[Sample]) -> Any:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now = time.time_ns()
        by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            by_name.setdefault(sample.name, []).append(sample)
        metrics = [self._to_metric(of_metric, now) for of_metric in by_name.values()]
        scope = ScopeMetrics(InstrumentationScope("holdfast", __version__), metrics, "")
        return MetricsData([ResourceMetrics(Resource(self._resource), [scope], "")])

    def _to_metric(self, samples: Sequence[Sample], now: int) -> Any:
        from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

        points = [NumberDataPoint(dict(sample.labels), self._started_ns, now, sample.value) for sample in samples]
        first = samples[0]
        if first.is_counter:
            data: Any = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(points)
        return Metric(first.name, first.help, "", data)


def reporter_from(
    options: Configuration, collect: Callable[[], list[Sample]], resource: Mapping[str, str]
) -> OtlpReporter | None:
    """Return the reporter that the options configure, None if they configure none.

    Raises:
        ConfigurationError: An option is invalid.
    """
    endpoint, interval = options.get(OTLP_ENDPOINT), options.get(OTLP_INTERVAL)
    if endpoint is None:
        return None
    if interval <= 0:
        raise ConfigurationError(f"{OTLP_INTERVAL.key} must be more than 0.")
    return OtlpReporter(collect, endpoint, interval / 1000, {"service.name": "holdfast", **resource})


class EmbeddedOtlpReporter(JobObserver):
    """Reports the metrics of a job while it runs in this process."""

    def __init__(self) -> None:
        self._reporter: OtlpReporter | None = None

    def check(self, configuration: Configuration) -> None:
        reporter_from(configuration, list, {})

    def started(self, master: JobMaster) -> None:
        job = master.job
        resource = {"service.instance.id": str(job.job_id)}
        self._reporter = reporter_from(job.configuration, lambda: collect_samples(master), resource)
        if self._reporter is not None:
            self._reporter.start()

    def ended(self) -> None:
        if self._reporter is not None:
            self._reporter.close()
