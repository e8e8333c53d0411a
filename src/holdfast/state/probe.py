"""Lookup of many keys in a run at once, by their hashes."""

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

# Below these sizes a binary search is as fast.
_LONG: Final = 1 << 19
_MANY: Final = 1_000
_GUESSES: Final = 4
_STEPS: Final = 16
KEY: Final = "key"


def lower_bounds(stored: Hashes, wanted: Hashes) -> Positions:
    """Return the first position whose hash is not less than each key's hash, as `np.searchsorted` does.

    Hashes are uniformly distributed, so a position can be interpolated: with five million hashes a few guesses come
    closer than twenty steps of a binary search, each of which misses the processor's cache. Where hashes are not
    uniform (many rows of one key, or chosen keys), positions that are not found near the guess are searched for.

    Args:
        stored: Ascending, not empty.
        wanted: No hash below the first or above the last stored one.
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
    """Move positions up to the first hash that is not less; return those that are too far away."""
    for _ in range(_STEPS):
        if not len(rest):
            break
        at[rest] += 1
        rest = rest[stored.take(at[rest]) < wanted[rest]]
    return rest


def _down(stored: Hashes, wanted: Hashes, at: Positions, rest: Positions) -> Positions:
    """Move positions down while the hash before is not less; return those that are too far away."""
    for _ in range(_STEPS):
        before = at[rest] - 1
        rest = rest[(before >= 0) & (stored.take(before, mode="clip") >= wanted[rest])]
        if not len(rest):
            break
        at[rest] -= 1
    return rest


class Matches(NamedTuple):
    """Rows of a segment, and the position of the key of each; rows of one key are adjacent and in order."""

    wanted: Positions
    rows: Positions


@dataclass(frozen=True)
class SegmentSlice:
    """The rows of a segment that belong to a range of key groups."""

    segment: Segment
    rows: slice

    @cached_property
    def hash(self) -> Hashes:
        return self.segment.hash[self.rows]

    @cached_property
    def keys(self) -> pa.ChunkedArray:
        """The key column of the whole segment."""
        return self.segment.table.column(KEY)

    @property
    def stored_keys(self) -> pa.Array:
        """The key of each row, in storage form."""
        return self.keys.slice(self.rows.start, len(self.hash)).combine_chunks()

    def dict_keys(self, codec: KeyCodec) -> list[Any]:
        return codec.from_storage(self.stored_keys)


class KeyProbe:
    """Distinct keys to look up, sorted by hash.

    Args:
        codec: Codec of the keys.
        keys: Dict keys, or a column of keys in storage form; the other form is created on demand.
        hashes: The hash of each key.
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
        """The dict keys, sorted by hash."""
        keys = self._unsorted
        if isinstance(keys, pa.Array):
            return self._codec.from_storage(self.array)
        return [keys[position] for position in self.order.tolist()]

    @cached_property
    def array(self) -> pa.Array:
        """The keys in storage form, sorted by hash."""
        keys = self._unsorted
        stored = keys if isinstance(keys, pa.Array) else self._codec.storage_array(keys)
        return stored.take(pa.array(self.order))

    def all_positions(self) -> Positions:
        return np.arange(len(self.order))

    def find(self, segment_slice: SegmentSlice, among: Positions) -> Matches:
        """Return the rows of some of the keys, without rows of other keys with the same hash.

        Args:
            segment_slice: The rows to search.
            among: Positions of the keys to look up, ascending.
        """
        stored = segment_slice.hash
        # Runs of a large state cover different ranges of hashes: skip keys outside the range of this one.
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
        rows = rows + segment_slice.rows.start
        same = self._same(segment_slice.keys.take(pa.array(rows)), wanted)
        return Matches(wanted, rows) if same is None else Matches(wanted[same], rows[same])

    def _same(self, stored: pa.ChunkedArray, wanted: Positions) -> Positions | None:
        """Return the positions of stored keys that equal the wanted ones; None if all do."""
        equal = pc.equal(stored, self.array.take(pa.array(wanted)))
        if pc.all(equal, min_count=0).as_py():
            return None
        mask = equal.combine_chunks().to_numpy(zero_copy_only=False)
        # NaN does not equal itself in Arrow, but is equal as a dict key. Compare the few unequal rows in Python.
        unequal = np.flatnonzero(~mask)
        keys = self._codec.from_storage(stored.take(pa.array(unequal)).combine_chunks())
        for position, key in zip(unequal.tolist(), keys, strict=True):
            mask[position] = key == self.keys[wanted[position]]
        return np.flatnonzero(mask)
