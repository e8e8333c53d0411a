"""XXH64 of whole columns, computed by NumPy or Polars: the same numbers as `xxhash`, without a call for each value.

NumPy hashes values of equal length together. Each value may have its own seed, as in the later columns of a composite
key. `polars-hash` (the extra `columns`) takes a tenth of the time of NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh64_intdigest

_MIN_VALUES: Final = 4096
"""With fewer values Polars is not faster, and need not be imported."""
Hashes = npt.NDArray[np.uint64]
Words = npt.NDArray[Any]
_STRIPE: Final = 32
_MAX_LENGTHS: Final = 512
"""With more different lengths, a call for each value is as fast."""
_ROWS_AT_ONCE: Final = 128 * 1024
"""Few enough that intermediate results stay in CPU caches."""


def hash_with_polars(column: pa.Array, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64] | None:
    """Return the hash of each value of a column without nulls, computed by `polars-hash`.

    Args:
        column: A string (hashed as UTF-8) or binary column.
        seeds: One seed per value.

    Returns:
        None if the seeds differ, the values are few, or the package is not installed.
    """
    if len(column) < _MIN_VALUES or (seeds != seeds[0]).any():
        return None
    packages = _packages()
    if packages is None:
        return None
    polars, plugin = packages
    hashed = plugin.col("key").nchash.xxhash64(seed=int(seeds[0]))
    found: npt.NDArray[np.uint64] = polars.from_arrow(column).to_frame("key").select(hashed).to_series().to_numpy()
    return found


@cache
def _packages() -> tuple[Any, Any] | None:
    try:
        import polars
        import polars_hash
    except ImportError:
        return None
    return polars, polars_hash


_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)


def hash_numbers(numbers: npt.NDArray[Any], seeds: Hashes) -> Hashes:
    """Return the hash of each number, as little-endian bytes.

    Args:
        numbers: Whole numbers of 32 or 64 bits.
        seeds: One seed per number.
    """
    content = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize)
    return _hash_equal_lengths(content, seeds)


def hash_bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    """Return the hash of each value of a column without nulls.

    Args:
        column: A string (hashed as UTF-8) or binary column.
        seeds: One seed per value.
    """
    quick = hash_with_polars(column, seeds)
    if quick is not None:
        return quick
    offsets, data = _content(column)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    found = np.empty(len(column), np.uint64)
    distinct = np.unique(lengths)
    if len(distinct) > _MAX_LENGTHS:
        view = memoryview(data.data)
        hashed = (
            xxh64_intdigest(view[start : start + length], seed)
            for start, length, seed in zip(starts.tolist(), lengths.tolist(), seeds.tolist(), strict=True)
        )
        return np.fromiter(hashed, np.uint64, len(column))
    for length in distinct.tolist():
        rows = np.flatnonzero(lengths == length)
        content = data[starts[rows, None] + np.arange(length)] if length else np.empty((len(rows), 0), np.uint8)
        found[rows] = _hash_equal_lengths(content, seeds[rows])
    return found


def _content(column: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    if not len(column):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return ends, np.frombuffer(b"" if data is None else data, np.uint8)


def _hash_equal_lengths(content: npt.NDArray[np.uint8], seeds: Hashes) -> Hashes:
    found = np.empty(len(content), np.uint64)
    for first in range(0, len(content), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        found[rows] = _hashed(np.ascontiguousarray(content[rows]), seeds[rows])
    return found


def _hashed(content: npt.NDArray[np.uint8], seeds: Hashes) -> Hashes:
    length = content.shape[1]
    with np.errstate(over="ignore"):
        value = _striped(content, seeds) if length >= _STRIPE else seeds + _P5
        value = value + np.uint64(length)
        at = length - length % _STRIPE
        while at + 8 <= length:
            value = _rotated(value ^ _round(np.uint64(0), _words(content, at, np.uint64)), 27) * _P1 + _P4
            at += 8
        if at + 4 <= length:
            value = _rotated(value ^ (_words(content, at, np.uint32).astype(np.uint64) * _P1), 23) * _P2 + _P3
            at += 4
        for last in range(at, length):
            value = _rotated(value ^ (content[:, last].astype(np.uint64) * _P5), 11) * _P1
        value = (value ^ (value >> np.uint64(33))) * _P2
        value = (value ^ (value >> np.uint64(29))) * _P3
        return value ^ (value >> np.uint64(32))


def _striped(content: npt.NDArray[np.uint8], seeds: Hashes) -> Hashes:
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds, seeds - _P1]
    for start in range(0, content.shape[1] - _STRIPE + 1, _STRIPE):
        words = (_words(content, start + 8 * lane, np.uint64) for lane in range(4))
        lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
    value: Hashes = sum(_turned(lanes), np.zeros(len(content), np.uint64))
    for lane in lanes:
        value = (value ^ _round(np.uint64(0), lane)) * _P1 + _P4
    return value


def _turned(lanes: list[Hashes]) -> Iterator[Any]:
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        yield _rotated(lane, bits)


def _words(content: npt.NDArray[np.uint8], at: int, kind: type[Any]) -> Words:
    width = np.dtype(kind).itemsize
    words: Words = np.ascontiguousarray(content[:, at : at + width]).view(kind)[:, 0]
    return words


def _round(lane: Any, word: Words) -> Any:
    return _rotated(lane + word * _P2, 31) * _P1


def _rotated(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))
