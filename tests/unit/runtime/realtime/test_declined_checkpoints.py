"""A sink or the driver cannot take part in a checkpoint of a real-time job: it fails, and nothing is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.completed_checkpoint import RegisterCheckpointIDCounter
from holdfast.common import Types
from holdfast.datastream.connectors import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
from holdfast.errors import CheckpointDeclinedError, CheckpointError, JobExecutionError, StorageError
from holdfast.runtime.function.sink import Committer, CommitterInitContext, Sink, SinkWriter, WriterInitContext
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.epoch_runner import EpochProgram
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_failed_checkpoints import (
    Listening,
    failures,
    goes_on_to_the_end,
    program,
    stopped_after,
)
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS, Count, Rows, numbers, until
from tests.unit.runtime.test_master_hooks import Told

TOLERANT = {"execution.checkpointing.tolerable-failed-checkpoints": "1000"}
Decline = Callable[[int], bool]


class Target:
    """What a sink writes to, in this process; it is not reached at some flushes."""

    def __init__(self, declines: Decline) -> None:
        self.rows: list[Any] = []
        self.committed: set[tuple[str, int, int]] = set()
        self.flushes = 0
        self.lock = threading.Lock()
        self.declines = declines

    def flush(self, rows: list[Any]) -> None:
        with self.lock:
            self.flushes += 1
            if self.declines(self.flushes):
                raise CheckpointDeclinedError("the target does not answer")
            self.rows += rows


_targets: dict[str, Target] = {}
"""Tasks are threads here, and sinks are pickled."""


class Reluctant(Sink):
    """Keeps rows until it is flushed; then they are in the target, or committed there with the checkpoint."""

    def __init__(self, name: str, *, writes_directly: bool) -> None:
        self.name, self.writes_directly = name, writes_directly

    def create_writer(self, context: WriterInitContext) -> SinkWriter:
        return _Writer(_targets[self.name], writes_directly=self.writes_directly)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _Committer(_targets[self.name])


class _Writer(SinkWriter):
    def __init__(self, target: Target, *, writes_directly: bool) -> None:
        self.target, self.writes_directly = target, writes_directly
        self.kept: list[Any] = []
        self.staged: list[Any] = []

    def write(self, element: Any, context: Any) -> None:
        self.kept.append(list(element))

    def flush(self, end_of_input: bool) -> None:
        if self.writes_directly:
            self.target.flush(self.kept)
        else:
            with self.target.lock:
                self.target.flushes += 1
                if self.target.declines(self.target.flushes):
                    raise CheckpointDeclinedError("the target does not answer")
            self.staged += self.kept
        self.kept = []

    def prepare_commit(self) -> list[Any]:
        staged, self.staged = self.staged, []
        return [staged] if staged else []


class _Committer(Committer):
    def __init__(self, target: Target) -> None:
        self.target = target

    def commit(self, requests: Any) -> None:
        for request in requests:
            known = request.uid, request.epoch, request.subtask
            if known not in self.target.committed:  # a restored checkpoint commits its output again
                self.target.rows += request.committable
        self.target.committed |= {(request.uid, request.epoch, request.subtask) for request in requests}


def reluctant(tmp_path: Path, declines: Decline, *, writes_directly: bool) -> tuple[RealTimeProgram, Target]:
    """A sink behind an operator with keys, and one in the stage of the source, whose task sends the barrier on."""
    target = _targets[str(tmp_path)] = Target(declines)
    made = RealTimeProgram()
    rows = numbers(made, 300).filter(lambda row: row.n < 900).uid("first")
    rows.sink_to(Reluctant(str(tmp_path), writes_directly=writes_directly)).uid("raw")
    counts = rows.key_by("key").process(Count(), "key bigint, count bigint").uid("count")
    counts.sink_to(Reluctant(str(tmp_path), writes_directly=writes_directly)).uid("out")
    return made, target


EXPECTED = sorted([[n % KEYS, n] for n in range(900)] + [[n % KEYS, n // KEYS + 1] for n in range(900)])


@pytest.mark.parametrize("writes_directly", [True, False])
def test_a_sink_that_cannot_flush_now_declines_and_goes_on(tmp_path: Path, writes_directly: bool) -> None:
    made, target = reluctant(tmp_path, lambda flush: flush % 7 in (3, 4), writes_directly=writes_directly)
    master = made.master(tmp_path / "job", {**TOLERANT, "web.checkpoints.history": "1000"})
    client = JobClient(master)
    until(lambda: len(target.rows) >= len(EXPECTED))
    client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(60)
    assert failures(master).keys() == {"CHECKPOINT_DECLINED"}
    history = master.statistics.create_snapshot().history
    assert any("the target does not answer" in (one.failure_message or "") for one in history)
    assert sorted(target.rows) == EXPECTED, "nothing has failed but checkpoints, so nothing is there twice"


@pytest.mark.parametrize("tolerated", [0, 2])
def test_more_declines_than_are_tolerated_fail_the_job(tmp_path: Path, tolerated: int) -> None:
    made, target = reluctant(tmp_path, lambda flush: flush > 8, writes_directly=False)
    options = {"execution.checkpointing.tolerable-failed-checkpoints": str(tolerated)}
    master = made.master(tmp_path / "job", options)
    with pytest.raises(JobExecutionError, match="the target does not answer"):
        master.run()
    assert failures(master) == {"CHECKPOINT_DECLINED": tolerated + 1}
    target.declines = lambda flush: False
    client = JobClient(made.master(tmp_path / "job", options))
    until(lambda: len(target.rows) >= len(EXPECTED))
    client.stop()
    client.await_termination()
    assert sorted(target.rows) == EXPECTED


def test_the_last_checkpoint_of_a_drain_cannot_be_declined(tmp_path: Path) -> None:
    made, target = reluctant(tmp_path, lambda flush: False, writes_directly=True)
    client = JobClient(made.master(tmp_path / "job", TOLERANT))
    until(lambda: len(target.rows) > 100)
    target.declines = lambda flush: True
    with pytest.raises(CheckpointError):
        client.stop_with_savepoint(True, str(tmp_path / "savepoints")).result(60)
    with pytest.raises(JobExecutionError, match="no later one can replace it"):
        client.await_termination()


def test_in_an_epoch_job_the_epoch_fails(tmp_path: Path) -> None:
    target = _targets[str(tmp_path)] = Target(lambda flush: flush == 1)
    made = EpochProgram()
    rows = made.source("rows", "key bigint, n bigint")
    rows.sink_to(Reluctant(str(tmp_path), writes_directly=False)).uid("out")
    options = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 ms"}
    inputs = [{"rows": [(1, 2)]}]
    assert made.run(tmp_path / "job", inputs, options, is_bounded=True) is JobStatus.FINISHED
    assert target.rows == [[1, 2]]
    assert target.flushes >= 2


class ListeningTwice(Listening):
    """Hears of checkpoints; nothing holds it."""

    def __init__(self) -> None:
        return

    def snapshot_state(self, context: Any) -> None:
        return


def test_functions_of_a_task_that_declines_hear_of_each_checkpoint_once(tmp_path: Path) -> None:
    Listening.heard.clear()
    target = _targets[str(tmp_path)] = Target(lambda flush: flush % 3 == 2)
    made = RealTimeProgram()
    counts = numbers(made, 300).key_by("key").process(ListeningTwice(), "key bigint, count bigint").uid("count")
    counts.set_parallelism(1).sink_to(Reluctant(str(tmp_path), writes_directly=True)).uid("out")
    master = made.master(tmp_path / "job", {**TOLERANT, "web.checkpoints.history": "1000"}, parallelism=1)
    client = JobClient(master)
    until(lambda: len(target.rows) >= 400)
    client.stop()
    client.await_termination()
    history = master.statistics.create_snapshot().history
    assert len(Listening.heard) == len({*Listening.heard})
    latest = max(number for _, number in Listening.heard)
    failed = {one.checkpoint_id for one in history if one.failure_message and one.checkpoint_id <= latest}
    assert {number for what, number in Listening.heard if what == "aborted"} == failed != set()


def test_ids_that_cannot_be_reserved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, calls = Rows(), []
    take = RegisterCheckpointIDCounter.get_and_increment

    def sometimes(self: RegisterCheckpointIDCounter) -> int:
        calls.append(None)
        if len(calls) in (3, 5, 6):
            raise StorageError("No space left on device: the register")
        return take(self)

    monkeypatch.setattr(RegisterCheckpointIDCounter, "get_and_increment", sometimes)
    master = stopped_after(program(found, Count()), tmp_path / "job", found, 400, TOLERANT)
    assert failures(master) == {"IO_EXCEPTION": 3}
    goes_on_to_the_end(tmp_path / "job", found)


def with_hook(found: Rows, function: Told) -> RealTimeProgram:
    made = RealTimeProgram()
    rows = numbers(made, 300).filter(lambda row: row.n < 900).uid("first")
    told = rows.map(function, "key bigint, n bigint").uid("told")
    told.key_by("key").process(Count(), "key bigint, count bigint").uid("count").for_each_epoch(found.write).uid("out")
    return made


def test_a_hook_of_the_driver_that_fails_once(tmp_path: Path) -> None:
    found = Rows()
    made = with_hook(found, Told(tmp_path, "service", "second"))
    master = stopped_after(made, tmp_path / "job", found, 400, TOLERANT)
    assert failures(master) == {"MASTER_HOOK_FAILURE": 1}


class Silent(Told):
    """Its hook does not answer at the second checkpoint."""

    def create_master_trigger_restore_hook(self) -> Any:
        hook = super().create_master_trigger_restore_hook()
        trigger, calls, never = hook.trigger_checkpoint, [], threading.Event()

        def silent(checkpoint_id: int, timestamp: int, executor: Any) -> Any:
            calls.append(checkpoint_id)
            return never.wait(5) or 0 if len(calls) == 2 else trigger(checkpoint_id, timestamp, executor)

        hook.trigger_checkpoint = silent
        return hook


def test_a_hook_of_the_driver_that_does_not_answer(tmp_path: Path) -> None:
    found = Rows()
    made = with_hook(found, Silent(tmp_path, "service"))
    options = {**TOLERANT, "execution.checkpointing.timeout": "1 s"}
    master = stopped_after(made, tmp_path / "job", found, 400, options)
    assert failures(master)["CHECKPOINT_DECLINED_TIME_OUT"] >= 1


def test_brokers_that_do_not_answer_let_a_kafka_sink_decline(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        schema = KafkaRecordSerializationSchema.builder().set_topic("words")
        sink = (
            KafkaSink.builder()
            .set_bootstrap_servers(address)
            .set_property("request.timeout.ms", "300")
            .set_record_serializer(schema.set_value_serialization_schema(str.encode).build())
            .set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE)
            .build()
        )
        context = WriterInitContext("1" * 32, "out", 1, 0, 1, 0, 1, Types.STRING(), str(tmp_path), is_real_time=True)
        writer = sink.create_writer(context)
        writer.write("kelp", _Time())
        for _ in range(2):
            with pytest.raises(CheckpointDeclinedError, match=r"1 records are not acknowledged.*sent on"):
                writer.flush(end_of_input=False)
        writer.close()


class _Time:
    def timestamp(self) -> int:
        return 0


def test_a_record_that_was_lost_is_not_declined(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        schema = KafkaRecordSerializationSchema.builder().set_topic("words")
        sink = (
            KafkaSink.builder()
            .set_bootstrap_servers(f"127.0.0.1:{closed.getsockname()[1]}")
            .set_property("message.timeout.ms", "200")
            .set_property("linger.ms", "0")
            .set_record_serializer(schema.set_value_serialization_schema(str.encode).build())
            .set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE)
            .build()
        )
        context = WriterInitContext("1" * 32, "out", 1, 0, 1, 0, 1, Types.STRING(), str(tmp_path), is_real_time=True)
        writer = sink.create_writer(context)
        writer.write("kelp", _Time())
        with pytest.raises(StorageError) as caught:
            writer.flush(end_of_input=False)
        assert not isinstance(caught.value, CheckpointDeclinedError), "only a restart reads it again"
        writer.close()
