"""Drives the committers of a job with what its completed checkpoints name.

The job master calls `commit` after each completed checkpoint, and again after a recovery with what it finds in the
checkpoint restored. Each sink is committed epoch by epoch in their order. What happens to a request::

    committed, already -> done
    known              -> logged, counted, dropped
    retry              -> again after a pause, up to `sink.committer.retries` times, then as unknown
    unknown, exception -> this sink stops here, the other sinks go on, and the error is raised at the end
    FencedError        -> everything stops at once: another leader commits
    ConfigurationError -> everything stops at once, and the job fails: no further try can help

An error fails the job attempt; the next attempt commits the same committables again. So nothing is remembered here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from holdfast.errors import ConfigurationError, FencedError, RestoreError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.option import ConfigOption
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext, Sink
from holdfast.storage.job.naming import FileName

logger = logging.getLogger(__name__)

COMMITTER_RETRIES: Final = ConfigOption(
    "sink.committer.retries",
    int,
    10,
    "How often a committable is tried again when its committer asks for it, before the job fails and recovers.",
)

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0

Entry = Mapping[str, Any]
"""One committable as `_metadata` holds it: `{"incarnation": str, "epoch": int, "subtask": int, "rows": int, "value":
JSON}`; the rows are all that the subtask wrote in the epoch. Older versions wrote neither incarnation nor rows."""


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
    ) -> None:
        self._sinks = dict(sinks)
        self._contexts = {
            uid: CommitterInitContext(job_id, uid, staging_dir, dict(services or {}), tuple(incarnations), require_lead)
            for uid in self._sinks
        }
        self._require_lead = require_lead
        self._committers: dict[str, Committer | None] = {}
        self._retries = retries
        self._clock = clock or SystemClock()
        self._is_stopped = is_stopped

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
            ConfigurationError: A committer says that no further try can help.
            StorageError: Some could not be committed. All sinks were tried; its cause is the first failure, its notes
                name the others.
        """
        report = CommitReport()
        failures: list[StorageError] = []
        for uid in sorted(committables):
            entries = list(committables[uid])
            if entries:
                try:
                    report += self._commit_sink(uid, checkpoint_id, entries, is_recovered)
                except StorageError as error:
                    failures.append(error)
        if failures:
            for other in failures[1:]:
                failures[0].add_note(f"also: {other}")
            raise failures[0]
        return report

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
        targets = {}
        for uid, sink in sorted(self._sinks.items()):
            target = sink.prepare(self._contexts[uid], kept.get(uid))
            if target is not None:
                targets[uid] = target
            if epoch is not None:
                self._require_not_put_back(uid, epoch)
        return targets

    def _require_not_put_back(self, uid: str, epoch: int) -> None:
        incarnation = self._contexts[uid].incarnations[-1]
        committer = self._sinks[uid].create_committer(self._contexts[uid])
        self._committers[uid] = committer
        last = None if committer is None else committer.last_epoch(incarnation)
        if last is not None and last > epoch:
            self._require_lead()
            raise RestoreError(
                [],
                [],
                f"the sink {uid!r} has committed epoch {last} of this job, whose newest checkpoint is of epoch "
                f"{epoch}: the job directory was put back from a copy, and its next epochs would be taken for those "
                "that are committed. Start from that checkpoint with -s PATH, which begins a new incarnation; what "
                "came after it is emitted again",
            )

    def _require_new(self, uid: str, committer: Committer, first: CommitRequest) -> None:
        """Makes sure that no epoch is taken for committed that is not: the first commit of one finds no trace of it.

        Raises:
            FencedError: Another process leads and has committed it.
            ConfigurationError: Somebody has committed another epoch of this number.
        """
        last = committer.last_epoch(first.incarnation)
        if last is not None and last >= first.epoch:
            self._require_lead()
            raise ConfigurationError(
                f"The sink {uid!r} is to commit epoch {first.epoch} for the first time, but its target has epoch "
                f"{last} of the same incarnation {first.incarnation!r} already: two copies of one job directory are "
                "running. Nothing was committed. Stop one of them, or start one with -s, as a new incarnation."
            )

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Lets every sink remove the staged files of dead attempts; returns how many went."""
        return sum(sink.sweep(self._contexts[uid], is_dead) for uid, sink in sorted(self._sinks.items()))

    def close(self) -> None:
        """Closes the committers that were used; an error is logged, because nothing depends on them any more."""
        for uid, committer in self._committers.items():
            if committer is not None:
                try:
                    committer.close()
                except Exception:
                    logger.exception("close() of the committer of sink %r failed", uid)
        self._committers.clear()

    def _commit_sink(self, uid: str, checkpoint_id: int, entries: Sequence[Entry], is_recovered: bool) -> CommitReport:
        committer = self._committer_of(uid, len(entries))
        report = CommitReport()
        # Of whom an entry is, it says itself: this job may have been started from the checkpoint of another.
        for (incarnation, epoch), group in groupby(sorted(entries, key=_epoch_and_subtask), key=_epoch_of):
            requests = [
                CommitRequest(
                    entry["value"],
                    epoch=epoch,
                    subtask=int(entry["subtask"]),
                    checkpoint_id=checkpoint_id,
                    is_recovered=is_recovered,
                    incarnation=incarnation,
                    uid=uid,
                )
                for entry in group
            ]
            report += self._commit_epoch(uid, committer, requests)
        return report

    def _commit_epoch(self, uid: str, committer: Committer, requests: Sequence[CommitRequest]) -> CommitReport:
        report = CommitReport()
        pause = _FIRST_PAUSE
        if not requests[0].is_recovered:
            self._require_new(uid, committer, requests[0])
        while True:
            _try_once(uid, committer, requests)
            report += _count(uid, requests)
            waiting = [request for request in requests if request.answer == "retry"]
            if not waiting:
                return report
            if waiting[0].number_of_retries >= self._retries or self._is_stopped():
                raise _failure(uid, waiting, _reason(waiting)) from _reason(waiting)
            logger.warning(
                "sink %r: %d committables of epoch %d were not committed, next try in %.1f s: %s",
                uid, len(waiting), waiting[0].epoch, pause, _reason(waiting) or "the committer asked for it",
            )  # fmt: skip
            self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            requests = [_next_try(request) for request in waiting]

    def _committer_of(self, uid: str, count: int) -> Committer:
        if uid not in self._sinks:
            raise StorageError(
                f"The checkpoint names {count} committables of the sink {uid!r}, which the program does not have. "
                "Bring the sink back under this uid, so that its output is committed; afterwards it may go."
            )
        if uid not in self._committers:
            self._committers[uid] = self._sinks[uid].create_committer(self._contexts[uid])
        committer = self._committers[uid]
        if committer is None:
            raise StorageError(
                f"The writers of the sink {uid!r} handed out {count} committables, but its create_committer() returns "
                "None. Return a Committer there, or no committables from prepare_commit()."
            )
        return committer


def _try_once(uid: str, committer: Committer, requests: Sequence[CommitRequest]) -> None:
    try:
        with fault.point("sink.commit"):
            committer.commit(requests)
    except (FencedError, ConfigurationError):
        raise
    except Exception as error:
        raise _failure(uid, requests, error) from error
    lost = [request for request in requests if request.answer == "unknown"]
    if lost:
        raise _failure(uid, lost, _reason(lost)) from _reason(lost)


def _count(uid: str, requests: Sequence[CommitRequest]) -> CommitReport:
    for request in requests:
        if request.answer == "known":
            logger.error(
                "sink %r gave up the committable %r of epoch %d, subtask %d: %s",
                uid, request.committable, request.epoch, request.subtask, request.reason,
            )  # fmt: skip
    return CommitReport(
        committed=sum(request.answer in ("committed", "already") for request in requests),
        dropped=sum(request.answer == "known" for request in requests),
    )


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


def _failure(uid: str, requests: Sequence[CommitRequest], reason: BaseException | None) -> StorageError:
    first = requests[0]
    tries = f" after {first.number_of_retries} retries" if first.number_of_retries else ""
    why = f": {reason}" if reason is not None else ""
    return StorageError(
        f"Failed to commit {len(requests)} committables of the sink {uid!r} from epoch {first.epoch} (checkpoint "
        f"{first.checkpoint_id}){tries}{why}. The checkpoint is complete and names them; they are committed when the "
        "job runs again."
    )


def _reason(requests: Sequence[CommitRequest]) -> BaseException | None:
    return next((request.reason for request in requests if request.reason is not None), None)


def _epoch_of(entry: Entry) -> tuple[str, int]:
    return str(entry.get("incarnation", "")), int(entry["epoch"])


def _epoch_and_subtask(entry: Entry) -> tuple[int, int]:
    return int(entry["epoch"]), int(entry["subtask"])
