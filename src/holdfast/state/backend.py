"""Interfaces of state backends, and the choice of the backend of a job."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import (
    ConfigurationError,
    HoldfastError,
    OutputTypeError,
    StateError,
    UserFunctionError,
)
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.secret import get_logger
from holdfast.state.api import DescriptorStateStore, State
from holdfast.state.descriptor import StateDescriptor
from holdfast.state.environment import Environment, TaskKvStateRegistry
from holdfast.state.layout import is_void
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.state.options import STATE_BACKEND
from holdfast.state.run_file import RunHandle
from holdfast.state.timer_service import InternalTimerService, SimpleTimerService
from holdfast.state.timers import MIN_TIME
from holdfast.state.version import StateVersion
from holdfast.storage.file_system import FileSystem, join
from holdfast.storage.job_directory import METADATA_NAME, resolve_pointer
from holdfast.storage.scheme import file_system_for
from holdfast.types.key_codec import KeyCodec

logger = get_logger(__name__)

BACKEND_MEMO_KEY: Final = "holdfast.backend"
"""Key in the memo of `copy.deepcopy` for the backend that copied handles are bound to."""
S_co = TypeVar("S_co", bound="StateBackend", covariant=True)
# By path, because the backends import this module.
_BUILT_IN: Final = {
    "hashmap": "holdfast.state.hashmap.backend:HashMapStateBackendFactory",
    "columnar": "holdfast.state.columnar:ColumnarStateBackendFactory",
}
_LEGACY: Final = {
    "filesystem": "checkpoints go to execution.checkpointing.dir",
    "jobmanager": "set execution.checkpointing.storage to 'jobmanager' to keep checkpoints in memory",
    "memory": "set execution.checkpointing.storage to 'jobmanager' to keep checkpoints in memory",
}


class HandleOwner(Protocol):
    """The part of a backend that a handle uses.

    Attributes:
        operator_identifier: Uid of the operator.
    """

    operator_identifier: str

    def get_current_key(self) -> Any: ...

    def bind(self, handle: StateHandle) -> StateHandle: ...


class StateHandle(State):
    """A handle of keyed state that works on the current key of its backend.

    A user function is opened once per process, and each task runs on a copy of it. A deep copy whose memo has a backend
    under `BACKEND_MEMO_KEY` returns that backend's handle of the same state.

    Attributes:
        backend: The backend.
        descriptor: Descriptor of the state.
        namespace_serializer: Serializer of the namespaces; None for state without.
        user_functions: Names of the fields that hold user functions.
    """

    user_functions: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, backend: HandleOwner, descriptor: StateDescriptor[Any], namespace_serializer: Any = None
    ) -> None:
        self.backend = backend
        self.descriptor = descriptor
        self.namespace_serializer = namespace_serializer

    def get_current_namespace(self) -> Any:
        """Return the current namespace; None for state without."""
        return None

    def set_current_namespace(self, namespace: Any) -> None:
        """Switch to another namespace of the current key.

        Raises:
            StateError: The state has no namespaces.
        """
        raise StateError(f"State {self.descriptor.name!r} has no namespaces.")

    def write_error(self, value: Any, error: Exception) -> Exception:
        """Return the error for a value that cannot be written, with the names of state and key."""
        if isinstance(error, UserFunctionError | StateError):
            return error
        name, key, uid = self.descriptor.name, self.backend.get_current_key(), self.backend.operator_identifier
        return OutputTypeError(
            uid,
            f"State {name!r} of operator {uid!r}, key {key!r}: {value!r:.200} cannot be written: {error}",
            declared=str(self.descriptor.type_info),
        )

    def __deepcopy__(self, memo: dict[Any, Any]) -> StateHandle:
        backend: HandleOwner | None = memo.get(BACKEND_MEMO_KEY)
        return self if backend is None else backend.bind(self)

    def __copy__(self) -> StateHandle:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise StateError(
            f"The handle of state {self.descriptor.name!r} cannot be pickled: it belongs to one task. Get it in "
            "open(), which runs in the task."
        )

    def __repr__(self) -> str:
        return f"<{self.descriptor.kind.value} state {self.descriptor.name!r}>"


class NoCurrentKey:
    """Placeholder for the slot while there is no current key; indexing with it raises a helpful error."""

    def __index__(self) -> NoReturn:
        raise StateError(
            "There is no current key: keyed state can be used in process_element() and on_timer(), but not in open() "
            "or close()."
        )

    def __repr__(self) -> str:
        return "NoCurrentKey()"


class AbstractKeyedStateBackend(DescriptorStateStore):
    """The keyed state of one subtask of one operator, in one epoch.

    A task uses it like this::

        open_version(version, fs, root)
        slots = prepare(dict_keys, hashes)     # of a batch: loads keys that are not loaded yet
        slot = slots[i]                        # by assignment: the current key of all handles
        handle = flush(path_factory, token, epoch)
        commit_cache() | drop_cache()

    Attributes:
        was_warm: Whether the worker still had the state of an earlier task; None if the version is empty.
        env: The task.
        operator_identifier: Uid of the operator.
        key_codec: Codec of its keys.
        number_of_key_groups: Its max parallelism.
        key_group_range: The key groups of the subtask.
        slot: Index of the current key.
        processing_time: The current processing time, in milliseconds since 1970.
        latest_event_time: The greatest event time of the input; known when event time ends.
        event_time_has_ended: Whether it had ended before: timers that were set since then do not fire.
    """

    slot: Any
    latest_event_time: int = MIN_TIME
    event_time_has_ended: bool = False
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
        self.processing_time = env.processing_time
        self.operator_identifier = operator_identifier
        self.key_codec = key_codec
        self.number_of_key_groups = number_of_key_groups
        self.key_group_range = key_group_range
        self._registry = kv_state_registry
        self._handles: dict[str, StateHandle] = {}

    @property
    @abstractmethod
    def timers(self) -> SimpleTimerService:
        """The timers of user functions."""

    @abstractmethod
    def open_version(self, version: StateVersion, fs: FileSystem, job_root: str) -> None:
        """Start from a version. May be called again; changes that are not flushed are lost then.

        Args:
            version: The version.
            fs: File system of the runs.
            job_root: The job directory.

        Raises:
            CorruptFileError, NotExistError: A run is damaged or missing.
            StateMigrationError: The state was written for other keys.
        """

    @abstractmethod
    def prepare(self, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Sequence[Any]:
        """Load keys that are not loaded yet. Blocks.

        Args:
            dict_keys: The keys, in the form of the key codec.
            hashes: The hash of each key.

        Returns:
            The slot of each key, to be assigned to `slot`.
        """

    def keys_of(self, slots: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.uint64]]:
        """Return the keys of slots as a column in storage form, and the hash of each."""
        before, dict_keys = self.slot, []
        try:
            for self.slot in slots.tolist():
                dict_keys.append(self.get_current_dict_key())
        finally:
            self.slot = before
        return self.key_codec.storage_array(dict_keys), self.key_codec.hashes(dict_keys)

    def set_processing_time(self, now: int) -> None:
        """Set the processing time, in milliseconds since 1970; only a real-time task calls it."""
        self.processing_time = now

    def release(self) -> None:
        """Allow the backend to evict keys: no slot that `prepare` has returned so far is used any more."""

    @abstractmethod
    def flush(self, path_factory: Callable[[], str], token: int, epoch: int) -> RunHandle | None:
        """Write all changes as one run, durably; the version then includes it. Blocks.

        Args:
            path_factory: Returns a new path relative to the job directory.
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
        """Close the backend of a task that succeeded. Decoded state may be kept for later tasks."""

    @abstractmethod
    def drop_cache(self) -> None:
        """Close the backend of a task that failed, and keep nothing. Never raises."""

    @abstractmethod
    def get_current_dict_key(self) -> Any:
        """Return the current key in the form of the key codec.

        Raises:
            StateError: There is no current key.
        """

    @abstractmethod
    def create_handle(self, descriptor: StateDescriptor[Any], namespace: Any, namespace_serializer: Any) -> StateHandle:
        """Return a new handle of a state.

        Raises:
            StateMigrationError: The version has state of this name with another kind or type.
        """

    @abstractmethod
    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:
        """Yield the user keys that have a value in a state. Reads all keys of the range."""

    @abstractmethod
    def get_keys_and_namespaces(self, state_name: str) -> Iterator[tuple[Any, Any]]:
        """Yield pairs of user key and namespace that have a value in a state. Reads all keys of the range."""

    @abstractmethod
    def num_key_value_state_entries(self) -> int:
        """Return how many pairs of key and namespace have a value in the loaded part of the registered states."""

    @abstractmethod
    def dispose(self) -> None:
        """Release all resources; handles cannot be used afterwards."""

    @abstractmethod
    def get_internal_timer_service(self, name: str, namespace_serializer: Any) -> InternalTimerService:
        """Return the timers of a service, such as those of windows; the same object for the same name.

        Raises:
            StateError: The service is already registered with other namespaces.
            StateMigrationError: Its timers were written with other namespaces.
        """

    @abstractmethod
    def least_processing_time(self) -> int | None:
        """Return the time of the earliest processing-time timer of all services, None if there is none."""

    def processing_time_bound(self) -> int | None:
        """Return a time before which no processing-time timer of any service is due, None if there is none.

        A real-time job calls it in each round, so a backend should not look at all timers here.
        """
        return self.least_processing_time()

    def remove_state(self, name: str) -> None:
        """Delete a state that the program does not declare. Deleting a missing state is not an error.

        Raises:
            StateError: The state is declared, or the backend does not support it.
        """
        raise StateError(f"{type(self).__name__} does not support the removal of state {name!r}.")

    def get_partitioned_state(self, namespace: Any, namespace_serializer: Any, state_descriptor: Any) -> Any:
        """Return the handle of a state in a namespace. The same name returns the same handle.

        Args:
            namespace: The current namespace; None, with a serializer of None, for state without namespaces.
            namespace_serializer: Serializer of the namespaces.
            state_descriptor: Descriptor of the state.

        Raises:
            StateError: The name belongs to a state of another kind.
            StateMigrationError: The version has state of this name with another kind or type.
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
                f"State {state_descriptor.name!r} of operator {self.operator_identifier!r} is requested as "
                f"{state_descriptor!r}, but is already {handle!r}. Give one of them another name."
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
        """Make a key the current one.

        Args:
            key: The key in its user form.

        Raises:
            NullKeyError: It is None.
            OutputTypeError: It does not fit the type of the keys.
        """
        dict_key = self.key_codec.dict_key(key)
        self.slot = self.prepare([dict_key], self.key_codec.hashes([dict_key]))[0]

    def get_current_key(self) -> Any:
        """Return the current key in its user form.

        Raises:
            StateError: There is no current key.
        """
        return self.key_codec.user_key(self.get_current_dict_key())

    def apply_to_all_keys(self, state_descriptor: Any, function: Callable[[Any, Any], None]) -> None:
        """Call a function for each key that has a value in a state.

        Args:
            state_descriptor: Descriptor of the state, which has no namespaces.
            function: Called with the user key and the handle of the state at that key.
        """
        handle = self.get_partitioned_state(None, None, state_descriptor)
        before = self.slot
        try:
            for key in list(self.get_keys(state_descriptor.name)):
                self.set_current_key(key)
                function(key, handle)
        finally:
            self.slot = before

    def _state(self, descriptor: Any) -> Any:
        return self.get_partitioned_state(None, None, descriptor)


@dataclass(frozen=True)
class ResolvedCheckpoint:
    """Location of a checkpoint or savepoint.

    Attributes:
        external_pointer: The directory.
        metadata_path: The metadata file in it.
    """

    external_pointer: str
    metadata_path: str

    def get_external_pointer(self) -> str:
        """Return the directory."""
        return self.external_pointer


class StateBackend(ABC):
    """Decides where the state of a running job is kept. Checkpoints of all backends have the same format."""

    @abstractmethod
    def create_keyed_state_backend(
        self,
        env: Environment,
        job_id: Any,
        operator_identifier: str,
        key_serializer: KeyCodec,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_state_registry: TaskKvStateRegistry | None = None,
    ) -> AbstractKeyedStateBackend:
        """Return the keyed state of one subtask, without a version yet.

        Args:
            env: The task.
            job_id: The job.
            operator_identifier: Uid of the operator.
            key_serializer: Codec of its keys.
            number_of_key_groups: Its max parallelism.
            key_group_range: The key groups of the subtask.
            kv_state_registry: Registry of queryable states; None if states cannot be queried.
        """

    def create_operator_state_backend(self, env: Environment, operator_identifier: str) -> OperatorStateBackend:
        """Return the operator state of one subtask, empty.

        Args:
            env: The task.
            operator_identifier: Uid of the operator.
        """
        return OperatorStateBackend(operator_identifier)

    def resolve_checkpoint(self, checkpoint_pointer: str) -> Future[ResolvedCheckpoint]:
        """Find a checkpoint or savepoint. Blocks although it returns a future.

        Args:
            checkpoint_pointer: Its directory, with or without a slash at the end, or its ``_metadata`` file.

        Returns:
            A done future. It fails with ConfigurationError for an empty pointer, NotExistError if there is no
            checkpoint, and StorageError if the storage cannot be read.
        """
        future: Future[ResolvedCheckpoint] = Future()
        try:
            if not isinstance(checkpoint_pointer, str) or not checkpoint_pointer:
                raise ConfigurationError(
                    f"A checkpoint pointer must be the path of a checkpoint directory, not {checkpoint_pointer!r}."
                )
            directory = resolve_pointer(file_system_for(checkpoint_pointer), checkpoint_pointer)
            future.set_result(ResolvedCheckpoint(directory, join(directory, METADATA_NAME)))
        except Exception as error:  # noqa: BLE001 - the caller of the future gets it
            future.set_exception(error)
        return future

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class StateBackendFactory(ABC, Generic[S_co]):
    """Creates a backend from a configuration; `state.backend.type` may name a subclass by its class path."""

    @abstractmethod
    def create_from_config(self, config: Configuration) -> S_co:
        """Return the backend.

        Raises:
            ConfigurationError: The configuration is invalid for this backend.
        """

    def get_identifier(self) -> str:
        """Return the name of the backend for messages; by default the class name."""
        return type(self).__name__


def load_state_backend(configuration: Configuration, from_application: StateBackend | None = None) -> StateBackend:
    """Return the state backend of a job.

    Args:
        configuration: Configuration of the job.
        from_application: Backend that the program has set; it takes precedence over the configuration.

    Raises:
        ConfigurationError: The backend of `state.backend.type` does not exist, or its factory rejects the
            configuration.
    """
    if from_application is not None:
        return from_application
    name = configuration.get(STATE_BACKEND)
    short = name.strip().lower()
    if short in _LEGACY:
        logger.warning("state.backend %r is deprecated: use state.backend.type 'hashmap'; %s", name, _LEGACY[short])
        short = "hashmap"
    if short in ("rocksdb", "forst"):
        logger.warning("state backend %r is not available: using 'columnar' instead", name)
        short = "columnar"
    factory = _load_factory(_BUILT_IN.get(short, name.strip()))
    try:
        backend = factory.create_from_config(configuration)
    except HoldfastError:
        raise
    except Exception as error:
        raise ConfigurationError(f"The state backend {name!r} could not be created: {error!r}.") from error
    if not isinstance(backend, StateBackend):
        raise ConfigurationError(
            f"The factory of state backend {name!r} returned {backend!r}, which is not a StateBackend."
        )
    return backend


def _load_factory(path: str) -> StateBackendFactory[StateBackend]:
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    known = "'hashmap', 'columnar', or the class path of a StateBackendFactory such as 'package.module:Class'"
    if not module or not name:
        raise ConfigurationError(f"There is no state backend {path!r}. Use {known}.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"The state backend {path!r} could not be loaded: {error}. Use {known}, which must be "
            "importable on every host."
        ) from error
    if not (isinstance(found, type) and issubclass(found, StateBackendFactory)):
        raise ConfigurationError(f"The state backend {path!r} is not a subclass of StateBackendFactory.")
    factory: StateBackendFactory[StateBackend] = found()
    return factory
