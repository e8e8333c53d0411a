"""Submitted execution plans, from which a new leader runs the jobs again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    ConflictError,
    CorruptFileError,
    FormatVersionError,
    HoldfastError,
    NotExistError,
    StorageError,
)
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.state_handle import DocumentSerializer, StateHandleStore, StateSerializer

logger = get_logger(__name__)

_KIND: Final = "execution-plan"
_FORMAT_VERSION: Final = 1


@dataclass(frozen=True)
class JobResourceRequirements:
    """Bounds of the parallelism of a job's vertices.

    Attributes:
        parallelisms: Lower and upper bound by vertex.
    """

    parallelisms: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for vertex, (lower, upper) in self.parallelisms.items():
            if not 1 <= lower <= upper:
                raise ValueError(
                    f"Bounds of the parallelism of {vertex!r} are 1 <= lower <= upper, not {lower}, {upper}."
                )


@dataclass(frozen=True)
class ExecutionPlan:
    """A submitted job.

    Attributes:
        job_id: The job.
        job_name: Its name.
        document: The plan as JSON, whose form the submitter and the runner of the job agree on; the store executes
            nothing.
        resource_requirements: Bounds of its parallelism.
    """

    job_id: JobID
    job_name: str
    document: Mapping[str, Any] = field(default_factory=dict)
    resource_requirements: JobResourceRequirements = field(default_factory=JobResourceRequirements)

    def with_resource_requirements(self, requirements: JobResourceRequirements) -> ExecutionPlan:
        return replace(self, resource_requirements=requirements)


def execution_plan_serializer() -> StateSerializer[ExecutionPlan]:
    return DocumentSerializer(_KIND, _FORMAT_VERSION, _to_json, _from_json)


def _to_json(plan: ExecutionPlan) -> dict[str, Any]:
    bounds = plan.resource_requirements.parallelisms
    return {
        "job_id": str(plan.job_id),
        "job_name": plan.job_name,
        "plan": dict(plan.document),
        "parallelisms": {vertex: list(pair) for vertex, pair in bounds.items()},
    }


def _from_json(body: dict[str, Any]) -> ExecutionPlan:
    bounds = {str(vertex): (int(lower), int(upper)) for vertex, (lower, upper) in body["parallelisms"].items()}
    return ExecutionPlan(
        JobID.from_hex(body["job_id"]), str(body["job_name"]), dict(body["plan"]), JobResourceRequirements(bounds)
    )


class ExecutionPlanListener(ABC):
    """Is notified of plans that other processes add or remove."""

    @abstractmethod
    def on_added_execution_plan(self, job_id: JobID) -> None:
        """Another process added the plan of this job."""

    @abstractmethod
    def on_removed_execution_plan(self, job_id: JobID) -> None:
        """Another process removed the plan of this job, which this process knew."""


class NamesWatcher:
    """Compares the names in a store with those before, every period and whenever it is woken.

    Args:
        read: Returns the names; may call its argument once when they change.
        period: Seconds between two reads without a call; None: no such reads.
        job_id_of: Returns the job of a name; raises ConfigurationError for other names.
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
        self._thread = threading.Thread(target=self._watch, args=(listener,), name="execution-plans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def wake(self) -> None:
        self._wake.set()

    def _watch(self, listener: ExecutionPlanListener) -> None:
        known: set[JobID] = set()
        while not self._is_stopped:
            self._wake.clear()
            pause = self._period
            try:
                found = self._job_ids(self._read(self.wake))
            except HoldfastError as error:
                logger.warning("Could not look at the execution plans: %s", error)
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


class ExecutionPlanStore(ABC):
    """Keeps submitted plans until their jobs have reached a globally terminal state."""

    @abstractmethod
    def start(self, listener: ExecutionPlanListener) -> None:
        """Start the store; a second call does nothing."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the store; the plans stay."""

    @abstractmethod
    def recover_execution_plan(self, job_id: JobID) -> ExecutionPlan | None:
        """Return the plan of a job, None if there is none. Blocks.

        Raises:
            CorruptFileError: It cannot be read.
            FormatVersionError: It was written by a newer version.
        """

    @abstractmethod
    def put_execution_plan(self, execution_plan: ExecutionPlan) -> None:
        """Add a plan, or replace one that this store put or recovered. Blocks.

        Raises:
            AlreadyExistError: Another process put it, and this store has not recovered it.
            FencedError: This process does not lead.
            PossibleInconsistentStateError: It is not known whether the plan was written.
        """

    @abstractmethod
    def put_job_resource_requirements(self, job_id: JobID, job_resource_requirements: JobResourceRequirements) -> None:
        """Change the bounds of a job's parallelism. Blocks.

        Raises:
            NotExistError: There is no plan of this job.
        """

    @abstractmethod
    def get_job_ids(self) -> list[JobID]:
        """Return the jobs that have a plan."""

    @abstractmethod
    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Remove the plan of a job; the future fails if another process still uses it."""

    @abstractmethod
    def local_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Release the plan of a job and keep it for the next leader."""


class StandaloneExecutionPlanStore(ExecutionPlanStore):
    """Keeps nothing; for clusters that do not outlive their process."""

    def start(self, listener: ExecutionPlanListener) -> None: ...

    def stop(self) -> None: ...

    def recover_execution_plan(self, job_id: JobID) -> ExecutionPlan | None:
        return None

    def put_execution_plan(self, execution_plan: ExecutionPlan) -> None: ...

    def put_job_resource_requirements(
        self, job_id: JobID, job_resource_requirements: JobResourceRequirements
    ) -> None: ...

    def get_job_ids(self) -> list[JobID]:
        return []

    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        return _done()

    def local_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        return _done()


class DefaultExecutionPlanStore(ExecutionPlanStore):
    """Plans in a state handle store; safe to use from several threads.

    Args:
        store: The state handle store.
        watcher: Notices changes by other processes; None if only one process at a time writes the store.
        name_of: Returns the name of a job's entry; the id by default.
        job_id_of: Returns the job of an entry's name; raises ConfigurationError for other names.
    """

    def __init__(
        self,
        store: StateHandleStore[ExecutionPlan, Any],
        watcher: NamesWatcher | None = None,
        *,
        name_of: Callable[[JobID], str] = str,
        job_id_of: Callable[[str], JobID] = JobID.from_hex,
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._name_of = name_of
        self._job_id_of = job_id_of
        self._lock = threading.RLock()
        self._known: set[JobID] = set()
        self._listener: ExecutionPlanListener | None = None

    def start(self, listener: ExecutionPlanListener) -> None:
        with self._lock:
            if self._listener is None:
                self._listener = listener
                if self._watcher is not None:
                    self._watcher.start(_Forwarder(self))

    def stop(self) -> None:
        """Release all locks and stop the watcher; tries both before it raises the errors."""
        with self._lock:
            if self._listener is None:
                return
            self._listener = None
            self._known.clear()
        errors: list[Exception] = []
        stops = [self._store.release_all] if self._watcher is None else [self._store.release_all, self._watcher.stop]
        for action in stops:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - raised below, after the other action
                errors.append(error)
        if errors:
            raise StorageError(
                "Could not properly stop the DefaultExecutionPlanStore: " + " Also: ".join(map(str, errors))
            ) from errors[0]

    def recover_execution_plan(self, job_id: JobID) -> ExecutionPlan | None:
        """Read a plan and lock it; release one that cannot be read, unless this store had it before."""
        name = self._name_of(job_id)
        with self._lock:
            self._require_running()
            try:
                handle = self._store.get_and_lock(name)
            except NotExistError:
                return None
            try:
                plan = handle.retrieve_state()
            except BaseException as error:
                if job_id not in self._known:
                    self._store.release(name)
                if isinstance(error, NotExistError):
                    raise CorruptFileError(name, None, f"the plan of job {job_id} is gone: {error}") from error
                if isinstance(error, CorruptFileError | FormatVersionError):
                    error.add_note(f"It is the plan of job {job_id}, which cannot be recovered.")
                raise
            self._known.add(job_id)
            return plan

    def put_execution_plan(self, execution_plan: ExecutionPlan) -> None:
        job_id, name = execution_plan.job_id, self._name_of(execution_plan.job_id)
        with self._lock:
            self._require_running()
            while True:
                version = self._store.exists(name)
                try:
                    if not version.is_existing():
                        self._store.add_and_lock(name, execution_plan)
                        self._known.add(job_id)
                        return
                    if job_id not in self._known:
                        raise AlreadyExistError(
                            f"There is a plan of job {job_id} that this store neither put nor recovered; recover it "
                            "before you replace it."
                        )
                    self._store.replace(name, version, execution_plan)
                    return
                except AlreadyExistError:
                    if version.is_existing():
                        raise
                except (NotExistError, ConflictError):
                    if not version.is_existing():
                        raise

    def put_job_resource_requirements(self, job_id: JobID, job_resource_requirements: JobResourceRequirements) -> None:
        with self._lock:
            plan = self.recover_execution_plan(job_id)
            if plan is None:
                raise NotExistError(f"There is no plan of job {job_id}, so its resource requirements cannot be set.")
            self.put_execution_plan(plan.with_resource_requirements(job_resource_requirements))

    def get_job_ids(self) -> list[JobID]:
        """Return the jobs of all entries; other names are logged and skipped."""
        with self._lock:
            self._require_running()
            names = self._store.get_all_handles()
        job_ids = []
        for name in names:
            try:
                job_ids.append(self._job_id_of(name))
            except ConfigurationError:
                logger.warning("Skipping entry %r of %s, which does not name a job.", name, self._store)
        return job_ids

    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        def remove() -> None:
            with self._lock:
                self._require_running()
                if not self._store.release_and_try_remove(self._name_of(job_id)):
                    raise ConflictError(
                        f"Could not remove execution plan with job id {job_id}: another process holds a lock on it. "
                        "Try again."
                    )
                self._known.discard(job_id)

        return executor.submit(remove)

    def local_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        def release() -> None:
            with self._lock:
                self._require_running()
                self._store.release(self._name_of(job_id))
                self._known.discard(job_id)

        return executor.submit(release)

    def forward(self, job_id: JobID, *, is_added: bool) -> None:
        """Notify the listener of a change by another process; ignore changes by this one."""
        with self._lock:
            listener = self._listener
            if listener is None or (job_id in self._known) == is_added:
                return
            if not is_added:
                self._known.discard(job_id)
        try:
            if is_added:
                listener.on_added_execution_plan(job_id)
            else:
                listener.on_removed_execution_plan(job_id)
        except Exception:
            logger.exception("The listener of execution plans failed for job %s.", job_id)

    def _require_running(self) -> None:
        if self._listener is None:
            raise RuntimeError("The execution plan store is not running. Forgot to call start()?")


class _Forwarder(ExecutionPlanListener):
    def __init__(self, store: DefaultExecutionPlanStore) -> None:
        self._store = store

    def on_added_execution_plan(self, job_id: JobID) -> None:
        self._store.forward(job_id, is_added=True)

    def on_removed_execution_plan(self, job_id: JobID) -> None:
        self._store.forward(job_id, is_added=False)


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
