"""Timestamps of elements as a column: event times in milliseconds, null for an element that has none.

They stay a column from the assigner on, through exchanges and into operators. A list of numbers is made only where
somebody looks at elements one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Stamps: TypeAlias = "pa.Int64Array"


def stamps_of(times: Any) -> Stamps:
    """Make a column of numbers, or of an array; None is null."""
    stamps: Stamps = pa.array(times, pa.int64())
    return stamps


def times_in(column: pa.Array) -> Stamps:
    """Make a column of whole numbers of milliseconds, or of timestamps, one of event times."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    return column.cast(pa.int64())


def no_stamps(count: int) -> Stamps:
    """The timestamps of elements that have none."""
    return pa.nulls(count, pa.int64())


def one_by_one(stamps: Stamps | None) -> Iterable[int | None]:
    """The timestamps as numbers, as many as there are; without an end where event time plays no part."""
    if stamps is None:
        return repeat(None)
    numbers: list[int | None] = stamps.to_pylist() if stamps.null_count else stamps.to_numpy().tolist()
    return numbers


def stamps_of_emitted(stamps: Stamps | None, ends: Sequence[int]) -> Stamps:
    """The timestamps of what was emitted, element by element: those of what it was emitted for.

    Args:
        stamps: Those of the elements that came; None where they had none.
        ends: How much had been emitted after each of them.
    """
    emitted = ends[-1] if ends else 0
    if stamps is None:
        return no_stamps(emitted)
    counts = np.array(ends, np.int64)
    counts[1:] -= counts[:-1].copy()
    if (counts == 1).all():
        return stamps
    return stamps.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def joined(parts: Sequence[Stamps]) -> Stamps:
    """Some columns as one."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else no_stamps(0)
