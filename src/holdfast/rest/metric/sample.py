"""One number with its name: how the process of a job tells its job manager, and both Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.errors import CorruptFileError
from holdfast.kernel.malformed import MALFORMED


@dataclass(frozen=True)
class Sample:
    """A number.

    Attributes:
        name: As Prometheus knows it; that of a counter without ``_total``.
        value: The number.
        help: What it is.
        is_counter: Whether it only grows while a process lives. Flink's exporter shows its counters as gauges, and
            under Flink's names so do we.
        labels: What it is about.
    """

    name: str
    value: float
    help: str
    is_counter: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


def to_json(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return samples as JSON."""
    return [asdict(sample) for sample in samples]


def from_json(body: Any) -> list[Sample]:
    """Read samples.

    Raises:
        CorruptFileError: They are none.
    """
    try:
        return [
            Sample(
                str(entry["name"]),
                float(entry["value"]),
                str(entry["help"]),
                bool(entry["is_counter"]),
                {str(key): str(value) for key, value in entry["labels"].items()},
            )
            for entry in body
        ]
    except MALFORMED as error:
        raise CorruptFileError("metrics", None, f"they are no numbers of a job: {error!r:.200}.") from error
