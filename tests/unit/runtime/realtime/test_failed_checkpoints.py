"""A checkpoint of a real-time job fails, and the job goes on: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.options import ALIGNMENT_LIMIT
from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, MapFunction
from holdfast.datastream.functions import CheckpointedFunction, CheckpointListener
from holdfast.datastream.state import ListStateDescriptor, ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.kernel import fault
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.exchange.layout import message_batch
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.realtime.message import Barrier, FrameWriter, InputGate
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS, Count, Rows, each_once, numbers, until

ROWS = 900
PER_SECOND = 300
EXPIRING = {
    "execution.checkpointing.timeout": "1 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
}


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


class Gate:
    """Holds the first task that arrives until a checkpoint has failed; a file, because functions are copied."""

    def __init__(self, place: Path) -> None:
        self.held, self.open = place / "held", place / "open"

    def hold_once(self) -> None:
        if not self.held.exists():
            self.held.touch()
            until(self.open.exists)


class HeldAt:
    """A map that is held at an element."""

    def __init__(self, gate: Gate, at: int) -> None:
        self.gate, self.at = gate, at

    def __call__(self, row: Any) -> Any:
        if row.n == self.at:
            self.gate.hold_once()
        return row.key, row.n


class HeldInSnapshot(Count, CheckpointedFunction):
    """Counts, and is held in a snapshot."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def initialize_state(self, context: Any) -> None:
        return

    def snapshot_state(self, context: Any) -> None:
        if context.get_checkpoint_id() > 3:
            self.gate.hold_once()


class SlowInSnapshots(HeldInSnapshot):
    """Takes a fifth of a second for each snapshot."""

    def __init__(self) -> None:
        return

    def snapshot_state(self, context: Any) -> None:
        time.sleep(0.2)


def same(row: Any) -> Any:
    return row.key, row.n


def program(
    found: Rows, function: KeyedProcessFunction, before: Callable[[Any], Any] = same, parallelism: int = 2
) -> RealTimeProgram:
    new = RealTimeProgram()
    rows = numbers(new, PER_SECOND).filter(lambda row: row.n < ROWS).uid("first")
    rows = rows.map(before, "key bigint, n bigint").uid("before")
    numbered = rows.key_by("key").process(function, "key bigint, count bigint").uid("count")
    numbered = numbered.set_parallelism(parallelism) if parallelism else numbered
    numbered.for_each_epoch(found.write).uid("out")
    return new


def stopped_after(
    made: RealTimeProgram, place: Path, found: Rows, wanted: int, options: Any = None, gate: Gate | None = None
) -> JobMaster:
    """Run a program until so many rows are in its sink, and stop it; it must not have restarted.

    The gate opens when a checkpoint has failed.
    """
    master = made.master(place, {"web.checkpoints.history": "1000", **(options or {})})
    client = JobClient(master)
    if gate is not None:
        until(lambda: gate.held.exists() and has_failed(master))
        gate.open.touch()
    until(lambda: len(found) >= wanted)
    client.stop()
    client.await_termination()
    return master


def goes_on_to_the_end(place: Path, found: Rows) -> None:
    """Start the program again from its last checkpoint: the sink gets each row once."""
    stopped_after(program(found, Count()), place, found, ROWS)
    each_once(found, ROWS)


def has_failed(master: JobMaster) -> bool:
    return bool(failures(master))


def failures(master: JobMaster) -> dict[str, int]:
    return dict(master.statistics.create_snapshot().failures)


def test_a_task_that_is_slower_than_the_timeout(tmp_path: Path) -> None:
    found, gate = Rows(), Gate(tmp_path)
    slow = program(found, Count(), HeldAt(gate, 100))
    master = stopped_after(slow, tmp_path / "job", found, 400, EXPIRING, gate)
    assert failures(master).keys() == {"CHECKPOINT_EXPIRED"}
    expired = [one for one in master.statistics.create_snapshot().history if one.failure_message]
    assert any(one.num_acknowledged < one.num_subtasks for one in expired)
    goes_on_to_the_end(tmp_path / "job", found)


def test_what_was_written_for_a_checkpoint_that_expired_is_in_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    found, gate = Rows(), Gate(tmp_path)
    slow = program(found, HeldInSnapshot(gate))
    master = stopped_after(slow, tmp_path / "job", found, 400, EXPIRING, gate)
    assert failures(master).keys() == {"CHECKPOINT_EXPIRED"}
    assert "ignored acknowledge of task" in caplog.text, "the acknowledgement of the slow task came too late"
    goes_on_to_the_end(tmp_path / "job", found)


@pytest.mark.parametrize("arrival", [1, 2, 4])
def test_storage_that_fails_once(tmp_path: Path, arrival: int) -> None:
    found = Rows()
    fault.install(f"before:run.write:{arrival}=enospc")
    options = {"execution.checkpointing.tolerable-failed-checkpoints": "1", "state.compaction.enabled": "false"}
    master = stopped_after(program(found, Count()), tmp_path / "job", found, 400, options)
    assert failures(master) == {"CHECKPOINT_ASYNC_EXCEPTION": 1}
    goes_on_to_the_end(tmp_path / "job", found)


def test_records_do_not_wait_for_the_files_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, found, seen = Gate(tmp_path), Rows(), tmp_path / "seen"
    write_state = LocalFileSystem.write_state

    def slow(self: LocalFileSystem, path: str, data: Any) -> None:
        gate.hold_once()
        write_state(self, path, data)

    monkeypatch.setattr(LocalFileSystem, "write_state", slow)

    def mark(row: Any) -> Any:
        if row.n == 200:
            seen.touch()
        return row.key, row.n

    client = JobClient(program(found, Count(), mark).master(tmp_path / "job"))
    until(gate.held.exists)
    until(seen.exists)
    assert len(found) == 0, "the first checkpoint is not complete"
    gate.open.touch()
    until(lambda: len(found) >= 400)
    client.stop()
    client.await_termination()
    goes_on_to_the_end(tmp_path / "job", found)


def test_a_document_that_cannot_be_written_once(tmp_path: Path) -> None:
    found = Rows()
    fault.install("before:metadata.write:2=enospc")
    options = {"execution.checkpointing.tolerable-failed-checkpoints": "1"}
    master = stopped_after(program(found, Count()), tmp_path / "job", found, 400, options)
    assert failures(master) == {"FINALIZE_CHECKPOINT_FAILURE": 1}
    goes_on_to_the_end(tmp_path / "job", found)


def test_a_job_is_rescaled_after_checkpoints_that_failed(tmp_path: Path) -> None:
    found, gate = Rows(), Gate(tmp_path)
    master = program(found, HeldInSnapshot(gate), parallelism=0).master(tmp_path / "job", EXPIRING)
    client = JobClient(master)
    until(lambda: gate.held.exists() and has_failed(master))
    gate.open.touch()
    client.rescale(3).result(60)
    until(lambda: len(found) >= ROWS)
    client.stop()
    client.await_termination()
    each_once(found, ROWS)


class Seen(MapFunction, CheckpointedFunction):
    """Numbers the elements of its subtask, in operator state."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen", "bigint"))
        self.seen = sum(self.state.get())

    def map(self, row: Any) -> Any:
        self.seen += 1
        return row.key, row.n, self.seen

    def snapshot_state(self, context: Any) -> None:
        self.state.update([self.seen])


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_storage_that_fails_again_and_again(tmp_path: Path, mode: str) -> None:
    found = Rows()
    faults = [2, 3, 7, 8, 9, 14]
    fault.install(",".join(f"before:run.write:{arrival}=enospc" for arrival in faults))
    new = RealTimeProgram()
    rows = numbers(new, PER_SECOND).map(Seen(), "key bigint, n bigint, seen bigint").uid("seen")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, before: row.n)
    timed = rows.assign_timestamps_and_watermarks(strategy).uid("times")
    windows = timed.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
    sums = windows.reduce(lambda one, other: (one[0], one[1] + other[1], max(one[2], other[2]))).uid("sums")
    again = sums.key_by("key").process(Sum(), "key bigint, n bigint, windows bigint").uid("again")
    again.for_each_epoch(found.write).uid("out")
    options = {
        "execution.checkpointing.mode": mode,
        "execution.checkpointing.tolerable-failed-checkpoints": "100",
        "execution.checkpointing.data-inline-threshold": "0",
    }
    master = stopped_after(new, tmp_path / "job", found, 20 * KEYS, options)
    assert failures(master).keys() == {"CHECKPOINT_ASYNC_EXCEPTION"}
    for key in range(KEYS):
        sums_of_key = [
            row["n"] for row in sorted((row for row in found if row["key"] == key), key=itemgetter("windows"))
        ]
        expected, total = [], 0
        for begin in range(0, 50 * len(sums_of_key), 50):
            total += sum(n for n in range(begin, begin + 50) if n % KEYS == key)
            expected.append(total)
        assert sums_of_key == expected


class Sum(KeyedProcessFunction):
    """Adds up the sums of windows."""

    def open(self, runtime_context: Any) -> None:
        self.sums = runtime_context.get_state(ValueStateDescriptor("sums", "array<bigint>"))

    def process_element(self, row: Any, ctx: Any) -> Any:
        number, total = self.sums.value() or (0, 0)
        number, total = number + 1, total + row.n
        self.sums.update([number, total])
        yield row.key, total, number


def test_more_failures_than_are_tolerated_fail_the_job(tmp_path: Path) -> None:
    found = Rows()
    options = {
        "execution.checkpointing.timeout": "100 ms",
        "execution.checkpointing.tolerable-failed-checkpoints": "2",
    }
    master = program(found, SlowInSnapshots()).master(tmp_path / "job", options)
    with pytest.raises(JobExecutionError, match="Exceeded checkpoint tolerable failure threshold"):
        master.run()
    assert failures(master) == {"CHECKPOINT_EXPIRED": 3}
    goes_on_to_the_end(tmp_path / "job", found)


def test_by_default_the_first_failure_fails_the_attempt(tmp_path: Path) -> None:
    found = Rows()
    fault.install("before:run.write:1=enospc")
    with pytest.raises(JobExecutionError, match="No space left"):
        program(found, Count()).run(tmp_path / "job")
    goes_on_to_the_end(tmp_path / "job", found)


def test_a_task_that_would_hold_back_too_much_declines(tmp_path: Path) -> None:
    found, gate = Rows(), Gate(tmp_path)
    slow = program(found, Count(), HeldAt(gate, 101))  # in one of the two source tasks; the other one goes on
    options = {"task.checkpoint.alignment.max-size": "4 kb"}
    master = stopped_after(slow, tmp_path / "job", found, 400, options, gate)
    assert failures(master).keys() == {"CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED"}, "it is not counted, as in Flink"
    goes_on_to_the_end(tmp_path / "job", found)


@pytest.mark.parametrize("limit", ["-1", -1])
def test_the_limit_of_flink_for_no_limit(limit: Any) -> None:
    assert Configuration({ALIGNMENT_LIMIT.key: limit}).get(ALIGNMENT_LIMIT) is None
    with pytest.raises(ConfigurationError, match="or -1 for no limit"):
        Configuration({ALIGNMENT_LIMIT.key: "-2"}).get(ALIGNMENT_LIMIT)


def test_a_function_that_cannot_save_its_state_fails_the_attempt(tmp_path: Path) -> None:
    class Broken(SlowInSnapshots):
        def snapshot_state(self, context: Any) -> None:
            raise RuntimeError("nothing to save")

    options = {"execution.checkpointing.tolerable-failed-checkpoints": "10"}
    with pytest.raises(JobExecutionError, match="nothing to save"):
        program(Rows(), Broken()).run(tmp_path, options)


def test_the_pause_also_follows_a_failed_checkpoint(tmp_path: Path) -> None:
    options = {
        "execution.checkpointing.timeout": "100 ms",
        "execution.checkpointing.min-pause": "400 ms",
        "execution.checkpointing.tolerable-failed-checkpoints": "3",
    }
    master = program(Rows(), SlowInSnapshots()).master(tmp_path, options)
    with pytest.raises(JobExecutionError):
        master.run()
    taken = list(reversed(master.statistics.create_snapshot().history))
    pauses = [after.trigger_timestamp - before.end_timestamp for before, after in pairwise(taken)]
    assert len(pauses) == 3
    assert min(pauses) >= 390


class Listening(HeldInSnapshot, CheckpointListener):
    """Is held in a snapshot, and records what it hears of checkpoints."""

    heard: list[tuple[str, int]] = []  # noqa: RUF012 - tasks are threads here, and copies share the list

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        Listening.heard.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        Listening.heard.append(("aborted", checkpoint_id))


def test_functions_hear_of_each_checkpoint_once(tmp_path: Path) -> None:
    Listening.heard.clear()
    found, gate = Rows(), Gate(tmp_path)
    made = program(found, Listening(gate), parallelism=1)
    master = stopped_after(made, tmp_path / "job", found, ROWS, EXPIRING, gate)
    history = master.statistics.create_snapshot().history
    failed = {one.checkpoint_id for one in history if one.failure_message}
    completed = {one.checkpoint_id for one in history if not one.failure_message}
    assert len(Listening.heard) == len({*Listening.heard})
    latest = max(number for _, number in Listening.heard)  # no barrier follows that would bring the news of later ones
    aborted = {number for what, number in Listening.heard if what == "aborted"}
    assert aborted == {number for number in failed if number <= latest} != set()
    heard = {number for what, number in Listening.heard if what == "complete"}
    assert heard == {number for number in completed if number <= latest}


def frames(producer: int, *items: int | bytes) -> pa.RecordBatch:
    """Return frames of a producer: a number is a barrier, bytes are a message."""
    writer = FrameWriter(1, producer, 1, 0)
    for item in items:
        if isinstance(item, int):
            writer.add_barrier(Barrier(item))
        else:
            writer.add_messages(message_batch([item], [0]))
    return writer.take()


def taken(gate: InputGate) -> list[bytes]:
    return [message.to_pybytes() for message in gate.take_messages(100)]


def test_what_waits_behind_an_abandoned_barrier_goes_on() -> None:
    gate = InputGate(1, 2, 0)
    first, second = frames(0, b"a", 1, b"b", 2, b"c"), frames(1, b"d", 1, b"e", 2)
    gate.receive(first)
    assert taken(gate) == [b"a"]
    gate.abandon(1)
    assert taken(gate) == [b"b"]
    gate.receive(second)
    assert taken(gate) == [b"d", b"e"], "the abandoned barrier holds nothing back"
    assert gate.barrier == Barrier(2)
    gate.release(2)
    assert taken(gate) == [b"c"]


def test_a_newer_barrier_releases_an_older_one() -> None:
    gate = InputGate(1, 3, 0)
    gate.receive(frames(0, b"a", 1, b"b", 2, b"c", 3, b"d"))
    gate.receive(frames(1, 3, b"e"))  # it was told before its barriers 1 and 2 that they are abandoned
    assert taken(gate) == [b"a", b"b", b"c"]
    gate.receive(frames(2, 2, b"f", 3))
    assert taken(gate) == [b"f"]
    assert gate.barrier == Barrier(3)
    gate.release(3)
    assert taken(gate) == [b"d", b"e"]


def test_a_barrier_that_is_abandoned_leaves_the_one_before_it() -> None:
    gate = InputGate(1, 2, 0)
    gate.receive(frames(0, b"a", 1, b"b", 2, b"c", 3))
    gate.abandon(2)
    gate.receive(frames(1, b"d", 1, b"e", 2, b"f", 3))
    assert taken(gate) == [b"a", b"d"]
    assert gate.barrier == Barrier(1)
    gate.release(1)
    assert taken(gate) == [b"b", b"c", b"e", b"f"], "nothing waits for the barrier that was abandoned"
    assert gate.barrier == Barrier(3)


def test_only_what_waits_for_other_producers_counts_for_the_limit() -> None:
    gate = InputGate(1, 2, 0, alignment_limit=10)
    gate.receive(frames(0, b"a" * 100, 1, b"b" * 10))
    assert gate.exceeded is None
    gate.receive(frames(1, 1))
    assert gate.barrier == Barrier(1)
    gate.release(1)
    gate = InputGate(1, 2, 0, alignment_limit=10)
    gate.receive(frames(0, 1, b"b" * 11))
    assert gate.exceeded == 1
    gate.release(1)
    assert gate.exceeded is None
    assert taken(gate) == [b"b" * 11]
