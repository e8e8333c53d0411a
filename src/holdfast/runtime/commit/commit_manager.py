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

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from holdfast.errors import (
    ConfigurationError,
    CorruptFileError,
    FencedError,
    HoldfastError,
    RestoreError,
    StorageError,
)
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import ConfigOption
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.sink_numbers import SinkMeter
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext, Sink
from holdfast.storage.job_directory import FileName

# The commits of one sink in one job attempt: epoch by epoch in their order, as often as its committer asks for it.
#
# What happens to a request::
#
#     committed, already -> done
#     known              -> logged, counted, dropped
#     retry              -> again after a pause, up to `sink.committer.retries` times, then as unknown
#     unknown, exception -> the sink stops here, and its error is told (`SinkFailedError`)
#     FencedError        -> another leader commits
#     ConfigurationError -> no further try can help, nor if a file is damaged (CorruptFileError)

logger = get_logger(__name__)

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0

Entry = Mapping[str, Any]
"""One committable as `_metadata` holds it: `{"incarnation": str, "epoch": int, "subtask": int, "rows": int, "value":
JSON}`; the rows are all that the subtask wrote in the epoch. Older versions wrote neither incarnation nor rows."""


class SinkFailedError(StorageError):
    """What a sink was to do in the driver was not done; the cause is what its code raised, or gave as its reason.

    Attributes:
        uid: The sink.
    """

    def __init__(self, uid: str, message: str) -> None:
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True)
class CommitReport:
    """What one call of `commit` did.

    Attributes:
        committed: Committables that are visible now, those of earlier tries included.
        dropped: Committables that their committer gave up on purpose.
    """

    committed: int = 0
    dropped: int = 0

    def __add__(self, other: CommitReport) -> CommitReport:
        return CommitReport(self.committed + other.committed, self.dropped + other.dropped)


@dataclass(frozen=True)
class CommitSettings:
    """What the sinks of a job attempt have in common.

    Attributes:
        retries: See `sink.committer.retries`.
        clock: Measures the pauses between tries.
        is_stopped: Asked before each further try and epoch of a sink; once true nothing more is tried.
        require_lead: Asks the register; raises FencedError if another process leads.
        meter: Counts what sinks do.
    """

    retries: int
    clock: Clock
    is_stopped: Callable[[], bool]
    require_lead: Callable[[], object]
    meter: SinkMeter


class SinkCommitter:
    """The committer of one sink, used by one thread at a time; see `CommitManager` for which.

    Args:
        sink: The sink.
        context: What its committer is told.
        settings: Of the job attempt.
    """

    def __init__(self, sink: Sink, context: CommitterInitContext, settings: CommitSettings) -> None:
        self._sink = sink
        self._context = context
        self._settings = settings
        self._committer: Committer | None = None
        self._is_made = False

    def prepare(self, kept: Any, epoch: int | None) -> Any:
        """Makes sure that the target is the one that it was; see `CommitManager.prepare`."""
        with self._told("looking at its target"):
            target = self._sink.prepare(self._context, kept)
            json.dumps(target, allow_nan=False)  # checkpoints keep it
        if epoch is not None:
            self._require_not_put_back(epoch)
        return target

    def commit(
        self, checkpoint_id: int, entries: Sequence[Entry], is_recovered: bool, is_halted: Callable[[], bool]
    ) -> CommitReport:
        """Commits the committables of a checkpoint.

        Args:
            checkpoint_id: The checkpoint.
            entries: Its committables of this sink.
            is_recovered: Whether the checkpoint was restored.
            is_halted: Whether nothing may be committed any more, because another leader commits, or another sink has
                found that no try can help; then the next epoch is left to whoever commits again.

        Raises:
            StorageError: Some could not be committed.
            FencedError, ConfigurationError, CorruptFileError: The committer says so.
        """
        committer = self._require_committer(len(entries))
        report = CommitReport()
        # Of whom an entry is, it says itself: this job may have been started from the checkpoint of another.
        for (incarnation, epoch), group in groupby(sorted(entries, key=_epoch_and_subtask), key=_epoch_of):
            if is_halted():
                raise StorageError(
                    f"The sink {self._context.uid!r} did not begin to commit epoch {epoch} (checkpoint "
                    f"{checkpoint_id}), because this attempt may commit nothing more. The checkpoint is complete and "
                    "names it; it is committed when the job runs again."
                )
            members = list(group)
            requests = [
                CommitRequest(
                    entry["value"],
                    epoch=epoch,
                    subtask=int(entry["subtask"]),
                    checkpoint_id=checkpoint_id,
                    is_recovered=is_recovered,
                    incarnation=incarnation,
                    uid=self._context.uid,
                )
                for entry in members
            ]
            with self._settings.meter.commit(self._context.uid, (incarnation, epoch), members):
                report += self._commit_epoch(committer, requests, is_halted)
        return report

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Lets the sink remove the staged files of dead attempts; returns how many went."""
        with self._told("removing what dead attempts have staged"):
            return self._sink.sweep(self._context, is_dead)

    def close(self) -> None:
        """Closes the committer if it was used; an error is logged, because nothing depends on it any more."""
        committer, self._committer, self._is_made = self._committer, None, False
        if committer is not None:
            try:
                committer.close()
            except Exception:
                logger.exception("close() of the committer of sink %r failed", self._context.uid)

    def _commit_epoch(
        self, committer: Committer, requests: Sequence[CommitRequest], is_halted: Callable[[], bool]
    ) -> CommitReport:
        settings, uid = self._settings, self._context.uid
        report = CommitReport()
        pause = _FIRST_PAUSE
        if not requests[0].is_recovered:
            self._require_new(committer, requests[0])
        while True:
            _try_once(uid, committer, requests)
            report += _count(uid, requests, settings.meter)
            waiting = [request for request in requests if request.answer == "retry"]
            if not waiting:
                return report
            if waiting[0].number_of_retries >= settings.retries or settings.is_stopped() or is_halted():
                raise _failure(uid, waiting, _reason(waiting)) from _reason(waiting)
            logger.warning(
                "sink %r: %d committables of epoch %d were not committed, next try in %.1f s: %s",
                uid, len(waiting), waiting[0].epoch, pause, _reason(waiting) or "the committer asked for it",
            )  # fmt: skip
            settings.clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            requests = [_next_try(request) for request in waiting]

    def _require_not_put_back(self, epoch: int) -> None:
        committer = self._made()
        last = None if committer is None else self._last_epoch(committer, self._context.incarnations[-1])
        if last is not None and last > epoch:
            self._settings.require_lead()
            raise RestoreError(
                [],
                [],
                f"the sink {self._context.uid!r} has committed epoch {last} of this job, whose newest checkpoint is of "
                f"epoch {epoch}: the job directory was put back from a copy, and its next epochs would be taken for "
                "those that are committed. Start from that checkpoint with -s PATH, which begins a new incarnation; "
                "what came after it is emitted again",
            )

    def _require_new(self, committer: Committer, first: CommitRequest) -> None:
        """Makes sure that no epoch is taken for committed that is not: the first commit of one finds no trace of it.

        Raises:
            FencedError: Another process leads and has committed it.
            ConfigurationError: Somebody has committed another epoch of this number.
        """
        last = self._last_epoch(committer, first.incarnation)
        if last is not None and last >= first.epoch:
            self._settings.require_lead()
            raise ConfigurationError(
                f"The sink {self._context.uid!r} is to commit epoch {first.epoch} for the first time, but its target "
                f"has epoch {last} of the same incarnation {first.incarnation!r} already: two copies of one job "
                "directory are running. Nothing was committed. Stop one of them, or start one with -s, as a new "
                "incarnation."
            )

    def _made(self) -> Committer | None:
        if not self._is_made:
            with self._told("making its committer"):
                self._committer, self._is_made = self._sink.create_committer(self._context), True
        return self._committer

    def _last_epoch(self, committer: Committer, incarnation: str) -> int | None:
        with self._told("asking for the last epoch of its target"):
            return committer.last_epoch(incarnation)

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Makes of what the code of a sink raises a failure of the attempt; our own errors pass."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            uid = self._context.uid
            raise SinkFailedError(uid, f"The sink {uid!r} failed in {doing}: {_shown(error)}") from error

    def _require_committer(self, count: int) -> Committer:
        committer = self._made()
        if committer is None:
            raise StorageError(
                f"The writers of the sink {self._context.uid!r} handed out {count} committables, but its "
                "create_committer() returns None. Return a Committer there, or no committables from prepare_commit()."
            )
        return committer


def _try_once(uid: str, committer: Committer, requests: Sequence[CommitRequest]) -> None:
    try:
        with fault.point("sink.commit"):
            committer.commit(requests)
    except (FencedError, ConfigurationError, CorruptFileError):
        raise
    except Exception as error:
        raise _failure(uid, requests, error) from error
    lost = [request for request in requests if request.answer == "unknown"]
    if lost:
        raise _failure(uid, lost, _reason(lost)) from _reason(lost)


def _count(uid: str, requests: Sequence[CommitRequest], meter: SinkMeter) -> CommitReport:
    answers = [request.answer for request in requests]
    meter.answered(uid, answers)
    for request in requests:
        if request.answer == "known":
            logger.error(
                "sink %r gave up the committable %r of epoch %d, subtask %d: %s",
                uid, request.committable, request.epoch, request.subtask, request.reason,
            )  # fmt: skip
    return CommitReport(committed=answers.count("committed") + answers.count("already"), dropped=answers.count("known"))


def _next_try(request: CommitRequest) -> CommitRequest:
    return CommitRequest(
        request.committable,
        epoch=request.epoch,
        subtask=request.subtask,
        checkpoint_id=request.checkpoint_id,
        number_of_retries=request.number_of_retries + 1,
        is_recovered=request.is_recovered,
        incarnation=request.incarnation,
        uid=request.uid,
    )


def _failure(uid: str, requests: Sequence[CommitRequest], reason: BaseException | None) -> SinkFailedError:
    first = requests[0]
    tries = f" after {first.number_of_retries} retries" if first.number_of_retries else ""
    why = f": {_shown(reason)}" if reason is not None else ""
    return SinkFailedError(
        uid,
        f"Failed to commit {len(requests)} committables of the sink {uid!r} from epoch {first.epoch} (checkpoint "
        f"{first.checkpoint_id}){tries}{why}. The checkpoint is complete and names them; they are committed when the "
        "job runs again.",
    )


def _shown(error: BaseException) -> str:
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"


def _reason(requests: Sequence[CommitRequest]) -> BaseException | None:
    return next((request.reason for request in requests if request.reason is not None), None)


def _epoch_of(entry: Entry) -> tuple[str, int]:
    return str(entry.get("incarnation", "")), int(entry["epoch"])


def _epoch_and_subtask(entry: Entry) -> tuple[int, int]:
    return int(entry["epoch"]), int(entry["subtask"])


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


class PendingCommit:
    """The commit of a checkpoint, which the sinks make in their lanes.

    Args:
        outcomes: What becomes of it, by sink uid.
    """

    def __init__(self, outcomes: Mapping[str, Future[CommitReport]]) -> None:
        self._outcomes = outcomes

    @property
    def unfinished_sinks(self) -> list[str]:
        """The sinks that have not ended."""
        return [uid for uid, outcome in self._outcomes.items() if not outcome.done()]

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until all sinks have ended, for each of them at most `timeout` seconds; returns whether they have."""
        for outcome in self._outcomes.values():
            with suppress(TimeoutError):
                outcome.exception(timeout)
        return not self.unfinished_sinks

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


class CommitManager:
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
        bind_session: Makes of a call one that another thread may make; see `Engine.bind_session`.
        meter: Counts what the sinks do.
        has_threads: Whether each sink commits in a thread of its own; None means only if there are several sinks.
            Without threads `begin` blocks until the commit has ended.
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
        bind_session: Callable[[Callable[[], Any]], Callable[[], Any]] = lambda call: call,
        meter: SinkMeter | None = None,
        has_threads: bool | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._ending = threading.Event()
        may_not_retry = lambda: self._ending.is_set() or is_stopped()  # noqa: E731
        settings = CommitSettings(retries, clock, may_not_retry, require_lead, meter or SinkMeter(clock))
        self._sinks = {
            uid: SinkCommitter(
                sink,
                CommitterInitContext(job_id, uid, staging_dir, dict(services or {}), tuple(incarnations), require_lead),
                settings,
            )
            for uid, sink in sorted(sinks.items())
        }
        self._bind_session = bind_session
        self._has_threads = len(self._sinks) > 1 if has_threads is None else has_threads
        self._threads: dict[str, SinkCommitThread] = {}
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

    def begin(self, checkpoint_id: int, committables: Mapping[str, Iterable[Entry]]) -> PendingCommit:
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
            uid: self._submit(uid, partial(sink.prepare, kept.get(uid), epoch)).result()
            for uid, sink in self._sinks.items()
        }
        return {uid: target for uid, target in targets.items() if target is not None}

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Lets every sink remove the staged files of dead attempts; returns how many went."""
        return sum(sink.sweep(is_dead) for sink in self._sinks.values())

    def close(self) -> None:
        """Closes the committers that were used, and ends the lanes after what is under way."""
        for uid, sink in self._sinks.items():
            if uid in self._threads:
                self._submit(uid, sink.close).exception()
            else:
                sink.close()
        for lane in self._threads.values():
            lane.close()
        self._threads.clear()

    def _begin(
        self,
        checkpoint_id: int,
        committables: Mapping[str, Iterable[Entry]],
        is_recovered: bool,
        begun: dict[str, Future[CommitReport]],
        halted: threading.Event,
    ) -> PendingCommit:
        outcomes: dict[str, Future[CommitReport]] = {}
        for uid, entries in sorted((uid, list(entries)) for uid, entries in committables.items()):
            if entries:
                call = partial(self._commit_sink, uid, checkpoint_id, entries, is_recovered, begun.get(uid), halted)
                begun[uid] = outcomes[uid] = self._submit(uid, call)
        return PendingCommit(outcomes)

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

    def _submit(self, uid: str, call: Callable[[], T]) -> Future[T]:
        """Makes a call in the lane of a sink, behind those that it has. A sink that has no lane is called here."""
        future: Future[T] = Future()
        if not self._has_threads or uid not in self._sinks:
            complete_future(call, future)
            return future
        if uid not in self._threads:
            self._threads[uid] = SinkCommitThread(f"holdfast-commit-{uid}")
        self._threads[uid].submit(self._bind_session(call), future)
        return future


class SinkCommitThread:
    """A thread that makes one call after the other. It ends with its process, whatever a call may wait for."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], Any], future: Future[Any]) -> None:
        """Hands over a call; the future gets what becomes of it."""
        self._calls.put((call, future))

    def close(self) -> None:
        """Ends the thread after the calls that it has."""
        self._calls.put(None)

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            complete_future(*taken)


def complete_future(call: Callable[[], Any], future: Future[Any]) -> None:
    """Makes a call; the future gets what becomes of it."""
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
