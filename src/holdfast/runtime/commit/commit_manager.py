"""Commits the output of completed checkpoints: each sink in its own thread, each in the order of epochs.

`EpochCheckpoints` calls `CommitManager.begin` after each completed checkpoint, and `commit` after a recovery. All calls
of a committer are made in the thread of its sink, so a slow or unavailable target delays neither the other sinks nor
the next epoch. Failures::

    a sink fails       -> it stops, also for later checkpoints; the other sinks go on
    FencedError        -> no sink begins another epoch or try: another leader commits
    ConfigurationError -> the same, and the job fails: a further try cannot help
    CorruptFileError   -> the same

A failure fails the job attempt; the next attempt commits the same committables again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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
    UserFunctionError,
)
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import ConfigOption
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.sink_metrics import SinkMeter
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext, Sink
from holdfast.storage.job_directory import FileName

logger = get_logger(__name__)

COMMITTER_RETRIES: Final = ConfigOption(
    "sink.committer.retries",
    int,
    10,
    "How often a committable is retried when its committer requests it, before the job fails and recovers.",
)

MAX_PENDING: Final = ConfigOption(
    "sink.committer.max-pending-checkpoints",
    int,
    1,
    "How many completed checkpoints may wait for their commits while the next epoch runs. With 0 an epoch starts only "
    "after the output of the previous epoch is committed.",
)

T = TypeVar("T")

Entry = Mapping[str, Any]
"""One committable in `_metadata`: `{"incarnation": str, "epoch": int, "subtask": int, "rows": int, "value": JSON}`.

The rows are all rows of the subtask in the epoch. Older versions wrote neither incarnation nor rows.
"""
_LONGEST_PAUSE: Final = 5.0


class SinkFailedError(StorageError):
    """A sink failed in the driver; the cause is the error of its code, or the reason that it gave.

    Attributes:
        uid: The sink.
    """

    def __init__(self, uid: str, message: str) -> None:
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True)
class CommitReport:
    """Result of a commit.

    Attributes:
        committed: Committables that are visible now, including those of earlier tries.
        dropped: Committables that the committer gave up on purpose.
    """

    committed: int = 0
    dropped: int = 0

    def __add__(self, other: CommitReport) -> CommitReport:
        return CommitReport(self.committed + other.committed, self.dropped + other.dropped)


@dataclass(frozen=True)
class CommittingJob:
    """The job whose sinks commit.

    Attributes:
        job_id: The job, 32 hexadecimal digits.
        staging_dir: The staging directory of writers.
        services: Services of the engine, by name.
        incarnations: Incarnations of the job in its directory, the current one last.
        require_lead: Reads the register; raises FencedError if another process leads.
    """

    job_id: str
    staging_dir: str
    services: Mapping[str, Any] = field(default_factory=dict)
    incarnations: Sequence[str] = ()
    require_lead: Callable[[], object] = lambda: None

    def committer_context(self, uid: str) -> CommitterInitContext:
        """Return the context of a sink's committer."""
        return CommitterInitContext(
            self.job_id, uid, self.staging_dir, dict(self.services), tuple(self.incarnations), self.require_lead
        )


@dataclass(frozen=True)
class CommitSettings:
    """Settings of the commits of a job attempt.

    Attributes:
        retries: See `sink.committer.retries`.
        clock: Measures the pauses between tries.
        is_stopped: Called before each further try; if true, the last error is raised.
        bind_session: Binds a call to the engine's session, for another thread; see `Engine.bind_session`.
        has_threads: Whether each sink commits in a thread of its own; None means only if there are several sinks.
            Without threads `CommitManager.begin` blocks until the commit has ended.
    """

    retries: int = COMMITTER_RETRIES.default
    clock: Clock = field(default_factory=SystemClock)
    is_stopped: Callable[[], bool] = lambda: False
    bind_session: Callable[[Callable[[], Any]], Callable[[], Any]] = lambda call: call
    has_threads: bool | None = None


class CommitManager:
    """The committers of one job attempt.

    Args:
        sinks: The job's sinks by uid.
        job: The job.
        settings: How the sinks commit.
        meter: Metrics of sinks.
    """

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        job: CommittingJob,
        settings: CommitSettings | None = None,
        meter: SinkMeter | None = None,
    ) -> None:
        settings = settings or CommitSettings()
        is_stopped = settings.is_stopped
        self._ending = threading.Event()
        self._meter = meter or SinkMeter(settings.clock)
        own = replace(settings, is_stopped=lambda: self._ending.is_set() or is_stopped())
        self._sinks = {
            uid: SinkCommitter(sink, job.committer_context(uid), own, self._meter)
            for uid, sink in sorted(sinks.items())
        }
        self._bind_session = settings.bind_session
        self._has_threads = len(self._sinks) > 1 if settings.has_threads is None else settings.has_threads
        self._threads: dict[str, SinkCommitThread] = {}
        self._begun: dict[str, Future[CommitReport]] = {}
        self._halted = threading.Event()

    def commit(
        self, checkpoint_id: int, committables: Mapping[str, Iterable[Entry]], *, is_recovered: bool = False
    ) -> CommitReport:
        """Commit the output of a completed checkpoint. Blocks.

        Args:
            checkpoint_id: The completed checkpoint.
            committables: Its committables by sink uid. A sink that the job does not have is an error: dropping its
                output would lose it.
            is_recovered: Whether the checkpoint was restored, so that they may be committed already.

        Raises:
            FencedError: Another leader commits.
            ConfigurationError, CorruptFileError: A further try cannot help.
            StorageError: Some could not be committed. All sinks were tried; the first failure is raised, with the
                others as notes.
        """
        return self._begin(checkpoint_id, committables, is_recovered, {}, threading.Event()).result()

    def begin(self, checkpoint_id: int, committables: Mapping[str, Iterable[Entry]]) -> PendingCommit:
        """Begin to commit the output of a completed checkpoint, after the ones begun before. Does not block.

        Args:
            checkpoint_id: The completed checkpoint, which was not restored.
            committables: As for `commit`.
        """
        return self._begin(checkpoint_id, committables, False, self._begun, self._halted)

    def halt(self) -> None:
        """Let no sink begin another epoch, because another leader commits."""
        self._halted.set()

    def finish(self) -> None:
        """Block until the sinks have finished all that was begun; each retries nothing any more."""
        self._ending.set()
        for outcome in self._begun.values():
            outcome.exception()

    def prepare(
        self, kept: Mapping[str, Any], epoch: int | None, restored: Mapping[str, Sequence[Entry]] | None = None
    ) -> dict[str, Any]:
        """Check that the targets of all sinks are those of the restored checkpoint.

        Args:
            kept: Result of this method when the restored checkpoint was written.
            epoch: Epoch of the restored checkpoint if its incarnation goes on; None if a new one begins.
            restored: The output of the restored checkpoint, which is pending from now on.

        Returns:
            Identities of the targets, by uid, as JSON.

        Raises:
            StorageError: A target is missing, or is another one.
            RestoreError: A target has later epochs than the checkpoint.
        """
        targets = {}
        for uid, sink in self._sinks.items():
            with self._meter.prepare(uid, restored or {}):
                targets[uid] = self._submit(uid, partial(sink.prepare, kept.get(uid), epoch)).result()
        self._meter.staged(restored or {})
        return {uid: target for uid, target in targets.items() if target is not None}

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Remove the staged files of dead attempts from all sinks; returns their number."""
        return sum(sink.sweep(is_dead) for sink in self._sinks.values())

    def close(self) -> None:
        """Close the committers and end the threads after the calls in progress."""
        for uid, sink in self._sinks.items():
            if uid in self._threads:
                self._submit(uid, sink.close).exception()
            else:
                sink.close()
        for thread in self._threads.values():
            thread.close()
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
                "have. Add the sink again under this uid, so that its output is committed; then it may be removed."
            )
        if before is not None and (halted.is_set() or before.exception() is not None):
            # The next attempt begins with the output that was not committed, and commits this one after it.
            raise StorageError(
                f"The sink {uid!r} did not begin to commit checkpoint {checkpoint_id}, because an earlier one "
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
        """Run a call in the thread of a sink, after its earlier calls; here if the sink has no thread."""
        future: Future[T] = Future()
        if not self._has_threads or uid not in self._sinks:
            complete_future(call, future)
            return future
        if uid not in self._threads:
            self._threads[uid] = SinkCommitThread(f"holdfast-commit-{uid}")
        self._threads[uid].submit(self._bind_session(call), future)
        return future


class PendingCommit:
    """Commit of one checkpoint, which the sinks carry out in their threads.

    Args:
        outcomes: Futures of the reports, by sink uid.
    """

    def __init__(self, outcomes: Mapping[str, Future[CommitReport]]) -> None:
        self._outcomes = outcomes

    @property
    def unfinished_sinks(self) -> list[str]:
        """The sinks that have not finished."""
        return [uid for uid, outcome in self._outcomes.items() if not outcome.done()]

    def wait(self, timeout: float | None = None) -> bool:
        """Block until all sinks have finished, at most `timeout` seconds for each; returns whether they have."""
        for outcome in self._outcomes.values():
            with suppress(TimeoutError):
                outcome.exception(timeout)
        return not self.unfinished_sinks

    def result(self) -> CommitReport:
        """Return the report of all sinks. Blocks until all have finished.

        Raises:
            FencedError: Another leader commits.
            ConfigurationError, CorruptFileError: A further try cannot help.
            StorageError: Some could not be committed. All sinks were tried; the first failure is raised, with the
                others as notes.
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
                if note not in getattr(first, "__notes__", ()):  # the same error may be raised again
                    first.add_note(note)
            raise first
        return report


# Answers of a committer to a request::
#
#     committed, already -> done
#     known              -> logged, counted, dropped
#     retry              -> again after a pause, up to `sink.committer.retries` times, then as unknown
#     unknown, exception -> the sink stops with a SinkFailedError
#     FencedError        -> another leader commits
#     ConfigurationError, CorruptFileError -> a further try cannot help
_FIRST_PAUSE: Final = 0.1


class SinkCommitter:
    """Drives the committer of one sink. Used by one thread at a time.

    Args:
        sink: The sink.
        context: Context of its committer.
        settings: Settings of the job attempt.
        meter: Metrics of sinks.
    """

    def __init__(self, sink: Sink, context: CommitterInitContext, settings: CommitSettings, meter: SinkMeter) -> None:
        self._sink = sink
        self._context = context
        self._settings = settings
        self._meter = meter
        self._committer: Committer | None = None
        self._is_created = False

    def prepare(self, kept: Any, epoch: int | None) -> Any:
        """Check that the target is the one of the restored checkpoint; see `CommitManager.prepare`."""
        with self._translate_errors("preparing its target"):
            target = self._sink.prepare(self._context, kept)
            json.dumps(target, allow_nan=False)  # checkpoints keep it
        if epoch is not None:
            self._require_not_behind_target(epoch)
        return target

    def commit(
        self, checkpoint_id: int, entries: Sequence[Entry], is_recovered: bool, is_halted: Callable[[], bool]
    ) -> CommitReport:
        """Commit the committables of a checkpoint, epoch by epoch.

        Args:
            checkpoint_id: The checkpoint.
            entries: Its committables of this sink.
            is_recovered: Whether the checkpoint was restored.
            is_halted: Returns whether to begin no further epoch, because another leader commits or another sink has
                failed for good.

        Raises:
            StorageError: Some could not be committed.
            FencedError, ConfigurationError, CorruptFileError: Raised by the committer.
        """
        committer = self._require_committer(len(entries))
        report = CommitReport()
        # Each entry has its own incarnation: this job may have been started from the checkpoint of another one.
        for (incarnation, epoch), group in groupby(sorted(entries, key=_commit_order), key=_epoch_of):
            if is_halted():
                raise StorageError(
                    f"The sink {self._context.uid!r} did not begin to commit epoch {epoch} (checkpoint "
                    f"{checkpoint_id}), because this attempt must not commit any more. The checkpoint is complete and "
                    "names it; it is committed when the job runs again."
                )
            members = list(group)
            committables = [entry["value"] for entry in members]
            requests = [
                CommitRequest(
                    entry["value"],
                    epoch=epoch,
                    subtask=int(entry["subtask"]),
                    checkpoint_id=checkpoint_id,
                    is_recovered=is_recovered,
                    incarnation=incarnation,
                    uid=self._context.uid,
                    epoch_committables=committables,
                )
                for entry in members
            ]
            with self._meter.commit(self._context.uid, (incarnation, epoch), members):
                report += self._commit_epoch(committer, requests, is_halted)
        return report

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Remove the staged files of dead attempts; returns their number."""
        with self._translate_errors("removing staged files of dead attempts"):
            return self._sink.sweep(self._context, is_dead)

    def close(self) -> None:
        """Close the committer if it was used; errors are logged."""
        committer, self._committer, self._is_created = self._committer, None, False
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
        pause, retries = _FIRST_PAUSE, 0
        # Only before the first commit: that leaves traces in the target, whatever becomes of it.
        is_unchecked = not requests[0].is_recovered
        while True:
            try:
                if is_unchecked:
                    self._require_new(committer, requests[0])
                    is_unchecked = False
            except SinkFailedError:
                raise
            except StorageError as error:
                for request in requests:
                    request.retry_later(error)
            else:
                _try_once(uid, committer, requests)
            report += _count(uid, requests, self._meter)
            waiting = [request for request in requests if request.answer == "retry"]
            if not waiting:
                return report
            if retries >= settings.retries or settings.is_stopped() or is_halted():
                raise _failure(uid, waiting, _reason(waiting), retries) from _reason(waiting)
            reason = str(_reason(waiting) or "the committer requested it")
            # The next tries are logged if they differ; the job logs once in 10 s which sinks it waits for.
            level = logging.WARNING if self._meter.is_new_error(uid, reason) else logging.DEBUG
            logger.log(
                level,
                "sink %r: %d committables of epoch %d were not committed, next try in %.1f s: %s",
                uid, len(waiting), waiting[0].epoch, pause, reason,
            )  # fmt: skip
            settings.clock.sleep(pause)
            pause, retries = min(2 * pause, _LONGEST_PAUSE), retries + 1
            # A committer takes the number to know whether it has tried to commit.
            requests = [_next_try(request, request.number_of_retries + (not is_unchecked)) for request in waiting]

    def _require_not_behind_target(self, epoch: int) -> None:
        committer = self._create_once()
        last = None if committer is None else self._last_epoch(committer, self._context.incarnations[-1])
        if last is not None and last > epoch:
            self._context.require_lead()
            raise RestoreError(
                [],
                [],
                f"the sink {self._context.uid!r} has committed epoch {last} of this job, whose newest checkpoint is of "
                f"epoch {epoch}: the job directory was restored from a copy, and its next epochs would be "
                "mistaken for the committed ones. Start from that checkpoint with -s PATH, which begins a new "
                "incarnation; later output is emitted again",
            )

    def _require_new(self, committer: Committer, first: CommitRequest) -> None:
        """Check that the target has no trace of an epoch that is committed for the first time.

        Raises:
            FencedError: Another process leads and has committed it.
            ConfigurationError: Another copy of the job has committed an epoch of this number.
        """
        last = self._last_epoch(committer, first.incarnation)
        if last is not None and last >= first.epoch:
            self._context.require_lead()
            raise ConfigurationError(
                f"The sink {self._context.uid!r} is to commit epoch {first.epoch} for the first time, but its target "
                f"has epoch {last} of the same incarnation {first.incarnation!r} already: two copies of one job "
                "directory are running. Nothing was committed. Stop one of them, or start one with -s, as a new "
                "incarnation."
            )

    def _create_once(self) -> Committer | None:
        if not self._is_created:
            with self._translate_errors("creating its committer"):
                self._committer, self._is_created = self._sink.create_committer(self._context), True
        return self._committer

    def _last_epoch(self, committer: Committer, incarnation: str) -> int | None:
        with self._translate_errors("reading the last epoch of its target"):
            return committer.last_epoch(incarnation)

    @contextmanager
    def _translate_errors(self, doing: str) -> Iterator[None]:
        """Translate errors of the sink's code into `SinkFailedError`; Holdfast's own errors pass."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            uid = self._context.uid
            raise SinkFailedError(uid, f"The sink {uid!r} failed while {doing}: {_shown(error)}") from error

    def _require_committer(self, count: int) -> Committer:
        committer = self._create_once()
        if committer is None:
            raise StorageError(
                f"The writers of the sink {self._context.uid!r} returned {count} committables, but its "
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


def _next_try(request: CommitRequest, number_of_retries: int) -> CommitRequest:
    return CommitRequest(
        request.committable,
        epoch=request.epoch,
        subtask=request.subtask,
        checkpoint_id=request.checkpoint_id,
        number_of_retries=number_of_retries,
        is_recovered=request.is_recovered,
        incarnation=request.incarnation,
        uid=request.uid,
        epoch_committables=request.epoch_committables,
    )


def _failure(
    uid: str, requests: Sequence[CommitRequest], reason: BaseException | None, retries: int = 0
) -> SinkFailedError:
    first = requests[0]
    retries = max(retries, first.number_of_retries)
    tries = f" after {retries} retries" if retries else ""
    why = "" if reason is None else f": {_shown(reason)}"
    if isinstance(reason, UserFunctionError) and retries:
        why = f": {reason.headline}"  # the log has the traceback since the first try
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


def _commit_order(entry: Entry) -> tuple[int, str, int]:
    incarnation, epoch = _epoch_of(entry)
    return epoch, incarnation, int(entry["subtask"])


class SinkCommitThread:
    """Daemon thread that makes one call after the other."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], Any], future: Future[Any]) -> None:
        """Queue a call; the future gets its result."""
        self._calls.put((call, future))

    def close(self) -> None:
        """End the thread after the queued calls."""
        self._calls.put(None)

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            complete_future(*taken)


def complete_future(call: Callable[[], Any], future: Future[Any]) -> None:
    """Make a call and complete the future with its result or error."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - the caller of the future gets it
        future.set_exception(error)
