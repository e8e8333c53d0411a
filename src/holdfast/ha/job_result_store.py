"""Results of finished jobs, kept until the clean-up of the job is done.

::

    [absent] --create_dirty_result--> [dirty: clean-up is due] --mark_result_as_clean--> [clean, or absent again]
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    CorruptFileError,
    NotExistError,
    PossibleInconsistentStateError,
)
from holdfast.kernel.ids import JobID
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileSystem, join
from holdfast.storage.state_handle import decode_document, encode_document

logger = get_logger(__name__)

T = TypeVar("T")
_KIND: Final = "job-result"
_FORMAT_VERSION: Final = 1
_DIRTY: Final = "_DIRTY.json"


class ApplicationStatus(Enum):
    """How a job or an application ended."""

    SUCCEEDED = ("SUCCEEDED", 0)
    FAILED = ("FAILED", 1443)
    CANCELED = ("CANCELED", 0)
    UNKNOWN = ("UNKNOWN", 1445)

    @property
    def process_exit_code(self) -> int:
        """The exit code of a process that reports the status."""
        return self.value[1]

    @classmethod
    def from_job_status(cls, job_status: str | None) -> ApplicationStatus:
        """Return the status of a job's terminal status; ``UNKNOWN`` for any other."""
        return {"FINISHED": cls.SUCCEEDED, "FAILED": cls.FAILED, "CANCELED": cls.CANCELED}.get(
            job_status or "", cls.UNKNOWN
        )

    def to_job_status(self) -> str | None:
        """Return the job's terminal status, None if it is unknown."""
        names = {self.SUCCEEDED: "FINISHED", self.FAILED: "FAILED", self.CANCELED: "CANCELED"}
        return names.get(self)


@dataclass(frozen=True)
class FailureCause:
    """Why a job failed, as text: nothing that is read from a store is ever executed.

    Attributes:
        type_name: The class of the error.
        message: Its message.
        stack_trace: Its stack trace.
    """

    type_name: str
    message: str
    stack_trace: str = ""


@dataclass(frozen=True)
class JobResult:
    """The result of a job in a globally terminal state.

    Attributes:
        job_id: The job.
        job_name: Its name.
        application_status: How it ended.
        net_runtime: Its run time in milliseconds, 0 or more.
        accumulator_results: Its accumulators, JSON values by name.
        failure_cause: Why it failed, None if it did not.
        start_time: Milliseconds since 1970, -1 if it is not known.
        end_time: Milliseconds since 1970, -1 if it is not known.
    """

    job_id: JobID
    job_name: str = "unknown"
    application_status: ApplicationStatus = ApplicationStatus.UNKNOWN
    net_runtime: int = 0
    accumulator_results: Mapping[str, Any] = field(default_factory=dict, hash=False)
    failure_cause: FailureCause | None = None
    start_time: int = -1
    end_time: int = -1

    def __post_init__(self) -> None:
        if self.net_runtime < 0:
            raise ValueError(f"The runtime of a job is 0 ms or more, not {self.net_runtime!r}.")

    def is_success(self) -> bool:
        """Return whether the job finished, or ended in an unknown way without an error."""
        if self.application_status is ApplicationStatus.UNKNOWN:
            return self.failure_cause is None
        return self.application_status is ApplicationStatus.SUCCEEDED

    def to_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "id": str(self.job_id),
            "name": self.job_name,
            "application-status": self.application_status.name,
            "net-runtime": self.net_runtime,
            "accumulator-results": dict(self.accumulator_results),
            "start-time": self.start_time,
            "end-time": self.end_time,
        }
        if self.failure_cause is not None:
            result["failure-cause"] = {
                "class": self.failure_cause.type_name,
                "message": self.failure_cause.message,
                "stack-trace": self.failure_cause.stack_trace,
            }
        return result

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> JobResult:
        """Read a result; unknown fields are ignored.

        Raises:
            ConfigurationError or any of `PARSE_ERRORS`: It is not one.
        """
        cause = body.get("failure-cause")
        return cls(
            JobID.from_hex(body["id"]),
            str(body.get("name", "unknown")),
            ApplicationStatus[body["application-status"]],
            int(body["net-runtime"]),
            dict(body.get("accumulator-results", {})),
            FailureCause(str(cause["class"]), str(cause.get("message", "")), str(cause.get("stack-trace", "")))
            if cause is not None
            else None,
            int(body.get("start-time", -1)),
            int(body.get("end-time", -1)),
        )


@dataclass(frozen=True)
class JobResultEntry:
    """An entry of the store."""

    job_result: JobResult

    def get_job_result(self) -> JobResult:
        return self.job_result

    def get_job_id(self) -> JobID:
        return self.job_result.job_id


class JobResultStore(ABC):
    """Keeps results until everything of their jobs is cleaned up; thread-safe.

    Args:
        executor: Runs the methods that return a future; None: the calling thread does.
    """

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor
        self._lock = threading.RLock()

    def create_dirty_result_async(self, job_result_entry: JobResultEntry) -> Future[None]:
        """Store the result of a job, durably; its clean-up is due from now on.

        The future raises:
            AlreadyExistError: There is a result of this job.
            StorageError: It could not be stored.
        """

        def create() -> None:
            if self._has_dirty(job_result_entry.get_job_id()) or self._has_clean(job_result_entry.get_job_id()):
                raise already_exists(job_result_entry.get_job_id())
            self._create_dirty(job_result_entry.job_result)

        return self._run(create)

    def mark_result_as_clean_async(self, job_id: JobID) -> Future[None]:
        """Record that the clean-up of a job is done; may be repeated.

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
        """Return whether there is a result of this job, dirty or clean."""
        return self._run(lambda: self._has_dirty(job_id) or self._has_clean(job_id))

    def has_dirty_job_result_entry_async(self, job_id: JobID) -> Future[bool]:
        """Return whether there is a result of this job whose clean-up is due."""
        return self._run(lambda: self._has_dirty(job_id))

    def has_clean_job_result_entry_async(self, job_id: JobID) -> Future[bool]:
        """Return whether there is a result of this job whose clean-up is done."""
        return self._run(lambda: self._has_clean(job_id))

    def get_dirty_results(self) -> set[JobResult]:
        """Return the results whose clean-up is due. Blocks.

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
        except Exception as error:  # noqa: BLE001 - the caller of the future gets it
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
    return AlreadyExistError(f"Job result store already contains an entry for job {job_id}.")


class FileSystemJobResultStore(JobResultStore):
    """Results in files: ``<job id>_DIRTY.json``, then ``<job id>.json`` or, with delete-on-commit, none.

    A file appears whole or not at all, so a crash in the middle of a write leaves no damaged result.

    Args:
        fs: The file system.
        directory: The directory, which is not a link; the first write makes it.
        delete_on_commit: Whether a result is deleted instead of marked as clean.
        executor: Runs the methods that return a future; None: the calling thread does.
    """

    def __init__(
        self, fs: FileSystem, directory: str, *, delete_on_commit: bool = True, executor: Executor | None = None
    ) -> None:
        super().__init__(executor)
        self._fs = fs
        self._directory = directory
        self._delete_on_commit = delete_on_commit

    def _create_dirty(self, result: JobResult) -> None:
        path = self._dirty_path(result.job_id)
        document = encode_document(_KIND, _FORMAT_VERSION, {"result": result.to_json()})
        try:
            self._fs.create_private(path, document)
        except AlreadyExistError as error:
            raise already_exists(result.job_id) from error
        except PossibleInconsistentStateError:
            with suppress(NotExistError):
                if self._fs.read(path) == document:
                    return
            raise

    def _mark_clean(self, job_id: JobID) -> None:
        if self._delete_on_commit:
            self._fs.delete_in(self._directory, f"{job_id}{_DIRTY}")
        else:
            self._fs.rename(self._dirty_path(job_id), self._clean_path(job_id))

    def _has_dirty(self, job_id: JobID) -> bool:
        # A crash during the renaming leaves both: then the job is clean.
        return self._fs.exists(self._dirty_path(job_id)) and not self._has_clean(job_id)

    def _has_clean(self, job_id: JobID) -> bool:
        return self._fs.exists(self._clean_path(job_id))

    def _dirty_results(self) -> list[JobResult]:
        results = []
        for name in sorted(filter(_is_dirty, self._fs.list_names(self._directory))):
            if self._fs.exists(join(self._directory, name.removesuffix(_DIRTY) + ".json")):
                continue
            with suppress(NotExistError):  # marked as clean meanwhile
                results.append(self._read(join(self._directory, name)))
        return results

    def _read(self, path: str) -> JobResult:
        body = decode_document(self._fs.read(path), path, _KIND, _FORMAT_VERSION)
        try:
            return JobResult.from_json(body["result"])
        except (*PARSE_ERRORS, ConfigurationError) as error:
            raise CorruptFileError(path, None, f"it is not the result of a job: {error!r}.") from error

    def _dirty_path(self, job_id: JobID) -> str:
        return join(self._directory, f"{job_id}{_DIRTY}")

    def _clean_path(self, job_id: JobID) -> str:
        return join(self._directory, f"{job_id}.json")

    def __repr__(self) -> str:
        return f"FileSystemJobResultStore({self._directory!r})"


def _is_dirty(name: str) -> bool:
    """Return whether it is the name of a dirty result; other files in the directory are skipped."""
    if not name.endswith(_DIRTY):
        return False
    try:
        JobID.from_hex(name.removesuffix(_DIRTY))
    except ConfigurationError:
        logger.warning("Skipping %r among the results of jobs: it is not the name of a result.", name)
        return False
    return True
