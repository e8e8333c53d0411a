"""The durable data of a dispatcher: plans, files and results of jobs, and the addresses of job managers."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from holdfast.dispatcher.dispatcher_machine import StoresRead
from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    HoldfastError,
    NotExistError,
    StorageError,
)
from holdfast.ha.blob_store import BlobKey, BlobStore, FileSystemBlobStore, VoidBlobStore
from holdfast.ha.cluster_storage import ClusterStorage
from holdfast.ha.execution_plan_store import ExecutionPlan, ExecutionPlanListener
from holdfast.ha.job_result_store import JobResult, JobResultEntry
from holdfast.ha.options import CLUSTER_ID, HA_CLUSTER_ID, ha_type
from holdfast.ha.services import HighAvailabilityServices
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.rest.client import check_url
from holdfast.storage.file_system import FileSystem, base_name, join, translate
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.scheme import file_system_for
from holdfast.storage.state_handle import decode_document, encode_document

logger = get_logger(__name__)

_DIRECTORY: Final = "rest"
_NAME: Final = re.compile(r"([0-9a-f-]{36})-[0-9a-f]{12}\.json")
_ENDED_DIRECTORY: Final = "ended"
_KIND: Final = "ended-job"
_FORMAT_VERSION: Final = 1
_ENDED_NAME: Final = re.compile(r"([0-9a-f]{32})-[0-9a-f]{12}\.json")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +-]{0,199}")
_FORMAT: Final = 1
_SUBMISSION: Final = re.compile("[0-9a-f]{32}")


def cluster_directory(configuration: Configuration, working_directory: str) -> tuple[FileSystem, str]:
    """Return the directory of a cluster in its storage; without elections this is the working directory.

    Raises:
        ConfigurationError: The storage is not configured, or this process already uses other s3.* options.
    """
    use_s3_options(configuration)
    kind = ha_type(configuration)
    if kind == "none":
        return file_system_for(working_directory), working_directory
    named = None
    if kind == "kubernetes" and not configuration.contains(HA_CLUSTER_ID):
        named = configuration.get(CLUSTER_ID)
    storage = ClusterStorage(configuration, named)
    return storage.fs, storage.path


@dataclass(frozen=True)
class JobManagerAddress:
    """The address of a job manager.

    Attributes:
        url: The URL without a path.
        bearer_token: The token that requests must show in the ``Authorization`` header.
        host: The host on which it runs.
        pid: The process id.
        session: Its leader session.
    """

    url: str
    bearer_token: str
    host: str
    pid: int
    session: str

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()


class AddressBook:
    """The address files of a cluster's job managers, one for each term.

    ::

        <storageDir>/<cluster id>/rest/<leader session>-<nonce>.json    with elections
        <working directory>/rest/<leader session>-<nonce>.json          for high-availability.type none
            {"url", "bearer_token", "host", "pid", "session"}

    Only these files have the token, so everyone who can read the storage of the cluster can control its jobs. On a file
    system they are readable only for the job manager's user. The leader's session comes from the election, which others
    may read.

    Args:
        fs: The file system.
        directory: The directory above the files.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = join(directory, _DIRECTORY)
        self._own: str | None = None

    @classmethod
    def of(cls, configuration: Configuration, working_directory: str) -> AddressBook:
        """Return the address book of a configuration's cluster, which is in the working directory without elections.

        Raises:
            ConfigurationError: The storage of the cluster is not configured.
        """
        return cls(*cluster_directory(configuration, working_directory))

    def publish(self, url: str, bearer_token: str, session: str) -> None:
        """Write the address of this process in a term, and remove that of its earlier term.

        Raises:
            StorageError: The file cannot be written.
        """
        address = JobManagerAddress(url, bearer_token, socket.gethostname(), os.getpid(), session)
        path = join(self._directory, f"{session}-{new_nonce()}.json")
        self._fs.create_private(path, json.dumps(asdict(address)).encode())
        before, self._own = self._own, path
        if before is not None:
            self._fs.delete_in(self._directory, base_name(before))

    def withdraw(self) -> None:
        """Remove the address of this process.

        Raises:
            StorageError: The file cannot be deleted, or its directory was replaced by a link.
        """
        if self._own is not None:
            self._fs.delete_in(self._directory, base_name(self._own))
            self._own = None

    def clear(self, keep: str) -> None:
        """Remove the addresses of all other sessions. Call it only when none of them leads.

        Args:
            keep: The session of this process.
        """
        for name in self._fs.list_names(self._directory):
            match = _NAME.fullmatch(name)
            if match and match[1] != keep:
                self._fs.delete_in(self._directory, name)

    def addresses(self, session: str | None = None) -> list[JobManagerAddress]:
        """Return the addresses of all sessions, or of one.

        Raises:
            CorruptFileError: A file is not an address.
        """
        found = []
        for name in sorted(self._fs.list_names(self._directory)):
            match = _NAME.fullmatch(name)
            if match is None or (session is not None and match[1] != session):
                continue
            path = join(self._directory, name)
            try:
                found.append(_read(self._fs, path))
            except NotExistError:
                continue  # removed meanwhile
        return found


def _read(fs: FileSystem, path: str) -> JobManagerAddress:
    try:
        found = JobManagerAddress(**json.loads(fs.read(path)))
        for field in fields(JobManagerAddress):
            if type(getattr(found, field.name)).__name__ != field.type:
                raise TypeError(f"{field.name!r} is {getattr(found, field.name)!r:.80}")
        check_url(found.url, "http", "https")
    except PARSE_ERRORS as error:
        raise CorruptFileError(path, None, f"it is not the address of a job manager: {error!r:.300}.") from error
    return found


class EndedJobs:
    """The results of a cluster's ended jobs, to show them later, also under another leader. All methods block.

    ::

        <storageDir>/<cluster id>/ended/<job id>-<nonce>.json    with elections
        <working directory>/ended/<job id>-<nonce>.json          for high-availability.type none

    No decision depends on these files: the result store decides whether a job has ended and must be cleaned up. It
    forgets a job after the clean-up; the file is written just before that. A job whose file is missing or damaged is
    not shown.

    Args:
        fs: The file system.
        directory: The directory above the files.
        limit: Number of jobs that are kept.
    """

    def __init__(self, fs: FileSystem, directory: str, limit: int) -> None:
        self._fs = fs
        self._directory = join(directory, _ENDED_DIRECTORY)
        self._limit = limit

    @classmethod
    def of(cls, configuration: Configuration, working_directory: str, limit: int) -> EndedJobs:
        """Return the ended jobs of a configuration's cluster, which are in the working directory without elections.

        Raises:
            ConfigurationError: The storage of the cluster is not configured.
        """
        return cls(*cluster_directory(configuration, working_directory), limit)

    def add(self, result: JobResult) -> None:
        """Add the result of a job. It replaces an earlier one, and the oldest results above the limit are removed.

        Raises:
            StorageError: The file cannot be written, or an old one cannot be removed.
        """
        document = encode_document(_KIND, _FORMAT_VERSION, {"result": result.to_json()})
        own = f"{result.job_id}-{new_nonce()}.json"
        self._fs.write_atomic(join(self._directory, own), document)
        others = [name for name in self._names() if name != own]
        obsolete = {name for name in others if name.startswith(str(result.job_id))}
        if len(others) - len(obsolete) >= self._limit:
            kept = [name for name, _ in self._newest() if name != own]
            obsolete |= set(others) - set(kept[max(0, len(kept) - self._limit + 1) :])
        if self._limit == 0:
            obsolete.add(own)
        for name in sorted(obsolete):
            self._fs.delete_in(self._directory, name)

    def read(self) -> list[JobResult]:
        """Return the results in the order of their end.

        Raises:
            StorageError: The directory cannot be read.
        """
        return [result for _, result in self._newest()]

    def _newest(self) -> list[tuple[str, JobResult]]:
        """Return the last result of each job with the name of its file."""
        found: dict[JobID, tuple[str, JobResult]] = {}
        for name in self._names():
            try:
                result = self._read(join(self._directory, name))
            except NotExistError:
                continue  # another leader has removed it
            except (*PARSE_ERRORS, HoldfastError) as error:
                logger.warning("The result of ended job %s cannot be read and is not shown: %s", name[:32], error)
                continue
            if result.job_id not in found or found[result.job_id][1].end_time <= result.end_time:
                found[result.job_id] = name, result
        return sorted(found.values(), key=lambda each: (each[1].end_time, each[0]))

    def _names(self) -> list[str]:
        return [name for name in sorted(self._fs.list_names(self._directory)) if _ENDED_NAME.fullmatch(name)]

    def _read(self, path: str) -> JobResult:
        return JobResult.from_json(decode_document(self._fs.read(path), path, _KIND, _FORMAT_VERSION)["result"])


@dataclass(frozen=True)
class SubmittedProgram:
    """A submitted program, as an execution plan stores it.

    Attributes:
        submission: A random id, which distinguishes this submission from earlier ones of the same job.
        script: The file that is run.
        files: The blob keys of all files by name, including the script.
        arguments: The arguments of the program in ``sys.argv``.
        options: Options as text, which take precedence over those of the program.
    """

    submission: str
    script: str
    files: Mapping[str, BlobKey]
    arguments: tuple[str, ...]
    options: Mapping[str, str]

    def to_plan(self, job_id: JobID, job_name: str) -> ExecutionPlan:
        document = {
            "format": _FORMAT,
            "submission": self.submission,
            "script": self.script,
            "files": {name: str(key) for name, key in self.files.items()},
            "arguments": list(self.arguments),
            "options": dict(self.options),
        }
        return ExecutionPlan(job_id, job_name, document)

    @classmethod
    def of(cls, plan: ExecutionPlan) -> SubmittedProgram:
        """Parse the program of a plan.

        Raises:
            CorruptFileError: The plan is not that of a submitted program, or has a newer format.
        """
        document = plan.document
        try:
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']!r}, and this release reads {_FORMAT}")
            if not _SUBMISSION.fullmatch(document["submission"]):
                raise ValueError("its submission has no valid id")
            files = {check_name(name): BlobKey.parse(key) for name, key in document["files"].items()}
            if document["script"] not in files:
                raise ValueError("its script is not one of its files")
            arguments = tuple(_text(argument) for argument in document["arguments"])
            options = {_text(key): _text(value) for key, value in document["options"].items()}
            return cls(document["submission"], document["script"], files, arguments, options)
        except (*PARSE_ERRORS, ConfigurationError) as error:
            raise CorruptFileError(
                f"plan of job {plan.job_id}", None, f"it is not the plan of a submitted program: {error!r:.300}."
            ) from error


def check_name(name: Any) -> str:
    """Check the name of a submitted file, which must not be a path.

    Raises:
        ConfigurationError: The name is not allowed.
    """
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r:.80} is not allowed as the name of a submitted file. Use at most 200 letters, digits, '_', '.', "
            "'+', '-' and blanks, and start with a letter, a digit or '_'."
        )
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a string")
    return value


class DispatcherStores:
    """Plans, files and results of jobs in the stores of high availability. Thread-safe; all methods block.

    Args:
        services: The high-availability services. If they have no blob store, files are stored in the working directory.
        working_directory: The working directory of this process.
        executor: Runs the work of the stores.
        ended: The results of ended jobs.
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
        self._plans.start(_PlanListener())

    def stop(self) -> None:
        """Stop using the stores; their contents stay for the next leader.

        Raises:
            StorageError: A lock could not be released; it is released at the end of this process.
        """
        self._plans.stop()

    def read(self) -> StoresRead:
        """Read the jobs of earlier terms.

        Raises:
            CorruptFileError, FormatVersionError: A plan or a result cannot be read. None is skipped: the job would be
                forgotten.
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
            logger.warning("The results of jobs that ended under earlier leaders cannot be read: %s", error)
            return ()

    def _recovered(self, job_id: JobID, has_ended: bool) -> ExecutionPlan | None:
        try:
            plan = self._plans.recover_execution_plan(job_id)
            if plan is not None:
                SubmittedProgram.of(plan)
        except (CorruptFileError, FormatVersionError):
            if has_ended:
                return None  # it will only be removed
            raise
        return plan

    def has_result(self, job_id: JobID) -> bool:
        """Return whether there is a result of a job, dirty or clean."""
        return self._results.has_job_result_entry_async(job_id).result()

    def stage_files(self, submission: str, files: Mapping[str, bytes]) -> dict[str, BlobKey]:
        """Write the files of a submission into the working directory and return the keys of their future blobs.

        Raises:
            StorageError: The files cannot be written; none is left.
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
            self.delete_staged(submission)
            raise translate(error, "write the submitted files to", str(directory)) from error
        return keys

    def delete_staged(self, submission: str) -> None:
        """Delete the files of a submission from the working directory."""
        shutil.rmtree(self._uploads / submission, ignore_errors=True)

    def store_plan(self, plan: ExecutionPlan) -> None:
        """Make a submitted job durable: its files, then the plan that names them.

        Raises:
            AlreadyExistError: There is a plan of this job.
            FencedError: Another process leads.
            PossibleInconsistentStateError: It is unknown whether the plan is durable.
            StorageError: The plan is not durable.
        """
        program = SubmittedProgram.of(plan)
        for name, key in program.files.items():
            self._blobs.put(self._uploads / program.submission / name, plan.job_id, key)
        self._plans.put_execution_plan(plan)

    def fetch_files(self, plan: ExecutionPlan, directory: Path) -> None:
        """Copy the files of a job into a directory, which is created.

        Raises:
            NotExistError, CorruptFileError, StorageError: A file is missing, or differs from the submitted one.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, key in SubmittedProgram.of(plan).files.items():
            self._blobs.get(plan.job_id, key, directory / name)

    def put_result(self, result: JobResult) -> None:
        """Make the result of a job durable; an existing result is kept."""
        try:
            self._results.create_dirty_result_async(JobResultEntry(result)).result()
        except AlreadyExistError:
            logger.warning("Job %s already has a result, which is kept.", result.job_id)

    def clean_up(self, job_id: JobID, plan: ExecutionPlan | None, was_accepted: bool) -> None:
        """Remove everything of a job but its result; may be repeated.

        The plan is removed first, so that no plan names missing files.
        Of a submission that was not accepted only its own files are removed: the job may be another one.

        Raises:
            FencedError: Another process leads. It repeats the clean-up.
            ConflictError, StorageError: Something could not be removed.
        """
        self._plans.global_cleanup_async(job_id, self._executor).result()
        if plan is not None:
            program = SubmittedProgram.of(plan)
            for key in program.files.values():
                self._blobs.delete(job_id, key)
            self.delete_staged(program.submission)
        elif was_accepted and not self._blobs.delete_all(job_id):
            raise StorageError(f"Files of job {job_id} could not be removed from {self._blobs!r}.")
        if was_accepted:
            self._services.global_cleanup_async(job_id, self._executor).result()

    def mark_clean(self, result: JobResult) -> None:
        """Mark the result of a job as clean, after it was added to the ended jobs."""
        try:
            self._ended.add(result)
        except HoldfastError as error:
            logger.warning("The result of job %s cannot be stored for later leaders: %s", result.job_id, error)
        try:
            self._results.mark_result_as_clean_async(result.job_id).result()
        except NotExistError:
            logger.debug("The result of job %s was removed meanwhile.", result.job_id)


class _PlanListener(ExecutionPlanListener):
    """Logs changes of plans. Only the leader makes any, so others are manual interventions."""

    def on_added_execution_plan(self, job_id: JobID) -> None:
        logger.debug("The plan of job %s exists, or was added by an earlier leader.", job_id)

    def on_removed_execution_plan(self, job_id: JobID) -> None:
        logger.warning(
            "The plan of job %s was removed by another process; the job runs until this process ends.", job_id
        )
