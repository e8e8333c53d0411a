"""Sinks whose commits fail: tried again, then by a new attempt, then by a new process; always the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.datastream import ForEachEpochSink, ParquetFileSink
from holdfast.errors import ConfigurationError, FencedError, JobExecutionError, StorageError, UserFunctionError
from holdfast.runtime.commit.commit_manager import COMMITTER_RETRIES
from holdfast.runtime.function.sink import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    SinkWriter,
    WriterInitContext,
)
from holdfast.runtime.job.control import JobStatus
from tests.stories import journal, ledger, tidiness
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, HurriedClock, Program, master, run

PAYMENTS = ledger.payments(5, 12, 4, seed=2)
Answer = Callable[[CommitRequest], None]


class Moody(Journal):
    """A journal whose committer does to requests what a list of moods says, one call after the other; then it works."""

    def __init__(self, directory: Path, moods: Iterator[Answer]) -> None:
        super().__init__(directory)
        self.moods: Iterator[Answer] | None = moods
        self.calls: list[list[tuple[int, int, int]]] | None = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "moods": None, "calls": None}

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _MoodyCommitter(self, super().create_committer(context))


class _MoodyCommitter(Committer):
    def __init__(self, sink: Moody, inner: Committer) -> None:
        self._sink, self._inner = sink, inner

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        assert self._sink.moods is not None and self._sink.calls is not None
        self._sink.calls.append([(r.epoch, r.subtask, r.number_of_retries) for r in requests])
        mood = next(self._sink.moods, None)
        if mood is None:
            self._inner.commit(requests)
        else:
            for request in requests:
                mood(request)


def down(request: CommitRequest) -> None:
    raise ConnectionError("the service is down")


def later(request: CommitRequest) -> None:
    request.retry_later(ConnectionError("not now"))


def unknown(request: CommitRequest) -> None:
    request.signal_failed_with_unknown_reason(ConnectionError("nobody knows"))


def known(request: CommitRequest) -> None:
    request.signal_failed_with_known_reason(ValueError("this will never work"))


def fenced(request: CommitRequest) -> None:
    raise FencedError("another committer has taken over")


def job(place: Path, moods: Sequence[Answer], options: Any = None) -> Any:
    program = Program()
    stream = program.source("payments", ledger.PAYMENT).key_by("account", order_by="payment")
    entries = stream.process(ledger.Ledger(), ledger.ENTRY).uid("ledger")
    entries.sink_to(Moody(place / "out", iter(moods))).uid("moody")
    entries.sink_to(ParquetFileSink(place / "other")).uid("other")
    return master(program, place / "job", ledger.inputs(PAYMENTS), options, clock=HurriedClock(1_000_000))


def calls(running: Any) -> list[list[tuple[int, int, int]]]:
    return next(sink.sink.calls for sink in running.job.graph.sinks if sink.identity == "moody")  # type: ignore[no-any-return]


def audit(place: Path) -> None:
    assert journal.as_tuples(journal.read(place / "out")) == ledger.model(PAYMENTS)
    ledger.audit(place / "other", PAYMENTS)
    tidiness.inspect(place / "job", outputs=(place / "other",))


def test_a_commit_that_is_put_off_is_tried_again_without_a_restart(place: Path) -> None:
    running = job(place, [later, later])
    assert running.run() is JobStatus.SUSPENDED
    assert [{retries for _, _, retries in call} for call in calls(running)[:4]] == [{0}, {1}, {2}, {0}]
    assert tidiness.register_of(running.job.directory).token == 1
    audit(place)


@pytest.mark.parametrize("mood", [down, unknown])
def test_a_commit_that_fails_is_repeated_by_the_next_attempt(place: Path, mood: Answer) -> None:
    running = job(place, [mood, mood, mood], RESTARTING)
    assert running.run() is JobStatus.SUSPENDED
    assert {epoch for call in calls(running)[:4] for epoch, _, _ in call} == {1}, "the same epoch until it works"
    assert len({tuple(call) for call in calls(running)[:4]}) == 1
    assert tidiness.register_of(running.job.directory).token == 4
    audit(place)


def test_when_all_tries_are_used_up_the_attempt_fails(place: Path) -> None:
    running = job(place, [later] * (COMMITTER_RETRIES.default + 1), RESTARTING)
    assert running.run() is JobStatus.SUSPENDED
    assert [call[0][2] for call in calls(running)[:12]] == [*range(11), 0]
    assert tidiness.register_of(running.job.directory).token == 2
    audit(place)


def test_without_restarts_the_job_fails_and_the_next_process_commits(place: Path) -> None:
    with pytest.raises(JobExecutionError, match="the service is down") as failed:
        job(place, [down], {"sink.committer.max-pending-checkpoints": "0"}).run()
    assert isinstance(failed.value.__cause__, StorageError)
    assert journal.read(place / "out") == []
    assert len(ledger.read(place / "other")) == len(PAYMENTS[0]), "the other sink went on"
    assert job(place, []).run() is JobStatus.SUSPENDED
    audit(place)


def test_a_committable_dropped_on_purpose_does_not_stop_the_job(place: Path) -> None:
    running = job(place, [known])
    assert running.run() is JobStatus.SUSPENDED
    later_ones = [row for row in ledger.model(PAYMENTS) if row[0] >= len(PAYMENTS[0])]
    assert journal.as_tuples(journal.read(place / "out")) == later_ones
    ledger.audit(place / "other", PAYMENTS)


def test_a_committer_that_is_fenced_stops_the_leader(place: Path) -> None:
    running = job(place, [fenced], RESTARTING)
    with pytest.raises(FencedError):
        running.run()
    assert running.status is JobStatus.SUSPENDED
    assert tidiness.register_of(running.job.directory).terminal is None
    assert job(place, []).run() is JobStatus.SUSPENDED
    audit(place)


class Careless(Journal):
    """A sink of one's own whose writers read a file first."""

    def __init__(self, directory: Path, source: Path) -> None:
        super().__init__(directory)
        self.source = source

    def create_writer(self, context: WriterInitContext) -> SinkWriter:
        self.source.read_bytes()
        return super().create_writer(context)


BOUNDED = {**RESTARTING, "restart-strategy.fixed-delay.attempts": "50"}


def careless(place: Path, source: Path, **settings: Any) -> Any:
    program = Program()
    program.source("payments", ledger.PAYMENT).sink_to(Careless(place / "out", source)).uid("out")
    return master(program, place / "job", ledger.inputs(PAYMENTS), BOUNDED, **settings)


@pytest.mark.parametrize("path", ["nothing", "file/below", "."], ids=["no file", "below a file", "a directory"])
def test_a_writer_of_ones_own_that_opens_a_wrong_path_is_a_failure_of_the_program(place: Path, path: str) -> None:
    (place / "file").touch()
    running = careless(place, place / path)
    with pytest.raises(JobExecutionError, match=r"3 times in a row .*identical-failures.*opening the writer") as failed:
        running.run()
    assert isinstance(failed.value.__cause__, UserFunctionError)
    assert running.history.failure_count == 3
    (place / "mended").touch()
    assert careless(place, place / "mended").run() is JobStatus.SUSPENDED
    assert len(journal.read(place / "out")) == sum(map(len, PAYMENTS))


def test_a_device_that_fails_a_writer_of_ones_own_is_waited_for(place: Path) -> None:
    tasks = 0

    def mend(stage: int, subtask: int) -> None:
        nonlocal tasks
        tasks += 1
        if tasks == 30:
            (place / "source").unlink()
            (place / "source").touch()

    (place / "source").symlink_to("/proc/self/mem")  # whoever reads it is told that the device has failed
    running = careless(place, place / "source", interceptor=mend)
    assert running.run() is JobStatus.SUSPENDED
    assert running.history.failure_count > 10
    assert len(journal.read(place / "out")) == sum(map(len, PAYMENTS))


# for_each_epoch.


class Writer:
    """A function for for_each_epoch that remembers what it was called with, and raises as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.seen: list[tuple[int, list[tuple[Any, ...]]]] = []
        self.failures = failures

    def __call__(self, table: pa.Table, epoch: int) -> None:
        rows = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
        self.seen.append((epoch, rows))
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the database is down")


def written(place: Path, writer: Writer, options: Any = None, *, clock: Any = None, **settings: Any) -> JobStatus:
    program = Program()
    stream = program.source("payments", ledger.PAYMENT).key_by("account", order_by="payment")
    entries = stream.process(ledger.Ledger(), ledger.ENTRY).uid("ledger")
    entries.sink_to(ForEachEpochSink(writer)).uid("write")
    return run(program, place / "job", ledger.inputs(PAYMENTS), options, clock=clock, **settings)


def last_of_each(writer: Writer) -> list[tuple[Any, ...]]:
    """What a table holds into which the writer puts each epoch in the place of what that epoch wrote before."""
    return sorted(row for rows in dict(writer.seen).values() for row in rows)


def test_for_each_epoch_is_called_again_with_the_same_rows_under_the_same_epoch(place: Path) -> None:
    writer = Writer(failures=2)
    assert written(place, writer, clock=HurriedClock(1_000_000)) is JobStatus.SUSPENDED
    assert [epoch for epoch, _ in writer.seen] == [1, 1, 1, 2, 3, 4, 5]
    assert writer.seen[0] == writer.seen[1] == writer.seen[2]
    assert last_of_each(writer) == ledger.model(PAYMENTS)
    tidiness.inspect(place / "job")


def test_for_each_epoch_that_fails_for_long_is_called_by_the_next_attempt(place: Path) -> None:
    writer = Writer(failures=25)
    written(place, writer, RESTARTING, clock=HurriedClock(1_000_000))
    assert [epoch for epoch, _ in writer.seen] == [1] * 26 + [2, 3, 4, 5]
    assert all(call == writer.seen[0] for call in writer.seen[:26])
    assert last_of_each(writer) == ledger.model(PAYMENTS)


def test_for_each_epoch_is_called_by_the_next_process_before_anything_else(place: Path) -> None:
    broken = Writer(failures=10**6)
    with pytest.raises(JobExecutionError) as failed:
        written(place, broken, clock=HurriedClock(1_000_000))
    assert isinstance(failed.value.__cause__, StorageError)
    assert isinstance(failed.value.__cause__.__cause__, UserFunctionError)
    assert "the database is down" in str(failed.value)
    mended = Writer()
    written(place, mended, amnesia=True)
    assert [epoch for epoch, _ in mended.seen] == [1, 2, 3, 4, 5]
    assert mended.seen[0] == broken.seen[0]
    assert last_of_each(mended) == ledger.model(PAYMENTS)
    again = Writer()
    written(place, again)
    assert again.seen == [], "what is known to be committed is not committed again"


def test_for_each_epoch_sees_each_epoch_by_itself_when_checkpoints_are_rare(place: Path) -> None:
    writer = Writer()
    written(place, writer, {"execution.checkpointing.interval": "1 h"})
    assert [epoch for epoch, _ in writer.seen] == [1, 2, 3, 4, 5]
    assert [{row[0] for row in rows} for _, rows in writer.seen] == [{p for p, _, _ in epoch} for epoch in PAYMENTS]


class OnAnotherDisk(ParquetFileSink):
    """The driver of a cluster without a shared directory: it does not see what the tasks have staged."""

    def create_committer(self, context: CommitterInitContext) -> Committer:
        for staged in Path(self.path).glob(".holdfast/*/*.staged"):
            staged.unlink()
        return super().create_committer(context)


def test_output_that_the_driver_cannot_see_fails_the_job_at_once_and_is_not_taken_for_committed(place: Path) -> None:
    program = Program()
    stream = program.source("payments", ledger.PAYMENT).key_by("account", order_by="payment")
    entries = stream.process(ledger.Ledger(), ledger.ENTRY).uid("ledger")
    entries.sink_to(OnAnotherDisk(place / "out")).uid("out")
    running = master(program, place / "job", ledger.inputs(PAYMENTS), RESTARTING)
    with pytest.raises(ConfigurationError, match="not shared between the hosts"):
        running.run()
    assert running.status is JobStatus.FAILED
    assert tidiness.register_of(running.job.directory).token == 1, "a restart would take it for committed"
