"""Configuration of checkpoints: `CheckpointConfig` for programs, `CoordinatorConfiguration` for the coordinator."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Self

from holdfast.checkpoint import options
from holdfast.checkpoint.options import (
    CheckpointingMode,
    ExternalizedCheckpointCleanup,
    ExternalizedCheckpointRetention,
)
from holdfast.checkpoint.snapshot_type import CheckpointRetentionPolicy
from holdfast.checkpoint.storage import (
    CheckpointStorage,
    CheckpointStorageFactory,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import ConfigOption, Configuration, all_options, options_for

UNLIMITED_TOLERABLE_FAILURE_NUMBER: Final = 2**31 - 1
NEVER: Final = 2**63 - 1
"""Interval that turns periodic checkpoints off."""
_MINIMUM: Final = 10
_YEAR: Final = 365 * 24 * 60 * 60 * 1000
_POLICIES: Final = {
    ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS: (
        CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
    ),
    ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION: CheckpointRetentionPolicy.RETAIN_ON_FAILURE,
    ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION: CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
}


@dataclass(frozen=True)
class CoordinatorConfiguration:
    """The options as the coordinator uses them; times in milliseconds.

    Attributes:
        interval: Time between periodic triggers; 0 for every epoch, `NEVER` for none.
        timeout: Time after which a checkpoint expires.
        min_pause: Least time from a completion to the next periodic trigger.
        max_concurrent: Largest number of pending checkpoints.
        policy: Whether checkpoints are kept when the job ends.
        tolerable_failures: Tolerated failures in a row.
        mode: Guarantee of checkpoints.
    """

    interval: int = 0
    timeout: int = 10 * 60 * 1000
    min_pause: int = 0
    max_concurrent: int = 1
    policy: CheckpointRetentionPolicy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
    tolerable_failures: int = 0
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE

    @classmethod
    def from_options(cls, configuration: Configuration) -> CoordinatorConfiguration:
        """Read the options; the interval is at least the pause, the timeout at least 10 ms.

        Raises:
            ConfigurationError: Fewer than 1 concurrent checkpoint, or fewer than 0 tolerable failures.
        """
        concurrent = configuration.get(options.MAX_CONCURRENT_CHECKPOINTS)
        if concurrent < 1:
            raise ConfigurationError(
                f"{options.MAX_CONCURRENT_CHECKPOINTS.key} must be at least 1, not {concurrent!r}."
            )
        tolerable = configuration.get(options.TOLERABLE_FAILED)
        if tolerable < 0:
            raise ConfigurationError(f"{options.TOLERABLE_FAILED.key} must be 0 or more, not {tolerable!r}.")
        pause = min(configuration.get(options.MIN_PAUSE), _YEAR)
        interval = configuration.get(options.CHECKPOINTING_INTERVAL)
        if interval > 0:
            interval = max(interval, _MINIMUM)
        return cls(
            interval=max(interval, pause),
            timeout=max(configuration.get(options.CHECKPOINTING_TIMEOUT), _MINIMUM),
            min_pause=pause,
            max_concurrent=concurrent,
            policy=_POLICIES[configuration.get(options.EXTERNALIZED_RETENTION)],
            tolerable_failures=tolerable,
            mode=configuration.get(options.CHECKPOINTING_MODE),
        )


class CheckpointConfig:
    """Sets the options of checkpoints, under PyFlink's names. Times are in milliseconds.

    Setters raise `ConfigurationError` for an invalid value and return the object.

    Args:
        configuration: The program's options, which the setters change.
        in_force: Returns the effective options, including those of the command line and files.

    Attributes:
        configuration: The options that were set.
    """

    ExternalizedCheckpointCleanup: ClassVar = ExternalizedCheckpointCleanup
    DEFAULT_MODE: ClassVar = CheckpointingMode.EXACTLY_ONCE
    DEFAULT_TIMEOUT: ClassVar = 10 * 60 * 1000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS: ClassVar = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS: ClassVar = 1

    def __init__(
        self, configuration: Configuration | None = None, in_force: Callable[[], Configuration] | None = None
    ) -> None:
        self.configuration = configuration if configuration is not None else Configuration()
        self._in_force = in_force or (lambda: self.configuration)
        self._storage: CheckpointStorage | None = None

    def _set(self, option: ConfigOption[Any], value: Any) -> Self:
        self.configuration.set(option, value)
        return self

    def is_checkpointing_enabled(self) -> bool:
        """Return whether periodic checkpoints are on; they are, unless the interval is `NEVER`."""
        return self.get_checkpoint_interval() != NEVER

    def disable_checkpointing(self) -> Self:
        """Turn periodic checkpoints off; requested checkpoints and savepoints still work."""
        return self.set_checkpoint_interval(NEVER)

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Return the guarantee of checkpoints."""
        return self._in_force().get(options.CHECKPOINTING_MODE)

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> Self:
        """Set the guarantee of checkpoints."""
        return self._set(options.CHECKPOINTING_MODE, checkpointing_mode)

    def get_checkpoint_interval(self) -> int:
        """Return the checkpoint interval in milliseconds; 0 for every epoch."""
        return self._in_force().get(options.CHECKPOINTING_INTERVAL)

    def set_checkpoint_interval(self, checkpoint_interval: int) -> Self:
        """Set the checkpoint interval in milliseconds; 0 for every epoch."""
        return self._set(options.CHECKPOINTING_INTERVAL, checkpoint_interval)

    def get_checkpoint_timeout(self) -> int:
        """Return the time after which a checkpoint expires, in milliseconds."""
        return self._in_force().get(options.CHECKPOINTING_TIMEOUT)

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> Self:
        """Set the time after which a checkpoint expires, in milliseconds; at least 10."""
        if options.CHECKPOINTING_TIMEOUT.parse(checkpoint_timeout) < _MINIMUM:
            raise ConfigurationError(
                f"The checkpoint timeout must be at least {_MINIMUM} ms, not {checkpoint_timeout!r}."
            )
        return self._set(options.CHECKPOINTING_TIMEOUT, checkpoint_timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        """Return the least time between two checkpoints, in milliseconds."""
        return self._in_force().get(options.MIN_PAUSE)

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> Self:
        """Set the least time between two checkpoints, in milliseconds."""
        return self._set(options.MIN_PAUSE, min_pause_between_checkpoints)

    def get_max_concurrent_checkpoints(self) -> int:
        """Return the largest number of pending checkpoints."""
        return self._in_force().get(options.MAX_CONCURRENT_CHECKPOINTS)

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> Self:
        """Set the largest number of pending checkpoints; at least 1."""
        if options.MAX_CONCURRENT_CHECKPOINTS.parse(max_concurrent_checkpoints) < 1:
            raise ConfigurationError(
                f"The number of concurrent checkpoints must be at least 1, not {max_concurrent_checkpoints!r}."
            )
        return self._set(options.MAX_CONCURRENT_CHECKPOINTS, max_concurrent_checkpoints)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """Return the number of tolerated checkpoint failures in a row."""
        return self._in_force().get(options.TOLERABLE_FAILED)

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> Self:
        """Set the number of tolerated checkpoint failures in a row; at least 0."""
        if options.TOLERABLE_FAILED.parse(tolerable_checkpoint_failure_number) < 0:
            raise ConfigurationError(
                "The number of tolerable failed checkpoints must be 0 or more, not "
                f"{tolerable_checkpoint_failure_number!r}."
            )
        return self._set(options.TOLERABLE_FAILED, tolerable_checkpoint_failure_number)

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Return whether the first failed checkpoint fails the job."""
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> Self:
        """Set whether the first failed checkpoint fails the job, or none does.

        Prefer `set_tolerable_checkpoint_failure_number`. A number that was set before stays if it means the same.
        """
        if fail_on_checkpointing_errors != self.is_fail_on_checkpointing_errors():
            tolerated = 0 if fail_on_checkpointing_errors else UNLIMITED_TOLERABLE_FAILURE_NUMBER
            self.set_tolerable_checkpoint_failure_number(tolerated)
        return self

    def set_externalized_checkpoint_retention(self, retention_mode: ExternalizedCheckpointRetention) -> Self:
        """Set whether checkpoints are kept when the job ends."""
        return self._set(options.EXTERNALIZED_RETENTION, retention_mode)

    enable_externalized_checkpoints = set_externalized_checkpoint_retention
    set_externalized_checkpoint_cleanup = set_externalized_checkpoint_retention

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """Return whether checkpoints are kept when the job ends."""
        return self._in_force().get(options.EXTERNALIZED_RETENTION)

    get_externalized_checkpoint_cleanup = get_externalized_checkpoint_retention

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Return whether checkpoints can be kept after the job has ended."""
        kept = self.get_externalized_checkpoint_retention()
        return kept is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> Self:
        """Accept False only: barriers never overtake elements.

        Raises:
            ConfigurationError: `enabled` is true.
        """
        self.configuration.set("execution.checkpointing.unaligned.enabled", enabled)
        return self

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Return False."""
        return False

    def disable_unaligned_checkpoints(self) -> Self:
        """Do nothing: checkpoints are never unaligned."""
        return self.enable_unaligned_checkpoints(False)

    def set_force_unaligned_checkpoints(self, force_unaligned_checkpoints: bool = True) -> Self:
        """Accept False only.

        Raises:
            ConfigurationError: The argument is true.
        """
        self.configuration.set("execution.checkpointing.unaligned.forced", force_unaligned_checkpoints)
        return self

    def is_force_unaligned_checkpoints(self) -> bool:
        """Return False."""
        return False

    def set_aligned_checkpoint_timeout(self, alignment_timeout: int | timedelta) -> Self:
        """Set an option without effect: there is nothing to align.

        Args:
            alignment_timeout: In milliseconds, or as a time span.
        """
        self.configuration.set("execution.checkpointing.aligned-checkpoint-timeout", alignment_timeout)
        return self

    set_alignment_timeout = set_aligned_checkpoint_timeout

    def get_aligned_checkpoint_timeout(self) -> timedelta:
        """Return the value that was set."""
        found = self._in_force().get(all_options()["execution.checkpointing.aligned-checkpoint-timeout"])
        return timedelta(milliseconds=found)

    get_alignment_timeout = get_aligned_checkpoint_timeout

    def set_checkpoint_interval_during_backlog(self, milliseconds: int) -> Self:
        """Raise an error: Spark's sources do not report a backlog.

        Raises:
            ConfigurationError: Always.
        """
        self.configuration.set("execution.checkpointing.interval-during-backlog", milliseconds)
        return self

    def configure(self, configuration: Configuration | Mapping[str, Any]) -> Self:
        """Copy the options of checkpoints from another configuration; options that it does not set stay."""
        values = configuration.to_dict() if isinstance(configuration, Configuration) else dict(configuration)
        for key, value in values.items():
            if any(option.key.startswith("execution.checkpointing.") for option in options_for(key)):
                for rival in (name for option in options_for(key) for name in (option.key, *option.deprecated_keys)):
                    self.configuration.remove(rival)
                self.configuration.set(key, value)
        return self

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> Self:
        """Set the storage of checkpoints."""
        self._storage = storage
        self._set(options.CHECKPOINT_STORAGE, _name_of(storage))
        path, savepoints = storage.get_checkpoint_path(), storage.get_savepoint_path()
        if path is not None:
            self._set(options.CHECKPOINTS_DIRECTORY, path)
        if savepoints is not None:
            self._set(options.SAVEPOINT_DIRECTORY, savepoints)
        if isinstance(storage, FileSystemCheckpointStorage) and storage.file_state_size_threshold is not None:
            self._set(options.FS_SMALL_FILE_THRESHOLD, storage.file_state_size_threshold)
        return self

    def set_checkpoint_storage_dir(self, path: str | os.PathLike[str]) -> Self:
        """Set a directory, path or URI, as the storage of checkpoints."""
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(path))

    def get_checkpoint_storage(self) -> CheckpointStorage | None:
        """Return the storage of checkpoints; None if the options decide."""
        return self._storage

    def resolve_checkpoint_storage(self) -> CheckpointStorage:
        """Return the storage of checkpoints: that of the program, else that of the options.

        Raises:
            ConfigurationError: The options name no usable storage.
        """
        return self._storage if self._storage is not None else load_checkpoint_storage(self._in_force())

    def __repr__(self) -> str:
        return f"CheckpointConfig({self.configuration!r})"


def load_checkpoint_storage(configuration: Configuration) -> CheckpointStorage:
    """Return the storage that the options choose.

    Raises:
        ConfigurationError: ``filesystem`` without a directory, or an unknown name.
    """
    kind = configuration.get(options.CHECKPOINT_STORAGE)
    path = configuration.get(options.CHECKPOINTS_DIRECTORY)
    name = (kind or ("filesystem" if path else "jobmanager")).lower()
    if name == "jobmanager":
        return JobManagerCheckpointStorage()
    if name != "filesystem":
        return _load_factory(str(kind)).create_from_config(configuration)
    if not path:
        raise ConfigurationError(
            f"{options.CHECKPOINT_STORAGE.key} is 'filesystem', but {options.CHECKPOINTS_DIRECTORY.key} is not set."
        )
    threshold = configuration.get(options.FS_SMALL_FILE_THRESHOLD)
    return FileSystemCheckpointStorage(
        path,
        threshold if threshold <= 1024 * 1024 else options.FS_SMALL_FILE_THRESHOLD.default,
        configuration.get(options.FS_WRITE_BUFFER_SIZE),
        savepoint_directory=configuration.get(options.SAVEPOINT_DIRECTORY),
    )


def _name_of(storage: CheckpointStorage) -> str:
    if isinstance(storage, FileSystemCheckpointStorage):
        return "filesystem"
    if isinstance(storage, JobManagerCheckpointStorage):
        return "jobmanager"
    return f"{type(storage).__module__}:{type(storage).__qualname__}"


def _load_factory(path: str) -> CheckpointStorageFactory:
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"{options.CHECKPOINT_STORAGE.key} is {path!r}; known are 'filesystem', 'jobmanager' and the class path of "
            "a CheckpointStorageFactory such as 'package.module:Class'."
        ) from error
    if not (isinstance(found, type) and issubclass(found, CheckpointStorageFactory)):
        raise ConfigurationError(f"{options.CHECKPOINT_STORAGE.key}: {path!r} is not a CheckpointStorageFactory.")
    return found()
