"""Finding the rows of many keys in a run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.run.lower_bound import Hashes, Positions, lower_bounds
from holdfast.state.run.run_file import Segment
from holdfast.types.key.abstract_key_codec import KeyCodec

KEY: Final = "key"


class Hits(NamedTuple):
    """Rows of a segment and the wanted key that each belongs to; rows of one key stand together, in order."""

    wanted: Positions
    rows: Positions


@dataclass(frozen=True)
class Stretch:
    """The rows of a segment that belong to a range of key groups."""

    segment: Segment
    rows: slice

    @cached_property
    def hash(self) -> Hashes:
        """The hash of each of the rows."""
        return self.segment.hash[self.rows]

    @cached_property
    def keys(self) -> pa.ChunkedArray:
        """The column of keys of the whole segment."""
        return self.segment.table.column(KEY)

    @property
    def stored_keys(self) -> pa.Array:
        """The key of each of the rows, as the file has it."""
        return self.keys.slice(self.rows.start, len(self.hash)).combine_chunks()

    def dict_keys(self, codec: KeyCodec) -> list[Any]:
        """Return the key of each of the rows."""
        return codec.from_storage(self.stored_keys)


class Wanted:
    """Distinct keys that are looked for, sorted by hash.

    Args:
        codec: Of the keys.
        keys: Dict keys, or the keys as files have them; the other form is made when it is needed.
        hashes: The hash of each.
    """

    def __init__(self, codec: KeyCodec, keys: Sequence[Any] | pa.Array, hashes: Hashes) -> None:
        self._codec = codec
        self.order: Positions = np.argsort(hashes, kind="stable")
        self.hashes = hashes[self.order]
        self._unsorted = keys

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def keys(self) -> list[Any]:
        """The dict keys in order of their hashes."""
        keys = self._unsorted
        if isinstance(keys, pa.Array):
            return self._codec.from_storage(self.array)
        return [keys[position] for position in self.order.tolist()]

    @cached_property
    def array(self) -> pa.Array:
        """The keys as they are stored, in order of their hashes."""
        keys = self._unsorted
        stored = keys if isinstance(keys, pa.Array) else self._codec.storage_array(keys)
        return stored.take(pa.array(self.order))

    def everything(self) -> Positions:
        """The positions of all keys in this order."""
        return np.arange(len(self.order))

    def find(self, stretch: Stretch, among: Positions) -> Hits:
        """Return the rows of some of the keys; rows of another key with the same hash are passed over.

        Args:
            stretch: Where to look.
            among: Positions of the keys to look for, ascending.
        """
        stored = stretch.hash
        # A state has several runs side by side once it is large; only keys between the ends of this one are in it.
        hashes = self.hashes[among]
        begin, end = np.searchsorted(hashes, stored[0]), np.searchsorted(hashes, stored[-1], side="right")
        among, hashes = among[begin:end], hashes[begin:end]
        first = lower_bounds(stored, hashes)
        found = np.flatnonzero(stored[first] == hashes)
        if not len(found):
            return Hits(found, found)
        first, hashes, wanted = first[found], hashes[found], among[found]
        after = np.minimum(first + 1, len(stored) - 1)
        if ((stored[after] == hashes) & (after > first)).any():
            count = np.searchsorted(stored, hashes, side="right") - first
            starts = np.cumsum(count) - count
            wanted = np.repeat(wanted, count)
            rows = np.repeat(first - starts, count) + np.arange(len(wanted))
        else:
            rows = first
        rows = rows + stretch.rows.start
        same = self._same(stretch.keys.take(pa.array(rows)), wanted)
        return Hits(wanted, rows) if same is None else Hits(wanted[same], rows[same])

    def _same(self, stored: pa.ChunkedArray, wanted: Positions) -> Positions | None:
        """Which of the stored keys are the wanted ones; None stands for all."""
        equal = pc.equal(stored, self.array.take(pa.array(wanted)))
        if pc.all(equal, min_count=0).as_py():
            return None
        mask = equal.combine_chunks().to_numpy(zero_copy_only=False)
        # NaN is a key like any other, but does not equal itself in a column.
        unequal = np.flatnonzero(~mask)
        keys = self._codec.from_storage(stored.take(pa.array(unequal)).combine_chunks())
        for position, key in zip(unequal.tolist(), keys, strict=True):
            mask[position] = key == self.keys[wanted[position]]
        return np.flatnonzero(mask)
