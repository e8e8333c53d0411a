"""An Arrow array that grows at its end."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]

_WIDE: Final = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_FEWEST: Final = 1024


class GrowingArray:
    """An Arrow array without nulls; adding to it costs what is added, however long it is.

    Texts and bytes are kept in the form of Arrow that may exceed 2 GiB.

    Args:
        kind: Texts, bytes, or a type whose values have a width in whole bytes.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.kind: pa.DataType = _WIDE.get(kind, kind)
        self._count = 0
        self._values = _Bytes()
        # Where each text ends; nothing for other types.
        self._ends: _Bytes | None = _Bytes() if kind in _WIDE else None
        if self._ends is not None:
            self._ends.extend(np.zeros(1, np.int64))
        self._view: pa.Array | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """How many bytes its values take."""
        return len(self._values) + (0 if self._ends is None else len(self._ends))

    def extend(self, values: pa.Array) -> None:
        """Add values, which may be texts or bytes in either form.

        Raises:
            ArrowInvalid: They cannot be of this type.
        """
        values = values if values.type == self.kind else values.cast(self.kind)
        _, first, *rest = values.buffers()
        if self._ends is None:
            width = self.kind.bit_width // 8
            start = values.offset * width
            self._values.extend(np.frombuffer(first, np.uint8)[start : start + len(values) * width])
        elif len(values):
            ends = np.frombuffer(first, np.int64)[values.offset : values.offset + len(values) + 1]
            before = len(self._values)
            if rest[0] is not None:
                self._values.extend(np.frombuffer(rest[0], np.uint8)[ends[0] : ends[-1]])
            self._ends.extend(ends[1:] - (ends[0] - before))
        self._count += len(values)
        self._view = None

    def view(self) -> pa.Array:
        """Return all values without a copy; what is added later is not in it."""
        if self._view is None:
            buffers = [None, self._values.buffer()]
            if self._ends is not None:
                buffers.insert(1, self._ends.buffer())
            self._view = pa.Array.from_buffers(self.kind, self._count, buffers, null_count=0)
        return self._view

    def take(self, positions: Positions) -> pa.Array:
        """Return the values at some positions."""
        return self.view().take(pa.array(positions))


class _Bytes:
    """A stretch of memory that is doubled when it is full; what was handed out stays as it was."""

    def __init__(self) -> None:
        self._room: npt.NDArray[np.uint8] = np.empty(_FEWEST, np.uint8)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def extend(self, values: npt.NDArray[Any]) -> None:
        added = values.view(np.uint8)
        end = self._used + len(added)
        if end > len(self._room):
            room: npt.NDArray[np.uint8] = np.empty(max(end, 2 * len(self._room)), np.uint8)
            room[: self._used] = self._room[: self._used]
            self._room = room
        self._room[self._used : end] = added
        self._used = end

    def buffer(self) -> pa.Buffer:
        return pa.py_buffer(self._room[: self._used])
