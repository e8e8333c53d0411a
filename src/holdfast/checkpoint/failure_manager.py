"""Decides when failed checkpoints fail the job."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final

from holdfast.checkpoint.options import TOLERABLE_FAILED
from holdfast.errors import CheckpointError, CheckpointFailureReason, ConfigurationError, HoldfastError

UNKNOWN_CHECKPOINT_ID: Final = -1
UNLIMITED_TOLERABLE_FAILURE_NUMBER: Final = 2**31 - 1


class FailJobCallback(ABC):
    """Fails the job."""

    @abstractmethod
    def fail_job(self, cause: HoldfastError) -> None:
        """Fail the job."""

    @abstractmethod
    def fail_job_due_to_task_failure(self, cause: HoldfastError, execution_id: str) -> None:
        """Fail the job because of one task."""


class RememberedFailure(FailJobCallback):
    """Remembers that too many checkpoints have failed; `cause` is None until then."""

    def __init__(self) -> None:
        self.cause: HoldfastError | None = None

    def fail_job(self, cause: HoldfastError) -> None:
        self.cause = cause

    def fail_job_due_to_task_failure(self, cause: HoldfastError, execution_id: str) -> None:
        self.cause = cause


class CheckpointFailureManager:
    """Counts failed checkpoints in a row and fails the job when there are more than it tolerates.

    Only failures that concern the job's health count (`CheckpointFailureReason.counts_as_failure`): those that count in
    Flink, and hooks of the driver that fail or do not answer. Each checkpoint counts once; one older than the last
    completed one does not count. A completed checkpoint or savepoint resets the count. Safe to use from several
    threads.

    Args:
        tolerable_failures: Tolerated failures in a row; `UNLIMITED_TOLERABLE_FAILURE_NUMBER` for any number.
        callback: Called when the job must fail.

    Raises:
        ConfigurationError: The number is negative.
    """

    MESSAGE: Final = "Exceeded checkpoint tolerable failure threshold."

    def __init__(self, tolerable_failures: int, callback: FailJobCallback) -> None:
        if tolerable_failures < 0:
            raise ConfigurationError(f"{TOLERABLE_FAILED.key} must be 0 or more, not {tolerable_failures!r}.")
        self._tolerable = tolerable_failures
        self._callback = callback
        self._lock = threading.Lock()
        self._count = 0
        self._counted: set[int] = set()
        self._last_succeeded = UNKNOWN_CHECKPOINT_ID

    @property
    def count(self) -> int:
        """Failures counted since the last success."""
        return self._count

    def handle_checkpoint_exception(
        self,
        error: CheckpointError,
        *,
        checkpoint_id: int = UNKNOWN_CHECKPOINT_ID,
        is_savepoint: bool = False,
        is_synchronous: bool = False,
        execution_id: str | None = None,
    ) -> None:
        """Count a failure.

        Args:
            error: The failure.
            checkpoint_id: The checkpoint; -1 if it had no id yet.
            is_savepoint: Whether it was a savepoint.
            is_synchronous: Whether the job was to stop with it.
            execution_id: The task that caused it; None for the coordinator.
        """
        pre_flight = error.reason is not None and error.reason.is_pre_flight
        if pre_flight or execution_id is None:
            if not is_savepoint:
                self._count_failure(error, checkpoint_id, None)
        elif is_synchronous:
            self._callback.fail_job_due_to_task_failure(error, execution_id)
        else:
            self._count_failure(error, checkpoint_id, execution_id)

    def handle_checkpoint_success(self, checkpoint_id: int) -> None:
        """Reset the count after a completed checkpoint or savepoint."""
        with self._lock:
            if checkpoint_id > self._last_succeeded:
                self._last_succeeded = checkpoint_id
                self._reset()

    def _count_failure(self, error: CheckpointError, checkpoint_id: int, execution_id: str | None) -> None:
        with self._lock:
            if self._tolerable == UNLIMITED_TOLERABLE_FAILURE_NUMBER or not self._counts(error.reason, checkpoint_id):
                return
            self._count += 1
            if self._count <= self._tolerable:
                return
            self._reset()
        failure = CheckpointError(f"{self.MESSAGE} The latest checkpoint failed due to: {error}", error)
        if execution_id is None:
            self._callback.fail_job(failure)
        else:
            self._callback.fail_job_due_to_task_failure(failure, execution_id)

    def _counts(self, reason: CheckpointFailureReason | None, checkpoint_id: int) -> bool:
        if reason is None or not reason.counts_as_failure:
            return False
        if checkpoint_id == UNKNOWN_CHECKPOINT_ID:
            return True
        if checkpoint_id <= self._last_succeeded or checkpoint_id in self._counted:
            return False
        self._counted.add(checkpoint_id)
        return True

    def _reset(self) -> None:
        self._count = 0
        self._counted.clear()
