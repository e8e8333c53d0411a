"""The keyed state backend `columnar`: only the mapped runs and the changes of the epoch are in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, ItemsView, Iterable, Iterator, Sequence, ValuesView
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.backend import StateBackend, StateBackendFactory
from holdfast.state.descriptor import StateKind
from holdfast.state.environment import Environment, TaskKvStateRegistry
from holdfast.state.hashmap.backend import HashMapKeyedStateBackend, LoadedState
from holdfast.state.hashmap.columns import Column, ListColumn, MapColumn, ScalarColumn
from holdfast.state.hashmap.slots import Cells
from holdfast.state.layout import MAP_KEY, OP, Op, StateLayout
from holdfast.state.options import HASHMAP_MEMORY
from holdfast.state.probe import KEY, Hashes, KeyProbe, SegmentSlice
from holdfast.state.run_file import Segment
from holdfast.state.version import StateCache
from holdfast.types.key_codec import KeyCodec

_SMALL_MAP: Final = 256
"""Maps of at most so many rows are read completely: reading many at once is cheaper than a few single lookups."""


class LazyList:
    """Content of a list cell: elements in runs, which are read on demand, followed by added elements.

    It replaces a list. Its length and its slices refer to the added elements only, because these are written, and
    counting the others would read them.
    """

    def __init__(self, read: Callable[[], list[Any]]) -> None:
        self._read: Callable[[], list[Any]] | None = read
        self._stored: list[Any] = []
        self._added: list[Any] = []
        self.append = self._added.append
        self.extend = self._added.extend

    def __len__(self) -> int:
        return len(self._added)

    def __bool__(self) -> bool:
        return bool(self._added) or bool(self._before())

    def __getitem__(self, part: slice) -> list[Any]:
        return self._added[part]

    def __iter__(self) -> Iterator[Any]:
        yield from self._before()
        yield from self._added

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return [*self, *other]

    def _before(self) -> list[Any]:
        if self._read is not None:
            self._stored, self._read = self._read(), None
        return self._stored


DELETED: Final = object()


class MapRows:
    """The entries of one map in one run, sorted by map key.

    Args:
        segment: Segment of the state.
        start: The first row, without a clear.
        end: The row after the last.
    """

    def __init__(self, segment: Segment, start: int, end: int) -> None:
        self._segment = segment
        self._table = segment.table
        self._start = start
        self._end = end
        self._keys = self._table.column(MAP_KEY).chunk(0)

    def __len__(self) -> int:
        return self._end - self._start

    @cached_property
    def puts(self) -> int:
        """Number of rows that put an entry."""
        ops = self._table.column(OP).to_numpy()[self._start : self._end]
        return int(np.count_nonzero(ops == Op.PUT))

    def get(self, stored_key: Any, layout: StateLayout) -> Any:
        """Return the stored value of an entry, DELETED if this run deletes it, None if the run does not contain it."""
        at = bisect_left(range(self._end), stored_key, self._start, self._end, key=self._key)
        if at == self._end or self._key(at) != stored_key:
            return None
        row = pa.array([at])
        if self._table.column(OP).chunk(0)[at].as_py() == Op.DELETE:
            return DELETED
        return layout.decode(self._segment, row)

    def _key(self, row: int) -> Any:
        return self._keys[row].as_py()


class LazyMap:
    """Content of a map cell: entries in runs, and changes.

    It replaces a dict. A lookup reads one entry; iteration reads all, once.

    Args:
        layout: Layout of the state.
        parts: Entries in runs, newest first; no older run has further entries.
        read: Reads all entries.
    """

    def __init__(self, layout: StateLayout, parts: Sequence[MapRows], read: Callable[[], dict[Any, Any]]) -> None:
        assert layout.map_key is not None
        self._layout = layout
        self._codec = layout.map_key
        self._parts = parts
        self._read = read
        self._changed: dict[Any, Any] = {}
        self._whole: dict[Any, Any] | None = None

    def get(self, key: Any, default: Any = None) -> Any:
        found = self._find(key)
        return default if found is DELETED else found

    def __contains__(self, key: Any) -> bool:
        return self._find(key) is not DELETED

    def __setitem__(self, key: Any, value: Any) -> None:
        (self._changed if self._whole is None else self._whole)[key] = value

    def __delitem__(self, key: Any) -> None:
        if self._whole is None:
            self._changed[key] = DELETED
        else:
            del self._whole[key]

    def __bool__(self) -> bool:
        if self._whole is None:
            if any(value is not DELETED for value in self._changed.values()):
                return True
            newer = len(self._changed)
            for part in self._parts:
                # Each newer row hides at most one entry of this run.
                if part.puts > newer:
                    return True
                newer += len(part)
        return bool(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())

    def keys(self) -> Iterator[Any]:
        return iter(self._all())

    def items(self) -> ItemsView[Any, Any]:
        return self._all().items()

    def values(self) -> ValuesView[Any]:
        return self._all().values()

    def _find(self, key: Any) -> Any:
        if self._whole is not None:
            return self._whole.get(key, DELETED)
        if key in self._changed:
            return self._changed[key]
        stored_key = self._codec.storage_array([key])[0].as_py()
        for part in self._parts:
            found = part.get(stored_key, self._layout)
            if found is not None:
                return found if found is DELETED else found[0]
        return DELETED

    def _all(self) -> dict[Any, Any]:
        if self._whole is None:
            whole = self._read()
            for key, value in self._changed.items():
                if value is DELETED:
                    whole.pop(key, None)
                else:
                    whole[key] = value
            self._whole = whole
        return self._whole


class LazyListColumn(ListColumn):
    """Lists that are read on demand; adding elements reads nothing.

    So nothing tells which keys have rows in runs, and a list that was added to and cleared stays until the next flush.
    """

    def load(self, slices: Sequence[SegmentSlice], wanted: KeyProbe, slots: Cells) -> None:
        codec = self.layout.key
        for key, hash64, slot in zip(wanted.keys, wanted.hashes, slots.tolist(), strict=True):
            self.values[slot] = LazyList(_Reader(ListColumn(self.layout), slices, codec, key, hash64).read_list)
        self._mark_stored(slots, np.ones(len(slots), bool))

    def filled(self) -> Cells:
        """Return the cells that are not empty; reads them."""
        return np.array([cell for cell, value in enumerate(self.values) if value], np.int64)


class LazyMapColumn(MapColumn):
    """Maps: small ones are read completely, large ones entry by entry."""

    def load(self, slices: Sequence[SegmentSlice], wanted: KeyProbe, slots: Cells) -> None:
        large = self._large(slices, wanted)
        if not len(large):
            super().load(slices, wanted, slots)
            return
        small = np.ones(len(wanted), bool)
        for position in large.tolist():
            stored = self._stored_map(slices, wanted.keys[position], wanted.hashes[position])
            if stored is not None:
                small[position] = False
                self.values[slots[position]] = stored if stored else None
        self._mark_stored(slots[~small], np.ones(len(slots) - int(small.sum()), bool))
        rest = np.flatnonzero(small)
        if len(rest):
            part = KeyProbe(self.layout.key, wanted.array.take(pa.array(rest)), wanted.hashes[rest])
            super().load(slices, part, slots[rest][part.order])

    def _large(self, slices: Sequence[SegmentSlice], wanted: KeyProbe) -> Cells:
        rows = np.zeros(len(wanted), np.int64)
        for segment_slice in slices:
            first = np.searchsorted(segment_slice.hash, wanted.hashes)
            rows += np.searchsorted(segment_slice.hash, wanted.hashes, side="right") - first
        return np.flatnonzero(rows > _SMALL_MAP)

    def _stored_map(self, slices: Sequence[SegmentSlice], key: Any, hash64: Any) -> LazyMap | None:
        """Return the map of a key; None if other keys have the same hash."""
        codec = self.layout.key
        parts = []
        for segment_slice in slices:
            first, end = (int(np.searchsorted(segment_slice.hash, hash64, side=side)) for side in ("left", "right"))
            if first == end:
                continue
            first, end = first + segment_slice.rows.start, end + segment_slice.rows.start
            ends = segment_slice.segment.table.column(KEY).take(pa.array([first, end - 1])).combine_chunks()
            if codec.from_storage(ends) != [key, key]:
                return None
            is_cleared = segment_slice.segment.table.column(OP).chunk(0)[first].as_py() == Op.CLEAR
            parts.append(MapRows(segment_slice.segment, first + is_cleared, end))
            if is_cleared:
                break
        reader = _Reader(MapColumn(self.layout), slices, codec, key, hash64)
        return LazyMap(self.layout, parts, reader.read_map)

    def filled(self) -> Cells:
        return np.array([cell for cell, value in enumerate(self.values) if value], np.int64)


class _Reader:
    """Reads one key from runs."""

    def __init__(
        self, column: Column, slices: Sequence[SegmentSlice], codec: KeyCodec, key: Any, hash64: np.uint64
    ) -> None:
        self._column = column
        self._slices = slices
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
        self._column.load(self._slices, KeyProbe(self._codec, [self._key], hashes), np.zeros(1, np.int64))
        return self._column.values[0]


def lazy_column_for(layout: StateLayout) -> Column:
    """Return an empty column for a state.

    State with namespaces is read completely, because only reading shows which namespaces a key has, and state with a
    time to live as well, because reading removes expired content.
    """
    is_plain = layout.namespace is None and not layout.ttl
    if layout.kind is StateKind.LIST:
        return LazyListColumn(layout) if is_plain else ListColumn(layout)
    if layout.kind is StateKind.MAP:
        return LazyMapColumn(layout) if is_plain and _is_searchable(layout) else MapColumn(layout)
    return ScalarColumn(layout)


def _is_searchable(layout: StateLayout) -> bool:
    """Return whether map keys have the same order in Python as in runs."""
    assert layout.map_key is not None
    stored = layout.map_key.storage_type
    return bool(pa.types.is_integer(stored) or pa.types.is_string(stored) or pa.types.is_binary(stored))


class ColumnarKeyedStateBackend(HashMapKeyedStateBackend):
    """Keeps the keys of the current batch and the changes of the epoch, and nothing after the task.

    Decoded cells, handles and files are those of the backend `hashmap`; lists and maps are read on demand.
    """

    def commit_cache(self) -> None:
        """Cache nothing: the runs are mapped, and the page cache has recently used pages."""
        self._removals.remember(self._reader, self.env.configuration.get(HASHMAP_MEMORY))
        self.dispose()

    def _track_empty_keys(self, slots: Cells) -> None:
        """Do nothing: no keys are kept."""

    def _new_column(self, layout: StateLayout) -> Column:
        return lazy_column_for(layout)

    def _is_too_large(self, store: LoadedState) -> bool:
        return True


class ColumnarStateBackend(StateBackend):
    """Keeps only the mapped runs; for state that is larger than memory, and for vectorized functions."""

    def create_keyed_state_backend(
        self,
        env: Environment,
        job_id: Any,
        operator_identifier: str,
        key_serializer: KeyCodec,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_state_registry: TaskKvStateRegistry | None = None,
    ) -> ColumnarKeyedStateBackend:
        """Return the keyed state of one subtask; see `StateBackend`."""
        return ColumnarKeyedStateBackend(
            env,
            job_id,
            operator_identifier,
            key_serializer,
            number_of_key_groups,
            key_group_range,
            kv_state_registry,
            # A cache of its own: it keeps nothing, and must not take state that another backend has cached.
            cache=StateCache(),
        )


class ColumnarStateBackendFactory(StateBackendFactory[ColumnarStateBackend]):
    """Creates the backend `columnar`."""

    def create_from_config(self, config: Configuration) -> ColumnarStateBackend:
        """Return the backend."""
        return ColumnarStateBackend()

    def get_identifier(self) -> str:
        """Return `columnar`."""
        return "columnar"
