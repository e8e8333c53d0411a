"""Columns of keys on the wire: plain buffers of a type that both sides know already.

Keys come from outside, so they do not travel as Arrow messages, whose layout the sender would choose. The receiver
knows type and count, and each buffer has the length that follows from them::

    numbers, dates, decimals   count values, little endian
    booleans                   count bytes, 0 or 1
    texts, bytes               count + 1 offsets (int32, from 0, ascending), then the bytes
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.queryable.wire.errors import BadRequestError
from holdfast.queryable.wire.frame import Body


def encode_column(array: pa.Array) -> list[Any]:
    """Return the buffers of a column without nulls."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return [array.cast(pa.uint8()).to_numpy()]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        content = memoryview(data)[first:last] if data is not None else b""
        return [bounds - np.int32(first), content]
    width = kind.bit_width // 8
    data = array.buffers()[1]
    return [memoryview(data)[array.offset * width : (array.offset + len(array)) * width]]


class ColumnReader:
    """Takes columns out of a body, one after the other."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = 0

    def numbers(self, count: int, kind: Any) -> Any:
        """Take numbers of a NumPy type."""
        size = np.dtype(kind).itemsize * count
        return np.frombuffer(self._take(size), kind)

    def column(self, kind: pa.DataType, count: int) -> pa.Array:
        """Take a column.

        Raises:
            BadRequestError: The bytes are no such column.
        """
        if pa.types.is_boolean(kind):
            return pa.array(self.numbers(count, np.uint8) != 0)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._texts(kind, count)
        data = self._take(kind.bit_width // 8 * count)
        return self._checked(pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)], null_count=0))

    def end(self) -> None:
        """Check that nothing is left.

        Raises:
            BadRequestError: Something is.
        """
        if self._at != len(self._body):
            raise BadRequestError(
                f"Unconsumed bytes in the key: {len(self._body) - self._at} of {len(self._body)}. The key types of the "
                "client and of the state differ."
            )

    def _texts(self, kind: pa.DataType, count: int) -> pa.Array:
        offsets = self.numbers(count + 1, np.int32)
        if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise BadRequestError("The offsets of a column of keys do not ascend from 0.")
        data = self._take(int(offsets[-1]))
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
        return self._checked(pa.Array.from_buffers(kind, count, buffers, null_count=0))

    def _checked(self, array: pa.Array) -> pa.Array:
        try:
            array.validate(full=True)
        except pa.ArrowException as error:
            raise BadRequestError(f"A column of keys is no column of {array.type}: {error}") from error
        return array

    def _take(self, size: int) -> Body:
        data = self._body[self._at : self._at + size]
        if len(data) != size:
            raise BadRequestError(f"A request ends after {len(self._body)} bytes, {self._at + size} are needed.")
        self._at += size
        return data
