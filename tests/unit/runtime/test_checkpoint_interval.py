"""Checkpoints that are rarer than epochs: what is in between is in nobody's sight, and is lost together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.functions import CheckpointListener, RichMapFunction
from holdfast.errors import CheckpointError, JobExecutionError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.job.control import JobStatus, SnapshotRequest
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.leader_election_contract import eventually
from tests.stories import journal, ledger, tidiness
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, WaitingEngine, epochs, master, run

EVERY_10_S = {"execution.checkpointing.interval": "10 s"}
WORDS = [[f"word-{epoch}-{i}" for i in range(3)] for epoch in range(12)]
NUMBERED = sorted((word, epoch + 1) for epoch, words in enumerate(WORDS) for word in words)


def program(out: Path) -> Program:
    """Numbers words by their last letter: each epoch brings the next number to three keys."""
    program = Program()
    program.source("words", "string").key_by(lambda word: word[-1]).process(Numbering()).uid("count").sink_to(
        Journal(out)
    ).uid("out")
    return program


def visible(out: Path) -> int:
    """The last epoch of which anything is visible."""
    return max((int(page[:6]) for page in journal.pages(out)), default=0)


class Observer:
    """Lets 3 s pass in each epoch, and compares what is visible with what the newest checkpoints hold."""

    def __init__(self, place: Path, clock: ManualClock) -> None:
        self.place, self.clock = place, clock
        self.started: list[int] = []

    def __call__(self, stage: int, partition: int) -> None:
        if (stage, partition) != (0, 0):
            return
        self.clock.advance(3000)
        checkpoints = tidiness.retained(tidiness.job_directory(self.place / "job"))
        before, completed = [0, 0, *(checkpoint.metadata.epoch for checkpoint in checkpoints)][-2:]
        assert before <= visible(self.place / "out") <= completed, "the newest may be committed beside this epoch"
        self.started.append(completed)


def test_the_output_of_epochs_stays_invisible_until_a_checkpoint_holds_them(place: Path) -> None:
    clock = ManualClock(1_000_000)
    observer = Observer(place, clock)
    job = master(
        program(place / "out"), place / "job", epochs("words", WORDS), EVERY_10_S, clock=clock, interceptor=observer
    )
    job.run()
    assert len(observer.started) == len(WORDS)
    # The last one comes with the end of the job.
    completed = [record.epoch for record in job.progress.recent if record.checkpoint_id is not None]
    assert completed == [4, 8, 12]
    assert sorted(journal.read(place / "out")) == NUMBERED
    tidiness.inspect(place / "job")


def test_a_crash_rolls_back_to_the_last_checkpoint(place: Path) -> None:
    clock = ManualClock(1_000_000)
    observer = Observer(place, clock)

    def crash_once(stage: int, partition: int) -> None:
        observer(stage, partition)
        if stage == 1 and len(observer.started) == 7:
            raise fault.FaultInjectedError("epoch 7 fails, and takes 5 and 6 with it")

    options = {**RESTARTING, **EVERY_10_S}
    job = master(
        program(place / "out"), place / "job", epochs("words", WORDS), options, clock=clock, interceptor=crash_once
    )
    job.run()
    assert observer.started[6:8] == [4, 4], "after the crash it starts from epoch 4 again"
    assert sorted(journal.read(place / "out")) == NUMBERED
    tidiness.inspect(place / "job")


def test_a_requested_checkpoint_completes_at_the_end_of_the_running_epoch(place: Path) -> None:
    clock = ManualClock(1_000_000)
    asked: list[Any] = []

    def ask(stage: int, partition: int) -> None:
        if (stage, partition) == (0, 0) and not asked:
            asked.append(job.control.request(SnapshotRequest()))

    job = master(
        program(place / "out"), place / "job", epochs("words", WORDS), EVERY_10_S, clock=clock, interceptor=ask
    )
    job.run()
    first = job.progress.recent[0]
    assert first.checkpoint_id is not None
    assert asked[0].result(0) == first.checkpoint_id
    assert [record.checkpoint_id for record in job.progress.recent[1:-1]] == [None] * (len(WORDS) - 2)


def test_a_requested_checkpoint_without_input_completes_at_once(place: Path) -> None:
    job = master(
        program(place / "out"), place / "job", [], {"execution.checkpointing.interval": "1 h"}, engine=WaitingEngine
    )
    client = JobClient(job)
    first = client.trigger_checkpoint().result(20)
    second = client.trigger_checkpoint().result(20)
    assert second > first
    engine = job.job.engine
    assert isinstance(engine, WaitingEngine)
    engine.feed({"words": WORDS[0]})

    def is_visible() -> bool:
        """A checkpoint may complete with a tick that began before the words were there."""
        client.trigger_checkpoint().result(20)
        return bool(journal.read(place / "out"))

    eventually(is_visible, "the words that were fed")
    client.stop()
    assert client.await_termination(20)
    assert client.get_job_status() is JobStatus.SUSPENDED
    assert sorted(journal.read(place / "out")) == NUMBERED[:3]
    with pytest.raises(CheckpointError, match="shut down"):
        client.trigger_checkpoint().result(0)


@pytest.mark.parametrize("bounded", [True, False])
def test_the_last_checkpoint_of_a_job_must_complete_even_if_failures_are_tolerated(place: Path, bounded: bool) -> None:
    """A FINISHED job is not run again: what its last checkpoint does not hold would be lost."""
    options = {**EVERY_10_S, "execution.checkpointing.tolerable-failed-checkpoints": "3"}
    payments = ledger.payments(4, 5, 3, seed=1)
    fault.install("before:metadata.write=raise")
    with pytest.raises(JobExecutionError, match="last checkpoint of the job"):
        run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), options, is_bounded=bounded)
    fault.clear()
    status = run(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), options, is_bounded=bounded)
    assert status is (JobStatus.FINISHED if bounded else JobStatus.SUSPENDED)
    ledger.audit(place / "out", payments)


def test_a_tolerated_failure_leaves_its_epochs_to_the_next_checkpoint(place: Path) -> None:
    payments = ledger.payments(8, 5, 3, seed=1)
    fault.install("before:metadata.write:3=raise,before:metadata.write:4=raise")
    options = {"execution.checkpointing.tolerable-failed-checkpoints": "2"}
    job = master(ledger.graph(place / "out"), place / "job", ledger.inputs(payments), options)
    job.run()
    assert [record.epoch for record in job.progress.recent if record.checkpoint_id is None] == [3, 4]
    ledger.audit(place / "out", payments)
    tidiness.inspect(place / "job", outputs=(place / "out",))


class Listening(RichMapFunction, CheckpointListener):
    """Emits, with each element, what it was told of checkpoints before."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.told.append(f"complete {checkpoint_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.told.append(f"aborted {checkpoint_id}")

    def map(self, value: Any) -> Any:
        return ", ".join(self.told) or "nothing"


def test_functions_are_notified_of_failed_checkpoints_and_statistics_have_the_reason(place: Path) -> None:
    told: list[str] = []
    program = Program()
    words = program.source("words", "string")
    words.map(Listening(), output_type="string").uid("listening").for_each_epoch(
        lambda rows, epoch: told.extend(row["value"] for row in rows.to_pylist())
    )
    fault.install("before:metadata.write:2=raise,before:metadata.write:3=enospc")
    options = {"execution.checkpointing.tolerable-failed-checkpoints": "2", "web.checkpoints.history": "10"}
    job = master(program, place / "job", epochs("words", [["a"], ["b"], ["c"], ["d"], ["e"]]), options, source_tasks=1)
    job.run()
    assert told == ["nothing", "complete 1", "aborted 2", "aborted 3", "complete 4"]
    statistics = job.statistics.create_snapshot()
    assert (statistics.counts.completed, statistics.counts.failed) == (3, 2)
    failed = {entry.checkpoint_id: entry for entry in statistics.history if entry.status == "FAILED"}
    assert failed.keys() == {2, 3}
    assert "No space left" in str(failed[3].failure_message)
    assert statistics.latest_failed == failed[3]
