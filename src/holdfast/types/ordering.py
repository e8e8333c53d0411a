"""Order and equality of values as in Spark: NaN equals NaN and is greater than all other numbers, -0.0 equals 0.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def is_less(one: Any, other: Any) -> bool:
    return bool(one < other) or (other != other and one == one)


def is_greater(one: Any, other: Any) -> bool:
    return bool(one > other) or (one != one and other == other)


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values of one type are equal, also rows, lists and maps that contain NaN."""
    if one == other:
        return True
    if isinstance(one, float):
        return one != one and other != other
    if isinstance(one, tuple | list):
        return isinstance(other, tuple | list) and len(one) == len(other) and all(map(are_equal, one, other))
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and len(one) == len(other) and _has_entries(one, other)
    return False


def _has_entries(entries: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    for key, value in entries.items():
        # A dict does not find a key that contains NaN.
        keys = [key] if key in other else [found for found in other if are_equal(key, found)]
        if not any(are_equal(value, other[found]) for found in keys):
            return False
    return True


def ranks_of(values: pa.Array, *, is_ascending: bool) -> npt.NDArray[np.int64]:
    """Return the rank of each value, the same for equal ones; the rank of null has no meaning."""
    # Arrow ranks NaN after all numbers, in both directions.
    ranks: npt.NDArray[np.int64] = (
        pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    )
    return ranks if is_ascending else -ranks


def canonical_floats(values: pa.Array | pa.ChunkedArray) -> Any:
    """Return a column in which equal floating-point numbers have the same bits, as Arrow groups by bits."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = pc.add(values, pa.scalar(0, values.type))  # -0.0 becomes 0.0
    return pc.if_else(pc.is_nan(numbers), pa.scalar(float("nan"), values.type), numbers)
