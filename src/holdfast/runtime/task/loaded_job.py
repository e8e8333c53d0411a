"""A job attempt in a worker process: the unpickled job and its opened functions, cached from task to task.

Spark gives a task to any idle process, so losing the cache costs time only. Its key is the job attempt.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigurationError, UnsharedStorageError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.secret import get_logger
from holdfast.runtime.exchange.stage_message import JobDescriptor
from holdfast.runtime.graph.plan import Edge, Stage, Step
from holdfast.runtime.operator import OpenedSelector, OperatorInstance, SubtaskInfo
from holdfast.state.backend import AbstractKeyedStateBackend, StateBackend, load_state_backend
from holdfast.state.environment import Environment, TaskKvStateRegistry
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.state.options import LOCAL_CACHE_DIRECTORY, LOCAL_CACHE_SIZE
from holdfast.state.run_file import check_run
from holdfast.storage.delayed_writes import DelayedWrites
from holdfast.storage.file_system import FileSystem, local_path
from holdfast.storage.local_copies import LocalCopies
from holdfast.storage.object_store import use_s3_options
from holdfast.types.program_classes import ProgramClasses, unpickle_program, use_own_classes

logger = get_logger(__name__)

_loaded: dict[str, LoadedJob] = {}


class LoadedJob:
    """One job attempt in this process: its descriptor, the program's classes, opened functions and state backend."""

    def __init__(self, descriptor: JobDescriptor, classes: ProgramClasses) -> None:
        self.descriptor = descriptor
        self.classes = classes
        self.configuration = Configuration(dict(descriptor.configuration))
        use_s3_options(self.configuration)
        self.directory = descriptor.directory()
        self.file_system: FileSystem = self.directory.fs
        self.run_files = with_local_copies(self.file_system, descriptor.job_root, self.configuration)
        self._check_storage_is_shared()
        self._state_backend: StateBackend = load_state_backend(self.configuration)
        self._instances: dict[str, OperatorInstance] = {}
        self._selectors: dict[str, OpenedSelector] = {}

    def delaying_writes(self) -> tuple[LoadedJob, DelayedWrites]:
        """Return this job for a task that goes on while its state becomes durable, and the files that wait for that."""
        job = copy.copy(self)
        job.file_system = delayed = DelayedWrites(self.file_system)
        job.directory = copy.copy(self.directory)
        job.directory.fs = delayed
        job.run_files = with_local_copies(delayed, job.descriptor.job_root, job.configuration)
        return job, delayed

    def stage(self, index: int) -> Stage:
        return next(stage for stage in self.descriptor.plan.stages if stage.index == index)

    def instance(self, step: Step, info: SubtaskInfo) -> OperatorInstance:
        """Return the step's function; the first call in this process opens it."""
        if step.uid not in self._instances:
            assert step.operator is not None
            template = self.keyed_backend(step, info, KeyGroupRange(0, 0)) if step.codec else None
            self._instances[step.uid] = OperatorInstance(step.operator, info, template)
        return self._instances[step.uid]

    def selector(self, edge: Edge, info: SubtaskInfo) -> Callable[[Any], Any]:
        """Return the key selector of an edge for one task; the first call in this process opens it."""
        opened = self._selectors.get(edge.name)
        if opened is None:
            assert edge.key is not None and edge.key.spec.selector is not None
            opened = self._selectors[edge.name] = OpenedSelector(edge.key.spec.selector, info)
        return opened.bind(info)

    def keyed_backend(
        self, step: Step, info: SubtaskInfo, key_groups: KeyGroupRange, registry: TaskKvStateRegistry | None = None
    ) -> AbstractKeyedStateBackend:
        """Create the keyed state backend of a subtask, without a version yet; `registry` gets its queryable states."""
        assert step.codec is not None
        return self._state_backend.create_keyed_state_backend(
            self._environment(step, info),
            self.descriptor.job_id,
            step.uid,
            step.codec,
            step.max_parallelism,
            key_groups,
            registry,
        )

    def operator_backend(self, step: Step, info: SubtaskInfo) -> OperatorStateBackend:
        """Create the operator state of a subtask, empty."""
        return self._state_backend.create_operator_state_backend(self._environment(step, info), step.uid)

    def _environment(self, step: Step, info: SubtaskInfo) -> Environment:
        return Environment(
            job_id=self.descriptor.job_id,
            operator=step.uid,
            subtask=info.subtask,
            parallelism=step.parallelism,
            max_parallelism=step.max_parallelism,
            configuration=self.configuration,
            processing_time=info.processing_time,
        )

    def close(self) -> None:
        """Close all opened functions."""
        for operator in self._instances.values():
            operator.close()
        for selector in self._selectors.values():
            selector.close()

    def _check_storage_is_shared(self) -> None:
        path = f"{self.descriptor.job_root}/{self.descriptor.nonce_file}"
        if not self.file_system.has_file(path):
            raise UnsharedStorageError(
                f"this worker cannot see {path!r}, which the driver wrote: the checkpoint directory is not shared "
                "between the driver and the workers. Set execution.checkpointing.dir to a directory that every host "
                "mounts under the same path"
            )


def load_job(key: str, content: Callable[[], bytes]) -> LoadedJob:
    """Return the job attempt `key`; the first call in this process loads it and closes older attempts of the job.

    Raises:
        ConfigurationError: The functions cannot be unpickled, usually because a module is missing on this host.
        UnsharedStorageError: The checkpoint directory is not shared.
    """
    job = _loaded.get(key)
    if job is None:
        try:
            descriptor: JobDescriptor
            descriptor, classes = unpickle_program(content())
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"the job's functions cannot be loaded in a worker: {error}. Install the missing module on every "
                "host, or send it with spark.submit.pyFiles"
            ) from error
        except Exception as error:
            raise ConfigurationError(
                f"the job's functions cannot be unpickled in a worker: {type(error).__name__}: {error}. Create what "
                "cannot be pickled in open()"
            ) from error
        for other in [name for name, loaded in _loaded.items() if loaded.descriptor.job_id == descriptor.job_id]:
            _loaded.pop(other).close()
        job = _loaded[key] = LoadedJob(descriptor, classes)
    job.classes.use()
    return job


def unload_all() -> None:
    """Close and forget all loaded jobs, as the end of the process would."""
    for key in list(_loaded):
        _loaded.pop(key).close()
    use_own_classes()


def with_local_copies(file_system: FileSystem, root: str, configuration: Configuration) -> FileSystem:
    """Return the file system for the run files below a root.

    Remote files cannot be memory-mapped and would be read whole into the memory of each worker, so they always get
    copies on the local disk.
    """
    directory = configuration.get(LOCAL_CACHE_DIRECTORY)
    if directory is None and local_path(root) is not None:
        return file_system
    own = Path(directory or tempfile.gettempdir(), f"holdfast-run-files-{os.getuid()}")
    return LocalCopies(file_system, str(own), configuration.get(LOCAL_CACHE_SIZE), check_run)
