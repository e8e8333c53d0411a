"""Where many hashes stand in a long sorted column of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.run_file import Segment
from holdfast.types.key_codec import KeyCodec

Positions = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# Below these a binary search is as fast.
_LONG: Final = 1 << 19
_MANY: Final = 1_000
_GUESSES: Final = 4
_STEPS: Final = 16


def lower_bounds(stored: Hashes, wanted: Hashes) -> Positions:
    """Return for each wanted hash the first position whose hash is not less, as `np.searchsorted` does.

    Hashes are spread evenly, so where one stands follows from how far it is from another: with five million a few
    guesses come closer than a binary search does with twenty looks, most of which the processor waits for. Where they
    are not (many rows of one key, or somebody has chosen the keys) what is not found near its place is searched for.

    Args:
        stored: Ascending, not empty.
        wanted: None of them below the first or above the last that is stored.
    """
    if len(stored) < _LONG or len(wanted) < _MANY:
        return np.searchsorted(stored, wanted)
    last = len(stored) - 1
    by_hash = last / max(1.0, float(stored[-1] - stored[0]))
    at: Positions = ((wanted - stored[0]) * by_hash).astype(np.int64)
    for _ in range(_GUESSES):
        at += ((wanted - stored.take(at, mode="clip")).view(np.int64) * by_hash).astype(np.int64)
    np.clip(at, 0, last, out=at)
    is_before = stored.take(at) < wanted
    missed = [_up(stored, wanted, at, np.flatnonzero(is_before)), _down(stored, wanted, at, np.flatnonzero(~is_before))]
    rest = np.concatenate(missed)
    at[rest] = np.searchsorted(stored, wanted[rest])
    return at


def _up(stored: Hashes, wanted: Hashes, at: Positions, rest: Positions) -> Positions:
    """Move positions whose hash is less on to the first whose is not; return those that are too far from it."""
    for _ in range(_STEPS):
        if not len(rest):
            break
        at[rest] += 1
        rest = rest[stored.take(at[rest]) < wanted[rest]]
    return rest


def _down(stored: Hashes, wanted: Hashes, at: Positions, rest: Positions) -> Positions:
    """Move positions back while the one before is not less, either; return those that are too far from their place."""
    for _ in range(_STEPS):
        before = at[rest] - 1
        rest = rest[(before >= 0) & (stored.take(before, mode="clip") >= wanted[rest])]
        if not len(rest):
            break
        at[rest] -= 1
    return rest


# Finding the rows of many keys in a run at once.

KEY: Final = "key"


class Matches(NamedTuple):
    """Rows of a segment and the wanted key that each belongs to; rows of one key stand together, in order."""

    wanted: Positions
    rows: Positions


@dataclass(frozen=True)
class SegmentSlice:
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


class KeyProbe:
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

    def find(self, stretch: SegmentSlice, among: Positions) -> Matches:
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
            return Matches(found, found)
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
        return Matches(wanted, rows) if same is None else Matches(wanted[same], rows[same])

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
