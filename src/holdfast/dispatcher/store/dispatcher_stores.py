"""The durable steps of one term of a dispatcher, on the stores of high availability. All methods block."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path

from holdfast.dispatcher.protocol.event import StoresRead
from holdfast.dispatcher.store.ended_jobs import EndedJobs
from holdfast.dispatcher.store.submitted_program import SubmittedProgram
from holdfast.errors import (
    AlreadyExistError,
    CorruptFileError,
    FormatVersionError,
    HoldfastError,
    NotExistError,
    StorageError,
)
from holdfast.ha.job_manager_store.blob_store import BlobKey, BlobStore, FileSystemBlobStore, VoidBlobStore
from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan
from holdfast.ha.job_manager_store.execution_plan_watcher import ExecutionPlanListener
from holdfast.ha.job_manager_store.job_result import JobResult
from holdfast.ha.job_manager_store.job_result_store import JobResultEntry
from holdfast.ha.services.ha_services import HighAvailabilityServices
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system.os_error import translate
from holdfast.storage.file_system.scheme import file_system_for

_log = get_logger(__name__)


class DispatcherStores:
    """Plans, files and results of jobs; safe to use from several threads.

    Args:
        services: Of this process. Where they keep no blobs, those are kept in the working directory.
        working_directory: Of this process.
        executor: Where work of the stores is done.
        ended: How jobs have ended, for those who ask later.
    """

    def __init__(
        self, services: HighAvailabilityServices, working_directory: Path, executor: Executor, ended: EndedJobs
    ) -> None:
        self._services = services
        self._ended = ended
        self._executor = executor
        self._uploads = working_directory / "uploads"
        self._plans = services.get_execution_plan_store()
        self._results = services.get_job_result_store()
        self._blobs: BlobStore = services.create_blob_store()
        if isinstance(self._blobs, VoidBlobStore):
            place = str(working_directory / "blobs")
            self._blobs = FileSystemBlobStore(file_system_for(place), place)

    def start(self) -> None:
        """Begin to use the stores."""
        self._plans.start(_Bystander())

    def stop(self) -> None:
        """End the use of the stores; what is in them stays for the next leader.

        Raises:
            StorageError: Something could not be released; it goes with this process.
        """
        self._plans.stop()

    def read(self) -> StoresRead:
        """Read what earlier terms have left.

        Raises:
            CorruptFileError, FormatVersionError: A plan or a result cannot be read; none is passed over, because the
                next leader would not know of it either.
            StorageError: The stores cannot be read.
        """
        results = tuple(sorted(self._results.get_dirty_results(), key=lambda result: str(result.job_id)))
        ended = {result.job_id for result in results}
        plans = [self._recovered(job_id, job_id in ended) for job_id in sorted(self._plans.get_job_ids(), key=str)]
        return StoresRead(tuple(plan for plan in plans if plan is not None), results, self._ended_before())

    def _ended_before(self) -> tuple[JobResult, ...]:
        try:
            return tuple(self._ended.read())
        except StorageError as error:
            _log.warning("How jobs have ended under leaders before cannot be read: %s", error)
            return ()

    def _recovered(self, job_id: JobID, has_ended: bool) -> ExecutionPlan | None:
        try:
            plan = self._plans.recover_execution_plan(job_id)
            if plan is not None:
                SubmittedProgram.of(plan)
        except (CorruptFileError, FormatVersionError):
            if has_ended:
                return None  # it is to be removed only
            raise
        return plan

    def has_result(self, job_id: JobID) -> bool:
        """Whether a job has ended before, also if nothing is left of it but that."""
        return self._results.has_job_result_entry_async(job_id).result()

    def take(self, submission: str, files: Mapping[str, bytes]) -> dict[str, BlobKey]:
        """Lay down the files of a submission in the working directory; returns the keys that their blobs will have.

        Raises:
            StorageError: There is no room for them; nothing of them is left.
        """
        directory = self._uploads / submission
        keys = {}
        try:
            directory.mkdir(parents=True, mode=0o700)
            for name, content in files.items():
                path = directory / name
                path.write_bytes(content)
                keys[name] = BlobKey.of(path)
        except OSError as error:
            self.forget(submission)
            raise translate(error, "lay down what was submitted in", str(directory)) from error
        return keys

    def forget(self, submission: str) -> None:
        """Remove the files of a submission from the working directory."""
        shutil.rmtree(self._uploads / submission, ignore_errors=True)

    def put(self, plan: ExecutionPlan) -> None:
        """Make a submitted job durable: its files, then the plan that names them.

        Raises:
            AlreadyExistError: There is a plan of this job.
            FencedError: Another process leads.
            PossibleInconsistentStateError: It is not known whether the plan is durable.
            StorageError: It is not.
        """
        program = SubmittedProgram.of(plan)
        for name, key in program.files.items():
            self._blobs.put(self._uploads / program.submission / name, plan.job_id, key)
        self._plans.put_execution_plan(plan)

    def fetch(self, plan: ExecutionPlan, directory: Path) -> None:
        """Copy the files of a job into a directory, which is made.

        Raises:
            NotExistError, CorruptFileError, StorageError: One is not there, or not what was submitted.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, key in SubmittedProgram.of(plan).files.items():
            self._blobs.get(plan.job_id, key, directory / name)

    def put_result(self, result: JobResult) -> None:
        """Make the result of a job durable; one that is there already is as good."""
        try:
            self._results.create_dirty_result_async(JobResultEntry(result)).result()
        except AlreadyExistError:
            _log.warning("There is a result of job %s already; it stays.", result.job_id)

    def clean_up(self, job_id: JobID, plan: ExecutionPlan | None, was_accepted: bool) -> None:
        """Remove what is kept of a job: first the plan, so that no plan names what is gone. May be repeated.

        Of a submission that was not accepted only its own files go: the job may be somebody else's.

        Raises:
            FencedError: Another process leads; nothing but what it would remove as well is gone.
            ConflictError, StorageError: Something is left.
        """
        self._plans.global_cleanup_async(job_id, self._executor).result()
        if plan is not None:
            program = SubmittedProgram.of(plan)
            for key in program.files.values():
                self._blobs.delete(job_id, key)
            self.forget(program.submission)
        elif was_accepted and not self._blobs.delete_all(job_id):
            raise StorageError(f"Files of job {job_id} are left in {self._blobs!r}.")
        if was_accepted:
            self._services.global_cleanup_async(job_id, self._executor).result()

    def mark_clean(self, result: JobResult) -> None:
        """Note that nothing is left of a job but how it has ended."""
        try:
            self._ended.keep(result)
        except HoldfastError as error:
            _log.warning("Later leaders will not know how job %s has ended: %s", result.job_id, error)
        try:
            self._results.mark_result_as_clean_async(result.job_id).result()
        except NotExistError:
            _log.debug("The result of job %s was removed meanwhile.", result.job_id)


class _Bystander(ExecutionPlanListener):
    """Only the leader changes plans, so there is nothing to hear of but what somebody did by hand."""

    def on_added_execution_plan(self, job_id: JobID) -> None:
        _log.debug("The plan of job %s was there, or was added by a leader before.", job_id)

    def on_removed_execution_plan(self, job_id: JobID) -> None:
        _log.warning(
            "The plan of job %s was removed by another process; the job runs on until this process ends.", job_id
        )
