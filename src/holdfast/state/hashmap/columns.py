"""The cells of a state: loaded from runs, changed by handles, written as a segment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError, OutputTypeError
from holdfast.state.batch import COLUMN_BYTES, build_in_pieces, take_rows
from holdfast.state.hashmap.slots import Cells, NamespacePlacement, SlotKeys, SlotPlacement, pick
from holdfast.state.layout import MAP_KEY, NAMESPACE, OP, Op, StateLayout, average_size
from holdfast.state.probe import KEY, KeyProbe, Matches, SegmentSlice
from holdfast.state.run_file import HASH, Segment, SegmentData
from holdfast.types.key_codec import KeyCodec

Mask = npt.NDArray[np.bool_]
_SAMPLE: Final = 64
_CELLS_BETWEEN_CHECKS: Final = 1024
# Changed entries of a map that are never too many.
_FEW_ENTRIES: Final = 1024
REWRITTEN: Final = -1
"""Marks a list that has changed not only at its end."""


class CellOwner(Protocol):
    """The owner of the slots of a column's cells.

    Attributes:
        codec: Codec of the keys.
        keys: Key of each slot.
    """

    codec: KeyCodec
    keys: SlotKeys

    def hashes_of(self, slots: Cells) -> npt.NDArray[np.uint64]: ...

    def sort(self, cells: Cells, placement: SlotPlacement) -> Cells:
        """Return cells in the order of their rows in a run."""


class Column(ABC):
    """The cells of one state.

    Attributes:
        rows_are_complete: Whether a row of a run determines its cell without older runs.
        layout: Layout of the state in files.
        placement: Mapping between cells and keys.
        values: Content of each cell, None if empty. Handles share this list object.
        dirty: One byte per cell, 1 if the cell was written since the last flush. Handles share this object.
        covered: Number of slots that are loaded; later slots are not.
        cleaned_to: Position up to which expired cells were removed.
    """

    rows_are_complete: ClassVar[bool] = False

    def __init__(self, layout: StateLayout) -> None:
        self.layout = layout
        self.values: list[Any] = []
        self.dirty = bytearray()
        self.covered = 0
        self.cleaned_to = 0
        self._stored = bytearray()
        self._next_check = _CELLS_BETWEEN_CHECKS
        namespaced = layout.namespace is not None
        self.placement: SlotPlacement = NamespacePlacement(self._grow_by_one) if namespaced else SlotPlacement()

    def cover(self, count: int) -> None:
        """Add empty cells for all slots below `count`; `load` fills them."""
        if not isinstance(self.placement, NamespacePlacement):
            self._grow(count - len(self.values))
        self.covered = count

    def load(self, slices: Sequence[SegmentSlice], wanted: KeyProbe, slots: Cells) -> None:
        """Load some keys from runs.

        Args:
            slices: Rows of this state in runs, newest first.
            wanted: The keys.
            slots: Their slots, in the order of `wanted`. Content of their cells counts as older than the runs.
        """
        rest = wanted.all_positions()
        placement = self.placement
        done: set[int] = set()
        for segment_slice in slices:
            if not len(rest):
                break
            hits = wanted.find(segment_slice, rest)
            if not len(hits.rows):
                continue
            if isinstance(placement, NamespacePlacement):
                rows, cells = _in_namespaces(placement, segment_slice, hits, slots, done)
                ended = self._take(segment_slice.segment, rows, cells)
                done.update(cells[ended].tolist())
            else:
                ended = self._take(segment_slice.segment, hits.rows, slots[hits.wanted])
                mask = np.zeros(len(wanted), bool)
                mask[hits.wanted[ended]] = True
                rest = rest[~mask[rest]]
        self._finish()

    def take_rows(self, segment: Segment, rows: Cells, cells: Cells) -> None:
        """Load rows of one run that determine their cells."""
        self._take(segment, rows, cells)

    @abstractmethod
    def _take(self, segment: Segment, rows: Cells, cells: Cells) -> Mask:
        """Load rows of one run; return for each whether older runs cannot change its cell."""

    def _finish(self) -> None:
        """Finish loading after all runs; nothing to do for columns that fill cells at once."""
        return

    def forget(self, slots: Cells) -> None:
        """Empty the cells of some slots, as if they had not been loaded."""
        if isinstance(self.placement, NamespacePlacement):
            found = [self.placement.cells_of_slot(slot) for slot in slots.tolist()]
            cells = np.array([cell for several in found for cell in several], np.int64)
        else:
            cells = slots[slots < len(self.values)]
        for cell in cells.tolist():
            self.values[cell] = None
        self._mark_stored(cells, np.zeros(len(cells), bool))

    @abstractmethod
    def changed(self) -> Cells:
        """Return the cells that were written since the last flush, ascending."""

    @abstractmethod
    def snapshot(self, store: CellOwner, uid: str) -> SegmentData | None:
        """Return the changes since the last flush as a segment, None if there are none.

        Raises:
            OutputTypeError: A value does not fit the declared type.
        """

    def mark_flushed(self) -> None:
        """Mark all cells as written."""
        self.dirty[:] = bytes(len(self.dirty))

    @abstractmethod
    def forget_undone_changes(self) -> int:
        """Mark cells as unchanged that were filled and emptied since the last flush, and of which no run knows.

        Returns:
            The number of changes that are left.
        """

    def absent(self, slots: Cells) -> Mask:
        """Return for each ascending slot whether it has nothing in this state. Requires that nothing is dirty."""
        if isinstance(self.placement, NamespacePlacement):
            cells_of = self.placement.cells_of_slot
            found = [all(self.values[cell] is None for cell in cells_of(slot)) for slot in slots.tolist()]
            return np.array(found, bool)
        gone: Mask = np.ones(len(slots), bool)
        covered = int(np.searchsorted(slots, self.covered))
        gone[:covered] = self._are_empty(slots[:covered])
        return gone

    def filled(self) -> Cells:
        """Return the cells that are not empty, ascending."""
        return np.array([cell for cell, value in enumerate(self.values) if value is not None], np.int64)

    def used(self) -> Cells:
        """Return the cells that are filled or have a row in a run, ascending. No other may have changed."""
        used = np.frombuffer(bytes(self._stored), np.uint8).astype(bool)
        rest = np.flatnonzero(~used)
        used[rest[~self._are_empty(rest)]] = True
        return np.flatnonzero(used)

    def _are_empty(self, cells: Cells) -> Mask:
        return np.fromiter(map(is_, pick(self.values, cells.tolist()), repeat(None)), bool, len(cells))

    def keep(self, slots: Cells) -> Cells:
        """Drop all other slots, and renumber the given ones, which are ascending, in order.

        Returns:
            The cells that are left, by their old numbers.
        """
        covered = int(np.searchsorted(slots, self.covered))
        cells = self.placement.keep(slots[:covered])
        self._pick(cells)
        self.covered = covered
        return cells

    def drop_empty_cells(self) -> None:
        """Drop namespaces that are not used, if there are many; see `used`."""
        if not isinstance(self.placement, NamespacePlacement) or len(self.values) < self._next_check:
            return
        cells = self.used()
        if 2 * len(cells) < len(self.values):
            self.placement.keep_cells(cells)
            self._pick(cells)
        self._next_check = max(_CELLS_BETWEEN_CHECKS, 2 * len(self.values))

    def _pick(self, cells: Cells) -> None:
        self.values[:] = pick(self.values, cells.tolist())
        self._stored[:] = bytes(np.frombuffer(bytes(self._stored), np.uint8)[cells])
        self.dirty[:] = bytes(np.frombuffer(bytes(self.dirty), np.uint8)[cells])

    def _grow(self, count: int) -> None:
        self.values.extend([None] * count)
        self.dirty.extend(bytes(count))
        self._stored.extend(bytes(count))

    def _grow_by_one(self) -> None:
        self._grow(1)

    def _is_stored(self, cells: Cells) -> Mask:
        stored: Mask = np.frombuffer(self._stored, np.uint8)[cells].astype(bool)
        return stored

    def _mark_stored(self, cells: Cells, stored: Mask) -> None:
        np.frombuffer(self._stored, np.uint8)[cells] = stored

    def _encoded(
        self, store: CellOwner, uid: str, cells: Sequence[Any], owners: Cells, *, lists: bool = False
    ) -> dict[str, pa.Array]:
        """Return the columns of cells; an error names the value that does not fit."""
        try:
            return self.layout.encode(cells, lists=lists)
        except Exception as error:
            if len(cells) > 1:
                raise  # the caller halves the cells until the one that fails is found
            items = [] if cells[0] is None else cells[0] if lists else cells
            found = self.layout.blame([item[0] for item in items] if self.layout.ttl else items)
            reason: Any = error if found is None else found[1]
            advice = "Write values of the declared type, or declare another type."
            if found is None or isinstance(reason, pa.ArrowCapacityError):
                reason = f"its content exceeds the limit of {COLUMN_BYTES} bytes for one value or list."
                advice = "Split it: over several keys, or into entries of a map."
            key = store.codec.user_key(store.keys[owners[0]])
            raise OutputTypeError(
                uid,
                f"State {self.layout.name!r} of operator {uid!r}, key {key!r}: {reason} {advice}",
                declared=str(self.layout.value.type),
            ) from error

    def _size(self, cells: Cells) -> float:
        """Return the estimated size of some cells in bytes."""
        return len(cells) * average_size(pick(self.values, cells[:: max(1, len(cells) // _SAMPLE)].tolist()))

    def _segment(self, table: pa.Table) -> SegmentData | None:
        return SegmentData(table, self.layout.schema) if table.num_rows else None

    def _rows(
        self, store: CellOwner, cells: Cells, ops: npt.NDArray[np.int8], columns: dict[str, pa.Array]
    ) -> pa.Table:
        """Return rows of sorted cells."""
        slots = self.placement.slots_of(cells)
        table = {HASH: pa.array(store.hashes_of(slots)), KEY: store.keys.stored(slots)}
        namespaces = self.placement.namespaces_of(cells)
        if namespaces is not None:
            table[NAMESPACE] = pa.array(namespaces, pa.binary())
        return pa.table(table | columns | {OP: pa.array(ops)})


class ScalarColumn(Column):
    """Cells with one value: value, reducing, aggregating and folding state."""

    rows_are_complete = True

    def _take(self, segment: Segment, rows: Cells, cells: Cells) -> Mask:
        taken = pa.array(rows)
        values = self.values
        for cell, value in zip(cells.tolist(), self.layout.decode(segment, taken), strict=True):
            values[cell] = value
        self._mark_stored(cells, segment.table.column(OP).take(taken).to_numpy() == Op.PUT)
        return np.ones(len(rows), bool)

    def changed(self) -> Cells:
        return np.flatnonzero(np.frombuffer(self.dirty, np.uint8))

    def absent(self, slots: Cells) -> Mask:
        """Return for each slot whether it has nothing; a cell that is not dirty is as stored."""
        if self.layout.namespace is not None:
            return super().absent(slots)
        gone: Mask = np.ones(len(slots), bool)
        covered = int(np.searchsorted(slots, self.covered))
        gone[:covered] = ~self._is_stored(slots[:covered])
        return gone

    def snapshot(self, store: CellOwner, uid: str) -> SegmentData | None:
        cells = store.sort(self.changed(), self.placement)
        filled = np.ones(len(cells), bool)
        self._written = cells, filled
        if not len(cells):
            return None

        def rows(at: Cells) -> pa.Table:
            some, ops = cells[at], np.zeros(len(at), np.int8)
            columns = self._encoded(store, uid, pick(self.values, some.tolist()), self.placement.slots_of(some))
            last = next(reversed(columns.values()))  # the timestamps of expiring state, else the values
            if last.null_count:
                empty = last.is_null().to_numpy(zero_copy_only=False)
                ops[empty] = Op.DELETE
                filled[at] = ~empty
                keep = ~empty | self._is_stored(some)
                if not keep.all():
                    some, ops = some[keep], ops[keep]
                    columns = {name: array.filter(pa.array(keep)) for name, array in columns.items()}
            return self._rows(store, some, ops, columns)

        return self._segment(build_in_pieces(np.arange(len(cells)), self._size(cells), rows))

    def mark_flushed(self) -> None:
        super().mark_flushed()
        self._mark_stored(*self._written)

    def forget_undone_changes(self) -> int:
        dirty = np.frombuffer(self.dirty, np.uint8)
        cells = np.flatnonzero(dirty > np.frombuffer(self._stored, np.uint8))
        dirty[cells[self._are_empty(cells)]] = 0
        return int(np.count_nonzero(dirty))


def _in_namespaces(
    placement: NamespacePlacement, segment_slice: SegmentSlice, hits: Matches, slots: Cells, done: set[int]
) -> tuple[Cells, Cells]:
    """Return the rows whose cells are not done yet, and their cells."""
    namespaces = segment_slice.segment.table.column(NAMESPACE).take(pa.array(hits.rows)).to_pylist()
    cell: Callable[[int, bytes], int] = placement.cell
    found = [cell(slot, name) for slot, name in zip(slots[hits.wanted].tolist(), namespaces, strict=True)]
    cells = np.array(found, np.int64)
    if not done:
        return hits.rows, cells
    open_ones = np.fromiter((one not in done for one in found), bool, len(found))
    return hits.rows[open_ones], cells[open_ones]


_DELETED: Final = object()


class ListColumn(Column):
    """Cells with lists.

    Attributes:
        pending: Cells that were written since the last flush, each with the number of elements before, or `REWRITTEN`.
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
        return np.array(sorted(self.pending), np.int64)

    def snapshot(self, store: CellOwner, uid: str) -> SegmentData | None:
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

        return self._segment(build_in_pieces(np.arange(len(cells)), len(kept) * average_size(kept), rows))

    def mark_flushed(self) -> None:
        super().mark_flushed()
        cells = self.changed()
        self._mark_stored(cells, ~self._are_empty(cells))
        self.pending.clear()

    def forget_undone_changes(self) -> int:
        for cell in list(self.pending):
            if self.values[cell] is None and not self._stored[cell]:
                del self.pending[cell]
        return len(self.pending)

    def _pick(self, cells: Cells) -> None:
        super()._pick(cells)
        _renumber(self.pending, cells)


class MapColumn(Column):
    """Cells with maps from dict keys to stored values.

    Attributes:
        pending: Cells that were written since the last flush, each with the changed map keys.
        cleared: Cells that were cleared before these changes.
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
            entry = _DELETED if op == Op.DELETE else value
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
                if value is _DELETED:
                    whole.pop(key, None)
                else:
                    whole[key] = value
            self.values[cell] = whole or None
        self._found.clear()
        self._emptied.clear()

    def changed(self) -> Cells:
        return np.array(sorted(self.pending), np.int64)

    def snapshot(self, store: CellOwner, uid: str) -> SegmentData | None:
        cells = store.sort(self.changed(), self.placement)
        clears: list[int] = []
        entries = _Entries([], [], [], [])
        for rank, (cell, known) in enumerate(zip(cells.tolist(), self._is_stored(cells).tolist(), strict=True)):
            cleared = cell in self.cleared
            if cleared and known:
                clears.append(rank)
            content = self.values[cell] or {}
            for key in self.pending[cell]:
                value = content.get(key, _DELETED)
                if value is _DELETED and (cleared or not known):
                    continue
                entries.ranks.append(rank)
                entries.keys.append(key)
                entries.values.append(None if value is _DELETED else value)
                entries.ops.append(Op.DELETE if value is _DELETED else Op.PUT)
        if not entries.ranks and not clears:
            return None
        return self._segment(self._sorted(store, uid, cells, clears, entries))

    def _sorted(self, store: CellOwner, uid: str, cells: Cells, clears: list[int], entries: _Entries) -> pa.Table:
        """Return rows of entries and clears, sorted by cell and map key, the clear first."""
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
            columns = {MAP_KEY: take_rows(pa.table({MAP_KEY: keys}), at).column(0)}
            columns |= self._encoded(store, uid, pick(values, at.tolist()), self.placement.slots_of(some))
            return self._rows(store, some, ops[at], columns)

        return build_in_pieces(order, keys.nbytes + len(values) * average_size(values), rows)

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

    def mark_flushed(self) -> None:
        super().mark_flushed()
        cells = self.changed()
        self._mark_stored(cells, ~self._are_empty(cells))
        self.pending.clear()
        self.cleared.clear()

    def forget_undone_changes(self) -> int:
        """Do it for the entries of maps too.

        Of a map in a run nothing tells which entries the run has. If most of the changed ones are gone, the map is
        written anew, so that the changes never become many more than the entries.
        """
        for cell, written in list(self.pending.items()):
            content = self.values[cell]
            if self._stored[cell] and cell not in self.cleared:
                if not isinstance(content, dict | None) or len(written) <= 2 * len(content or ()) + _FEW_ENTRIES:
                    continue
                self.cleared.add(cell)
                written.update(content or ())
            if content is None:
                written.clear()
            else:
                written.intersection_update(content)
            if not written and not self._stored[cell]:
                del self.pending[cell]
                self.cleared.discard(cell)
        return sum(map(len, self.pending.values()))

    def _pick(self, cells: Cells) -> None:
        super()._pick(cells)
        _renumber(self.pending, cells)
        cleared = dict.fromkeys(self.cleared)
        _renumber(cleared, cells)
        self.cleared = set(cleared)


class _Entries(NamedTuple):
    """Map entries in parallel lists: position of the cell among the written ones, map key, value and operation."""

    ranks: list[int]
    keys: list[Any]
    values: list[Any]
    ops: list[int]


def _renumber(by_cell: dict[int, Any], cells: Cells) -> None:
    """Renumber the keys of a dictionary, which handles share, and drop cells that are gone."""
    if by_cell:
        old = dict(by_cell)
        by_cell.clear()
        by_cell.update((new, old[cell]) for new, cell in enumerate(cells.tolist()) if cell in old)
