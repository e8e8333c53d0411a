"""Where the rows of a subtask go: subtask i of an operator runs as partition i of its stage.

Since version 4.1 Spark places rows by the number of a partition (`repartitionById`). Before, it places them only by a
hash of values that it computes itself, so a subtask is replaced by a number whose hash falls on its partition.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_SEED = 42
_FIRST_SEARCHED = 4096


def place(frame: DataFrame, tasks: int, subtask: str) -> DataFrame:
    """The frame in exactly `tasks` partitions, each row in the one that its subtask names.

    Args:
        frame: Rows to place.
        tasks: How many partitions; all of them run, those without rows too.
        subtask: SQL expression of an int, never null, from 0 to below `tasks`.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(tasks, F.expr(subtask))
    numbers = ", ".join(map(str, hashed_to(tasks)))
    return frame.repartition(tasks, F.expr(f"element_at(array({numbers}), ({subtask}) + 1)"))


@cache
def hashed_to(tasks: int) -> tuple[int, ...]:
    """For each partition an int that Spark's hash partitioning into `tasks` partitions puts there."""
    found = np.full(tasks, -1, np.int64)
    start, count = 0, max(_FIRST_SEARCHED, 8 * tasks)
    while (found < 0).any():
        candidates = np.arange(start, start + count, dtype=np.int64)
        partitions, first = np.unique(_hashes(candidates) % tasks, return_index=True)
        missing = found[partitions] < 0
        found[partitions[missing]] = candidates[first[missing]]
        start += count
    return tuple(found.tolist())


def _hashes(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What `hash(value)` of Spark SQL gives for int values: Murmur3 for 32 bits, signed."""
    mixed = values.astype(np.uint32)
    mixed = _rotated(mixed * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    result = _rotated(np.uint32(_SEED) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    result ^= np.uint32(4)  # the length in bytes
    result ^= result >> np.uint32(16)
    result *= np.uint32(0x85EBCA6B)
    result ^= result >> np.uint32(13)
    result *= np.uint32(0xC2B2AE35)
    result ^= result >> np.uint32(16)
    return result.astype(np.int32).astype(np.int64)


def _rotated(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
