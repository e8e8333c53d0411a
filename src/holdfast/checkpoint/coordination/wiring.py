"""What a coordinator works with: the job, its options, and the places where checkpoints go."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from holdfast.checkpoint.config.checkpoint_config import CheckpointConfig, CoordinatorConfiguration
from holdfast.checkpoint.config.failure import CheckpointFailureManager
from holdfast.checkpoint.config.options import (
    CHECKPOINTS_HISTORY,
    CREATE_CHECKPOINT_SUBDIR,
    NUM_RETAINED,
    SAVEPOINT_DIRECTORY,
)
from holdfast.checkpoint.coordination.master_hook import MasterHooks
from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.statistics.tracker import CheckpointStatsTracker
from holdfast.checkpoint.storage.checkpoint_storage import (
    CheckpointStorage,
    CheckpointStorageAccess,
    FileCheckpointStorageAccess,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from holdfast.checkpoint.store.completed_store import CompletedCheckpointStore, RegisterCompletedCheckpointStore
from holdfast.checkpoint.store.id_counter import CheckpointIDCounter, RegisterCheckpointIDCounter
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.state.hashmap.state_backend import FsStateBackend, MemoryStateBackend
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.register.fenced_register import Lease

_log = get_logger(__name__)


@dataclass(frozen=True)
class Wiring:
    """What a coordinator works with.

    Attributes:
        job: The job.
        configuration: The options.
        counter: Hands out ids.
        store: Keeps completed checkpoints.
        storage: Where documents go.
        failures: Decides when failures fail the job.
        statistics: Where checkpoints are counted.
        clock: Time.
        executor: Where I/O is done; None for the thread that brings the event.
        hooks: The hooks of the job master's side.
    """

    job: JobID
    configuration: CoordinatorConfiguration
    counter: CheckpointIDCounter
    store: CompletedCheckpointStore
    storage: CheckpointStorageAccess
    failures: CheckpointFailureManager
    statistics: CheckpointStatsTracker
    clock: Clock
    executor: Executor | None = None
    hooks: MasterHooks = field(default_factory=MasterHooks)

    @classmethod
    def of_program(
        cls,
        job: JobID,
        config: CheckpointConfig,
        counter: CheckpointIDCounter,
        store: CompletedCheckpointStore,
        state_backend: object,
        executor: Executor | None,
        failures: CheckpointFailureManager,
        clock: Clock | None,
    ) -> Wiring:
        """Return what a program's own coordinator works with; see there."""
        options = config.configuration
        subdirectory = options.get(CREATE_CHECKPOINT_SUBDIR)
        return cls(
            job=job,
            configuration=CoordinatorConfiguration.from_options(options),
            counter=counter,
            store=store,
            storage=_storage_of(state_backend, config).create_checkpoint_storage(job, create_subdir=subdirectory),
            failures=failures,
            statistics=CheckpointStatsTracker(options.get(CHECKPOINTS_HISTORY)),
            clock=clock or SystemClock(),
            executor=executor,
        )

    @classmethod
    def of_lease(
        cls,
        lease: Lease,
        directory: JobDirectory,
        configuration: Configuration,
        failures: CheckpointFailureManager,
        recovered: Sequence[CompletedCheckpoint] = (),
        *,
        statistics: CheckpointStatsTracker | None = None,
        clock: Clock | None = None,
    ) -> Wiring:
        """Return what the checkpoints of one job attempt are made with: ids and pointers are in its register.

        Args:
            lease: The right to write the job's register, raised for this attempt.
            directory: The job's directory.
            configuration: The options.
            failures: Decides when failures fail the job.
            recovered: What the register names, as `recovery.recover_all` reads it.
            statistics: Where checkpoints are counted; of its own by default.
            clock: Time.
        """
        counter = RegisterCheckpointIDCounter(lease)
        return cls(
            job=directory.job_id,
            configuration=CoordinatorConfiguration.from_options(configuration),
            counter=counter,
            store=RegisterCompletedCheckpointStore(lease, _retained(configuration), list(recovered), counter),
            storage=FileCheckpointStorageAccess(directory, configuration.get(SAVEPOINT_DIRECTORY)),
            failures=failures,
            statistics=statistics or CheckpointStatsTracker(configuration.get(CHECKPOINTS_HISTORY)),
            clock=clock or SystemClock(),
        )


def _storage_of(backend: object, config: CheckpointConfig) -> CheckpointStorage:
    """Return the storage that an older kind of backend stands for, else the program's, else the options'."""
    if isinstance(backend, FsStateBackend):
        return FileSystemCheckpointStorage(backend.get_checkpoint_path())
    if isinstance(backend, MemoryStateBackend):
        return JobManagerCheckpointStorage(max_state_size=backend.get_max_state_size())
    return config.resolve_checkpoint_storage()


def _retained(configuration: Configuration) -> int:
    """How many checkpoints are kept; as in Flink, a number that cannot be is replaced."""
    retained, default = configuration.get(NUM_RETAINED), NUM_RETAINED.default
    if retained > 0:
        return retained
    _log.warning("%s is %d, but at least one is kept: it is taken to be %d.", NUM_RETAINED.key, retained, default)
    return default
