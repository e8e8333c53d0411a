"""The keyed state backend `hashmap`: decoded objects, kept in the worker process from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.secret import get_logger
from holdfast.state.backend import AbstractKeyedStateBackend, NoCurrentKey, StateBackend, StateBackendFactory
from holdfast.state.compaction import tombstones
from holdfast.state.descriptor import StateDescriptor, StateKind
from holdfast.state.environment import Environment, TaskKvStateRegistry
from holdfast.state.hashmap.columns import Column, ListColumn, MapColumn, ScalarColumn
from holdfast.state.hashmap.handles import (
    AggregatingHandle,
    CellHandle,
    CopiedValueHandle,
    DefaultValueHandle,
    ExpiringAggregatingHandle,
    ExpiringFoldingHandle,
    ExpiringHandle,
    ExpiringListHandle,
    ExpiringMapHandle,
    ExpiringReducingHandle,
    ExpiringValueHandle,
    FoldingHandle,
    ListHandle,
    MapHandle,
    OpaqueValueHandle,
    ReducingHandle,
    RowValueHandle,
    ValueHandle,
)
from holdfast.state.hashmap.slots import Cells, NamespaceCursor, NamespacePlacement, SlotKeys, SlotPlacement, Slots
from holdfast.state.layout import VOID, OpaqueCodec, RowCodec, StateLayout, VoidNamespaceSerializer, average_size
from holdfast.state.options import HASHMAP_MEMORY
from holdfast.state.probe import Hashes, KeyProbe, SegmentSlice
from holdfast.state.run_file import Lineage, RunHandle, RunMeta, SegmentData, write_run
from holdfast.state.timer_service import EVENT, PROCESSING, USER_TIMERS, InternalTimerService, SimpleTimerService
from holdfast.state.timers import earliest
from holdfast.state.version import STATE_CACHE, StateCache, StateRemovals, StateVersion, VersionReader, catch_up
from holdfast.storage.file_system import FileSystem
from holdfast.types.key_codec import KeyCodec, LazyKeys
from holdfast.types.serializer import TypeSerializer

logger = get_logger(__name__)

# An entry of a list, and two bytes.
_CELL_BYTES: Final = 16
_EMPTY_KEYS_KEPT: Final = 1024

Slices = Mapping[str, Sequence[SegmentSlice]]
_COLUMNS: Final[dict[StateKind, type[Column]]] = {StateKind.LIST: ListColumn, StateKind.MAP: MapColumn}
_HANDLES: Final[dict[StateKind, type[CellHandle[Any]]]] = {
    StateKind.LIST: ListHandle,
    StateKind.MAP: MapHandle,
    StateKind.REDUCING: ReducingHandle,
    StateKind.AGGREGATING: AggregatingHandle,
    StateKind.FOLDING: FoldingHandle,
}
_EXPIRING: Final[dict[StateKind, type[CellHandle[Any]]]] = {
    StateKind.VALUE: ExpiringValueHandle,
    StateKind.LIST: ExpiringListHandle,
    StateKind.MAP: ExpiringMapHandle,
    StateKind.REDUCING: ExpiringReducingHandle,
    StateKind.AGGREGATING: ExpiringAggregatingHandle,
    StateKind.FOLDING: ExpiringFoldingHandle,
}
_KEYS_BETWEEN_CHECKS: Final = 16 * 1024
_ELEMENTS_BETWEEN_CHECKS: Final = 64 * 1024


class LoadedState:
    """The loaded keys of one subtask: a slot for each, and the cells of each state.

    Attributes:
        codec: Codec of the keys.
        keys: Key of each slot. New slots have empty cells until the next `load`.
        columns: The cells of each state.
        content: Lineage of the runs whose content is loaded.
        before_own: The same without the run that the last task wrote; None if no task has written one since the state
            was updated to a version.
        flushed: The slots in that run; None without one.
        is_complete: Whether all keys with state are loaded, so that runs have nothing for new keys.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self.codec = codec
        self.keys = SlotKeys(codec)
        self.columns: dict[str, Column] = {}
        self.content = Lineage()
        self.before_own: Lineage | None = None
        self.flushed: Cells | None = None
        self.is_complete = False
        self._empty_slots: Cells = np.empty(0, np.int64)
        self._seen = 0

    def __len__(self) -> int:
        return len(self.keys)

    def slots_of(self, cells: Mapping[str, Cells]) -> Cells:
        """Return the slots of cells of several states, ascending and distinct."""
        found = np.zeros(len(self.keys), bool)
        for name, of_state in cells.items():
            found[self.columns[name].placement.slots_of(of_state)] = True
        return np.flatnonzero(found)

    def set_content(self, content: Lineage) -> None:
        """Set the version that is loaded."""
        self.content, self.before_own, self.flushed = content, None, None

    def add_own_run(self, run: Lineage, flushed: Cells) -> None:
        """Add a run that this subtask has written from its changes.

        Args:
            run: Lineage of the run.
            flushed: The slots in it.
        """
        self.before_own, self.content, self.flushed = self.content, self.content + run, flushed

    def hashes_of(self, slots: Cells) -> Hashes:
        return self.keys.hashes[slots]

    def load(self, start: int, columns: Iterable[Column], slices: Slices) -> None:
        """Load new keys, which have just got their slots.

        Args:
            start: The first of these slots.
            columns: The states to load. Other states are loaded when they are requested.
            slices: Rows of each state in the runs of the version, newest first.
        """
        wanted = None
        for column in columns:
            found = () if self.is_complete else slices.get(column.layout.name, ())
            column.cover(len(self.keys))
            if found:
                wanted = self._wanted(np.arange(start, len(self.keys))) if wanted is None else wanted
                column.load(found, wanted, wanted.order + start)

    def complete(self, column: Column, slices: Sequence[SegmentSlice]) -> None:
        """Load the known keys that a state has not loaded yet."""
        start, end = column.covered, len(self.keys)
        column.cover(end)
        if start < end and slices:
            wanted = self._wanted(np.arange(start, end))
            column.load(slices, wanted, wanted.order + start)

    def catch_up(self, slices: Slices) -> None:
        """Apply newer runs to the known keys.

        Args:
            slices: Rows of each state in the newer runs, newest first.
        """
        self.is_complete = False
        for name, column in list(self.columns.items()):
            missed = slices.get(name, ())
            if not all(column.layout.can_read(segment_slice.segment.entry.schema) for segment_slice in missed):
                del self.columns[name]
                continue
            if column.rows_are_complete and column.layout.namespace is None:
                self._follow(column, missed)
                continue
            slots = self._known_slots(missed)
            slots = slots[slots < column.covered]
            if len(slots):
                self._load(column, missed, slots)

    def _follow(self, column: Column, missed: Sequence[SegmentSlice]) -> None:
        """Replace the cells of known keys by the rows of newer runs, which need no older rows."""
        for segment_slice in reversed(missed):
            slots = self._slots_of_rows(segment_slice)
            rows = np.flatnonzero((slots >= 0) & (slots < column.covered))
            column.take_rows(segment_slice.segment, rows + segment_slice.rows.start, slots[rows])

    def reload(self, slots: Cells, slices: Slices) -> None:
        """Load the cells of some slots again, from all runs of the version."""
        self.is_complete = False
        for name, column in list(self.columns.items()):
            rows = slices.get(name, ())
            if not all(column.layout.can_read(segment_slice.segment.entry.schema) for segment_slice in rows):
                del self.columns[name]
                continue
            covered = slots[slots < column.covered]
            column.forget(covered)
            if len(covered):
                self._load(column, rows, covered)

    def known_slots(self, slices: Slices) -> Cells:
        """Return the slots of the known keys in some rows."""
        found = [self._known_slots(rows) for rows in slices.values()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def _load(self, column: Column, slices: Sequence[SegmentSlice], slots: Cells) -> None:
        wanted = self._wanted(slots)
        column.load(slices, wanted, slots[wanted.order])

    def _wanted(self, slots: Cells) -> KeyProbe:
        return KeyProbe(self.codec, self.keys.take(slots), self.keys.hashes[slots])

    def _known_slots(self, slices: Sequence[SegmentSlice]) -> Cells:
        found = np.zeros(len(self.keys) + 1, bool)
        for segment_slice in slices:
            found[self._slots_of_rows(segment_slice)] = True
        return np.flatnonzero(found[:-1])  # the last one is for unknown keys, whose slot is -1

    def _slots_of_rows(self, segment_slice: SegmentSlice) -> Cells:
        """Return the slot of each row's key, -1 for an unknown key."""
        stored = self.codec.canonical_stored(segment_slice.stored_keys)
        if stored is None:
            return self.keys.find(segment_slice.dict_keys(self.codec))
        return self.keys.find_column(stored, segment_slice.hash)

    def sort(self, cells: Cells, placement: SlotPlacement) -> Cells:
        """Return cells in the row order of a segment: by hash, key and namespace."""
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
        """Sort the slow way, for different keys with the same hash."""
        slots = placement.slots_of(cells)
        keys = [self.codec.canonical_bytes(key) for key in self.keys.objects(slots)]
        namespaces = placement.namespaces_of(cells) or [b""] * len(cells)
        by = list(zip(self.keys.hashes[slots].tolist(), keys, namespaces, strict=True))
        return np.array(sorted(range(len(by)), key=by.__getitem__), np.int64)

    def track_empty_keys(self, touched: Cells) -> None:
        """Update the set of keys that have nothing in any state.

        Args:
            touched: Slots that may have become empty, besides those that are new since the last call.
        """
        candidates = np.zeros(len(self.keys), bool)
        candidates[touched] = candidates[self._empty_slots] = candidates[self._seen :] = True
        self._empty_slots = self._empty(np.flatnonzero(candidates))
        self._seen = len(self.keys)

    def drop_empty(self) -> None:
        """Drop keys that have nothing in any state, if there are many."""
        if len(self._empty_slots) > max(_EMPTY_KEYS_KEPT, len(self.keys) // 4):
            kept = np.ones(len(self.keys), bool)
            kept[self._empty_slots] = False
            self.keep(np.flatnonzero(kept))
        for column in self.columns.values():
            column.drop_empty_cells()

    def forget_undone_changes(self) -> int:
        """Forget keys and namespaces that have got content and lost it again since the last flush.

        Returns:
            The number of keys and changes that are left.
        """
        left = 0
        for column in self.columns.values():
            left += column.forget_undone_changes()
            column.drop_empty_cells()
        used = self.slots_of({name: column.used() for name, column in self.columns.items()})
        # Renumbering takes time, so it is only worth it if it drops many keys.
        if 2 * len(used) < len(self):
            self.keep(used)
        return left + len(self)

    def _empty(self, slots: Cells) -> Cells:
        for column in self.columns.values():
            slots = slots[column.absent(slots)]
        return slots

    def keep(self, slots: Cells) -> None:
        """Drop all other slots, and renumber the given ones, which are ascending, in order."""
        self.keys.keep(slots)
        if self.flushed is not None:
            self.flushed = np.flatnonzero(np.isin(slots, self.flushed))
        for column in self.columns.values():
            column.keep(slots)
        self._empty_slots = self._empty_slots[:0]
        self._seen = len(self.keys)

    def estimated_bytes(self) -> int:
        """Return the estimated memory in bytes, from a sample of keys and values."""
        total: float = self.keys.estimated_bytes()
        for column in self.columns.values():
            total += len(column.values) * (_CELL_BYTES + average_size(column.values))
        return int(total)


def column_for(layout: StateLayout) -> Column:
    return _COLUMNS.get(layout.kind, ScalarColumn)(layout)


def handle_for(
    backend: AbstractKeyedStateBackend, descriptor: StateDescriptor[Any], layout: StateLayout, namespace_serializer: Any
) -> CellHandle[Any]:
    """Return a handle of the fastest class that fits a state."""
    if layout.ttl:
        handle_class = _EXPIRING[layout.kind]
    elif layout.kind is not StateKind.VALUE:
        handle_class = _HANDLES[layout.kind]
    elif descriptor.has_default_value():
        handle_class = DefaultValueHandle
    else:
        opaque = isinstance(layout.value, OpaqueCodec)
        handle_class = ValueHandle if layout.value.shares else OpaqueValueHandle if opaque else CopiedValueHandle
        if isinstance(layout.value, RowCodec):
            handle_class = RowValueHandle
    return handle_class(backend, descriptor, namespace_serializer)


class HashMapKeyedStateBackend(AbstractKeyedStateBackend):
    """Keyed state as decoded objects that stay in the process between tasks.

    It loads only keys that are used, so the cost of a cold start does not depend on the size of the state.
    """

    def __init__(
        self,
        env: Environment,
        job_id: Any,
        operator_identifier: str,
        key_codec: KeyCodec,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_state_registry: TaskKvStateRegistry | None = None,
        *,
        cache: StateCache = STATE_CACHE,
    ) -> None:
        super().__init__(env, operator_identifier, key_codec, number_of_key_groups, key_group_range, kv_state_registry)
        self._cache = cache
        self._cache_name = (str(job_id), operator_identifier, key_group_range.start, key_group_range.end)
        self._services: dict[str, InternalTimerService] = {}
        self._start(LoadedState(key_codec), None)
        self._user_timers = SimpleTimerService(self.get_internal_timer_service(USER_TIMERS, VoidNamespaceSerializer()))

    def _start(self, store: LoadedState, reader: VersionReader | None) -> None:
        self._loaded = store
        self._reader = reader
        # Rows of each registered state, newest first.
        self._slices: dict[str, Sequence[SegmentSlice]] = {}
        self._removals = StateRemovals(self._cache, self._cache_name, tombstones)
        self._failure: BaseException | None = None
        self._next_check = _KEYS_BETWEEN_CHECKS
        self._elements = 0
        self._next_forgetting = _ELEMENTS_BETWEEN_CHECKS
        self.slot = NoCurrentKey()

    def open_version(self, version: StateVersion, fs: FileSystem, job_root: str) -> None:
        reader = VersionReader(version, fs, job_root, self.key_group_range)
        reader.check_keys(self.operator_identifier, self.key_codec, self.number_of_key_groups)
        taken = self._cache.take(self._cache_name)
        store = self._update_state(taken, reader) if isinstance(taken, LoadedState) else None
        self.was_warm = None if not version.runs else store is not None
        if store is None:
            store = LoadedState(self.key_codec)
            store.set_content(version.lineage)
            store.is_complete = not version.runs
        self._start(store, reader)
        for service in self._services.values():
            service.open(reader.runs[::-1], self.key_group_range)
        for handle in self._cell_handles():
            self._attach(handle, self._layout_of(handle.descriptor, handle.namespace_serializer))

    def _update_state(self, store: LoadedState, reader: VersionReader) -> LoadedState | None:
        """Bring the state of an earlier task up to a version; return None if loading anew is necessary or cheaper."""
        missed = catch_up(reader.version, store.content, store.before_own)
        if store.codec != self.key_codec or missed is None or (missed.is_own_lost and store.flushed is None):
            return None
        names = list(store.columns)
        newer = reader.slices_by_state(names, after=missed.after)
        if missed.is_within:
            if sum(len(segment_slice.hash) for slices in newer.values() for segment_slice in slices) > len(store):
                return None
            store.reload(store.known_slots(newer), reader.slices_by_state(names))
        elif missed.after < len(reader.runs):
            store.catch_up(newer)
        if missed.is_own_lost and store.flushed is not None:
            store.reload(store.flushed, reader.slices_by_state(names))
        if reader.version.lineage.identity != store.content.identity:
            store.set_content(reader.version.lineage)
        return store

    def prepare(self, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Sequence[int]:
        if self._failure is not None:
            self._raise_failure()
        self._elements += len(dict_keys)
        keys = self._loaded.keys
        before = len(keys)
        with self._loading():
            if isinstance(dict_keys, LazyKeys):
                slots: Sequence[int] = Slots(keys.slots_of_column(dict_keys.stored, hashes))
            else:
                slots = keys.slots_of(dict_keys, hashes)
            if len(keys) > before:
                columns = [handle.column for handle in self._cell_handles()]
                self._loaded.load(before, columns, self._slices)
        return slots

    def keys_of(self, slots: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.uint64]]:
        return self._loaded.keys.stored(slots), self._loaded.hashes_of(slots)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Remember failures: partly loaded state ends the task, even if a user function catches the error."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _raise_failure(self) -> NoReturn:
        raise StateError(
            f"The state of operator {self.operator_identifier!r} could not be read earlier in this task "
            f"({self._failure}), so the task must fail. Do not catch that error in a user function."
        ) from self._failure

    def set_processing_time(self, now: int) -> None:
        super().set_processing_time(now)
        for handle in self._handles.values():
            if isinstance(handle, ExpiringHandle):
                handle.set_processing_time(now)

    def release(self) -> None:
        """Forget what has come and gone between two flushes; evict unchanged keys if the memory limit is exceeded."""
        store = self._loaded
        if self._reader is None or self._failure is not None:
            return
        if self._elements >= self._next_forgetting:
            left = store.forget_undone_changes()
            self.slot = NoCurrentKey()
            self._elements, self._next_forgetting = 0, max(_ELEMENTS_BETWEEN_CHECKS, 2 * left)
        if len(store) < self._next_check:
            return
        if self._is_too_large(store):
            changed = store.slots_of({name: column.changed() for name, column in store.columns.items()})
            # Renumbering takes time, so it is only worth it if it evicts many keys.
            if 2 * len(changed) < len(store):
                store.keep(changed)
                store.is_complete = False
                store.set_content(store.content)
        self.slot = NoCurrentKey()
        self._next_check = len(store) + max(_KEYS_BETWEEN_CHECKS, len(store))

    def _is_too_large(self, store: LoadedState) -> bool:
        return store.estimated_bytes() > self.env.configuration.get(HASHMAP_MEMORY)

    def get_current_dict_key(self) -> Any:
        return self._loaded.keys[self.slot.__index__()]

    def create_handle(
        self, descriptor: StateDescriptor[Any], namespace: Any, namespace_serializer: Any
    ) -> CellHandle[Any]:
        descriptor.initialize_serializer_unless_set()
        layout = self._layout_of(descriptor, namespace_serializer)
        handle = handle_for(self, descriptor, layout, namespace_serializer)
        self._attach(handle, layout)
        return handle

    def _layout_of(
        self, descriptor: StateDescriptor[Any], namespace_serializer: TypeSerializer[Any] | None
    ) -> StateLayout:
        """Return the layout of a state after its earlier declarations in the version."""
        schema = None if namespace_serializer is None else namespace_serializer.snapshot().to_json()
        layout = StateLayout.of(descriptor, self.key_codec, schema)
        layout.value.owner = f"State {descriptor.name!r} of operator {self.operator_identifier!r}"
        reader = self._reader
        return layout if reader is None else reader.evolve_layout(layout, self.processing_time)

    def _attach(self, handle: CellHandle[Any], layout: StateLayout) -> None:
        """Bind a handle to the loaded state of this version."""
        column = self._loaded.columns.get(layout.name)
        if column is None or not layout.decodes_like(column.layout):
            column = self._loaded.columns[layout.name] = self._new_column(layout)
        column.layout = layout
        slices = () if self._reader is None else self._reader.slices(layout.name)
        self._slices[layout.name] = slices
        with self._loading():
            self._loaded.complete(column, slices)
        handle.attach(column, self._cursor_for(column, handle))

    def _new_column(self, layout: StateLayout) -> Column:
        return column_for(layout)

    def _cursor_for(self, column: Column, handle: CellHandle[Any]) -> Any:
        if not isinstance(column.placement, NamespacePlacement):
            return self
        return NamespaceCursor(self, column.placement, handle.namespace_serializer)

    def _cell_handles(self) -> list[CellHandle[Any]]:
        return [handle for handle in self._handles.values() if isinstance(handle, CellHandle)]

    def remove_state(self, name: str) -> None:
        if name in self._handles:
            raise StateError(f"State {name!r} is declared by the program, so it cannot be removed.")
        self._loaded.columns.pop(name, None)  # an earlier program in this process may have loaded it
        self._loaded.is_complete = False
        if self._reader is not None:
            self._removals.remove(name, self._reader)

    @property
    def timers(self) -> SimpleTimerService:
        return self._user_timers

    def get_internal_timer_service(self, name: str, namespace_serializer: TypeSerializer[Any]) -> InternalTimerService:
        service = self._services.get(name)
        if service is None:
            service = InternalTimerService(self, name, namespace_serializer)
            if self._reader is not None:
                service.open(self._reader.runs[::-1], self.key_group_range)
            self._services[name] = service
        elif service.namespace_serializer != namespace_serializer:
            raise StateError(f"The timer service {name!r} is already registered with other namespaces.")
        return service

    def least_processing_time(self) -> int | None:
        return earliest(service.least_processing_time() for service in self._services.values())

    def processing_time_bound(self) -> int | None:
        return earliest(service.processing_time_bound() for service in self._services.values())

    def flush(self, path_factory: Callable[[], str], token: int, epoch: int) -> RunHandle | None:
        reader = self._reader
        if reader is None:
            raise StateError("No version is open: call open_version() before flush().")
        if self._failure is not None:
            self._raise_failure()
        for handle in self._cell_handles():
            if isinstance(handle, ExpiringHandle):
                handle.clean_up(len(handle.column.changed()))
        changed = {name: cells for name, column in self._loaded.columns.items() if len(cells := column.changed())}
        segments = self._segments(changed)
        run = None
        if segments:
            run = write_run(reader.fs, reader.root, path_factory(), segments, self._meta(token, epoch))
        flushed = self._mark_flushed(changed)
        self._removals.written()
        if run is not None:
            self._loaded.add_own_run(run.lineage, flushed)
            self._advance_to(reader, run)
        return run

    def _segments(self, changed: Iterable[str]) -> dict[str, SegmentData]:
        segments = {}
        for name in changed:
            data = self._loaded.columns[name].snapshot(self._loaded, self.operator_identifier)
            if data is not None:
                segments[name] = data
        for handle in self._cell_handles():
            layout = handle.column.layout
            if layout.is_schema_new and layout.name not in segments:
                # Readers of files convert older runs to the newest schema, so it must be in a run, even without rows.
                segments[layout.name] = SegmentData(layout.empty_table(), layout.schema)
        for service in self._services.values():
            segments |= service.segments(self.number_of_key_groups)
        return segments | self._removals.segments()

    def _mark_flushed(self, changed: Mapping[str, Cells]) -> Cells:
        """Mark the changes as written; return their slots."""
        flushed = self._loaded.slots_of(changed)
        for name in changed:
            self._loaded.columns[name].mark_flushed()
        self._track_empty_keys(flushed)
        return flushed

    def _track_empty_keys(self, slots: Cells) -> None:
        self._loaded.track_empty_keys(slots)

    def _meta(self, token: int, epoch: int) -> RunMeta:
        services = self._services.values()
        fired: dict[str, int] = {}
        for service in services:
            fired |= service.fired_through()
        return RunMeta(
            self.key_group_range,
            self.number_of_key_groups,
            token,
            epoch,
            self.key_codec.to_json(),
            {
                EVENT: earliest(service.least_event_time() for service in services),
                PROCESSING: self.least_processing_time(),
            },
            fired,
        )

    def _advance_to(self, reader: VersionReader, run: RunHandle) -> None:
        """Continue from the version with the new run. The cells already have its content; timers read it."""
        reader.add(run)
        if reader.has_timers():
            for service in self._services.values():
                service.open(reader.runs[::-1], self.key_group_range)

    def commit_cache(self) -> None:
        store, budget = self._loaded, self.env.configuration.get(HASHMAP_MEMORY)
        self._removals.remember(self._reader, budget)
        if self._reader is not None and self._failure is None:
            store.drop_empty()
            if not self._cache.put(self._cache_name, store, budget):
                self._keep_part(store, budget)
        self.dispose()

    def _keep_part(self, store: LoadedState, budget: int) -> None:
        """Cache only the keys of the last epoch if not all fit."""
        if store.flushed is not None and len(store.flushed) < len(store):
            store.keep(store.flushed)
            if self._cache.put(self._cache_name, store, budget):
                return
        logger.info(
            "the state of operator %r does not fit into %s (%d bytes): the next epoch reads what it needs from runs",
            self.operator_identifier,
            HASHMAP_MEMORY.key,
            budget,
        )

    def drop_cache(self) -> None:
        self.dispose()

    def dispose(self) -> None:
        for handle in self._cell_handles():
            handle.detach()
        self._handles.clear()
        for service in self._services.values():
            service.open(
                (), self.key_group_range
            )  # the cycle of backend and service delays its deletion, but must not keep runs mapped
        if self._registry is not None:
            self._registry.unregister_all()
        self._start(LoadedState(self.key_codec), None)

    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:
        namespace = VOID if namespace is None else namespace
        return (key for key, found in self.get_keys_and_namespaces(state_name) if found == namespace)

    def get_keys_and_namespaces(self, state_name: str) -> Iterator[tuple[Any, Any]]:
        handle = self._handles.get(state_name)
        if not isinstance(handle, CellHandle):
            raise StateError(f"State {state_name!r} is not registered. Get it with its descriptor first.")
        self._load_everything(state_name)
        store, column = self._loaded, handle.column
        cells = column.filled()
        keys = [self.key_codec.user_key(key) for key in store.keys.objects(column.placement.slots_of(cells))]
        namespaces = column.placement.namespaces_of(cells)
        if namespaces is None:
            return iter([(key, VOID) for key in keys])
        serializer = handle.namespace_serializer
        return iter([(key, serializer.deserialize(name)) for key, name in zip(keys, namespaces, strict=True)])

    def _load_everything(self, state_name: str) -> None:
        for segment_slice in self._slices.get(state_name, ()):
            self.prepare(segment_slice.dict_keys(self.key_codec), segment_slice.hash)

    def num_key_value_state_entries(self) -> int:
        return sum(len(handle.column.filled()) for handle in self._cell_handles())


class HashMapStateBackend(StateBackend):
    """Keeps the working set of each subtask as Python objects, bounded by `state.backend.hashmap.memory`."""

    def create_keyed_state_backend(
        self,
        env: Environment,
        job_id: Any,
        operator_identifier: str,
        key_serializer: KeyCodec,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_state_registry: TaskKvStateRegistry | None = None,
    ) -> HashMapKeyedStateBackend:
        """Return the keyed state of one subtask; see `StateBackend`."""
        return HashMapKeyedStateBackend(
            env, job_id, operator_identifier, key_serializer, number_of_key_groups, key_group_range, kv_state_registry
        )


class HashMapStateBackendFactory(StateBackendFactory[HashMapStateBackend]):
    """Creates the backend `hashmap`."""

    def create_from_config(self, config: Configuration) -> HashMapStateBackend:
        """Return the backend. Its options are read by each task."""
        return HashMapStateBackend()

    def get_identifier(self) -> str:
        """Return `hashmap`."""
        return "hashmap"


class MemoryStateBackend(HashMapStateBackend):
    """Deprecated name of `HashMapStateBackend` with `JobManagerCheckpointStorage`.

    Args:
        max_state_size: Maximum size of a checkpoint in bytes.

    Raises:
        ConfigurationError: The size is not positive.
    """

    DEFAULT_MAX_STATE_SIZE: Final = 5 * 1024 * 1024

    def __init__(self, max_state_size: int = DEFAULT_MAX_STATE_SIZE) -> None:
        logger.warning(
            "MemoryStateBackend is deprecated: use HashMapStateBackend and execution.checkpointing.storage 'jobmanager'"
        )
        if max_state_size < 1:
            raise ConfigurationError(f"The maximum state size must be at least 1 byte, not {max_state_size!r}.")
        self.max_state_size = max_state_size

    def get_max_state_size(self) -> int:
        """Return the maximum size of a checkpoint in bytes."""
        return self.max_state_size


class FsStateBackend(HashMapStateBackend):
    """Deprecated name of `HashMapStateBackend` with `FileSystemCheckpointStorage`.

    Args:
        checkpoint_data_uri: Directory of checkpoints, a path or URI.

    Raises:
        ConfigurationError: The directory is empty or not a text.
    """

    def __init__(self, checkpoint_data_uri: str) -> None:
        logger.warning("FsStateBackend is deprecated: use HashMapStateBackend with execution.checkpointing.dir")
        if not isinstance(checkpoint_data_uri, str) or not checkpoint_data_uri:
            raise ConfigurationError(f"FsStateBackend needs the directory of checkpoints, not {checkpoint_data_uri!r}.")
        self.checkpoint_path = checkpoint_data_uri

    def get_checkpoint_path(self) -> str:
        """Return the directory of checkpoints."""
        return self.checkpoint_path

    def __repr__(self) -> str:
        return f"FsStateBackend({self.checkpoint_path!r})"
