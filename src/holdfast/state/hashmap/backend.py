"""Keyed state as decoded objects."""

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
from holdfast.state.environment import HASHMAP_MEMORY, Environment, TaskKvStateRegistry
from holdfast.state.hashmap.columns import Column, ListColumn, MapColumn, ScalarColumn
from holdfast.state.hashmap.handles import (
    AggregatingHandle,
    CellHandle,
    CopiedValueHandle,
    DefaultValueHandle,
    FoldingHandle,
    ListHandle,
    MapHandle,
    OpaqueValueHandle,
    ReducingHandle,
    RowValueHandle,
    ValueHandle,
)
from holdfast.state.hashmap.slots import Cells, NamespaceCursor, NamespacePlacement, SlotKeys, SlotPlacement, Slots
from holdfast.state.hashmap.ttl import (
    ExpiringAggregatingHandle,
    ExpiringFoldingHandle,
    ExpiringHandle,
    ExpiringListHandle,
    ExpiringMapHandle,
    ExpiringReducingHandle,
    ExpiringValueHandle,
)
from holdfast.state.layout import VOID, OpaqueCodec, RowCodec, StateLayout, VoidNamespaceSerializer, average_size
from holdfast.state.probe import Hashes, KeyProbe, SegmentSlice
from holdfast.state.run_file import Lineage, RunHandle, RunMeta
from holdfast.state.run_writer import SegmentData, write_run
from holdfast.state.timer_service import EVENT, PROCESSING, USER_TIMERS, InternalTimerService, SimpleTimerService
from holdfast.state.timers import earliest
from holdfast.state.version import StateVersion, catch_up
from holdfast.state.version_reader import STATE_CACHE, StateCache, StateRemovals, VersionReader
from holdfast.storage.file_system import FileSystem
from holdfast.types.key_codec import KeyCodec
from holdfast.types.key_columns import LazyKeys
from holdfast.types.serializer import TypeSerializer

# What is known of the keys of one subtask: their slots, and the cells of each state.

# Its place in a list, and two bytes.
_CELL_BYTES: Final = 16
_EMPTY_KEYS_KEPT: Final = 1024

Stretches = Mapping[str, Sequence[SegmentSlice]]


class LoadedState:
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

    def complete(self, column: Column, stretches: Sequence[SegmentSlice]) -> None:
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

    def _follow(self, column: Column, missed: Sequence[SegmentSlice]) -> None:
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

    def _load(self, column: Column, stretches: Sequence[SegmentSlice], slots: Cells) -> None:
        wanted = self._wanted(slots)
        column.load(stretches, wanted, slots[wanted.order])

    def _wanted(self, slots: Cells) -> KeyProbe:
        return KeyProbe(self.codec, self.keys.some(slots), self.keys.hashes[slots])

    def _known_in(self, stretches: Sequence[SegmentSlice]) -> Cells:
        found = np.zeros(len(self.keys) + 1, bool)
        for stretch in stretches:
            found[self._slots_in(stretch)] = True
        return np.flatnonzero(found[:-1])  # the last one stands for keys that are not known

    def _slots_in(self, stretch: SegmentSlice) -> Cells:
        """Return for each row the slot of its key, -1 for a key that is not known."""
        stored = self.codec.canonical_stored(stretch.stored_keys)
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


# Which column and which handle belong to which kind of state.

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


def column_for(layout: StateLayout) -> Column:
    """Return an empty column for a state."""
    return _COLUMNS.get(layout.kind, ScalarColumn)(layout)


def handle_for(
    backend: AbstractKeyedStateBackend, descriptor: StateDescriptor[Any], layout: StateLayout, namespace_serializer: Any
) -> CellHandle[Any]:
    """Return a handle for a state, of the fastest class that does."""
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


logger = get_logger(__name__)

_KEYS_BETWEEN_LOOKS: Final = 16 * 1024


class HashMapKeyedStateBackend(AbstractKeyedStateBackend):
    """Keyed state as decoded objects, kept in the process between tasks; see the module `store`.

    Loads only keys that are touched, so a cold start costs nothing that depends on the size of the state.
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
        cache: StateCache = STATE_CACHE,
    ) -> None:
        super().__init__(env, operator_identifier, key_codec, number_of_key_groups, key_group_range, kv_state_registry)
        self._cache = cache
        self._cache_name = (str(job_id), operator_identifier, key_group_range.start, key_group_range.end)
        self._services: dict[str, InternalTimerService] = {}
        self._start(LoadedState(key_codec), None)
        self._user_timers = SimpleTimerService(self.get_internal_timer_service(USER_TIMERS, VoidNamespaceSerializer()))

    def _start(self, store: LoadedState, reader: VersionReader | None) -> None:
        self._store = store
        self._reader = reader
        # Of the registered states, newest first.
        self._stretches: dict[str, Sequence[SegmentSlice]] = {}
        self._removals = StateRemovals(self._cache, self._cache_name, tombstones)
        self._failure: BaseException | None = None
        self._look_again = _KEYS_BETWEEN_LOOKS
        self.slot = NoCurrentKey()

    # Versions.

    def open_version(self, version: StateVersion, fs: FileSystem, job_root: str) -> None:
        """Start from a version, with what the process still knows of it."""
        reader = VersionReader(version, fs, job_root, self.key_group_range)
        reader.check_keys(self.operator_identifier, self.key_codec, self.number_of_key_groups)
        taken = self._cache.take(self._cache_name)
        store = self._caught_up(taken, reader) if isinstance(taken, LoadedState) else None
        self.was_warm = None if not version.runs else store is not None
        if store is None:
            store = LoadedState(self.key_codec)
            store.begin(version.lineage)
        self._start(store, reader)
        for service in self._services.values():
            service.open(reader.runs[::-1], self.key_group_range)
        for handle in self._cell_handles():
            self._attach(handle, self._layout_of(handle.descriptor, handle.namespace_serializer))

    def _caught_up(self, store: LoadedState, reader: VersionReader) -> LoadedState | None:
        """Bring a store of an earlier task up to a version; None if it cannot be, or not at less cost than anew."""
        missed = catch_up(reader.version, store.content, store.before_own)
        if store.codec != self.key_codec or missed is None or (missed.is_own_lost and store.flushed is None):
            return None
        names = list(store.columns)
        newer = reader.stretches_by_state(names, after=missed.after)
        if missed.is_within:
            if sum(len(stretch.hash) for stretches in newer.values() for stretch in stretches) > len(store):
                return None
            store.reload(store.known_in(newer), reader.stretches_by_state(names))
        elif missed.after < len(reader.runs):
            store.catch_up(newer)
        if missed.is_own_lost and store.flushed is not None:
            store.reload(store.flushed, reader.stretches_by_state(names))
        if reader.version.lineage.identity != store.content.identity:
            store.begin(reader.version.lineage)
        return store

    # Keys.

    def prepare(self, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Sequence[int]:
        """Return the slots of some keys, after loading those that are not loaded yet in one probe."""
        if self._failure is not None:
            self._refuse()
        keys = self._store.keys
        before = len(keys)
        with self._loading():
            if isinstance(dict_keys, LazyKeys):
                slots: Sequence[int] = Slots(keys.slots_of_column(dict_keys.stored, hashes))
            else:
                slots = keys.slots_of(dict_keys, hashes)
            if len(keys) > before:
                columns = [handle.column for handle in self._cell_handles()]
                self._store.load(before, columns, self._stretches)
        return slots

    def keys_of(self, slots: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.uint64]]:
        """Return the keys of some slots as files have them, and the hash of each."""
        return self._store.keys.stored(slots), self._store.hashes_of(slots)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """What is loaded by half is no state: a failure ends the task, also if a user function swallows it."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _refuse(self) -> NoReturn:
        raise StateError(
            f"The state of operator {self.operator_identifier!r} could not be read before ({self._failure}). "
            "This task cannot go on: do not catch that error."
        ) from self._failure

    def release(self) -> None:
        """Slots that were handed out are not used any more: keys that were not changed may go if there are many."""
        store = self._store
        if len(store) < self._look_again or self._reader is None or self._failure is not None:
            return
        if self._is_too_large(store):
            changed = store.slots_of({name: column.changed() for name, column in store.columns.items()})
            # Numbering keys anew takes time, so it has to give up many of them.
            if 2 * len(changed) < len(store):
                store.keep(changed)
                store.begin(store.content)
        self.slot = NoCurrentKey()
        self._look_again = len(store) + max(_KEYS_BETWEEN_LOOKS, len(store))

    def _is_too_large(self, store: LoadedState) -> bool:
        return store.estimated_bytes() > self.env.configuration.get(HASHMAP_MEMORY)

    def get_current_dict_key(self) -> Any:
        """Return the current key in the form of the key codec."""
        return self._store.keys[self.slot.__index__()]

    # States.

    def create_handle(
        self, descriptor: StateDescriptor[Any], namespace: Any, namespace_serializer: Any
    ) -> CellHandle[Any]:
        """Make the handle of a state that is asked for the first time."""
        descriptor.initialize_serializer_unless_set()
        layout = self._layout_of(descriptor, namespace_serializer)
        handle = handle_for(self, descriptor, layout, namespace_serializer)
        self._attach(handle, layout)
        return handle

    def _layout_of(
        self, descriptor: StateDescriptor[Any], namespace_serializer: TypeSerializer[Any] | None
    ) -> StateLayout:
        """Return the layout of a state, as it goes on from what the version has of it."""
        schema = None if namespace_serializer is None else namespace_serializer.snapshot().to_json()
        layout = StateLayout.of(descriptor, self.key_codec, schema)
        reader = self._reader
        return layout if reader is None else reader.continue_state(layout, self.env.processing_time)

    def _attach(self, handle: CellHandle[Any], layout: StateLayout) -> None:
        """Let a handle work on the store of this version."""
        column = self._store.columns.get(layout.name)
        if column is None or not layout.makes_the_same(column.layout):
            column = self._store.columns[layout.name] = self._new_column(layout)
        column.layout = layout
        stretches = () if self._reader is None else self._reader.stretches(layout.name)
        self._stretches[layout.name] = stretches
        with self._loading():
            self._store.complete(column, stretches)
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
        """Delete all that there is of a state that the program does not declare; written with the epoch's run."""
        if name in self._handles:
            raise StateError(f"State {name!r} is declared, and is to be deleted as a whole: it cannot be both.")
        self._store.columns.pop(name, None)  # of a program before, in the same process
        if self._reader is not None:
            self._removals.begin(name, self._reader)

    # Timers.

    @property
    def timers(self) -> SimpleTimerService:
        """The timers of user functions."""
        return self._user_timers

    def get_internal_timer_service(self, name: str, namespace_serializer: TypeSerializer[Any]) -> InternalTimerService:
        """Return the timers of a service, the same object for the same name."""
        service = self._services.get(name)
        if service is None:
            service = InternalTimerService(self, name, namespace_serializer)
            if self._reader is not None:
                service.open(self._reader.runs[::-1], self.key_group_range)
            self._services[name] = service
        elif service.namespace_serializer != namespace_serializer:
            raise StateError(f"The timer service {name!r} is asked for with other namespaces than it has already.")
        return service

    def least_processing_time(self) -> int | None:
        """Return the time of the least processing-time timer of all services, None if there is none."""
        return earliest(service.least_processing_time() for service in self._services.values())

    # The end of an epoch.

    def flush(self, path_factory: Callable[[], str], token: int, epoch: int) -> RunHandle | None:
        """Write what has changed as one run."""
        reader = self._reader
        if reader is None:
            raise StateError("No version is open: call open_version() before flush().")
        if self._failure is not None:
            self._refuse()
        for handle in self._cell_handles():
            if isinstance(handle, ExpiringHandle):
                handle.clean_up(len(handle.column.changed()))
        changed = {name: cells for name, column in self._store.columns.items() if len(cells := column.changed())}
        segments = self._segments(changed)
        run = None
        if segments:
            run = write_run(reader.fs, reader.root, path_factory(), segments, self._meta(token, epoch))
        flushed = self._settle(changed)
        if run is not None:
            self._store.wrote(run.lineage, flushed)
            self._go_on_to(reader, run)
        return run

    def _segments(self, changed: Iterable[str]) -> dict[str, SegmentData]:
        segments = {}
        for name in changed:
            data = self._store.columns[name].snapshot(self._store, self.operator_identifier)
            if data is not None:
                segments[name] = data
        for handle in self._cell_handles():
            layout = handle.column.layout
            if layout.is_news and layout.name not in segments:
                # Older runs are read by what the newest one says, also by those who know files only.
                segments[layout.name] = SegmentData(layout.empty_table(), layout.schema)
        for service in self._services.values():
            segments |= service.segments(self.number_of_key_groups)
        return segments | self._removals.take()

    def _settle(self, changed: Mapping[str, Cells]) -> Cells:
        """Take what has changed for written; return the slots that it is about."""
        flushed = self._store.slots_of(changed)
        for name in changed:
            self._store.columns[name].settle()
        self._note_flushed(flushed)
        return flushed

    def _note_flushed(self, slots: Cells) -> None:
        """Some slots were written."""
        self._store.look_for_empty(slots)

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

    def _go_on_to(self, reader: VersionReader, run: RunHandle) -> None:
        """Start from the version with the new run; the cells have all of it already, the timers read it."""
        reader.add(run)
        if reader.has_timers():
            for service in self._services.values():
                service.open(reader.runs[::-1], self.key_group_range)

    def commit_cache(self) -> None:
        """Keep what is decoded for later tasks of this subtask."""
        store, budget = self._store, self.env.configuration.get(HASHMAP_MEMORY)
        self._removals.remember(self._reader, budget)
        if self._reader is not None and self._failure is None:
            store.drop_empty()
            if not self._cache.put(self._cache_name, store, budget):
                self._keep_part(store, budget)
        self.dispose()

    def _keep_part(self, store: LoadedState, budget: int) -> None:
        """Keep the keys of the last epoch if not all fit."""
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
        """Forget everything."""
        self.dispose()

    def dispose(self) -> None:
        """Let go of everything; handles cannot be used any more."""
        for handle in self._cell_handles():
            handle.detach()
        self._handles.clear()
        for service in self._services.values():
            service.open((), self.key_group_range)  # it refers to the backend and lives on, but must hold no runs
        if self._registry is not None:
            self._registry.unregister_all()
        self._start(LoadedState(self.key_codec), None)

    # Everything there is.

    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:
        """Yield the user keys that have something in a state; reads all keys of the range."""
        namespace = VOID if namespace is None else namespace
        return (key for key, found in self.get_keys_and_namespaces(state_name) if found == namespace)

    def get_keys_and_namespaces(self, state_name: str) -> Iterator[tuple[Any, Any]]:
        """Yield each user key and namespace that have something in a state; reads all keys of the range."""
        handle = self._handles.get(state_name)
        if not isinstance(handle, CellHandle):
            raise StateError(f"State {state_name!r} is not registered. Ask for it with its descriptor first.")
        self._load_everything(state_name)
        store, column = self._store, handle.column
        cells = column.filled()
        keys = [self.key_codec.user_key(key) for key in store.keys.objects(column.placement.slots_of(cells))]
        namespaces = column.placement.namespaces_of(cells)
        if namespaces is None:
            return iter([(key, VOID) for key in keys])
        serializer = handle.namespace_serializer
        return iter([(key, serializer.deserialize(name)) for key, name in zip(keys, namespaces, strict=True)])

    def _load_everything(self, state_name: str) -> None:
        for stretch in self._stretches.get(state_name, ()):
            self.prepare(stretch.dict_keys(self.key_codec), stretch.hash)

    def num_key_value_state_entries(self) -> int:
        """Return how many pairs of key and namespace have something in the loaded part of the registered states."""
        return sum(len(handle.column.filled()) for handle in self._cell_handles())


# The state backend `hashmap`, and the older names under which Flink's users know it.


class HashMapStateBackend(StateBackend):
    """Holds the working set of each subtask as Python objects, bounded by `state.backend.hashmap.memory`."""

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
        """Return the keyed state of one subtask, without a version yet."""
        return HashMapKeyedStateBackend(
            env, job_id, operator_identifier, key_serializer, number_of_key_groups, key_group_range, kv_state_registry
        )


class HashMapStateBackendFactory(StateBackendFactory[HashMapStateBackend]):
    """Makes the backend `hashmap`."""

    def create_from_config(self, config: Configuration) -> HashMapStateBackend:
        """Return the backend; its options are read where they act."""
        return HashMapStateBackend()

    def get_identifier(self) -> str:
        """Return the short name."""
        return "hashmap"


class MemoryStateBackend(HashMapStateBackend):
    """Deprecated name of `HashMapStateBackend` together with `JobManagerCheckpointStorage`.

    Args:
        max_state_size: Largest checkpoint in bytes.
    """

    DEFAULT_MAX_STATE_SIZE: Final = 5 * 1024 * 1024

    def __init__(self, max_state_size: int = DEFAULT_MAX_STATE_SIZE) -> None:
        logger.warning(
            "MemoryStateBackend is deprecated: use HashMapStateBackend and execution.checkpointing.storage 'jobmanager'"
        )
        if max_state_size < 1:
            raise ConfigurationError(f"The largest state must have at least one byte, not {max_state_size!r}.")
        self.max_state_size = max_state_size

    def get_max_state_size(self) -> int:
        """Return the size of the largest checkpoint in bytes."""
        return self.max_state_size


class FsStateBackend(HashMapStateBackend):
    """Deprecated name of `HashMapStateBackend` together with `FileSystemCheckpointStorage`.

    Args:
        checkpoint_data_uri: Directory of checkpoints, a path or URI.
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
