"""About how much memory Python values take, from a sample of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

_SAMPLE: Final = 64


def average_size(values: Sequence[Any]) -> float:
    """Return about how many bytes one of some values takes."""
    step = max(1, len(values) // _SAMPLE)
    sample = values[::step]
    return sum(_size(value) for value in sample) / max(1, len(sample))


def _size(value: Any) -> float:
    size: float = sys.getsizeof(value) if value is not None else 0
    if isinstance(value, (list, tuple)):
        size += len(value) * _average_of_few(value)
    elif isinstance(value, dict):
        size += len(value) * (_average_of_few(value) + _average_of_few(value.values()))
    return size


def _average_of_few(values: Iterable[Any]) -> float:
    sample = list(islice(values, 8))
    return sum(sys.getsizeof(value) for value in sample) / max(1, len(sample))
