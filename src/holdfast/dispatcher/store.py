"""What outlives a dispatcher: plans, files and results of jobs, and where it is reached."""

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

from holdfast.dispatcher.protocol import StoresRead
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

# Where the job managers of a cluster keep what they tell others in files.


def cluster_directory(configuration: Configuration, working_directory: str) -> tuple[FileSystem, str]:
    """Return the directory of a cluster in its storage; without elections that is the working directory.

    Raises:
        ConfigurationError: The storage of the cluster is not configured, or this process uses other s3.* options.
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


# Where the job managers of a cluster are reached, and the token that requests show: one private file for each term.
#
# ::
#
#     <storageDir>/<cluster id>/rest/<leader session>-<nonce>.json     for the types that elect
#     <working directory>/rest/<leader session>-<nonce>.json          for the type none
#         {"url", "bearer_token", "host", "pid", "session"}
#
# Who leads is known from the election, which many may read; the token only from here, so whoever may read the storage
# of the cluster may steer its jobs. On a file system the file is for the user of the job manager alone.

_DIRECTORY: Final = "rest"
_NAME: Final = re.compile(r"([0-9a-f-]{36})-[0-9a-f]{12}\.json")


@dataclass(frozen=True)
class JobManagerAddress:
    """How to reach a job manager.

    Attributes:
        url: Without a path.
        bearer_token: What a request must show in its ``Authorization`` header.
        host: Where it runs.
        pid: The process.
        session: The session in which it leads.
    """

    url: str
    bearer_token: str
    host: str
    pid: int
    session: str

    @property
    def is_here(self) -> bool:
        """Whether it runs on this host."""
        return self.host == socket.gethostname()


class AddressBook:
    """The files of one cluster.

    Args:
        fs: The file system.
        directory: The directory above them.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = join(directory, _DIRECTORY)
        self._own: str | None = None

    @classmethod
    def of(cls, configuration: Configuration, working_directory: str) -> AddressBook:
        """Return that of the cluster of a configuration; the working directory holds it without elections.

        Raises:
            ConfigurationError: The storage of the cluster is not configured.
        """
        return cls(*cluster_directory(configuration, working_directory))

    def publish(self, url: str, bearer_token: str, session: str) -> None:
        """Say where this process is reached in a term, and remove what earlier terms have said.

        Raises:
            StorageError: It cannot be written.
        """
        address = JobManagerAddress(url, bearer_token, socket.gethostname(), os.getpid(), session)
        path = join(self._directory, f"{session}-{new_nonce()}.json")
        self._fs.create_private(path, json.dumps(asdict(address)).encode())
        before, self._own = self._own, path
        if before is not None:
            self._fs.delete_in(self._directory, base_name(before))

    def withdraw(self) -> None:
        """This process is reached no more.

        Raises:
            StorageError: The file cannot be deleted, or a link has taken the place of its directory.
        """
        if self._own is not None:
            self._fs.delete_in(self._directory, base_name(self._own))
            self._own = None

    def clear(self, keep: str) -> None:
        """Remove what others have left, once it is known that none of them leads.

        Args:
            keep: The session of this process.
        """
        for name in self._fs.list_names(self._directory):
            match = _NAME.fullmatch(name)
            if match and match[1] != keep:
                self._fs.delete_in(self._directory, name)

    def addresses(self, session: str | None = None) -> list[JobManagerAddress]:
        """Return what job managers have said, or what the leader of one session has.

        Raises:
            CorruptFileError: A file is none of ours.
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
                continue  # withdrawn meanwhile
        return found


def _read(fs: FileSystem, path: str) -> JobManagerAddress:
    try:
        found = JobManagerAddress(**json.loads(fs.read(path)))
        for field in fields(JobManagerAddress):
            if type(getattr(found, field.name)).__name__ != field.type:
                raise TypeError(f"{field.name!r} is {getattr(found, field.name)!r:.80}")
        check_url(found.url, "http", "https")
    except PARSE_ERRORS as error:
        raise CorruptFileError(path, None, f"it is no address of a job manager: {error!r:.300}.") from error
    return found


# How jobs have ended, for those who ask later, also under another leader: a file for each end, the newest ones only.
#
# ::
#
#     <storageDir>/<cluster id>/ended/<job id>-<nonce>.json     for the types that elect
#     <working directory>/ended/<job id>-<nonce>.json           for the type none
#
# Nothing is decided by them. Whether a job has ended, and whether its clean-up is owed, says the result store, which
# forgets a job once everything is done; a file is written just before that. So one that is missing, or cannot be read,
# is a job that is not shown.

_log = get_logger(__name__)
_ENDED_DIRECTORY: Final = "ended"
_KIND: Final = "ended-job"
_FORMAT_VERSION: Final = 1
_ENDED_NAME: Final = re.compile(r"([0-9a-f]{32})-[0-9a-f]{12}\.json")


class EndedJobs:
    """The files of one cluster. All methods block.

    Args:
        fs: The file system.
        directory: The directory above them.
        most: So many are kept.
    """

    def __init__(self, fs: FileSystem, directory: str, most: int) -> None:
        self._fs = fs
        self._directory = join(directory, _ENDED_DIRECTORY)
        self._most = most

    @classmethod
    def of(cls, configuration: Configuration, working_directory: str, most: int) -> EndedJobs:
        """Return those of the cluster of a configuration; the working directory holds them without elections.

        Raises:
            ConfigurationError: The storage of the cluster is not configured.
        """
        return cls(*cluster_directory(configuration, working_directory), most)

    def keep(self, result: JobResult) -> None:
        """Keep how a job has ended; what was kept of it before is replaced, and of too many the oldest go.

        Raises:
            StorageError: It could not be written, or an old one not be removed.
        """
        document = encode_document(_KIND, _FORMAT_VERSION, {"result": result.to_json()})
        own = f"{result.job_id}-{new_nonce()}.json"
        self._fs.write_atomic(join(self._directory, own), document)
        others = [name for name in self._names() if name != own]
        superfluous = {name for name in others if name.startswith(str(result.job_id))}
        if len(others) - len(superfluous) >= self._most:
            kept = [name for name, _ in self._newest() if name != own]
            superfluous |= set(others) - set(kept[max(0, len(kept) - self._most + 1) :])
        if self._most == 0:
            superfluous.add(own)
        for name in sorted(superfluous):
            self._fs.delete_in(self._directory, name)

    def read(self) -> list[JobResult]:
        """Return what is kept, those that ended first in front.

        Raises:
            StorageError: The directory cannot be read.
        """
        return [result for _, result in self._newest()]

    def _newest(self) -> list[tuple[str, JobResult]]:
        """The last end of each job, with the name of its file."""
        found: dict[JobID, tuple[str, JobResult]] = {}
        for name in self._names():
            try:
                result = self._read(join(self._directory, name))
            except NotExistError:
                continue  # another leader has removed it
            except (*PARSE_ERRORS, HoldfastError) as error:
                _log.warning("How job %s has ended cannot be read, it is not shown: %s", name[:32], error)
                continue
            if result.job_id not in found or found[result.job_id][1].end_time <= result.end_time:
                found[result.job_id] = name, result
        return sorted(found.values(), key=lambda each: (each[1].end_time, each[0]))

    def _names(self) -> list[str]:
        return [name for name in sorted(self._fs.list_names(self._directory)) if _ENDED_NAME.fullmatch(name)]

    def _read(self, path: str) -> JobResult:
        return JobResult.from_json(decode_document(self._fs.read(path), path, _KIND, _FORMAT_VERSION)["result"])


# What is submitted: a program, its files and options, as a plan keeps it. Nothing in it is executed by a store.

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +-]{0,199}")
_FORMAT: Final = 1
_SUBMISSION: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class SubmittedProgram:
    """A program to be run.

    Attributes:
        submission: A random name: what happened to a job of this id before belongs to another one.
        script: The name of the file that is run.
        files: All files by name, the script among them, and the keys of their blobs.
        arguments: What the program finds behind its name in ``sys.argv``.
        options: Options as text, which win over the program's own.
    """

    submission: str
    script: str
    files: Mapping[str, BlobKey]
    arguments: tuple[str, ...]
    options: Mapping[str, str]

    def to_plan(self, job_id: JobID, job_name: str) -> ExecutionPlan:
        """Return the plan that keeps it."""
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
        """Read it from a plan.

        Raises:
            CorruptFileError: The plan is none of a submitted program, or a newer version's.
        """
        document = plan.document
        try:
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']!r}, and this release reads {_FORMAT}")
            if not _SUBMISSION.fullmatch(document["submission"]):
                raise ValueError("its submission has no name")
            files = {check_name(name): BlobKey.parse(key) for name, key in document["files"].items()}
            if document["script"] not in files:
                raise ValueError("its script is none of its files")
            arguments = tuple(_text(argument) for argument in document["arguments"])
            options = {_text(key): _text(value) for key, value in document["options"].items()}
            return cls(document["submission"], document["script"], files, arguments, options)
        except (*PARSE_ERRORS, ConfigurationError) as error:
            raise CorruptFileError(
                f"plan of job {plan.job_id}", None, f"it is not what a job manager has stored: {error!r:.300}."
            ) from error


def check_name(name: Any) -> str:
    """Return the name of a file if it is one that cannot lead anywhere else.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r:.80} cannot be the name of a submitted file: letters, digits, '_', '.', '+', '-' and blanks, at "
            "most 200, not beginning with a dot."
        )
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value


# The durable steps of one term of a dispatcher, on the stores of high availability. All methods block.


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
