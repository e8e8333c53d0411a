"""What is known of the keys of one subtask: their slots, and the cells of each state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from holdfast.state.hashmap.column import Column
from holdfast.state.hashmap.placement import Cells, SlotPlacement
from holdfast.state.hashmap.slot_keys import SlotKeys
from holdfast.state.layout.value_size import average_size
from holdfast.state.run.lineage import Lineage
from holdfast.state.run.lower_bound import Hashes
from holdfast.state.run.probe import Stretch, Wanted
from holdfast.types.key.abstract_key_codec import KeyCodec

# Its place in a list, and two bytes.
_CELL_BYTES: Final = 16
_EMPTY_KEYS_KEPT: Final = 1024

Stretches = Mapping[str, Sequence[Stretch]]


class Store:
    """The loaded keys of one subtask.

    Attributes:
        codec: Of the keys.
        keys: Key of each slot. Those that were given a slot since the last `load` have nothing in their cells yet.
        columns: The cells of each state.
        content: The runs whose content is in the cells.
        before_own: The same without the run that the last task wrote; None if no task has written one since the store
            was brought up to a version.
        flushed: The slots that this run is about; None if there is none.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self.codec = codec
        self.keys = SlotKeys(codec)
        self.columns: dict[str, Column] = {}
        self.content = Lineage()
        self.before_own: Lineage | None = None
        self.flushed: Cells | None = None
        self._may_be_empty: Cells = np.empty(0, np.int64)
        self._seen = 0

    def __len__(self) -> int:
        return len(self.keys)

    def slots_of(self, cells: Mapping[str, Cells]) -> Cells:
        """Return the slots that some cells of some states belong to, ascending, each once."""
        found = np.zeros(len(self.keys), bool)
        for name, of_state in cells.items():
            found[self.columns[name].placement.slots_of(of_state)] = True
        return np.flatnonzero(found)

    def begin(self, content: Lineage) -> None:
        """The cells are those of a version."""
        self.content, self.before_own, self.flushed = content, None, None

    def wrote(self, run: Lineage, flushed: Cells) -> None:
        """What has changed since the last run was written as another one.

        Args:
            run: The run.
            flushed: The slots that it is about.
        """
        self.before_own, self.content, self.flushed = self.content, self.content + run, flushed

    def hashes_of(self, slots: Cells) -> Hashes:
        """Return the hash of the key of each slot."""
        return self.keys.hashes[slots]

    def load(self, start: int, columns: Iterable[Column], stretches: Stretches) -> None:
        """Load the new keys, to which slots have just been given.

        Args:
            start: The first of these slots.
            columns: The states to load; others of the store stay behind until they are asked for.
            stretches: Rows of each state in the runs of the version, newest first.
        """
        wanted = None
        for column in columns:
            found = stretches.get(column.layout.name, ())
            column.cover(len(self.keys))
            if found:
                wanted = self._wanted(np.arange(start, len(self.keys))) if wanted is None else wanted
                column.load(found, wanted, wanted.order + start)

    def complete(self, column: Column, stretches: Sequence[Stretch]) -> None:
        """Load what a state has not loaded yet of the known keys."""
        start, end = column.covered, len(self.keys)
        column.cover(end)
        if start < end and stretches:
            wanted = self._wanted(np.arange(start, end))
            column.load(stretches, wanted, wanted.order + start)

    def catch_up(self, stretches: Stretches) -> None:
        """Bring what newer runs say about known keys into their cells.

        Args:
            stretches: Rows of each state in the runs that were missed, newest first.
        """
        for name, column in list(self.columns.items()):
            missed = stretches.get(name, ())
            if not all(column.layout.can_read(stretch.segment.entry.schema) for stretch in missed):
                del self.columns[name]
                continue
            if column.rows_are_whole and column.layout.namespace is None:
                self._follow(column, missed)
                continue
            slots = self._known_in(missed)
            slots = slots[slots < column.covered]
            if len(slots):
                self._load(column, missed, slots)

    def _follow(self, column: Column, missed: Sequence[Stretch]) -> None:
        """Take every row of newer runs about a known key as what is in its cell."""
        for stretch in reversed(missed):
            slots = self._slots_in(stretch)
            rows = np.flatnonzero((slots >= 0) & (slots < column.covered))
            column.take_rows(stretch.segment, rows + stretch.rows.start, slots[rows])

    def reload(self, slots: Cells, stretches: Stretches) -> None:
        """Forget what is in the cells of some slots and load them from all runs of the version."""
        for name, column in list(self.columns.items()):
            rows = stretches.get(name, ())
            if not all(column.layout.can_read(stretch.segment.entry.schema) for stretch in rows):
                del self.columns[name]
                continue
            covered = slots[slots < column.covered]
            column.forget(covered)
            if len(covered):
                self._load(column, rows, covered)

    def known_in(self, stretches: Stretches) -> Cells:
        """Return the slots of the known keys that some rows are about."""
        found = [self._known_in(rows) for rows in stretches.values()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def _load(self, column: Column, stretches: Sequence[Stretch], slots: Cells) -> None:
        wanted = self._wanted(slots)
        column.load(stretches, wanted, slots[wanted.order])

    def _wanted(self, slots: Cells) -> Wanted:
        return Wanted(self.codec, self.keys.some(slots), self.keys.hashes[slots])

    def _known_in(self, stretches: Sequence[Stretch]) -> Cells:
        found = np.zeros(len(self.keys) + 1, bool)
        for stretch in stretches:
            found[self._slots_in(stretch)] = True
        return np.flatnonzero(found[:-1])  # the last one stands for keys that are not known

    def _slots_in(self, stretch: Stretch) -> Cells:
        """Return for each row the slot of its key, -1 for a key that is not known."""
        stored = self.codec.telling_stored(stretch.stored_keys)
        if stored is None:
            return self.keys.find(stretch.dict_keys(self.codec))
        return self.keys.find_column(stored, stretch.hash)

    def sort(self, cells: Cells, placement: SlotPlacement) -> Cells:
        """Return cells in the order in which their rows stand in a segment: by hash, key and namespace."""
        slots = placement.slots_of(cells)
        hashes = self.keys.hashes[slots]
        namespaces = placement.namespaces_of(cells)
        if namespaces is None:
            order = np.argsort(hashes)
        else:
            ranks = np.unique(np.array(namespaces, object), return_inverse=True)[1] if namespaces else cells
            order = np.lexsort((ranks, hashes))
        hashes, slots = hashes[order], slots[order]
        if ((hashes[1:] == hashes[:-1]) & (slots[1:] != slots[:-1])).any():
            order = self._sort_by_key(cells, placement)
        return cells[order]

    def _sort_by_key(self, cells: Cells, placement: SlotPlacement) -> Cells:
        """The slow way, where different keys have the same hash."""
        slots = placement.slots_of(cells)
        keys = [self.codec.canonical_bytes(key) for key in self.keys.objects(slots)]
        namespaces = placement.namespaces_of(cells) or [b""] * len(cells)
        by = list(zip(self.keys.hashes[slots].tolist(), keys, namespaces, strict=True))
        return np.array(sorted(range(len(by)), key=by.__getitem__), np.int64)

    def look_for_empty(self, touched: Cells) -> None:
        """Remember which keys have nothing in any state.

        Args:
            touched: Slots that may have become empty; those that are new since the last call are looked at anyway.
        """
        candidates = np.zeros(len(self.keys), bool)
        candidates[touched] = candidates[self._may_be_empty] = candidates[self._seen :] = True
        self._may_be_empty = self._empty(np.flatnonzero(candidates))
        self._seen = len(self.keys)

    def drop_empty(self) -> None:
        """Forget keys that have nothing in any state, once there are many of them."""
        if len(self._may_be_empty) > max(_EMPTY_KEYS_KEPT, len(self.keys) // 4):
            kept = np.ones(len(self.keys), bool)
            kept[self._may_be_empty] = False
            self.keep(np.flatnonzero(kept))
        for column in self.columns.values():
            column.drop_empty_cells()

    def _empty(self, slots: Cells) -> Cells:
        for column in self.columns.values():
            slots = slots[column.absent(slots)]
        return slots

    def keep(self, slots: Cells) -> None:
        """Forget all but some slots, given ascending; they are numbered anew in order."""
        self.keys.keep(slots)
        if self.flushed is not None:
            self.flushed = np.flatnonzero(np.isin(slots, self.flushed))
        for column in self.columns.values():
            column.keep(slots)
        self._may_be_empty = self._may_be_empty[:0]
        self._seen = len(self.keys)

    def estimated_bytes(self) -> int:
        """Return about how much memory the store takes, from a sample of its keys and values."""
        total: float = self.keys.estimated_bytes()
        for column in self.columns.values():
            total += len(column.values) * (_CELL_BYTES + average_size(column.values))
        return int(total)
