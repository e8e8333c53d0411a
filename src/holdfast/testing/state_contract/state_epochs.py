"""Runs a state backend through epochs, as a job would, without functions and without rows.

::

    epochs = StateEpochs(backend, directory)
    with epochs.task() as task:                    # one subtask in one epoch
        task.state("a", ValueStateDescriptor("count", "bigint")).update(1)
    epochs.complete()                              # the epoch's runs are part of the version

A task whose block raises has failed: it drops its cache, as the runtime does. An epoch that is not completed but
abandoned leaves the version as it was, whatever its tasks have kept in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange, key_group_of, range_of, subtask_of
from holdfast.state.backend import AbstractKeyedStateBackend, StateBackend
from holdfast.state.declaration.environment import TaskEnvironment
from holdfast.state.run.run_file import RunHandle
from holdfast.state.run.version import StateVersion
from holdfast.storage.file_system.scheme import LocalFileSystem
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.convert import to_type
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.key_codec import key_codec_for

JOB = "0" * 32


class StateTask:
    """One subtask in one epoch.

    Attributes:
        backend: Its keyed state.
    """

    def __init__(self, backend: AbstractKeyedStateBackend) -> None:
        self.backend = backend

    def state(self, key: Any, descriptor: Any, namespace: Any = None, namespace_serializer: Any = None) -> Any:
        """Return the handle of a state, with a key as the current one."""
        self.backend.set_current_key(key)
        return self.backend.get_partitioned_state(namespace, namespace_serializer, descriptor)

    def prepare(self, keys: list[Any]) -> list[Any]:
        """Return the slots of some user keys, loaded in one call."""
        codec = self.backend.key_codec
        dict_keys = [codec.dict_key(key) for key in keys]
        return list(self.backend.prepare(dict_keys, codec.hashes(dict_keys)))


class StateEpochs:
    """The state of one operator from epoch to epoch.

    Args:
        backend: The backend under test.
        directory: Where the runs go.
        key_type: Type of the keys; None for untyped ones.
        max_parallelism: Number of key groups.
        codec: Codec of the keys instead of that of the type.
        configuration: Of the job.
        after: Called after each epoch.
    """

    def __init__(
        self,
        backend: StateBackend,
        directory: str,
        *,
        key_type: Any = "string",
        max_parallelism: int = 8,
        codec: KeyCodec | None = None,
        configuration: Mapping[str, Any] | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.backend = backend
        self.directory = directory
        self.files = LocalFileSystem()
        self.codec = codec or key_codec_for(None if key_type is None else to_type(key_type))
        self.max_parallelism = max_parallelism
        self.parallelism = 1
        self.version = StateVersion()
        self.processing_time = 0
        self.operator = "operator"
        self._configuration = Configuration(dict(configuration or {}))
        self._after = after
        self._epoch = 1
        self._new: list[RunHandle] = []

    def subtask_of(self, key: Any) -> int:
        """Return the subtask that has a user key."""
        hash64 = self.codec.hash(self.codec.dict_key(key))
        return subtask_of(key_group_of(hash64, self.max_parallelism), self.max_parallelism, self.parallelism)

    def range_of(self, subtask: int) -> KeyGroupRange:
        """Return the key groups of a subtask."""
        return range_of(subtask, self.max_parallelism, self.parallelism)

    def open(self, subtask: int = 0) -> StateTask:
        """Begin a task; end it with `succeed` or `fail`."""
        backend = self.new_backend(subtask)
        backend.open_version(self.version.for_range(self.range_of(subtask)), self.files, self.directory)
        return StateTask(backend)

    def new_backend(self, subtask: int = 0) -> AbstractKeyedStateBackend:
        """Return a backend of a subtask that has opened no version yet."""
        environment = TaskEnvironment(
            JOB,
            self.operator,
            subtask,
            self.parallelism,
            self.max_parallelism,
            self._configuration,
            self.processing_time,
        )
        return self.backend.create_keyed_state_backend(
            environment, JOB, self.operator, self.codec, self.max_parallelism, self.range_of(subtask)
        )

    def succeed(self, task: StateTask, *, keep: bool = True) -> RunHandle | None:
        """End a task: flush it and acknowledge its run.

        Args:
            task: The task.
            keep: Whether it may keep what it has decoded.
        """
        subtask = task.backend.env.get_index_of_this_subtask()
        run = task.backend.flush(lambda: self.new_path(subtask), 1, self._epoch)
        if run is not None:
            self._new.append(run)
        if keep:
            task.backend.commit_cache()
        else:
            task.backend.drop_cache()
        return run

    def fail(self, task: StateTask, *, after_flush: bool = False) -> None:
        """End a task by a failure, perhaps one that comes when its run is written already."""
        if after_flush:
            subtask = task.backend.env.get_index_of_this_subtask()
            task.backend.flush(lambda: self.new_path(subtask), 1, self._epoch)
        task.backend.drop_cache()

    @contextmanager
    def task(self, subtask: int = 0) -> Iterator[StateTask]:
        """Run one task that succeeds if the block does."""
        task = self.open(subtask)
        try:
            yield task
        except BaseException:
            self.fail(task)
            raise
        self.succeed(task)

    @contextmanager
    def epoch(self, subtask: int = 0) -> Iterator[StateTask]:
        """Run one task, and complete the epoch with it alone."""
        with self.task(subtask) as task:
            yield task
        self.complete()

    def complete(self) -> None:
        """End the epoch: the acknowledged runs are part of the version from now on."""
        self.version = self.version.plus(self._new)
        self.abandon()

    def abandon(self) -> None:
        """End an attempt at the epoch without using what its tasks have written."""
        self._new = []
        self._epoch += 1
        self._after()

    def values(self, keys: list[Any], descriptor: Any) -> list[Any]:
        """Return what keys have in a value state, read by tasks that change nothing."""
        found = {}
        for subtask in sorted({self.subtask_of(key) for key in keys}):
            with self.task(subtask) as task:
                for key in keys:
                    if self.subtask_of(key) == subtask:
                        found[str(key)] = task.state(key, descriptor).value()
        return [found[str(key)] for key in keys]

    def new_path(self, subtask: int) -> str:
        """Return a path that no run has."""
        return "shared/" + FileName.new(1, self._epoch, 0, "operator", subtask).format()
