"""Keyed state as decoded objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import StateError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.secret import get_logger
from holdfast.state.backend.cache import STATE_CACHE, StateCache
from holdfast.state.backend.keyed import AbstractKeyedStateBackend, NoCurrentKey
from holdfast.state.backend.kv_state_registry import TaskKvStateRegistry
from holdfast.state.backend.removal import Removals
from holdfast.state.backend.version_reader import VersionReader
from holdfast.state.compaction.tombstones import tombstones
from holdfast.state.declaration.descriptor import StateDescriptor
from holdfast.state.declaration.environment import Environment
from holdfast.state.declaration.options import HASHMAP_MEMORY
from holdfast.state.hashmap.column import Column
from holdfast.state.hashmap.handle import CellHandle
from holdfast.state.hashmap.kind import column_for, handle_for
from holdfast.state.hashmap.placement import Cells, NamespaceCursor, NamespacePlacement, Slots
from holdfast.state.hashmap.store import Store
from holdfast.state.hashmap.ttl import Expiring
from holdfast.state.layout.column_layout import StateLayout
from holdfast.state.layout.namespace import VOID, VoidNamespaceSerializer
from holdfast.state.run.catch_up import catch_up
from holdfast.state.run.probe import Stretch
from holdfast.state.run.run_file import RunHandle
from holdfast.state.run.run_footer import RunMeta
from holdfast.state.run.run_writer import SegmentData, write_run
from holdfast.state.run.version import StateVersion
from holdfast.state.timer.timer_queue import least_of
from holdfast.state.timer.timer_service import EVENT, PROCESSING, USER_TIMERS, InternalTimerService, SimpleTimerService
from holdfast.storage.file_system.scheme import FileSystem
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.arrived_keys import ArrivedKeys
from holdfast.types.serializer import TypeSerializer

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
        self._start(Store(key_codec), None)
        self._user_timers = SimpleTimerService(self.get_internal_timer_service(USER_TIMERS, VoidNamespaceSerializer()))

    def _start(self, store: Store, reader: VersionReader | None) -> None:
        self._store = store
        self._reader = reader
        # Of the registered states, newest first.
        self._stretches: dict[str, Sequence[Stretch]] = {}
        self._removals = Removals(self._cache, self._cache_name, tombstones)
        self._failure: BaseException | None = None
        self._look_again = _KEYS_BETWEEN_LOOKS
        self.slot = NoCurrentKey()

    # Versions.

    def open_version(self, version: StateVersion, fs: FileSystem, job_root: str) -> None:
        """Start from a version, with what the process still knows of it."""
        reader = VersionReader(version, fs, job_root, self.key_group_range)
        reader.check_keys(self.operator_identifier, self.key_codec, self.number_of_key_groups)
        taken = self._cache.take(self._cache_name)
        store = self._caught_up(taken, reader) if isinstance(taken, Store) else None
        self.was_warm = None if not version.runs else store is not None
        if store is None:
            store = Store(self.key_codec)
            store.begin(version.lineage)
        self._start(store, reader)
        for service in self._services.values():
            service.open(reader.runs[::-1], self.key_group_range)
        for handle in self._cell_handles():
            self._attach(handle, self._layout_of(handle.descriptor, handle.namespace_serializer))

    def _caught_up(self, store: Store, reader: VersionReader) -> Store | None:
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
            if isinstance(dict_keys, ArrivedKeys):
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

    def _is_too_large(self, store: Store) -> bool:
        return store.estimated_bytes() > self.env.get_configuration().get(HASHMAP_MEMORY)

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
        return layout if reader is None else reader.continue_state(layout, self.env.get_processing_time())

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
        return least_of(service.least_processing_time() for service in self._services.values())

    # The end of an epoch.

    def flush(self, path_factory: Callable[[], str], token: int, epoch: int) -> RunHandle | None:
        """Write what has changed as one run."""
        reader = self._reader
        if reader is None:
            raise StateError("No version is open: call open_version() before flush().")
        if self._failure is not None:
            self._refuse()
        for handle in self._cell_handles():
            if isinstance(handle, Expiring):
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
                EVENT: least_of(service.least_event_time() for service in services),
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
        store, budget = self._store, self.env.get_configuration().get(HASHMAP_MEMORY)
        self._removals.remember(self._reader, budget)
        if self._reader is not None and self._failure is None:
            store.drop_empty()
            if not self._cache.put(self._cache_name, store, budget):
                self._keep_part(store, budget)
        self.dispose()

    def _keep_part(self, store: Store, budget: int) -> None:
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
        self._start(Store(self.key_codec), None)

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
