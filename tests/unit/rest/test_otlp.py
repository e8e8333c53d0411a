"""Numbers reach a collector of OpenTelemetry by OTLP over HTTP, which is judged by reading what came."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.rest.otlp import reporter_from
from holdfast.runtime.master.metric_catalog import Sample
from tests.stories.served import Running, until


class Collector:
    """Takes what OTLP brings, and refuses it while it is told to."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.refuses = False
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/metrics"
                if collector.refuses:
                    self.send_error(400)
                    return
                collector.headers.append(dict(self.headers))
                collector.requests.append(ExportMetricsServiceRequest.FromString(body))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}/v1/metrics"

    def newest(self) -> dict[tuple[str, str], tuple[str, float]]:
        """Kind and number of what came last, by name and operator or status."""
        found = {}
        [resource] = self.requests[-1].resource_metrics
        [scope] = resource.scope_metrics
        for metric in scope.metrics:
            kind = metric.WhichOneof("data")
            points = getattr(metric, kind).data_points
            if kind == "sum":
                assert (metric.sum.is_monotonic, metric.sum.aggregation_temporality) == (True, 2), "it adds up"
                assert all(0 < point.start_time_unix_nano <= point.time_unix_nano for point in points)
            for point in points:
                labels = {attribute.key: attribute.value.string_value for attribute in point.attributes}
                about = labels.get("operator_id", labels.get("status", ""))
                found[metric.name, about] = kind, point.as_double or float(point.as_int)
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()


def options(collector: Collector) -> dict[str, Any]:
    return {
        "metrics.reporter.otel.exporter.endpoint": collector.endpoint,
        "metrics.reporter.otel.interval": "50 ms",
    }


def test_a_job_reports_what_prometheus_would_read(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=reef")
    running = Running(tmp_path, **options(collector))
    running.say("sand", "kelp", "kelp")
    until(lambda: collector.requests and collector.newest()["holdfast_job_epochs", ""] == ("sum", 2))
    found = collector.newest()
    assert found["flink_taskmanager_job_task_operator_numRecordsIn", "count"] == ("gauge", 5)
    assert found["holdfast_job_status", "RUNNING"] == ("gauge", 1)
    assert collector.headers[-1]["x-tenant"] == "reef"
    [about] = collector.requests[-1].resource_metrics
    resource = {attribute.key: attribute.value.string_value for attribute in about.resource.attributes}
    assert resource == {"service.name": "holdfast", "service.instance.id": str(running.master.job.job_id)}
    running.say("sand")
    until(lambda: running.master.metrics.numbers.epochs == 3)
    running.end()
    assert collector.newest()["holdfast_job_epochs", ""] == ("sum", 3), "the last report is of the end"
    assert running.failure is None


def test_a_collector_that_is_away_harms_nobody_and_is_told_of_once(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.refuses = True
    running = Running(tmp_path, **options(collector))
    until(lambda: "Metrics cannot be sent" in caplog.text)
    running.say("sand")
    until(lambda: running.master.metrics.numbers.epochs == 2)
    collector.refuses = False
    until(lambda: collector.requests)
    running.end()
    told = [record.getMessage() for record in caplog.records if "Metrics" in record.getMessage()]
    assert running.failure is None
    assert len(told) == 1, told


def test_what_cannot_be_counted_now_is_reported_later(collector: Collector) -> None:
    tried: list[int] = []

    def collect() -> list[Sample]:
        tried.append(len(tried))
        if len(tried) == 1:
            raise ValueError("not yet")
        return [Sample("holdfast_job_epochs", 1, "Epochs.", is_counter=True)]

    reporter = reporter_from(Configuration(options(collector)), collect, {})
    assert reporter is not None
    reporter.start()
    until(lambda: collector.requests)
    reporter.close()
    assert collector.newest() == {("holdfast_job_epochs", ""): ("sum", 1.0)}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"metrics.reporter.otel.exporter.endpoint": "collector:4317"}, "must be a URL"),
        ({"metrics.reporter.otel.interval": 0}, "must be more than 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(collector: Collector, changed: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        reporter_from(Configuration({**options(collector), **changed}), list, {})
    assert reporter_from(Configuration({}), list, {}) is None


def test_the_last_report_of_a_job_that_has_failed_says_so(tmp_path: Path, collector: Collector) -> None:
    running = Running(tmp_path, **options(collector))
    running.say("poison")
    running.thread.join(30.0)
    newest = collector.newest()
    assert newest["holdfast_job_status", "FAILED"] == ("gauge", 1)
    assert newest["holdfast_job_status", "RUNNING"] == ("gauge", 0)
    assert newest["holdfast_job_is_leader", ""] == ("gauge", 0)
