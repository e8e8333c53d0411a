"""Drives the committers of a job with what its completed checkpoints name: sinks side by side, each in its own order.

The job master calls `commit` after each completed checkpoint, and again after a recovery with what it finds in the
checkpoint restored. Each sink of several has a thread of its own, in which all its commits run, epoch by epoch in their
order; so one whose target is slow, or away, holds up no other. The call returns when all have ended::

    a sink fails       -> it stops there, the other sinks go on, and the error is raised at the end
    FencedError        -> no sink begins another epoch or try: another leader commits
    ConfigurationError -> the same, and the job fails: no further try can help

An error fails the job attempt; the next attempt commits the same committables again. So nothing is remembered here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from holdfast.errors import StorageError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.option import ConfigOption
from holdfast.runtime.commit.sink_committing import CommitReport, CommitSettings, Entry, SinkCommitting
from holdfast.runtime.commit.sink_numbers import SinkMeter
from holdfast.runtime.function.sink import CommitterInitContext, Sink
from holdfast.storage.job.naming import FileName

logger = logging.getLogger(__name__)

COMMITTER_RETRIES: Final = ConfigOption(
    "sink.committer.retries",
    int,
    10,
    "How often a committable is tried again when its committer asks for it, before the job fails and recovers.",
)

_Commit = Callable[[], CommitReport]


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
        carried: Callable[[_Commit], _Commit] = lambda call: call,
        meter: SinkMeter | None = None,
    ) -> None:
        clock = clock or SystemClock()
        settings = CommitSettings(retries, clock, is_stopped, require_lead, meter or SinkMeter(clock))
        self._sinks = {
            uid: SinkCommitting(
                sink,
                CommitterInitContext(job_id, uid, staging_dir, dict(services or {}), tuple(incarnations), require_lead),
                settings,
            )
            for uid, sink in sorted(sinks.items())
        }
        self._carried = carried
        self._lanes: dict[str, _Lane] = {}

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
            ConfigurationError: A committer says that no further try can help.
            StorageError: Some could not be committed. All sinks were tried; its cause is the first failure, its notes
                name the others.
        """
        halted = threading.Event()
        asked = {uid: list(entries) for uid, entries in sorted(committables.items())}
        outcomes = self._side_by_side(
            {
                uid: partial(self._commit_sink, uid, checkpoint_id, entries, is_recovered, halted)
                for uid, entries in asked.items()
                if entries
            }
        )
        report = CommitReport()
        failures: list[StorageError] = []
        for outcome in outcomes:
            error = outcome.exception()
            if error is None:
                report += outcome.result()
            elif isinstance(error, StorageError):
                failures.append(error)
            else:
                raise error
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
        targets = {uid: sink.prepare(kept.get(uid), epoch) for uid, sink in self._sinks.items()}
        return {uid: target for uid, target in targets.items() if target is not None}

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Lets every sink remove the staged files of dead attempts; returns how many went."""
        return sum(sink.sweep(is_dead) for sink in self._sinks.values())

    def close(self) -> None:
        """Closes the committers that were used, and ends their threads."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        for sink in self._sinks.values():
            sink.close()

    def _commit_sink(
        self, uid: str, checkpoint_id: int, entries: Sequence[Entry], is_recovered: bool, halted: threading.Event
    ) -> CommitReport:
        if uid not in self._sinks:
            raise StorageError(
                f"The checkpoint names {len(entries)} committables of the sink {uid!r}, which the program does not "
                "have. Bring the sink back under this uid, so that its output is committed; afterwards it may go."
            )
        try:
            return self._sinks[uid].commit(checkpoint_id, entries, is_recovered, halted.is_set)
        except StorageError:
            raise
        except BaseException:
            halted.set()
            raise

    def _side_by_side(self, calls: Mapping[str, _Commit]) -> list[Future[CommitReport]]:
        """Makes all calls and waits for their ends; a job with one sink needs no other thread for it."""
        futures = []
        for uid, call in calls.items():
            future: Future[CommitReport] = Future()
            futures.append(future)
            if len(self._sinks) < 2:
                _make(call, future)
                continue
            if uid not in self._lanes:
                self._lanes[uid] = _Lane(f"holdfast-commit-{uid}")
            self._lanes[uid].take(self._carried(call), future)
        for future in futures:
            future.exception()
        return futures


class _Lane:
    """A thread that makes one call after the other. It ends with its process, whatever a call may wait for."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[_Commit, Future[CommitReport]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def take(self, call: _Commit, future: Future[CommitReport]) -> None:
        """Hands over a call; the future gets what becomes of it."""
        self._calls.put((call, future))

    def close(self) -> None:
        """Ends the thread after the calls that it has."""
        self._calls.put(None)

    def _run(self) -> None:
        while (taken := self._calls.get()) is not None:
            _make(*taken)


def _make(call: _Commit, future: Future[CommitReport]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
