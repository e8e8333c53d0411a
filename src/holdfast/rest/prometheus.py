"""Numbers in the text format of Prometheus; the only place that knows its client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.rest.http import Answer, RefusedError
from holdfast.rest.metrics import Sample


class _Samples:
    """A collector of numbers that are there already."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = list(samples)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for sample in self._samples:
            series = (sample.name, tuple(sample.labels.values()))
            if series in seen:
                continue  # a program counts two things under one name; of a page with both Prometheus takes nothing
            seen.add(series)
            family = families.get(sample.name)
            if family is None:
                kind = CounterMetricFamily if sample.is_counter else GaugeMetricFamily
                family = families[sample.name] = kind(sample.name, sample.help, labels=tuple(sample.labels))
            family.add_metric(tuple(sample.labels.values()), sample.value)
        yield from families.values()


def exposition(samples: Iterable[Sample]) -> Answer:
    """Return the answer that Prometheus reads.

    Raises:
        RefusedError: The package is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ImportError as error:
        raise RefusedError(501, f"Metrics need a package: pip install 'holdfast[metrics]'. {error}.") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(samples))
    return Answer(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
