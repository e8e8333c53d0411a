"""Drives the committers of a job with what its completed checkpoints name: sinks side by side, each in its own order.

The job master calls `begin` after each completed checkpoint, and `commit` after a recovery with what it finds in the
checkpoint restored. Each sink has a thread of its own, its *lane*, in which all calls of its committer are made,
checkpoint by checkpoint and epoch by epoch in their order; so one whose target is slow, or away, holds up no other, and
not the job either. `commit` returns when all sinks have ended; what `begin` returns tells when they have::

    a sink fails       -> it stops there, also with later checkpoints; the other sinks go on
    FencedError        -> no sink begins another epoch or try: another leader commits
    ConfigurationError -> the same, and the job fails: no further try can help
    CorruptFileError   -> the same

An error fails the job attempt; the next attempt commits the same committables again. So nothing is remembered here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from holdfast.errors import StorageError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.option import ConfigOption
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.sink_committing import CommitReport, CommitSettings, Entry, SinkCommitting
from holdfast.runtime.commit.sink_numbers import SinkMeter
from holdfast.runtime.function.sink import CommitterInitContext, Sink
from holdfast.storage.job.naming import FileName

logger = get_logger(__name__)

COMMITTER_RETRIES: Final = ConfigOption(
    "sink.committer.retries",
    int,
    10,
    "How often a committable is tried again when its committer asks for it, before the job fails and recovers.",
)

MAX_PENDING: Final = ConfigOption(
    "sink.committer.max-pending-checkpoints",
    int,
    1,
    "How many completed checkpoints may wait for their commits while the next epoch runs. With 0 an epoch begins when "
    "the output of the one before is committed.",
)

T = TypeVar("T")


class CommitUnderWay:
    """The commit of a checkpoint, which the sinks make in their lanes.

    Args:
        outcomes: What becomes of it, by sink uid.
    """

    def __init__(self, outcomes: Mapping[str, Future[CommitReport]]) -> None:
        self._outcomes = outcomes

    @property
    def waits_for(self) -> list[str]:
        """The sinks that have not ended."""
        return [uid for uid, outcome in self._outcomes.items() if not outcome.done()]

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until all sinks have ended, for each of them at most `timeout` seconds; returns whether they have."""
        for outcome in self._outcomes.values():
            with suppress(TimeoutError):
                outcome.exception(timeout)
        return not self.waits_for

    def result(self) -> CommitReport:
        """What was committed; blocks until all sinks have ended.

        Raises:
            FencedError: Another leader commits.
            ConfigurationError, CorruptFileError: A committer says that no further try can help.
            StorageError: Some could not be committed. All sinks were tried; its cause is the first failure, its notes
                name the others.
        """
        self.wait()
        report = CommitReport()
        failures: list[StorageError] = []
        for outcome in self._outcomes.values():
            error = outcome.exception()
            if error is None:
                report += outcome.result()
            elif isinstance(error, StorageError):
                failures.append(error)
            else:
                raise error
        if failures:
            first, *others = failures
            for note in (f"also: {other}" for other in others):
                if note not in getattr(first, "__notes__", ()):  # it may have been raised before
                    first.add_note(note)
            raise first
        return report


class Committing:
    """The committers of one job attempt.

    Args:
        sinks: The job's sinks by uid.
        job_id: The job, 32 hexadecimal digits.
        staging_dir: The directory given to writers as theirs.
        services: What the engine offers to committers by name.
        retries: See `sink.committer.retries`.
        clock: Measures the pauses between tries.
        incarnations: Those that the job has had in its directory, the current one last.
        require_lead: Asks the register; raises FencedError if another process leads.
        is_stopped: Asked before each further try; once true nothing more is tried and the last error is raised.
        carried: Makes of a call one that another thread may make; see `Engine.carried`.
        meter: Counts what the sinks do.
        has_lanes: Whether sinks commit in threads of their own; None if they do where there are several. Without, what
            `begin` returns has ended.
    """

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        *,
        job_id: str,
        staging_dir: str,
        services: Mapping[str, Any] | None = None,
        retries: int = COMMITTER_RETRIES.default,
        clock: Clock | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
        incarnations: Sequence[str] = (),
        require_lead: Callable[[], object] = lambda: None,
        carried: Callable[[Callable[[], Any]], Callable[[], Any]] = lambda call: call,
        meter: SinkMeter | None = None,
        has_lanes: bool | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._ending = threading.Event()
        may_not_retry = lambda: self._ending.is_set() or is_stopped()  # noqa: E731
        settings = CommitSettings(retries, clock, may_not_retry, require_lead, meter or SinkMeter(clock))
        self._sinks = {
            uid: SinkCommitting(
                sink,
                CommitterInitContext(job_id, uid, staging_dir, dict(services or {}), tuple(incarnations), require_lead),
                settings,
            )
            for uid, sink in sorted(sinks.items())
        }
        self._carried = carried
        self._has_lanes = len(self._sinks) > 1 if has_lanes is None else has_lanes
        self._lanes: dict[str, CommitLane] = {}
        self._begun: dict[str, Future[CommitReport]] = {}
        self._halted = threading.Event()

    def commit(
        self, checkpoint_id: int, committables: Mapping[str, Iterable[Entry]], *, is_recovered: bool = False
    ) -> CommitReport:
        """Makes visible what a completed checkpoint names; blocks until it is, or has failed.

        Args:
            checkpoint_id: The completed checkpoint.
            committables: Its committables by sink uid. Those of a sink that the job no longer has are an error:
                dropping them would lose output that the checkpoint promised.
            is_recovered: Whether the checkpoint was restored, so that they may have been committed before.

        Raises:
            FencedError: Another leader commits.
            ConfigurationError, CorruptFileError: A committer says that no further try can help.
            StorageError: Some could not be committed. All sinks were tried; its cause is the first failure, its notes
                name the others.
        """
        return self._begin(checkpoint_id, committables, is_recovered, {}, threading.Event()).result()

    def begin(self, checkpoint_id: int, committables: Mapping[str, Iterable[Entry]]) -> CommitUnderWay:
        """Begins to make visible what a completed checkpoint names, behind what was begun before; does not block.

        Args:
            checkpoint_id: The completed checkpoint, which was not restored.
            committables: As for `commit`.
        """
        return self._begin(checkpoint_id, committables, False, self._begun, self._halted)

    def halt(self) -> None:
        """Lets no sink begin another epoch, because another leader commits."""
        self._halted.set()

    def finish(self) -> None:
        """Blocks until the sinks have ended with all that was begun, for which each has one try now."""
        self._ending.set()
        for outcome in self._begun.values():
            outcome.exception()

    def prepare(self, kept: Mapping[str, Any], epoch: int | None) -> dict[str, Any]:
        """Makes sure that the targets of all sinks are those that they were.

        Args:
            kept: What it returned when the restored checkpoint was written.
            epoch: That of the restored checkpoint, if its incarnation goes on; None if a new one begins.

        Returns:
            What identifies the targets, by uid, as JSON.

        Raises:
            StorageError: One is not there, or is another one.
            RestoreError: One knows of later epochs than the checkpoint.
        """
        targets = {
            uid: self._in_lane(uid, partial(sink.prepare, kept.get(uid), epoch)).result()
            for uid, sink in self._sinks.items()
        }
        return {uid: target for uid, target in targets.items() if target is not None}

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Lets every sink remove the staged files of dead attempts; returns how many went."""
        return sum(sink.sweep(is_dead) for sink in self._sinks.values())

    def close(self) -> None:
        """Closes the committers that were used, and ends the lanes after what is under way."""
        for uid, sink in self._sinks.items():
            if uid in self._lanes:
                self._in_lane(uid, sink.close).exception()
            else:
                sink.close()
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    def _begin(
        self,
        checkpoint_id: int,
        committables: Mapping[str, Iterable[Entry]],
        is_recovered: bool,
        begun: dict[str, Future[CommitReport]],
        halted: threading.Event,
    ) -> CommitUnderWay:
        outcomes: dict[str, Future[CommitReport]] = {}
        for uid, entries in sorted((uid, list(entries)) for uid, entries in committables.items()):
            if entries:
                call = partial(self._commit_sink, uid, checkpoint_id, entries, is_recovered, begun.get(uid), halted)
                begun[uid] = outcomes[uid] = self._in_lane(uid, call)
        return CommitUnderWay(outcomes)

    def _commit_sink(
        self,
        uid: str,
        checkpoint_id: int,
        entries: Sequence[Entry],
        is_recovered: bool,
        before: Future[CommitReport] | None,
        halted: threading.Event,
    ) -> CommitReport:
        if uid not in self._sinks:
            raise StorageError(
                f"The checkpoint names {len(entries)} committables of the sink {uid!r}, which the program does not "
                "have. Bring the sink back under this uid, so that its output is committed; afterwards it may go."
            )
        if before is not None and (halted.is_set() or before.exception() is not None):
            # Whoever commits again begins with what was not committed, and this one comes after it.
            raise StorageError(
                f"The sink {uid!r} did not begin to commit checkpoint {checkpoint_id}, because what comes before it "
                "is not committed. The checkpoint is complete and names it; it is committed when the job runs again."
            )
        try:
            return self._sinks[uid].commit(checkpoint_id, entries, is_recovered, halted.is_set)
        except StorageError:
            raise
        except BaseException:
            halted.set()
            raise

    def _in_lane(self, uid: str, call: Callable[[], T]) -> Future[T]:
        """Makes a call in the lane of a sink, behind those that it has. A sink that has no lane is called here."""
        future: Future[T] = Future()
        if not self._has_lanes or uid not in self._sinks:
            make(call, future)
            return future
        if uid not in self._lanes:
            self._lanes[uid] = CommitLane(f"holdfast-commit-{uid}")
        self._lanes[uid].take(self._carried(call), future)
        return future


class CommitLane:
    """A thread that makes one call after the other. It ends with its process, whatever a call may wait for."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def take(self, call: Callable[[], Any], future: Future[Any]) -> None:
        """Hands over a call; the future gets what becomes of it."""
        self._calls.put((call, future))

    def close(self) -> None:
        """Ends the thread after the calls that it has."""
        self._calls.put(None)

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            make(*taken)


def make(call: Callable[[], Any], future: Future[Any]) -> None:
    """Makes a call; the future gets what becomes of it."""
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
