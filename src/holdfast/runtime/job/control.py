"""What other threads ask of a running job: stop, cancel, a checkpoint, a savepoint, another parallelism."""

from __future__ import annotations

import threading
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

# What became of the wishes for another parallelism, for those who ask later.


@dataclass(frozen=True)
class Rescale:
    """One wish and its outcome; times in milliseconds since 1970.

    Attributes:
        number: Of the wish in this process, from 1.
        wanted: Parallelism that was asked for, by uid; the empty uid stands for all operators with state.
        before: Parallelism of each operator with state when the wish was met.
        after: That afterwards; the same if it was refused.
        started: When it was met, between two epochs.
        ended: When it was in force, or refused.
        refusal: Why it was refused; None if it was not.
        id: Names it.
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
    """The rescales of a job in this process. Safe to use from several threads."""

    SIZE: Final = 16

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rescales: deque[Rescale] = deque(maxlen=self.SIZE)
        self._durations: deque[int] = deque(maxlen=10_000)
        self._latest: dict[bool, Rescale] = {}
        self._counts = {True: 0, False: 0}

    def met(
        self,
        wanted: Mapping[str, int],
        before: Mapping[str, int],
        after: Mapping[str, int],
        times: tuple[int, int],
        refusal: str | None = None,
    ) -> None:
        """Note a wish that was met or refused; the arguments are those of `Rescale`."""
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
        """How many were done."""
        return self._counts[True]

    @property
    def failed(self) -> int:
        """How many were refused."""
        return self._counts[False]

    @property
    def durations(self) -> list[int]:
        """Milliseconds that those took which were done."""
        with self._lock:
            return list(self._durations)

    def latest(self, *, done: bool) -> Rescale | None:
        """Return the newest one that was done, or that was refused."""
        with self._lock:
            return self._latest.get(done)

    def newest_first(self) -> list[Rescale]:
        """Return those that are remembered."""
        with self._lock:
            return list(reversed(self._rescales))

    def find(self, rescale_id: str) -> Rescale | None:
        """Return one by its id, None if it is unknown or forgotten."""
        known = [*self.newest_first(), self.latest(done=True), self.latest(done=False)]
        return next((rescale for rescale in known if rescale is not None and rescale.id == rescale_id), None)


T = TypeVar("T")


class CompletableFuture(Future[T]):
    """A future of Python's that two things are told of as PyFlink tells them.

    Whoever completes it first, with a result, an error or by cancelling it, does, and who comes later changes nothing:
    a user who gives up waiting harms neither the job nor what was asked for.
    """

    def set_result(self, result: T) -> None:
        """Completes it, if it is not complete."""
        with suppress(InvalidStateError):
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Completes it with an error, if it is not complete."""
        with suppress(InvalidStateError):
            super().set_exception(exception)

    def exception(self, timeout: float | None = 0) -> BaseException | None:
        """The error that it has; None if it has none, or none yet. Waits only if it is told to.

        Args:
            timeout: How many seconds; None for as long as it takes.
        """
        with suppress(TimeoutError):
            return super().exception(timeout)
        return None


@dataclass(frozen=True)
class SnapshotRequest:
    """A wish for a checkpoint or a savepoint at the next epoch boundary.

    Attributes:
        is_savepoint: Whether it is a savepoint.
        directory: Where the savepoint goes; None for the configured directory.
        stop: Whether the job stops with it.
        drain: Whether event time advances to its end first.
        format_type: What the savepoint's document calls its format.
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
    """A wish for another parallelism, by uid; the empty uid stands for all keyed operators."""

    parallelism: Mapping[str, int]
    future: CompletableFuture[None] = field(default_factory=CompletableFuture)


class JobControl:
    """Requests to a job; safe to use from any thread.

    The job master looks at it between epochs, and waits on it when there is nothing to do.
    """

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._snapshots: list[SnapshotRequest] = []
        self._ended = False
        self.stop_requested = False
        self.cancel_requested = False
        self.is_interrupted = False
        """Whether what stops the job is a signal to its process, and nobody's wish that it should not run."""
        self._deposed = False
        self._rescales: list[RescaleRequest] = []
        self.rescales = RescaleHistory()
        self.parallelism: dict[str, int] = {}
        """Parallelism by uid that is in force instead of the program's; the empty uid stands for all operators."""

    @property
    def is_ending(self) -> bool:
        """Whether the job is to end in this process."""
        return self.stop_requested or self.cancel_requested

    @property
    def is_stopping(self) -> bool:
        """Whether no further epoch may start."""
        return self.is_ending or self._deposed

    @property
    def is_deposed(self) -> bool:
        """Whether the term of this process is over, and the job is not to end here for another reason."""
        return self._deposed and not self.is_ending

    def depose(self) -> None:
        """The term of this process is over: no further epoch may start before the next one."""
        self._deposed = True
        self._wake.set()

    def reinstate(self) -> None:
        """A new term of this process has begun."""
        self._deposed = False
        self._wake.clear()

    def wake(self) -> None:
        """Lets whoever waits look again."""
        self._wake.set()

    def stop(self) -> None:
        """Asks the job to end after the current epoch and to keep everything."""
        self.stop_requested = True
        self._wake.set()

    def cancel(self) -> None:
        """Asks the job to end after the current epoch, for good."""
        self.cancel_requested = True
        self._wake.set()

    def rescale(self, parallelism: Mapping[str, int]) -> CompletableFuture[None]:
        """Asks for another parallelism from the next epoch on; the future is done when it is in force."""
        request = RescaleRequest(dict(parallelism))
        with self._lock:
            if self._ended:
                request.future.set_exception(_shut_down())
            else:
                self._rescales.append(request)
        self._wake.set()
        return request.future

    def next_rescale(self) -> RescaleRequest | None:
        """The wish for another parallelism that has waited longest; whoever takes it answers it."""
        with self._lock:
            return self._rescales.pop(0) if self._rescales else None

    @property
    def rescale_requested(self) -> bool:
        """Whether somebody waits for another parallelism."""
        return bool(self._rescales)

    def request(self, request: SnapshotRequest) -> CompletableFuture[Any]:
        """Asks for a checkpoint or a savepoint."""
        with self._lock:
            if self._ended:
                request.future.set_exception(_shut_down())
            else:
                self._snapshots.append(request)
        self._wake.set()
        return request.future

    @property
    def snapshot_requested(self) -> bool:
        """Whether somebody waits for a checkpoint or a savepoint."""
        return bool(self._snapshots)

    @property
    def drain_requested(self) -> bool:
        """Whether the next epoch is to be the last, with the end of event time."""
        return any(request.drain for request in self._snapshots)

    def drain_requests(self) -> list[SnapshotRequest]:
        """The waiting wishes for a stop before which event time advances to its end."""
        with self._lock:
            return [request for request in self._snapshots if request.drain]

    def reject(self, request: SnapshotRequest, error: BaseException) -> None:
        """Answers a waiting request: it cannot be granted."""
        with self._lock:
            if request not in self._snapshots:
                return
            self._snapshots.remove(request)
        request.future.set_exception(error)

    @property
    def waiting(self) -> tuple[SnapshotRequest, ...]:
        """Everybody who waits for a checkpoint or a savepoint."""
        with self._lock:
            return tuple(self._snapshots)

    def next_request(self, *, among: Collection[SnapshotRequest], drained: bool) -> SnapshotRequest | None:
        """A waiting request that the end of an epoch can answer; whoever takes it answers it. None if there is none.

        Args:
            among: Those who waited when the checkpoint began; it is none that later ones have asked for.
            drained: Whether event time has come to its end in the epoch. A drain that was asked for while an epoch ran
                waits for the next one.
        """
        with self._lock:
            for request in self._snapshots:
                if request in among and (drained or not request.drain):
                    self._snapshots.remove(request)
                    return request
        return None

    def wait(self, seconds: float) -> None:
        """Waits until something is asked for, at most `seconds`."""
        self._wake.wait(seconds)
        self._wake.clear()
        if self.is_stopping:
            self._wake.set()

    def end(self) -> None:
        """The job runs no more: answers what is still waiting."""
        with self._lock:
            self._ended = True
            futures: list[CompletableFuture[Any]] = [snapshot.future for snapshot in self._snapshots]
            futures += [rescale.future for rescale in self._rescales]
            self._snapshots, self._rescales = [], []
        for future in futures:
            future.set_exception(_shut_down())


def _shut_down() -> CheckpointError:
    return CheckpointError(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)


# The states of a job.


class JobStatus(Enum):
    """Flink's job states. FAILING, CANCELLING and RECONCILING do not occur here: a job goes on after its epoch.

    FINISHED, CANCELED and FAILED are globally terminal: nobody runs the job again by itself. SUSPENDED is locally
    terminal: this process has stopped and kept everything, and running the job again resumes it.
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
        """Itself, at once: PyFlink hands out a future of it."""
        return self

    def is_globally_terminal_state(self) -> bool:
        """Whether the job is over for good."""
        return self in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)

    def is_terminal_state(self) -> bool:
        """Whether this process runs it no more."""
        return self.is_globally_terminal_state() or self is JobStatus.SUSPENDED


@dataclass(frozen=True)
class JobExecutionResult:
    """How a job ended in this process.

    Attributes:
        job_id: The job.
        status: FINISHED (bounded inputs have ended), SUSPENDED (resumes when it is run again) or CANCELED.
        net_runtime: Milliseconds from launch to end.
    """

    job_id: JobID
    status: JobStatus
    net_runtime: int

    def get_job_id(self) -> JobID:
        """The job."""
        return self.job_id

    def get_net_runtime(self) -> int:
        """Milliseconds from launch to end."""
        return self.net_runtime

    def is_job_execution_result(self) -> bool:
        """True: the job has ended."""
        return True

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Nothing: functions have no accumulators here."""
        return {}

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Refused: functions have no accumulators here.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"there is no accumulator {accumulator_name!r}: functions count in state, or emit what they have counted."
        )
