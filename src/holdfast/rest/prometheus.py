"""Metrics in the text format of Prometheus. Only this module imports its client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.rest.http import HttpError, Response
from holdfast.runtime.master.metric_catalog import Sample


class _Samples:
    """A Prometheus collector of given samples."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = list(samples)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for sample in self._samples:
            series = (sample.name, tuple(sample.labels.values()))
            if series in seen:
                continue  # Prometheus rejects pages with duplicates; a program may use a metric name twice
            seen.add(series)
            family = families.get(sample.name)
            if family is None:
                kind = CounterMetricFamily if sample.is_counter else GaugeMetricFamily
                family = families[sample.name] = kind(sample.name, sample.help, labels=tuple(sample.labels))
            family.add_metric(tuple(sample.labels.values()), sample.value)
        yield from families.values()


def exposition(samples: Iterable[Sample]) -> Response:
    """Return the response to a scrape.

    Raises:
        HttpError: The package is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ImportError as error:
        raise HttpError(501, f"Metrics need a further package: pip install 'holdfast[metrics]'. {error}.") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(samples))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
