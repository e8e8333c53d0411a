"""The parts of composite keys in a column of their canonical bytes: each after its length, big-endian in four bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NULL_LENGTH: Final = 0xFFFF_FFFF
"""Stands before a part that is null."""

_HEAD: Final = 4
_Positions = npt.NDArray[np.int64]


def join_parts(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the canonical bytes of keys, of the bytes of each part; null where a part is null."""
    pieces: list[pa.Array] = []
    for part in parts:
        lengths = pc.binary_length(part).cast(pa.uint32()).fill_null(NULL_LENGTH)
        pieces += [fixed_bytes(lengths.to_numpy(zero_copy_only=False).astype(">u4")), part.fill_null(b"")]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def split_parts(stored: pa.Array, count: int) -> list[pa.Array]:
    """Return the bytes of each part of keys, null where it is null.

    Args:
        stored: The canonical bytes, without nulls.
        count: Number of parts.

    Raises:
        ValueError: They are something else.
    """
    if not len(stored):
        return [stored] * count
    offsets = np.frombuffer(stored.buffers()[1], np.int32)[stored.offset : stored.offset + len(stored) + 1]
    content = stored.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    at, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    parts = []
    for _ in range(count):
        if (at + _HEAD > ends).any():
            raise ValueError("too short")
        lengths = np.ascontiguousarray(data[at[:, None] + np.arange(_HEAD)]).view(">u4")[:, 0].astype(np.int64)
        is_null = lengths == NULL_LENGTH
        lengths[is_null] = 0
        at += _HEAD
        if (at + lengths > ends).any():
            raise ValueError("too short")
        parts.append(_gathered(data, at, lengths, is_null))
        at += lengths
    if (at != ends).any():
        raise ValueError("too long")
    return parts


def _gathered(data: npt.NDArray[np.uint8], starts: _Positions, lengths: _Positions, is_null: Any) -> pa.Array:
    """Bytes from some places, as a column."""
    ends = np.cumsum(lengths)
    wanted = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[wanted])]
    column = pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
    return pc.if_else(pa.array(~is_null), column, None) if is_null.any() else column


def fixed_bytes(values: npt.NDArray[np.generic]) -> pa.Array:
    """Values of one width as a column of bytes."""
    width = values.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(values)]).cast(pa.binary())
