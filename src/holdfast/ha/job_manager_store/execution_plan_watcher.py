"""Noticing the plans that other processes add and remove."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)


class ExecutionPlanListener(ABC):
    """Hears of plans that other processes added or removed."""

    @abstractmethod
    def on_added_execution_plan(self, job_id: JobID) -> None:
        """Another process added the plan of this job."""

    @abstractmethod
    def on_removed_execution_plan(self, job_id: JobID) -> None:
        """Another process removed the plan of this job, which this one knew."""


class ExecutionPlanStoreWatcher(ABC):
    """Notices changes of the names in a store, whoever makes them."""

    @abstractmethod
    def start(self, listener: ExecutionPlanListener) -> None:
        """Begin to tell the listener."""

    @abstractmethod
    def stop(self) -> None:
        """Stop telling."""


class NoExecutionPlanStoreWatcher(ExecutionPlanStoreWatcher):
    """Notices nothing; for stores that only one process at a time writes."""

    def start(self, listener: ExecutionPlanListener) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to stop."""


class NamesWatcher(ExecutionPlanStoreWatcher):
    """Compares the names in a store with those before, whenever it is woken and every so often.

    Args:
        read: Returns the names now; may arrange that it is called back, once, when they change.
        period: Seconds after which it looks without being woken; None: never.
        job_id_of: The job of a name; raises ConfigurationError for another name.
    """

    def __init__(
        self,
        read: Callable[[Callable[[], None]], list[str]],
        period: float | None,
        job_id_of: Callable[[str], JobID] = JobID.from_hex,
    ) -> None:
        self._read = read
        self._period = period
        self._job_id_of = job_id_of
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def start(self, listener: ExecutionPlanListener) -> None:
        """Begin to look, in a thread of its own."""
        self._thread = threading.Thread(target=self._watch, args=(listener,), name="execution-plans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._is_stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def wake(self) -> None:
        """Look again soon."""
        self._wake.set()

    def _watch(self, listener: ExecutionPlanListener) -> None:
        known: set[JobID] = set()
        while not self._is_stopped:
            self._wake.clear()
            pause = self._period
            try:
                found = self._job_ids(self._read(self.wake))
            except HoldfastError as error:
                _log.warning("Could not look at the execution plans: %s", error)
                pause = 1.0
            else:
                for job_id in sorted(found - known):
                    listener.on_added_execution_plan(job_id)
                for job_id in sorted(known - found):
                    listener.on_removed_execution_plan(job_id)
                known = found
            self._wake.wait(pause)

    def _job_ids(self, names: list[str]) -> set[JobID]:
        found = set()
        for name in names:
            try:
                found.add(self._job_id_of(name))
            except ConfigurationError:
                continue
        return found
