"""Timers as columns: those that are set, deleted and fired by the thousand, and those that lie in runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.types.key.abstract_key_codec import KeyCodec

Rows = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]
Names = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Ops = npt.NDArray[np.int8]

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD: Final = np.uint64(0xC2B2AE3D27D4EB4F)


class Timer(NamedTuple):
    """One timer; timers are the same if time, key and namespace are.

    Attributes:
        timestamp: When it is due.
        key: In the form of the key codec.
        namespace: Encoded; empty for timers without.
    """

    timestamp: int
    key: Any
    namespace: bytes = b""


class NameTable:
    """Numbers for the encoded namespaces of a queue, of which there are few."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._names: list[bytes] = []

    def number(self, name: bytes) -> int:
        """Return the number of a namespace, a new one at the first call."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def numbers(self, column: pa.Array) -> Names:
        """Return the number of each namespace of a column of bytes, which may be encoded as a dictionary."""
        encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
        of_distinct = np.array([self.number(name) for name in encoded.dictionary.to_pylist()], np.int64)
        numbers: Names = of_distinct[encoded.indices.to_numpy()]
        return numbers

    def column(self, numbers: Names) -> pa.DictionaryArray:
        """Return the namespaces of some numbers, as a dictionary of those that are there."""
        distinct, places = np.unique(numbers, return_inverse=True)
        names = pa.array(self.names(distinct), pa.binary())
        return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), names)

    def names(self, numbers: Names) -> list[bytes]:
        """Return the namespaces of some numbers."""
        return [self._names[number] for number in numbers.tolist()]


class TimerRows:
    """Timers, and what is said about each.

    Attributes:
        hashes: The hash of each key.
        times: When each is due.
        keys: As files have them.
        names: The number of each namespace.
        ops: Whether it is put or deleted.
    """

    def __init__(self, hashes: Hashes, times: Times, keys: pa.Array, names: Names, ops: Ops) -> None:
        self.hashes, self.times, self.keys, self.names, self.ops = hashes, times, keys, names, ops

    @classmethod
    def together(cls, parts: Sequence[TimerRows]) -> TimerRows:
        """Return the rows of one or several parts."""
        if len(parts) == 1:
            return parts[0]
        hashes, times, names, ops = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("hashes", "times", "names", "ops")
        )
        return cls(hashes, times, pa.concat_arrays([part.keys for part in parts]), names, ops)

    def __len__(self) -> int:
        return len(self.times)

    def take(self, rows: Rows) -> TimerRows:
        """Return the rows at some positions."""
        keys = self.keys.take(pa.array(rows))
        return TimerRows(self.hashes[rows], self.times[rows], keys, self.names[rows], self.ops[rows])

    def where(self, mask: npt.NDArray[np.bool_]) -> TimerRows:
        """Return the rows that are marked."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def rows_of(self, hash64: int) -> Rows:
        """Return the rows of the keys with a hash."""
        order, hashes = self._by_hash
        begin, end = (np.searchsorted(hashes, np.uint64(hash64), side) for side in ("left", "right"))
        return order[begin:end]

    def newest(self, codec: KeyCodec) -> Rows:
        """Return the last row about each timer, in order."""
        codes = self.hashes + self.times.view(np.uint64) * _ODD + self.names.view(np.uint64) * _OTHER_ODD
        encoded = pa.array(codes).dictionary_encode()
        numbers, every = encoded.indices.to_numpy(), np.arange(len(codes))
        last = np.empty(len(encoded.dictionary), np.int64)
        last[numbers] = every  # of the rows of one number the last one stays
        again = np.flatnonzero(last[numbers] != every)
        if self._are_same(again, last[numbers[again]]):
            return np.sort(last)
        timers = zip(self.times.tolist(), self.names.tolist(), codec.from_storage(self.keys), strict=True)
        found = {timer: row for row, timer in enumerate(timers)}
        return np.sort(np.fromiter(found.values(), np.int64, len(found)))

    def _are_same(self, rows: Rows, others: Rows) -> bool:
        """Whether rows are about the timers of others, as far as columns tell; else their keys tell."""
        for column in (self.times, self.names, self.hashes):
            if (column[rows] != column[others]).any():
                return False
        same = pc.equal(self.keys.take(pa.array(rows)), self.keys.take(pa.array(others)))
        return bool(pc.all(same, min_count=0).as_py())

    @cached_property
    def _by_hash(self) -> tuple[Rows, Hashes]:
        order = np.argsort(self.hashes, kind="stable")
        return order, self.hashes[order]
