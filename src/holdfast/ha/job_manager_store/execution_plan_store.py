"""The store of submitted execution plans, which a new leader runs again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    ConflictError,
    CorruptFileError,
    FormatVersionError,
    NotExistError,
    StorageError,
)
from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan, JobResourceRequirements
from holdfast.ha.job_manager_store.execution_plan_watcher import (
    ExecutionPlanListener,
    ExecutionPlanStoreWatcher,
    NoExecutionPlanStoreWatcher,
)
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.handle.state_handle_store import StateHandleStore

_log = get_logger(__name__)


class ExecutionPlanStore(ABC):
    """Keeps submitted plans until their jobs have ended for good."""

    @abstractmethod
    def start(self, listener: ExecutionPlanListener) -> None:
        """Make the store ready; a second call does nothing."""

    @abstractmethod
    def stop(self) -> None:
        """End the use of the store; the plans stay."""

    @abstractmethod
    def recover_execution_plan(self, job_id: JobID) -> ExecutionPlan | None:
        """Read the plan of a job, None if there is none.

        Raises:
            CorruptFileError: It cannot be read.
            FormatVersionError: It was written by a newer version.
        """

    @abstractmethod
    def put_execution_plan(self, execution_plan: ExecutionPlan) -> None:
        """Add a plan, or replace one that this store put or recovered itself.

        Raises:
            AlreadyExistError: Another process put it, and this one has not read it.
            FencedError: This process does not lead.
            PossibleInconsistentStateError: It is not known whether the plan was kept.
        """

    @abstractmethod
    def put_job_resource_requirements(self, job_id: JobID, job_resource_requirements: JobResourceRequirements) -> None:
        """Change how many subtasks a job may have.

        Raises:
            NotExistError: There is no plan of this job.
        """

    @abstractmethod
    def get_job_ids(self) -> list[JobID]:
        """Return the jobs that have a plan."""

    @abstractmethod
    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Remove the plan of a job that has ended for good; fails if somebody else still uses it."""

    @abstractmethod
    def local_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Stop using the plan of a job and keep it for the next leader."""


class StandaloneExecutionPlanStore(ExecutionPlanStore):
    """Keeps nothing; for clusters that do not outlive their process."""

    def start(self, listener: ExecutionPlanListener) -> None:
        """Nothing to make ready."""

    def stop(self) -> None:
        """Nothing to end."""

    def recover_execution_plan(self, job_id: JobID) -> ExecutionPlan | None:
        """There is none."""
        return None

    def put_execution_plan(self, execution_plan: ExecutionPlan) -> None:
        """Keep nothing."""

    def put_job_resource_requirements(self, job_id: JobID, job_resource_requirements: JobResourceRequirements) -> None:
        """Keep nothing."""

    def get_job_ids(self) -> list[JobID]:
        """There are none."""
        return []

    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Nothing to remove."""
        return _done()

    def local_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Nothing to release."""
        return _done()


class DefaultExecutionPlanStore(ExecutionPlanStore):
    """Plans in a state handle store; safe to use from several threads.

    Args:
        store: Where the plans are.
        watcher: Notices what other processes do.
        name_of: The name of a job's entry; the id by default.
        job_id_of: The job of an entry's name; raises ConfigurationError for a name of something else.
    """

    def __init__(
        self,
        store: StateHandleStore[ExecutionPlan, Any],
        watcher: ExecutionPlanStoreWatcher | None = None,
        *,
        name_of: Callable[[JobID], str] = str,
        job_id_of: Callable[[str], JobID] = JobID.from_hex,
    ) -> None:
        self._store = store
        self._watcher = watcher or NoExecutionPlanStoreWatcher()
        self._name_of = name_of
        self._job_id_of = job_id_of
        self._lock = threading.RLock()
        self._known: set[JobID] = set()
        self._listener: ExecutionPlanListener | None = None

    def start(self, listener: ExecutionPlanListener) -> None:
        """Begin to use the store and to forward what other processes do."""
        with self._lock:
            if self._listener is None:
                self._listener = listener
                self._watcher.start(_Forwarder(self))

    def stop(self) -> None:
        """Release all locks and stop forwarding; tries both before it raises what went wrong."""
        with self._lock:
            if self._listener is None:
                return
            self._listener = None
            self._known.clear()
        errors: list[Exception] = []
        for action in (self._store.release_all, self._watcher.stop):
            try:
                action()
            except Exception as error:
                errors.append(error)
        if errors:
            raise StorageError(
                "Could not properly stop the DefaultExecutionPlanStore: " + " Also: ".join(map(str, errors))
            ) from errors[0]

    def recover_execution_plan(self, job_id: JobID) -> ExecutionPlan | None:
        """Read a plan and lock it; one that cannot be read is released again, unless this store had it already."""
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
        """Add or replace a plan."""
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
        """Read the plan, change it, put it back."""
        with self._lock:
            plan = self.recover_execution_plan(job_id)
            if plan is None:
                raise NotExistError(f"There is no plan of job {job_id}, so its resource requirements cannot be set.")
            self.put_execution_plan(plan.with_resource_requirements(job_resource_requirements))

    def get_job_ids(self) -> list[JobID]:
        """Return the jobs of all entries; names of something else are skipped with a warning."""
        with self._lock:
            self._require_running()
            names = self._store.get_all_handles()
        job_ids = []
        for name in names:
            try:
                job_ids.append(self._job_id_of(name))
            except ConfigurationError:
                _log.warning("Skipping entry %r of %s, which does not name a job.", name, self._store)
        return job_ids

    def global_cleanup_async(self, job_id: JobID, executor: Executor) -> Future[None]:
        """Remove a plan."""

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
        """Release a plan."""

        def release() -> None:
            with self._lock:
                self._require_running()
                self._store.release(self._name_of(job_id))
                self._known.discard(job_id)

        return executor.submit(release)

    def forward(self, job_id: JobID, *, is_added: bool) -> None:
        """Tell the listener what another process did, and not what this one did."""
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
            _log.exception("The listener of execution plans failed for job %s.", job_id)

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
