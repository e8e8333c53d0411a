"""Cells of list and map state that read what they have when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.state.columnar.stored_list import StoredList
from holdfast.state.columnar.stored_map import MapPart, StoredMap
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.hashmap.collection_column import ListColumn, MapColumn
from holdfast.state.hashmap.column import Column, ScalarColumn
from holdfast.state.hashmap.placement import Cells
from holdfast.state.layout.column_layout import OP, Op, StateLayout
from holdfast.state.run.lower_bound import Hashes
from holdfast.state.run.probe import KEY, Stretch, Wanted
from holdfast.types.key.abstract_key_codec import KeyCodec

_SMALL_MAP: Final = 256
"""Maps of fewer rows are read whole, many in one go, which costs less than looking for a few entries one by one."""


class StoredListColumn(ListColumn):
    """Lists: adding reads nothing."""

    def load(self, stretches: Sequence[Stretch], wanted: Wanted, slots: Cells) -> None:
        """Give each key a list that will read what the runs say about it."""
        codec = self.layout.key
        for key, hash64, slot in zip(wanted.keys, wanted.hashes, slots.tolist(), strict=True):
            self.values[slot] = StoredList(_Reader(ListColumn(self.layout), stretches, codec, key, hash64).read_list)
        self._mark_stored(slots, np.ones(len(slots), bool))

    def filled(self) -> Cells:
        """Return the cells that have something; reads them."""
        return np.array([cell for cell, value in enumerate(self.values) if value], np.int64)


class StoredMapColumn(MapColumn):
    """Maps: small ones are read whole, of large ones the entries that are asked for."""

    def load(self, stretches: Sequence[Stretch], wanted: Wanted, slots: Cells) -> None:
        """Read small maps, and give the keys of large ones a map that reads entries."""
        large = self._large(stretches, wanted)
        if not len(large):
            super().load(stretches, wanted, slots)
            return
        small = np.ones(len(wanted), bool)
        for position in large.tolist():
            stored = self._stored_map(stretches, wanted.keys[position], wanted.hashes[position])
            if stored is not None:
                small[position] = False
                self.values[slots[position]] = stored if stored else None
        self._mark_stored(slots[~small], np.ones(len(slots) - int(small.sum()), bool))
        rest = np.flatnonzero(small)
        if len(rest):
            part = Wanted(self.layout.key, wanted.array.take(pa.array(rest)), wanted.hashes[rest])
            super().load(stretches, part, slots[rest][part.order])

    def _large(self, stretches: Sequence[Stretch], wanted: Wanted) -> Cells:
        rows = np.zeros(len(wanted), np.int64)
        for stretch in stretches:
            first = np.searchsorted(stretch.hash, wanted.hashes)
            rows += np.searchsorted(stretch.hash, wanted.hashes, side="right") - first
        return np.flatnonzero(rows > _SMALL_MAP)

    def _stored_map(self, stretches: Sequence[Stretch], key: Any, hash64: Any) -> StoredMap | None:
        """Return the map of a key; None if other keys have the same hash."""
        codec = self.layout.key
        parts = []
        for stretch in stretches:
            first, end = (int(np.searchsorted(stretch.hash, hash64, side=side)) for side in ("left", "right"))
            if first == end:
                continue
            first, end = first + stretch.rows.start, end + stretch.rows.start
            ends = stretch.segment.table.column(KEY).take(pa.array([first, end - 1])).combine_chunks()
            if codec.from_storage(ends) != [key, key]:
                return None
            is_cleared = stretch.segment.table.column(OP).chunk(0)[first].as_py() == Op.CLEAR
            parts.append(MapPart(stretch.segment, first + is_cleared, end))
            if is_cleared:
                break
        reader = _Reader(MapColumn(self.layout), stretches, codec, key, hash64)
        return StoredMap(self.layout, parts, reader.read_map)

    def filled(self) -> Cells:
        """Return the cells that have something."""
        return np.array([cell for cell, value in enumerate(self.values) if value], np.int64)


class _Reader:
    """Reads what some runs say about one key."""

    def __init__(
        self, column: Column, stretches: Sequence[Stretch], codec: KeyCodec, key: Any, hash64: np.uint64
    ) -> None:
        self._column = column
        self._stretches = stretches
        self._codec = codec
        self._key = key
        self._hash = hash64

    def read_list(self) -> list[Any]:
        return self._read() or []

    def read_map(self) -> dict[Any, Any]:
        return self._read() or {}

    def _read(self) -> Any:
        hashes: Hashes = np.array([self._hash], np.uint64)
        self._column.cover(1)
        self._column.load(self._stretches, Wanted(self._codec, [self._key], hashes), np.zeros(1, np.int64))
        return self._column.values[0]


def stored_column_for(layout: StateLayout) -> Column:
    """Return an empty column for a state.

    State in namespaces is read whole, because which namespaces a key has is known by reading only, and so is state
    that expires, because reading is what lets it expire.
    """
    is_plain = layout.namespace is None and not layout.ttl
    if layout.kind is StateKind.LIST:
        return StoredListColumn(layout) if is_plain else ListColumn(layout)
    if layout.kind is StateKind.MAP:
        return StoredMapColumn(layout) if is_plain and _is_searchable(layout) else MapColumn(layout)
    return ScalarColumn(layout)


def _is_searchable(layout: StateLayout) -> bool:
    """Whether map keys compare in Python as they are sorted in runs."""
    assert layout.map_key is not None
    stored = layout.map_key.storage_type
    return bool(pa.types.is_integer(stored) or pa.types.is_string(stored) or pa.types.is_binary(stored))
