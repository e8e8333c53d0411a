"""Sinks of one's own whose code in the driver raises: a slip ends the job by name, a server that is away does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import ForEachEpochSink, ParquetFileSink
from holdfast.errors import JobExecutionError
from holdfast.runtime.function.sink import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    SinkWriter,
    WriterInitContext,
)
from holdfast.runtime.job.control import JobStatus
from holdfast.storage.job_directory import FileName
from tests.stories import journal, ledger, tidiness
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, HurriedClock, Program, master

PAYMENTS = ledger.payments(5, 12, 4, seed=2)


class Slipping(Journal):
    """A sink of one's own that raises in one of its calls in the driver, as often as it is told, and then works."""

    def __init__(self, directory: Path, where: str, raising: Callable[[], Any], failures: int) -> None:
        super().__init__(directory)
        self.where, self.raising, self.failures = where, raising, [failures]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "raising": None}

    def reach(self, where: str) -> None:
        if where == self.where and self.failures[0]:
            self.failures[0] -= 1
            self.raising()

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        self.reach("prepare")
        return super().prepare(context, kept)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        self.reach("create_committer")
        return _SlippingCommitter(self, super().create_committer(context))

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        self.reach("sweep")
        return super().sweep(context, is_dead)


class _SlippingCommitter(Committer):
    def __init__(self, sink: Slipping, inner: Committer) -> None:
        self._sink, self._inner = sink, inner

    def last_epoch(self, incarnation: str) -> int | None:
        self._sink.reach("last_epoch")
        return self._inner.last_epoch(incarnation)

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self._sink.reach("commit")
        try:
            self._sink.reach("retry_later")
        except Exception as error:
            for request in requests:
                request.retry_later(error)
            return
        self._inner.commit(requests)


def slipping(place: Path, where: str, raising: Callable[[], Any], failures: int, **options: Any) -> Any:
    program = Program()
    stream = program.source("payments", ledger.PAYMENT).key_by("account", order_by="payment")
    entries = stream.process(ledger.Ledger(), ledger.ENTRY).uid("ledger")
    entries.sink_to(Slipping(place / "out", where, raising, failures)).uid("slipping")
    entries.sink_to(ParquetFileSink(place / "other")).uid("other")
    allowed = {**RESTARTING, **options}
    return master(program, place / "job", ledger.inputs(PAYMENTS), allowed, clock=HurriedClock(1_000_000))


def audit(place: Path) -> None:
    assert journal.as_tuples(journal.read(place / "out")) == ledger.model(PAYMENTS)
    ledger.audit(place / "other", PAYMENTS)
    tidiness.inspect(place / "job", outputs=(place / "other",))


def misspell() -> None:
    {"epochs": 1}["epoch"]


def call_nothing() -> None:
    None.write()  # type: ignore[attr-defined]


def do_not_reach() -> None:
    raise ConnectionError("the service is down")


def do_not_reach_with_a_client() -> None:
    class ClientError(Exception):
        """What many clients of servers raise, which is no error of the system."""

    raise ClientError("no host answers")


def close_what_was_never_opened() -> None:
    connection = None
    try:
        do_not_reach_with_a_client()
    finally:
        connection.close()  # type: ignore[attr-defined]


WHERE = ["prepare", "create_committer", "last_epoch", "commit", "retry_later"]


@pytest.mark.parametrize(
    ("where", "slip", "told"),
    [*((where, misspell, "KeyError: 'epoch'") for where in WHERE), ("commit", call_nothing, "AttributeError: ")],
)
def test_a_slip_in_a_sink_of_ones_own_ends_the_job_when_it_has_come_ten_times(
    place: Path, where: str, slip: Callable[[], None], told: str
) -> None:
    running = slipping(place, where, slip, 10**6)
    with pytest.raises(
        JobExecutionError, match=r"10 times in a row .*identical-unknown-failures.*'slipping'"
    ) as failed:
        running.run()
    assert {misspell: "KeyError: 'epoch'", call_nothing: "AttributeError"}[slip] in str(failed.value)
    assert running.history.failure_count == 10
    assert slipping(place, where, slip, 0).run() is JobStatus.SUSPENDED, "mended, it goes on and has lost nothing"
    audit(place)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    "away", [do_not_reach, do_not_reach_with_a_client, close_what_was_never_opened], ids=["system", "client", "finally"]
)
def test_a_custom_sink_waits_for_its_unavailable_server_without_limit(
    place: Path, where: str, away: Callable[[], None]
) -> None:
    running = slipping(place, where, away, 150)
    assert running.run() is JobStatus.SUSPENDED
    assert running.history.failure_count >= 150 // 11
    audit(place)


def test_a_failed_sweep_fails_the_attempt_and_names_its_sink(place: Path) -> None:
    with pytest.raises(JobExecutionError, match=r"'slipping' failed while removing .*: KeyError: 'epoch'"):
        slipping(place, "sweep", misspell, 10**6).run()
    running = slipping(place, "sweep", do_not_reach, 15)
    assert running.run() is JobStatus.SUSPENDED
    assert running.history.failure_count == 15
    audit(place)


class Handing(Journal):
    """A sink of one's own whose writers hand out something, and which tells a target."""

    def __init__(self, directory: Path, handed_out: Any, target: Any = None) -> None:
        super().__init__(directory)
        self.handed_out, self.target = handed_out, target

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        return self.target

    def create_writer(self, context: WriterInitContext) -> SinkWriter:
        writer = super().create_writer(context)
        writer.prepare_commit = lambda: self.handed_out  # type: ignore[method-assign]
        return writer


@pytest.mark.parametrize("handed_out", [[b"bytes"], [{"path": Path("staged")}], [float("nan")], None], ids=repr)
def test_a_committable_that_is_not_json_names_its_sink(place: Path, handed_out: Any) -> None:
    program = Program()
    program.source("payments", ledger.PAYMENT).sink_to(Handing(place / "out", handed_out)).uid("handing")
    with pytest.raises(JobExecutionError, match=r"'handing'\) failed while preparing the commit.*: (Type|Value)Error"):
        master(program, place / "job", ledger.inputs(PAYMENTS), RESTARTING).run()


def test_a_target_that_is_not_json_names_its_sink(place: Path) -> None:
    program = Program()
    program.source("payments", ledger.PAYMENT).sink_to(Handing(place / "out", [], {place})).uid("handing")
    with pytest.raises(JobExecutionError, match=r"'handing' failed while preparing its target: TypeError: .* set"):
        master(program, place / "job", ledger.inputs(PAYMENTS), RESTARTING).run()


def test_slips_from_different_lines_are_not_the_same(place: Path) -> None:
    slips = iter([misspell, call_nothing] * 10)
    running = slipping(place, "commit", lambda: next(slips)(), 20)
    assert running.run() is JobStatus.SUSPENDED
    audit(place)


def test_slips_of_a_sink_can_be_left_to_the_strategy(place: Path) -> None:
    running = slipping(place, "commit", misspell, 25, **{"restart-strategy.identical-unknown-failures": 0})
    assert running.run() is JobStatus.SUSPENDED
    audit(place)


def test_a_function_of_for_each_epoch_with_a_slip_ends_the_job_too(place: Path) -> None:
    def write(table: Any, epoch: int) -> None:
        misspell()

    program = Program()
    program.source("payments", ledger.PAYMENT).sink_to(ForEachEpochSink(write)).uid("write")
    running = master(program, place / "job", ledger.inputs(PAYMENTS), RESTARTING, clock=HurriedClock(1_000_000))
    with pytest.raises(JobExecutionError, match=r"10 times in a row .*for_each_epoch 'write' raised KeyError"):
        running.run()
