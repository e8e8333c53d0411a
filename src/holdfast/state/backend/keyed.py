"""The keyed state of one subtask, as the task drives it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import StateError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.backend.handle import StateHandle
from holdfast.state.backend.kv_state_registry import TaskKvStateRegistry
from holdfast.state.declaration.api import (
    AggregatingState,
    FoldingState,
    KeyedStateStore,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from holdfast.state.declaration.descriptor import StateDescriptor
from holdfast.state.declaration.environment import Environment
from holdfast.state.layout.namespace import is_void
from holdfast.state.run.run_file import RunHandle
from holdfast.state.run.version import StateVersion
from holdfast.state.timer.timer_service import InternalTimerService, SimpleTimerService
from holdfast.storage.file_system.scheme import FileSystem
from holdfast.types.key.abstract_key_codec import KeyCodec


class NoCurrentKey:
    """Stands for the slot while there is no current key; using it as a number says what is wrong."""

    def __index__(self) -> NoReturn:
        raise StateError(
            "There is no current key, so keyed state cannot be used: it belongs to process_element() and on_timer(), "
            "not to open() or close()."
        )

    def __repr__(self) -> str:
        return "NoCurrentKey()"


class AbstractKeyedStateBackend(KeyedStateStore):
    """The keyed state of one subtask of one operator, in one epoch.

    A task drives it like this::

        open_version(version, fs, root)
        slots = prepare(dict_keys, hashes)     # a whole batch: loads what is not loaded yet
        slot = slots[i]                        # by assignment: the current key, to which handles refer
        handle = flush(path_factory, token, epoch)
        commit_cache() | drop_cache()

    Attributes:
        was_warm: Whether the worker still had its state of an earlier task; None where there was none to have.
        env: The task.
        operator_identifier: Uid of the operator.
        key_codec: Codec of its keys.
        number_of_key_groups: Its max parallelism.
        key_group_range: The key groups of the subtask.
        slot: What stands for the current key.
    """

    slot: Any
    was_warm: bool | None = None

    def __init__(
        self,
        env: Environment,
        operator_identifier: str,
        key_codec: KeyCodec,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_state_registry: TaskKvStateRegistry | None = None,
    ) -> None:
        self.slot = NoCurrentKey()
        self.env = env
        self.operator_identifier = operator_identifier
        self.key_codec = key_codec
        self.number_of_key_groups = number_of_key_groups
        self.key_group_range = key_group_range
        self._registry = kv_state_registry
        self._handles: dict[str, StateHandle] = {}

    # Driven by the task.

    @property
    @abstractmethod
    def timers(self) -> SimpleTimerService:
        """The timers of user functions."""

    @abstractmethod
    def open_version(self, version: StateVersion, fs: FileSystem, job_root: str) -> None:
        """Start from a version; may be called again, then what was not flushed is lost.

        Raises:
            CorruptFileError, NotExistError: A run is damaged or gone.
            StateMigrationError: The state was written for other keys.
        """

    @abstractmethod
    def prepare(self, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Sequence[Any]:
        """Return what to assign to `slot` for each of some keys, after loading those that are not loaded yet.

        Args:
            dict_keys: The keys, in the form of the key codec.
            hashes: The hash of each.
        """

    def keys_of(self, slots: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.uint64]]:
        """Return the keys of some slots as files have them, and the hash of each."""
        before, dict_keys = self.slot, []
        try:
            for self.slot in slots.tolist():
                dict_keys.append(self.get_current_dict_key())
        finally:
            self.slot = before
        return self.key_codec.storage_array(dict_keys), self.key_codec.hashes(dict_keys)

    def release(self) -> None:
        """The slots that `prepare` has returned so far are not used any more, so what they stand for may go."""

    @abstractmethod
    def flush(self, path_factory: Callable[[], str], token: int, epoch: int) -> RunHandle | None:
        """Write what has changed as one run, durably; the version then includes it.

        Args:
            path_factory: Returns a path relative to the job's directory that no file has.
            token: Fencing token of the leader.
            epoch: The epoch.

        Returns:
            The new run, None if nothing has changed.

        Raises:
            OutputTypeError: A value does not fit the declared type of its state.
            StorageError: The run could not be written.
        """

    @abstractmethod
    def commit_cache(self) -> None:
        """The task has succeeded: what is decoded may be kept for later tasks. The backend is closed."""

    @abstractmethod
    def drop_cache(self) -> None:
        """The task has failed: nothing of it may be kept. The backend is closed; never raises."""

    @abstractmethod
    def get_current_dict_key(self) -> Any:
        """Return the current key in the form of the key codec.

        Raises:
            StateError: There is none.
        """

    @abstractmethod
    def create_handle(self, descriptor: StateDescriptor[Any], namespace: Any, namespace_serializer: Any) -> StateHandle:
        """Make the handle of a state that is asked for the first time.

        Raises:
            StateMigrationError: The version has state of that name with another kind or type.
        """

    @abstractmethod
    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:
        """Yield the user keys that have something in a state; reads all keys of the range."""

    @abstractmethod
    def get_keys_and_namespaces(self, state_name: str) -> Iterator[tuple[Any, Any]]:
        """Yield each user key and namespace that have something in a state; reads all keys of the range."""

    @abstractmethod
    def num_key_value_state_entries(self) -> int:
        """Return how many pairs of key and namespace have something in the loaded part of the registered states."""

    @abstractmethod
    def dispose(self) -> None:
        """Let go of everything; handles cannot be used any more."""

    @abstractmethod
    def get_internal_timer_service(self, name: str, namespace_serializer: Any) -> InternalTimerService:
        """Return the timers of a service, such as those of windows; the same object for the same name.

        Raises:
            StateError: The service has other namespaces already.
            StateMigrationError: Its timers were written with other namespaces.
        """

    @abstractmethod
    def least_processing_time(self) -> int | None:
        """Return the time of the least processing-time timer of all services, None if there is none."""

    def remove_state(self, name: str) -> None:
        """Delete all that there is of a state that the program does not declare; nothing if there is nothing.

        Raises:
            StateError: It is declared, or the backend is one that cannot do that.
        """
        raise StateError(f"{type(self).__name__} cannot delete the state {name!r} as a whole.")

    # For everybody.

    def get_partitioned_state(self, namespace: Any, namespace_serializer: Any, state_descriptor: Any) -> Any:
        """Return the handle of a state; the same name gives the same handle, moved to the namespace.

        Args:
            namespace: The current namespace; None, with a serializer of None, for state without namespaces.
            namespace_serializer: Serializer of the namespaces.
            state_descriptor: Of the state.

        Raises:
            StateError: The name stands for a state of another kind already.
            StateMigrationError: The version has state of that name with another kind or type.
        """
        void = is_void(namespace, namespace_serializer)
        handle = self._handles.get(state_descriptor.name)
        if handle is None:
            serializer = None if void else namespace_serializer
            handle = self.create_handle(state_descriptor, namespace, serializer)
            self._handles[state_descriptor.name] = handle
            if self._registry is not None and state_descriptor.is_queryable():
                name = state_descriptor.get_queryable_state_name()
                self._registry.register_kv_state(self.key_group_range, name, state_descriptor.name)
        elif handle.descriptor.kind is not state_descriptor.kind or void != (handle.namespace_serializer is None):
            raise StateError(
                f"State {state_descriptor.name!r} of operator {self.operator_identifier!r} is asked for as "
                f"{state_descriptor!r}, but it is {handle!r} already. Give one of them another name."
            )
        if not void:
            handle.set_current_namespace(namespace)
        return handle

    def bind(self, handle: StateHandle) -> StateHandle:
        """Return this backend's handle of the state of another backend's handle."""
        bound: StateHandle = self.get_partitioned_state(
            handle.get_current_namespace(), handle.namespace_serializer, handle.descriptor
        )
        return bound

    def set_current_key(self, key: Any) -> None:
        """Make a key, given as a user has it, the current one.

        Raises:
            NullKeyError: It is None.
            OutputTypeError: It is not of the type of the keys.
        """
        dict_key = self.key_codec.dict_key(key)
        self.slot = self.prepare([dict_key], self.key_codec.hashes([dict_key]))[0]

    def get_current_key(self) -> Any:
        """Return the current key as a user has it.

        Raises:
            StateError: There is none.
        """
        return self.key_codec.user_key(self.get_current_dict_key())

    def apply_to_all_keys(self, state_descriptor: Any, function: Callable[[Any, Any], None]) -> None:
        """Call a function with each key that has something in a state, and the state's handle at that key."""
        handle = self.get_partitioned_state(None, None, state_descriptor)
        before = self.slot
        try:
            for key in list(self.get_keys(state_descriptor.name)):
                self.set_current_key(key)
                function(key, handle)
        finally:
            self.slot = before

    def get_state(self, state_descriptor: Any) -> ValueState[Any]:
        """Return the handle of a value state."""
        handle: ValueState[Any] = self.get_partitioned_state(None, None, state_descriptor)
        return handle

    def get_list_state(self, state_descriptor: Any) -> ListState[Any]:
        """Return the handle of a list state."""
        handle: ListState[Any] = self.get_partitioned_state(None, None, state_descriptor)
        return handle

    def get_reducing_state(self, state_descriptor: Any) -> ReducingState[Any]:
        """Return the handle of a reducing state."""
        handle: ReducingState[Any] = self.get_partitioned_state(None, None, state_descriptor)
        return handle

    def get_aggregating_state(self, state_descriptor: Any) -> AggregatingState[Any, Any]:
        """Return the handle of an aggregating state."""
        handle: AggregatingState[Any, Any] = self.get_partitioned_state(None, None, state_descriptor)
        return handle

    def get_folding_state(self, state_descriptor: Any) -> FoldingState[Any, Any]:
        """Return the handle of a folding state."""
        handle: FoldingState[Any, Any] = self.get_partitioned_state(None, None, state_descriptor)
        return handle

    def get_map_state(self, state_descriptor: Any) -> MapState[Any, Any]:
        """Return the handle of a map state."""
        handle: MapState[Any, Any] = self.get_partitioned_state(None, None, state_descriptor)
        return handle
