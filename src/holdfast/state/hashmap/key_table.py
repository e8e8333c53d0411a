"""Finding the slots of a whole column of keys at once, without a Python object for any of them.

A dictionary needs each key as an object, hashes it anew, and visits two places in memory that the processor has not in
its caches. Here the hashes that came with the keys are looked up in one small array, and the keys that are found are
compared with the wanted ones column by column, which takes a fifth of the time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.hashmap.placement import Cells
from holdfast.state.probe import Hashes
from holdfast.types.key import KeyCodec

_FEWEST: Final = 1024
_NOTHING: Final = -1


class KeyTable:
    """Knows keys by slot; it may lag behind, and never says a wrong slot.

    Args:
        codec: Of the keys.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec
        self._keys: pa.Array = pa.array([], codec.storage_type)
        # Open addressing with linear probing; never more than half full.
        self._places: npt.NDArray[np.int32] = np.full(_power_above(2 * _FEWEST), _NOTHING, np.int32)

    def __len__(self) -> int:
        return len(self._keys)

    def cover(self, keys: list[object], hashes: Hashes) -> None:
        """Get to know further keys, once they are many.

        Args:
            keys: The keys of all slots; only those that are new are looked at.
            hashes: The hash of each.
        """
        known, count = len(self), len(keys)
        if count - known < max(_FEWEST, known // 8) and (known or count < _FEWEST):
            return
        self._keys = pa.concat_arrays([self._keys, self._codec.storage_array(keys[known:])])
        if 2 * count > len(self._places):
            self._places = np.full(_power_above(4 * count), _NOTHING, np.int32)
            known = 0
        self._insert(np.arange(known, count), hashes)

    def _insert(self, slots: Cells, hashes: Hashes) -> None:
        mask, places = np.uint64(len(self._places) - 1), self._places
        at = hashes[slots] & mask
        while len(slots):
            free = places[at] == _NOTHING
            places[at[free]] = slots[free]  # of several for one place the last one gets it
            rest = places[at] != slots
            slots, at = slots[rest], (at[rest] + np.uint64(1)) & mask

    def find(self, stored: pa.Array, wanted: Hashes, hashes: Hashes) -> Cells:
        """Return the slot of each of some keys, -1 for those that are not known here.

        Args:
            stored: The keys.
            wanted: The hash of each.
            hashes: The hash of the key of each slot.
        """
        if not len(self):
            return np.full(len(wanted), _NOTHING, np.int64)
        mask, places = np.uint64(len(self._places) - 1), self._places
        at = wanted & mask
        found: Cells = places[at].astype(np.int64)
        open_ones = np.flatnonzero((found >= 0) & (hashes[found] != wanted))
        at = at[open_ones]
        while len(open_ones):
            at = (at + np.uint64(1)) & mask
            next_ones = places[at].astype(np.int64)
            found[open_ones] = next_ones
            wrong = (next_ones >= 0) & (hashes[next_ones] != wanted[open_ones])
            open_ones, at = open_ones[wrong], at[wrong]
        same = pc.equal(self._keys.take(pa.array(np.maximum(found, 0))), stored)
        found[~same.to_numpy(zero_copy_only=False)] = _NOTHING
        return found


def _power_above(size: int) -> int:
    return 1 << (size - 1).bit_length()
