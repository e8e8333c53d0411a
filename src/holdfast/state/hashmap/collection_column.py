"""The cells of list and map state, which are written piece by piece."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError, OutputTypeError
from holdfast.state.hashmap.column import CellOwner, Column, Mask
from holdfast.state.hashmap.placement import Cells, pick
from holdfast.state.layout.column_layout import MAP_KEY, OP, Op, StateLayout
from holdfast.state.layout.value_size import average_size
from holdfast.state.run.batch import made_in_pieces, taken
from holdfast.state.run.run_file import Segment
from holdfast.state.run.run_writer import SegmentData

REWRITTEN: Final = -1
"""Marks a list of which not only the end has changed."""
_GONE: Final = object()


class ListColumn(Column):
    """Cells with lists.

    Attributes:
        pending: The cells that were written since the last flush; for each the number of elements that were there
            before, or `REWRITTEN`.
    """

    def __init__(self, layout: StateLayout) -> None:
        super().__init__(layout)
        self.pending: dict[int, int] = {}
        self._parts: dict[int, list[list[Any]]] = {}
        self._replaced: set[int] = set()

    def _take(self, segment: Segment, rows: Cells, cells: Cells) -> Mask:
        taken = pa.array(rows)
        ops = segment.table.column(OP).take(taken).to_numpy()
        ended: Mask = ops != Op.APPEND
        for cell, part in zip(cells.tolist(), self.layout.decode(segment, taken), strict=True):
            self._parts.setdefault(cell, []).append(part)
        self._replaced.update(cells[ended].tolist())
        self._mark_stored(cells, np.ones(len(cells), bool))
        return ended

    def _finish(self) -> None:
        for cell, parts in self._parts.items():
            whole = [] if cell in self._replaced else list(self.values[cell] or ())
            for part in reversed(parts):
                whole += part
            self.values[cell] = whole or None
        self._parts.clear()
        self._replaced.clear()

    def changed(self) -> Cells:
        """Return the cells that were written."""
        return np.array(sorted(self.pending), np.int64)

    def snapshot(self, store: CellOwner, uid: str) -> SegmentData | None:
        """Return one row for each cell that was written: put, append, or delete."""
        cells = store.sort(self.changed(), self.placement)
        stored = self._is_stored(cells)
        lists: list[list[Any] | None] = []
        ops: list[int] = []
        for cell, known in zip(cells.tolist(), stored.tolist(), strict=True):
            elements, start = self.values[cell], self.pending[cell]
            if start != REWRITTEN and known:
                lists.append(elements[start:])
                ops.append(Op.APPEND)
            else:
                lists.append(elements)
                ops.append(Op.PUT if elements else Op.DELETE)
        codes = np.array(ops, np.int8)
        keep = (codes != Op.DELETE) | stored
        if not keep.any():
            return None
        kept = pick(lists, np.flatnonzero(keep).tolist())
        cells, codes = cells[keep], codes[keep]

        def rows(at: Cells) -> pa.Table:
            some = cells[at]
            columns = self._encoded(store, uid, pick(kept, at.tolist()), self.placement.slots_of(some), lists=True)
            return self._rows(store, some, codes[at], columns)

        return self._segment(made_in_pieces(np.arange(len(cells)), len(kept) * average_size(kept), rows))

    def settle(self) -> None:
        """The last snapshot was written."""
        super().settle()
        cells = self.changed()
        self._mark_stored(cells, np.array([self.values[cell] is not None for cell in cells.tolist()], bool))
        self.pending.clear()

    def keep(self, slots: Cells) -> Cells:
        """Forget all but some slots."""
        cells = super().keep(slots)
        _renumber(self.pending, cells)
        return cells


class MapColumn(Column):
    """Cells with maps from dict keys of the map's keys to stored values.

    Attributes:
        pending: The cells that were written since the last flush; for each the map keys that were.
        cleared: The cells that were emptied as a whole before that.
    """

    def __init__(self, layout: StateLayout) -> None:
        super().__init__(layout)
        assert layout.map_key is not None
        self._codec = layout.map_key
        self.pending: dict[int, set[Any]] = {}
        self.cleared: set[int] = set()
        self._found: dict[int, dict[Any, Any]] = {}
        self._emptied: set[int] = set()

    def _take(self, segment: Segment, rows: Cells, cells: Cells) -> Mask:
        ops = segment.table.column(OP).take(pa.array(rows)).to_numpy()
        clears: Mask = ops == Op.CLEAR
        entries = pa.array(rows[~clears])
        keys = self._codec.from_storage(segment.table.column(MAP_KEY).take(entries).combine_chunks())
        found = self._found
        for cell, op, key, value in zip(
            cells[~clears].tolist(), ops[~clears].tolist(), keys, self.layout.decode(segment, entries), strict=True
        ):
            entry = _GONE if op == Op.DELETE else value
            found.setdefault(cell, {}).setdefault(key, entry)
        for cell in cells[clears].tolist():
            found.setdefault(cell, {})
            self._emptied.add(cell)
        self._mark_stored(cells, np.ones(len(cells), bool))
        return clears

    def _finish(self) -> None:
        for cell, entries in self._found.items():
            whole = {} if cell in self._emptied else dict(self.values[cell] or ())
            for key, value in entries.items():
                if value is _GONE:
                    whole.pop(key, None)
                else:
                    whole[key] = value
            self.values[cell] = whole or None
        self._found.clear()
        self._emptied.clear()

    def changed(self) -> Cells:
        """Return the cells that were written."""
        return np.array(sorted(self.pending), np.int64)

    def snapshot(self, store: CellOwner, uid: str) -> SegmentData | None:
        """Return a row for each entry that was written, after a clear where the map was emptied."""
        cells = store.sort(self.changed(), self.placement)
        clears: list[int] = []
        entries = _Entries([], [], [], [])
        for rank, (cell, known) in enumerate(zip(cells.tolist(), self._is_stored(cells).tolist(), strict=True)):
            cleared = cell in self.cleared
            if cleared and known:
                clears.append(rank)
            content = self.values[cell] or {}
            for key in self.pending[cell]:
                value = content.get(key, _GONE)
                if value is _GONE and (cleared or not known):
                    continue
                entries.ranks.append(rank)
                entries.keys.append(key)
                entries.values.append(None if value is _GONE else value)
                entries.ops.append(Op.DELETE if value is _GONE else Op.PUT)
        if not entries.ranks and not clears:
            return None
        return self._segment(self._sorted(store, uid, cells, clears, entries))

    def _sorted(self, store: CellOwner, uid: str, cells: Cells, clears: list[int], entries: _Entries) -> pa.Table:
        """Merge entries and clears into rows sorted by cell and map key, the clear first."""
        stored = self._stored_keys(store, uid, entries.keys, cells[entries.ranks])
        chunks = stored.chunks if isinstance(stored, pa.ChunkedArray) else [stored]
        keys = pa.chunked_array([pa.nulls(len(clears), stored.type), *chunks])
        values = [None] * len(clears) + entries.values
        ranks = np.array(clears + entries.ranks, np.int64)
        ops = np.array([Op.CLEAR] * len(clears) + entries.ops, np.int8)
        order = pc.sort_indices(
            pa.table({"rank": ranks, "entry": ops != Op.CLEAR, MAP_KEY: keys}),
            sort_keys=[("rank", "ascending"), ("entry", "ascending"), (MAP_KEY, "ascending")],
        ).to_numpy()

        def rows(at: Cells) -> pa.Table:
            some = cells[ranks[at]]
            columns = {MAP_KEY: taken(pa.table({MAP_KEY: keys}), at).column(0)}
            columns |= self._encoded(store, uid, pick(values, at.tolist()), self.placement.slots_of(some))
            return self._rows(store, some, ops[at], columns)

        return made_in_pieces(order, keys.nbytes + len(values) * average_size(values), rows)

    def _stored_keys(self, store: CellOwner, uid: str, keys: list[Any], cells: Cells) -> pa.Array:
        try:
            return self._codec.storage_array(keys)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, HoldfastError) as error:
            for key, slot in zip(keys, self.placement.slots_of(cells).tolist(), strict=True):
                try:
                    self._codec.storage_array([key])
                except (pa.ArrowException, ValueError, TypeError, OverflowError, HoldfastError) as reason:
                    owner = store.codec.user_key(store.keys[slot])
                    raise OutputTypeError(
                        uid,
                        f"State {self.layout.name!r} of operator {uid!r}, key {owner!r}: the map key {key!r} does not "
                        f"fit: {reason}",
                    ) from error
            raise

    def settle(self) -> None:
        """The last snapshot was written."""
        super().settle()
        cells = self.changed()
        self._mark_stored(cells, np.array([self.values[cell] is not None for cell in cells.tolist()], bool))
        self.pending.clear()
        self.cleared.clear()

    def keep(self, slots: Cells) -> Cells:
        """Forget all but some slots."""
        cells = super().keep(slots)
        _renumber(self.pending, cells)
        cleared = dict.fromkeys(self.cleared)
        _renumber(cleared, cells)
        self.cleared = set(cleared)
        return cells


class _Entries(NamedTuple):
    """Entries of maps: each with the place of its cell among those that are written, map key, value and operation."""

    ranks: list[int]
    keys: list[Any]
    values: list[Any]
    ops: list[int]


def _renumber(by_cell: dict[int, Any], cells: Cells) -> None:
    """Let a dictionary, which handles hold, be about cells by their new numbers; those that are gone go."""
    if by_cell:
        old = dict(by_cell)
        by_cell.clear()
        by_cell.update((new, old[cell]) for new, cell in enumerate(cells.tolist()) if cell in old)
