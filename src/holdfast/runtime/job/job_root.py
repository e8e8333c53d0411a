"""Where a job keeps its checkpoints, by its options."""

from __future__ import annotations

from holdfast.checkpoint.config.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY, CREATE_CHECKPOINT_SUBDIR
from holdfast.errors import ConfigurationError
from holdfast.ha.services.checkpoint_recovery import checkpoints_directory
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.file_system.scheme import FileSystem
from holdfast.storage.job.job_directory import JobDirectory


def checkpoint_root(configuration: Configuration) -> str | None:
    """Return the directory of checkpoints; None for one that goes with the process.

    Raises:
        ConfigurationError: ``filesystem`` without a directory, or a storage that jobs cannot use.
    """
    kind = configuration.get(CHECKPOINT_STORAGE)
    directory = checkpoints_directory(configuration)
    name = (kind or "").lower()
    if name == "jobmanager":
        return None
    if name not in ("", "filesystem"):
        raise ConfigurationError(
            f"{CHECKPOINT_STORAGE.key} is {kind!r}, but the tasks of a job write their files by path: choose "
            f"'filesystem' or 'jobmanager', and name a directory with {CHECKPOINTS_DIRECTORY.key}. A storage of your "
            "own is for a CheckpointCoordinator that is used by hand."
        )
    if name and directory is None:
        raise ConfigurationError(f"{CHECKPOINT_STORAGE.key} is {kind!r}, but {CHECKPOINTS_DIRECTORY.key} is not set.")
    return directory


def job_directory(fs: FileSystem, root: str, job_id: JobID, configuration: Configuration) -> JobDirectory:
    """Return the directory of a job, which its id names unless execution.checkpointing.create-subdir is off."""
    return JobDirectory(fs, root, job_id, create_subdir=configuration.get(CREATE_CHECKPOINT_SUBDIR))
