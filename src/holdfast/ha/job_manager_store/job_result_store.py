"""The results of finished jobs: did this job end for good, and is clean-up still owed?

::

    [absent] --create_dirty_result--> [dirty: clean-up is owed] --mark_result_as_clean--> [clean, or absent again]
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import AlreadyExistError, NotExistError
from holdfast.ha.job_manager_store.job_result import JobResult
from holdfast.kernel.ids import JobID

T = TypeVar("T")


@dataclass(frozen=True)
class JobResultEntry:
    """An entry of the store."""

    job_result: JobResult

    def get_job_result(self) -> JobResult:
        """The result."""
        return self.job_result

    def get_job_id(self) -> JobID:
        """The job."""
        return self.job_result.job_id


class JobResultStore(ABC):
    """Keeps results until everything of their jobs was cleaned up; thread-safe.

    Args:
        executor: Where the work is done; None: in the calling thread.
    """

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor
        self._lock = threading.RLock()

    def create_dirty_result_async(self, job_result_entry: JobResultEntry) -> Future[None]:
        """Keep the result of a job, durably; its clean-up is owed from now on.

        The future raises:
            AlreadyExistError: There is a result of this job.
            StorageError: It could not be kept.
        """

        def create() -> None:
            if self._has_dirty(job_result_entry.get_job_id()) or self._has_clean(job_result_entry.get_job_id()):
                raise already_exists(job_result_entry.get_job_id())
            self._create_dirty(job_result_entry.job_result)

        return self._run(create)

    def mark_result_as_clean_async(self, job_id: JobID) -> Future[None]:
        """Note that nothing of a job is left to be cleaned up; may be repeated.

        The future raises:
            NotExistError: There is no result of this job.
        """

        def mark() -> None:
            if self._has_clean(job_id):
                return
            if not self._has_dirty(job_id):
                raise NotExistError(
                    f"Could not mark job {job_id} as clean as it is not present in the job result store."
                )
            self._mark_clean(job_id)

        return self._run(mark)

    def has_job_result_entry_async(self, job_id: JobID) -> Future[bool]:
        """Whether there is a result of this job, dirty or clean."""
        return self._run(lambda: self._has_dirty(job_id) or self._has_clean(job_id))

    def has_dirty_job_result_entry_async(self, job_id: JobID) -> Future[bool]:
        """Whether there is a result of this job whose clean-up is owed."""
        return self._run(lambda: self._has_dirty(job_id))

    def has_clean_job_result_entry_async(self, job_id: JobID) -> Future[bool]:
        """Whether there is a result of this job whose clean-up is done."""
        return self._run(lambda: self._has_clean(job_id))

    def get_dirty_results(self) -> set[JobResult]:
        """Return the results whose clean-up is owed. Blocks.

        Raises:
            CorruptFileError: One cannot be read; none is skipped.
            FormatVersionError: One was written by a newer version.
        """
        with self._lock:
            return set(self._dirty_results())

    @abstractmethod
    def _create_dirty(self, result: JobResult) -> None: ...

    @abstractmethod
    def _mark_clean(self, job_id: JobID) -> None: ...

    @abstractmethod
    def _has_dirty(self, job_id: JobID) -> bool: ...

    @abstractmethod
    def _has_clean(self, job_id: JobID) -> bool: ...

    @abstractmethod
    def _dirty_results(self) -> list[JobResult]: ...

    def _run(self, action: Callable[[], T]) -> Future[T]:
        def locked() -> T:
            with self._lock:
                return action()

        if self._executor is not None:
            return self._executor.submit(locked)
        future: Future[T] = Future()
        try:
            future.set_result(locked())
        except Exception as error:
            future.set_exception(error)
        return future


class EmbeddedJobResultStore(JobResultStore):
    """Results in the memory of this process."""

    def __init__(self, executor: Executor | None = None) -> None:
        super().__init__(executor)
        self._dirty: dict[JobID, JobResult] = {}
        self._clean: dict[JobID, JobResult] = {}

    def _create_dirty(self, result: JobResult) -> None:
        self._dirty[result.job_id] = result

    def _mark_clean(self, job_id: JobID) -> None:
        self._clean[job_id] = self._dirty.pop(job_id)

    def _has_dirty(self, job_id: JobID) -> bool:
        return job_id in self._dirty

    def _has_clean(self, job_id: JobID) -> bool:
        return job_id in self._clean

    def _dirty_results(self) -> list[JobResult]:
        return list(self._dirty.values())


def already_exists(job_id: JobID) -> AlreadyExistError:
    """The error of a job whose result is there already."""
    return AlreadyExistError(f"Job result store already contains an entry for job {job_id}.")
