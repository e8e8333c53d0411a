"""What a worker process keeps from task to task: the loaded job attempt, and what its garbage collector has to scan.

Spark gives a task to any idle process, so losing the unpickled job and its opened functions costs time only. Their key
is the job attempt.
"""

from __future__ import annotations

import copy
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

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


_FULL_COLLECTION_SHARE: Final = 0.005
"""Share of the time of a process that full collections may take."""

_REAL_TIME_SHARE: Final = 0.001
_LEAST_SECONDS: Final = 10.0
"""Seconds between two full collections of a real-time task, at least."""

# Why the cyclic garbage collector is paused: a batch makes tens of thousands of tuples that die at its end. The
# collector counts allocations, so it would run dozens of times a batch and find nothing: a third of the time of a task
# (measured: 2.0 against 1.3 microseconds a row). Reference counting frees what a batch made; cycles that user functions
# leave are collected between batches.
#
# Why survivors are frozen: PySpark runs a full collection after each task. It traverses all modules, the job and all
# state of the process: 45 ms with pyarrow and numpy alone (measured: 80 % of a worker's time in small epochs, and each
# stage waits for it). Frozen objects are skipped, until the next full collection of our own is due.

_lock = threading.Lock()
_holders = 0
_was_enabled = False
_next_full_collection = 0.0


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Turn automatic collection off inside; several threads may be inside at a time."""
    global _holders, _was_enabled
    with _lock:
        if _holders == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0 and _was_enabled:
                gc.enable()


def collect_young() -> None:
    """Collect the cycles of the last batches; cheap, because almost nothing outlives a batch."""
    gc.collect(0)


def collect_between_barriers() -> None:
    """Collect the cycles of what a real-time task had since the last barrier; call it before there is more.

    What lives on is not looked at again, except in full collections, which make elements wait: they take a thousandth
    of the time at most.
    """
    global _next_full_collection
    with _lock:
        began = time.monotonic()
        is_full = _next_full_collection and began >= _next_full_collection
        gc.collect(2 if is_full else 1)
        now = time.monotonic()
        if is_full or not _next_full_collection:
            _next_full_collection = now + max((now - began) / _REAL_TIME_SHARE, _LEAST_SECONDS)


def collect_after_task() -> None:
    """Collect the cycles of a task, and freeze what is alive, so that later collections skip it.

    Frozen objects that die in cycles are found by a full collection, at intervals that keep its cost at 0.5 % of the
    time.
    """
    global _next_full_collection
    with _lock:
        began = time.monotonic()
        if began < _next_full_collection:
            gc.collect()
        else:
            gc.unfreeze()
            gc.collect()
            now = time.monotonic()
            _next_full_collection = now + (now - began) / _FULL_COLLECTION_SHARE
        gc.freeze()
