"""The keys of the slots, as a column, as objects, or both.

Keys that arrive in a column stay in it: they are found, given slots, looked for in runs and written as columns. Python
objects are made of them when somebody asks for one, of all that are new at once: a function for its current key, a
timer for its own. Keys that arrive as objects, because their column does not tell them apart, are in a dictionary.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.state.hashmap.key_table import KeyTable
from holdfast.state.hashmap.placement import Cells, pick
from holdfast.state.run.lower_bound import Hashes
from holdfast.types.key.abstract_key_codec import KeyCodec

_SAMPLE: Final = 64
_FEWEST: Final = 1024
_ROUNDS: Final = 8
# What a key takes in a list, in a dictionary with its slot, and as a hash.
_IN_LIST: Final = 8
_IN_INDEX: Final = 100
_HASH: Final = 8


class SlotKeys:
    """Keys, each with a slot: 0 for the first, 1 for the second and so on.

    At any time at least one of the two forms has all keys, and the other one those of the first slots.

    Args:
        codec: Of the keys.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec
        self._count = 0
        self._hashes: Hashes = np.empty(_FEWEST, np.uint64)
        self._table = KeyTable(codec.storage_type)
        self._objects: list[Any] = []
        # Asking for a key that is not there gives it the next slot, so known and new keys are found in one pass.
        self._index: defaultdict[Any, int] = defaultdict()

    def __len__(self) -> int:
        return self._count

    @property
    def hashes(self) -> Hashes:
        """The hash of the key of each slot; there may be more at its end, which mean nothing."""
        return self._hashes

    # Finding, and giving slots.

    def slots_of(self, keys: Sequence[Any], hashes: Hashes) -> list[int]:
        """Return the slot of each key; new keys get the next ones.

        Args:
            keys: Dict keys.
            hashes: The hash of each.
        """
        index, before = self._complete_index(), self._count
        slots = list(map(index.__getitem__, keys))
        if len(index) > before:
            if len(keys) == 1:  # it was made the current one by itself: columns would take ten times as long
                self._objects.append(keys[0])
                self._add_hashes(hashes)
                return slots
            # New keys got ascending slots, so one comes for the first time where more is reached than before.
            reached = np.maximum.accumulate(np.maximum(np.array(slots, np.int64), before - 1))
            first = np.flatnonzero(np.diff(reached, prepend=before - 1))
            self._objects += pick(keys, first.tolist())
            self._add_hashes(np.asarray(hashes, np.uint64)[first])
        return slots

    def slots_of_column(self, stored: pa.Array, hashes: Hashes) -> Cells:
        """Return the slot of each key of a column that tells keys apart; new keys get the next ones.

        Args:
            stored: The keys as files have them.
            hashes: The hash of each.
        """
        slots = self.find_column(stored, hashes)
        rounds = 0
        while len(unknown := np.flatnonzero(slots < 0)):
            rounds += 1
            if rounds > _ROUNDS:
                # Somebody has made keys that share a hash: a dictionary tells them apart by another one.
                slots[unknown] = self.slots_of(
                    self._codec.from_storage(stored.take(pa.array(unknown))), hashes[unknown]
                )
                break
            new, first, which = np.unique(hashes[unknown], return_index=True, return_inverse=True)
            start = self._count
            self._add_hashes(new)
            self._table.append(stored.take(pa.array(unknown[first])), self._hashes)
            slots[unknown] = start + which
            if len(new) < len(unknown):
                # Their key came in another row before, or only one with the same hash: then it gets a slot next.
                rows = np.delete(unknown, first)
                slots[rows] = self._table.find(stored.take(pa.array(rows)), hashes[rows], self._hashes)
        return slots

    def find(self, keys: Sequence[Any]) -> Cells:
        """Return the slot of each dict key, -1 for those that have none."""
        return np.fromiter(map(self._complete_index().get, keys, repeat(-1)), np.int64, len(keys))

    def find_column(self, stored: pa.Array, hashes: Hashes) -> Cells:
        """Return the slot of each key of a column that tells keys apart, -1 for those that have none."""
        covered = len(self._table)
        if covered < self._count:
            self._table.append(self._codec.storage_array(self._objects[covered:]), self._hashes)
        return self._table.find(stored, hashes, self._hashes)

    # What they are.

    def __getitem__(self, slot: int) -> Any:
        """The dict key of a slot."""
        if slot >= len(self._objects):
            self._make_objects()
        return self._objects[slot]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make_objects())

    def objects(self, slots: Cells) -> list[Any]:
        """Return the dict keys of some slots."""
        return pick(self._make_objects(), slots.tolist())

    def stored(self, slots: Cells) -> pa.Array:
        """Return the keys of some slots as files have them."""
        keys = self.some(slots)
        return keys if isinstance(keys, pa.Array) else self._codec.storage_array(keys)

    def some(self, slots: Cells) -> Sequence[Any] | pa.Array:
        """Return the keys of some slots in a form that is there: as files have them, or as dict keys."""
        return self._table.take(slots) if len(self._table) == self._count else self.objects(slots)

    def keep(self, slots: Cells) -> None:
        """Forget all other slots, and number the rest, given ascending, anew in order."""
        stored = self._table.wide(slots) if len(self._table) == self._count else None
        self._objects = pick(self._objects, slots.tolist()) if len(self._objects) == self._count else []
        self._index = defaultdict()
        self._hashes = np.concatenate([self._hashes[slots], np.empty(_FEWEST, np.uint64)])
        self._count = len(slots)
        self._table = KeyTable(self._codec.storage_type)
        if stored is not None:
            self._table.append(stored, self._hashes)

    def estimated_bytes(self) -> int:
        """Return about how much memory they take."""
        objects = self._objects
        sample = objects[:: max(1, len(objects) // _SAMPLE)]
        size = sum(map(sys.getsizeof, sample)) / max(1, len(sample))
        in_objects = len(objects) * (_IN_LIST + size) + len(self._index) * _IN_INDEX
        return int(self._count * _HASH + self._table.nbytes + in_objects)

    # Parts.

    def _add_hashes(self, hashes: Hashes) -> None:
        end = self._count + len(hashes)
        if end > len(self._hashes):
            grown: Hashes = np.empty(max(end, 2 * len(self._hashes)), np.uint64)
            grown[: self._count] = self._hashes[: self._count]
            self._hashes = grown
        self._hashes[self._count : end] = hashes
        self._count = end

    def _make_objects(self) -> list[Any]:
        known = len(self._objects)
        if known < self._count:
            for keys in self._table.keys(known):
                self._objects += self._codec.from_storage(keys)
        return self._objects

    def _complete_index(self) -> defaultdict[Any, int]:
        index = self._index
        if len(index) < self._count:
            index.update(zip(self._make_objects()[len(index) :], count(len(index)), strict=False))
        index.default_factory = count(self._count).__next__
        return index
