"""State backends as a job sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.errors import ConfigurationError, NotExistError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.backend.keyed import AbstractKeyedStateBackend
from holdfast.state.backend.kv_state_registry import TaskKvStateRegistry
from holdfast.state.declaration.environment import Environment
from holdfast.state.operator.operator_state_backend import OperatorStateBackend
from holdfast.storage.file_system.scheme import file_system_for, join
from holdfast.storage.job.job_directory import METADATA_NAME
from holdfast.types.key.abstract_key_codec import KeyCodec

S = TypeVar("S", bound="StateBackend", covariant=True)


@dataclass(frozen=True)
class ResolvedCheckpoint:
    """Where a pointer to a checkpoint or savepoint leads.

    Attributes:
        external_pointer: The directory.
        metadata_path: The document in it.
    """

    external_pointer: str
    metadata_path: str

    def get_external_pointer(self) -> str:
        """Return the directory."""
        return self.external_pointer


class StateBackend(ABC):
    """Decides where and how the state of a job is held while it runs; checkpoints of all backends are alike."""

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
            kv_state_registry: Told about queryable states.
        """

    @abstractmethod
    def create_operator_state_backend(self, env: Environment, operator_identifier: str) -> OperatorStateBackend:
        """Return the operator state of one subtask, empty."""

    def resolve_checkpoint(self, checkpoint_pointer: str) -> Future[ResolvedCheckpoint]:
        """Find a checkpoint by its directory, with or without a slash at the end, or by its ``_metadata`` file.

        The future fails with ConfigurationError for an empty pointer, NotExistError if there is no checkpoint, and
        StorageError if it cannot be told.
        """
        future: Future[ResolvedCheckpoint] = Future()
        try:
            future.set_result(_resolve(checkpoint_pointer))
        except Exception as error:
            future.set_exception(error)
        return future

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class StateBackendFactory(ABC, Generic[S]):
    """Makes a backend from a configuration; name a subclass in `state.backend.type` to use a backend of your own."""

    @abstractmethod
    def create_from_config(self, config: Configuration) -> S:
        """Return the backend.

        Raises:
            ConfigurationError: The configuration is not right for it.
        """

    def get_identifier(self) -> str:
        """Return a name for messages, that of the class unless overridden."""
        return type(self).__name__


def _resolve(pointer: str) -> ResolvedCheckpoint:
    if not isinstance(pointer, str) or not pointer:
        raise ConfigurationError(f"A pointer to a checkpoint is the path of its directory, not {pointer!r}.")
    directory = pointer.rstrip("/")
    if directory.endswith("/" + METADATA_NAME):
        directory = directory[: -len(METADATA_NAME) - 1]
    document = join(directory, METADATA_NAME)
    if not file_system_for(directory).exists(document):
        raise NotExistError(f"There is no checkpoint or savepoint at {pointer!r}: it has no {METADATA_NAME!r} file.")
    return ResolvedCheckpoint(directory, document)
