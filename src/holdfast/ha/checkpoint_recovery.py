"""Flink's factory of checkpoint stores, the registers behind it, and the directory of checkpoints.

A job takes only its register and its directory from here. `runtime/restore.py` recovers it.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from holdfast.checkpoint.completed_checkpoint import (
    CheckpointIDCounter,
    CompletedCheckpointStore,
    RegisterCheckpointIDCounter,
    RegisterCompletedCheckpointStore,
    StandaloneCheckpointIDCounter,
    StandaloneCompletedCheckpointStore,
    read_retained,
)
from holdfast.checkpoint.options import CHECKPOINTS_DIRECTORY, CREATE_CHECKPOINT_SUBDIR
from holdfast.errors import ConfigurationError
from holdfast.ha.cluster_storage import cluster_id_of
from holdfast.ha.options import HA_STORAGE_PATH, ha_type
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import JobDirectory, checkpoint_id_of
from holdfast.storage.register import FencedRegister, FileRegister, RegisterWriter
from holdfast.storage.scheme import file_system_for

logger = get_logger(__name__)


class CheckpointRecoveryFactory(ABC):
    """Makes the store of a job's checkpoints, and the counter of their ids, for the leader of the job."""

    @abstractmethod
    def create_recovered_completed_checkpoint_store(
        self,
        job_id: JobID,
        max_number_of_checkpoints_to_retain: int,
        shared_state_registry_factory: Any = None,
        io_executor: Executor | None = None,
        recovery_claim_mode: Any = None,
    ) -> CompletedCheckpointStore:
        """Return the store with all completed checkpoints of the job, the newest last. Blocks while they are read.

        Args:
            job_id: The job.
            max_number_of_checkpoints_to_retain: How many are kept.
            shared_state_registry_factory: Accepted and ignored: the documents say which run files are shared.
            io_executor: Accepted and ignored: there is little to read.
            recovery_claim_mode: Accepted and ignored: each document says who owns it.

        Raises:
            CorruptFileError: A checkpoint cannot be read; none is skipped.
            FormatVersionError: One was written by a newer version.
        """

    @abstractmethod
    def create_checkpoint_id_counter(self, job_id: JobID) -> CheckpointIDCounter:
        """Return the counter of the job's checkpoint ids."""

    def get_register(self, job_id: JobID) -> FencedRegister | None:
        """Return the fenced register of a job; None if there is none, so that the job cannot be led from here."""
        return None


class StandaloneCheckpointRecoveryFactory(CheckpointRecoveryFactory):
    """Keeps checkpoints in the memory of this process."""

    def create_recovered_completed_checkpoint_store(
        self,
        job_id: JobID,
        max_number_of_checkpoints_to_retain: int,
        shared_state_registry_factory: Any = None,
        io_executor: Executor | None = None,
        recovery_claim_mode: Any = None,
    ) -> CompletedCheckpointStore:
        return StandaloneCompletedCheckpointStore(max_number_of_checkpoints_to_retain)

    def create_checkpoint_id_counter(self, job_id: JobID) -> CheckpointIDCounter:
        return StandaloneCheckpointIDCounter()


class RegisterCheckpointRecoveryFactory(CheckpointRecoveryFactory):
    """Reads the checkpoints that a job's fenced register names.

    The first use for a job raises its token, which fences every earlier leader; so a factory belongs to one term.

    Args:
        register_for: Returns the register of a job.
        directory_for: Returns the directory of a job.
        owner: The leader, for the messages of fenced leaders.
    """

    def __init__(
        self,
        register_for: Callable[[JobID], FencedRegister],
        directory_for: Callable[[JobID], JobDirectory],
        owner: str,
    ) -> None:
        self._register_for = register_for
        self._directory_for = directory_for
        self._owner = owner
        self._writers: dict[JobID, tuple[RegisterWriter, RegisterCheckpointIDCounter]] = {}

    def get_register(self, job_id: JobID) -> FencedRegister:
        return self._register_for(job_id)

    def get_writer(self, job_id: JobID) -> RegisterWriter:
        """Return the right to write the register of a job; the first call raises the token. Blocks."""
        return self._open(job_id)[0]

    def create_recovered_completed_checkpoint_store(
        self,
        job_id: JobID,
        max_number_of_checkpoints_to_retain: int,
        shared_state_registry_factory: Any = None,
        io_executor: Executor | None = None,
        recovery_claim_mode: Any = None,
    ) -> RegisterCompletedCheckpointStore:
        writer, counter = self._open(job_id)
        recovered = read_retained(self._directory_for(job_id), writer.state)
        return RegisterCompletedCheckpointStore(writer, max_number_of_checkpoints_to_retain, recovered, counter)

    def create_checkpoint_id_counter(self, job_id: JobID) -> RegisterCheckpointIDCounter:
        return self._open(job_id)[1]

    def _open(self, job_id: JobID) -> tuple[RegisterWriter, RegisterCheckpointIDCounter]:
        if job_id not in self._writers:
            writer = self._register_for(job_id).raise_token(self._owner)
            counter = RegisterCheckpointIDCounter(writer)
            used = _highest_id(self._directory_for(job_id))
            if used >= counter.get():
                # The register was cleaned up after an earlier life of the job, whose files remain.
                logger.info("Checkpoint ids of job %s go on after %d, which its directory holds.", job_id, used)
                counter.set_count(used + 1)
            self._writers[job_id] = (writer, counter)
        return self._writers[job_id]


def checkpoints_directory(configuration: Configuration) -> str | None:
    """Return the directory of checkpoints; by default it is below the storage directory of the cluster.

    Returns:
        None if neither ``execution.checkpointing.dir`` nor high availability is configured.
    """
    chosen, kind = configuration.get(CHECKPOINTS_DIRECTORY), ha_type(configuration)
    storage = configuration.get(HA_STORAGE_PATH)
    if chosen is not None or kind == "none" or storage is None:
        return chosen
    return join(storage, join(cluster_id_of(configuration, kind), "checkpoints"))


def job_directories(configuration: Configuration) -> Callable[[JobID], JobDirectory]:
    """Return the function from a job to its directory.

    Raises:
        ConfigurationError: The function is called, and no directory is configured.
    """
    root = checkpoints_directory(configuration)

    def directory_for(job_id: JobID) -> JobDirectory:
        if root is None:
            raise ConfigurationError(
                f"Option {CHECKPOINTS_DIRECTORY.key!r} is not set: name a directory that all processes of the cluster "
                "share."
            )
        create_subdir = configuration.get(CREATE_CHECKPOINT_SUBDIR)
        return JobDirectory(file_system_for(root), root, job_id, create_subdir=create_subdir)

    return directory_for


def recovery_from_registers(
    configuration: Configuration, register_for: Callable[[JobID], FencedRegister]
) -> RegisterCheckpointRecoveryFactory:
    """Return a factory for one term of this process.

    Args:
        configuration: Names the directory of checkpoints.
        register_for: Returns the register of a job.
    """
    owner = f"{socket.gethostname()}:{os.getpid()}"
    return RegisterCheckpointRecoveryFactory(register_for, job_directories(configuration), owner)


def registers_of_files(configuration: Configuration) -> Callable[[JobID], FileRegister]:
    """Return the function from a job to the register in its directory.

    Raises:
        ConfigurationError: The function is called, and no directory is configured.
    """
    directory_for = job_directories(configuration)
    return lambda job_id: FileRegister.of(directory_for(job_id))


def _highest_id(directory: JobDirectory) -> int:
    ids = (checkpoint_id_of(name) for name in directory.fs.list_names(directory.path))
    return max((number for number in ids if number is not None), default=0)
