"""Requests of other threads to a running job: stop, cancel, checkpoint, savepoint, rescale."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from holdfast.checkpoint.snapshot_type import SavepointFormatType
from holdfast.errors import CheckpointError, CheckpointFailureReason, ConfigurationError
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import redacted_message

T = TypeVar("T")


@dataclass(frozen=True)
class Rescale:
    """A request for another parallelism and its outcome; times in milliseconds since 1970.

    Attributes:
        number: Number of the request in this process, from 1.
        wanted: Requested parallelism by uid; the empty uid means all operators with state.
        before: Parallelism of each operator with state before.
        after: Parallelism afterwards; the same if the request was rejected.
        started: When it was handled, between two epochs.
        ended: When it took effect or was rejected.
        refusal: Why it was rejected; None if it was not.
        id: Its id.
    """

    number: int
    wanted: Mapping[str, int]
    before: Mapping[str, int]
    after: Mapping[str, int]
    started: int
    ended: int
    refusal: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class RescaleHistory:
    """History of rescales of a job in this process. Safe to use from several threads."""

    SIZE: Final = 16

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rescales: deque[Rescale] = deque(maxlen=self.SIZE)
        self._durations: deque[int] = deque(maxlen=10_000)
        self._latest: dict[bool, Rescale] = {}
        self._counts = {True: 0, False: 0}

    def record(
        self,
        wanted: Mapping[str, int],
        before: Mapping[str, int],
        after: Mapping[str, int],
        times: tuple[int, int],
        refusal: str | None = None,
    ) -> None:
        """Record a request and its outcome; the arguments are those of `Rescale`."""
        with self._lock:
            is_done = refusal is None
            number = sum(self._counts.values()) + 1
            rescale = Rescale(number, dict(wanted), dict(before), dict(after), *times, refusal)
            self._counts[is_done] += 1
            self._latest[is_done] = rescale
            self._rescales.append(rescale)
            if is_done:
                self._durations.append(times[1] - times[0])

    @property
    def completed(self) -> int:
        return self._counts[True]

    @property
    def failed(self) -> int:
        """Number of rejected requests."""
        return self._counts[False]

    @property
    def durations(self) -> list[int]:
        """Milliseconds of each completed rescale."""
        with self._lock:
            return list(self._durations)

    def latest(self, *, done: bool) -> Rescale | None:
        """Return the latest completed, or the latest rejected one."""
        with self._lock:
            return self._latest.get(done)

    def newest_first(self) -> list[Rescale]:
        with self._lock:
            return list(reversed(self._rescales))

    def find(self, rescale_id: str) -> Rescale | None:
        """Return one by its id; None if it is unknown or forgotten."""
        known = [*self.newest_first(), self.latest(done=True), self.latest(done=False)]
        return next((rescale for rescale in known if rescale is not None and rescale.id == rescale_id), None)


class CompletableFuture(Future[T]):
    """Future with PyFlink's interface.

    The first completion counts: a later result or error is ignored, also after the user has cancelled the future.
    """

    def set_result(self, result: T) -> None:
        """Set the result, unless the future is done."""
        with suppress(InvalidStateError):
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error, unless the future is done."""
        with suppress(InvalidStateError):
            super().set_exception(exception)

    def exception(self, timeout: float | None = 0) -> BaseException | None:
        """Return the error; None if there is none, or none yet. Does not block by default.

        Args:
            timeout: Seconds to wait; None to wait until the future is done.
        """
        with suppress(TimeoutError):
            return super().exception(timeout)
        return None


@dataclass(frozen=True)
class SnapshotRequest:
    """Request for a checkpoint or a savepoint at the end of the next epoch.

    Attributes:
        is_savepoint: Whether it is a savepoint.
        directory: Directory of the savepoint; None for the configured one.
        stop: Whether the job stops with it.
        drain: Whether event time advances to its end first.
        format_type: Format that the savepoint's document states.
        future: Gets the checkpoint's id, or the savepoint's path.
    """

    is_savepoint: bool = False
    directory: str | None = None
    stop: bool = False
    drain: bool = False
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    future: CompletableFuture[Any] = field(default_factory=CompletableFuture)


@dataclass(frozen=True)
class RescaleRequest:
    """Request for another parallelism by uid; the empty uid means all keyed operators."""

    parallelism: Mapping[str, int]
    future: CompletableFuture[None] = field(default_factory=CompletableFuture)


class JobControl:
    """Queue of requests to a job. Safe to use from any thread.

    The job master handles requests between epochs, and waits on this object when there is nothing to do.

    Attributes:
        stop_requested: Whether the job ends after the current epoch and keeps everything.
        cancel_requested: Whether the job ends after the current epoch for good.
        is_interrupted: Whether a signal to the process stops the job, and not a user.
        rescales: History of rescales.
        parallelism: Parallelism by uid that overrides the program's; the empty uid means all operators.
    """

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._snapshots: list[SnapshotRequest] = []
        self._ended = False
        self._failure: BaseException | None = None
        self.stop_requested = False
        self.cancel_requested = False
        self.is_interrupted = False
        self._deposed = False
        self._rescales: list[RescaleRequest] = []
        self.rescales = RescaleHistory()
        self.parallelism: dict[str, int] = {}

    @property
    def is_ending(self) -> bool:
        """Whether the job ends in this process."""
        return self.stop_requested or self.cancel_requested

    @property
    def is_stopping(self) -> bool:
        """Whether no further epoch may start."""
        return self.is_ending or self._deposed

    @property
    def is_deposed(self) -> bool:
        """Whether the term of this process is over, and the job does not end for another reason."""
        return self._deposed and not self.is_ending

    def depose(self) -> None:
        """End the term of this process: no further epoch may start before the next term."""
        self._deposed = True
        self._wake.set()

    def reinstate(self) -> None:
        """Begin a new term of this process."""
        self._deposed = False
        self._wake.clear()

    def wake(self) -> None:
        """Wake the thread in `wait`."""
        self._wake.set()

    def stop(self) -> None:
        """Request the end of the job after the current epoch; everything is kept."""
        self.stop_requested = True
        self._wake.set()

    def cancel(self) -> None:
        """Request the end of the job after the current epoch, for good."""
        self.cancel_requested = True
        self._wake.set()

    def rescale(self, parallelism: Mapping[str, int]) -> CompletableFuture[None]:
        """Request another parallelism from the next epoch on; the future completes when it is in force."""
        request = RescaleRequest(dict(parallelism))
        with self._lock:
            if self._ended:
                request.future.set_exception(self._shut_down())
            else:
                self._rescales.append(request)
        self._wake.set()
        return request.future

    def next_rescale(self) -> RescaleRequest | None:
        """Remove and return the oldest request for another parallelism; the caller completes it."""
        with self._lock:
            return self._rescales.pop(0) if self._rescales else None

    @property
    def rescale_requested(self) -> bool:
        return bool(self._rescales)

    def request(self, request: SnapshotRequest) -> CompletableFuture[Any]:
        """Queue a request for a checkpoint or a savepoint."""
        with self._lock:
            if self._ended:
                request.future.set_exception(self._shut_down())
            else:
                self._snapshots.append(request)
        self._wake.set()
        return request.future

    @property
    def snapshot_requested(self) -> bool:
        return bool(self._snapshots)

    @property
    def drain_requested(self) -> bool:
        """Whether the next epoch is the last one, with the end of event time."""
        return any(request.drain for request in self._snapshots)

    def drain_requests(self) -> list[SnapshotRequest]:
        """Return the waiting requests for a drain."""
        with self._lock:
            return [request for request in self._snapshots if request.drain]

    def reject(self, request: SnapshotRequest, error: BaseException) -> None:
        """Fail a waiting request."""
        with self._lock:
            if request not in self._snapshots:
                return
            self._snapshots.remove(request)
        request.future.set_exception(error)

    @property
    def waiting(self) -> tuple[SnapshotRequest, ...]:
        """The waiting requests for checkpoints and savepoints."""
        with self._lock:
            return tuple(self._snapshots)

    def next_request(self, *, among: Collection[SnapshotRequest], drained: bool) -> SnapshotRequest | None:
        """Remove and return a waiting request that the end of an epoch can answer; None if there is none.

        The caller completes it.

        Args:
            among: The requests that waited when the checkpoint began; later ones need a later checkpoint.
            drained: Whether event time came to its end in the epoch. A drain that was requested during an epoch waits
                for the next one.
        """
        with self._lock:
            for request in self._snapshots:
                if request in among and (drained or not request.drain):
                    self._snapshots.remove(request)
                    return request
        return None

    def wait(self, seconds: float) -> None:
        """Block until there is a request, at most `seconds`."""
        self._wake.wait(seconds)
        self._wake.clear()
        if self.is_stopping:
            self._wake.set()

    def pause(self, seconds: float) -> None:
        """Block for some seconds, or until no further epoch may start."""
        deadline = time.monotonic() + seconds
        while not self.is_stopping and (left := deadline - time.monotonic()) > 0:
            self.wait(left)

    def end(self, failure: BaseException | None) -> None:
        """Fail all waiting and later requests, because the job has ended; with its failure, if it has failed."""
        with self._lock:
            self._ended, self._failure = True, failure
            futures: list[CompletableFuture[Any]] = [snapshot.future for snapshot in self._snapshots]
            futures += [rescale.future for rescale in self._rescales]
            self._snapshots, self._rescales = [], []
        for future in futures:
            future.set_exception(self._shut_down())

    def _shut_down(self) -> CheckpointError:
        reason, failure = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, self._failure
        if failure is None:
            return CheckpointError(reason, "The job has ended.")
        return CheckpointError(reason, f"The job has ended: {redacted_message(failure)}", failure)


class JobStatus(Enum):
    """Flink's job states.

    FAILING, CANCELLING and RECONCILING do not occur: a job ends after its current epoch. FINISHED, CANCELED and FAILED
    are globally terminal: the job does not run again by itself. SUSPENDED is locally terminal: this process has stopped
    and kept everything, and running the job again resumes it.
    """

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    SUSPENDED = "SUSPENDED"
    FAILING = "FAILING"
    CANCELLING = "CANCELLING"
    RECONCILING = "RECONCILING"

    def result(self, timeout: float | None = None) -> JobStatus:
        """Return itself at once: PyFlink returns a future of the status."""
        return self

    def is_globally_terminal_state(self) -> bool:
        """Return whether the job has ended for good."""
        return self in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)

    def is_terminal_state(self) -> bool:
        """Return whether the job has ended in this process."""
        return self.is_globally_terminal_state() or self is JobStatus.SUSPENDED


@dataclass(frozen=True)
class JobExecutionResult:
    """Result of a job in this process.

    Attributes:
        job_id: The job.
        status: FINISHED (bounded inputs have ended), SUSPENDED (resumes when it is run again) or CANCELED.
        net_runtime: Milliseconds from launch to end.
        ending: Why a job is SUSPENDED, in words; empty for other statuses.
    """

    job_id: JobID
    status: JobStatus
    net_runtime: int
    ending: str = ""

    def __repr__(self) -> str:
        words = f": {self.ending}" if self.ending else ""
        return f"<job {self.job_id} ended {self.status.value} after {self.net_runtime / 1000:.1f} s{words}>"

    def get_job_id(self) -> JobID:
        """Return the id of the job."""
        return self.job_id

    def get_net_runtime(self) -> int:
        """Return the milliseconds from launch to end."""
        return self.net_runtime

    def is_job_execution_result(self) -> bool:
        """Return True: the job has ended."""
        return True

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Return an empty dictionary: functions have no accumulators."""
        return {}

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Raise an error: functions have no accumulators.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(f"There is no accumulator {accumulator_name!r}: count in state, or emit the counts.")
