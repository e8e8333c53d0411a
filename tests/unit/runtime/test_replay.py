"""From a replay's document an epoch runs as it ran, with the time it had, and what it starts from is only read."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_by_path
from holdfast.checkpoint.metadata import encode
from holdfast.checkpoint.replay import AGAIN, RecordedClock, prepare_replay
from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream.functions import KeyedProcessFunction
from holdfast.kernel.clock import ForwardTime, ManualClock
from holdfast.kernel.watermark import MIN_WATERMARK as MIN
from holdfast.runtime.graph.source_positions import PlannedLine, rearranged
from holdfast.state import ValueStateDescriptor
from tests.stories import journal, tidiness
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run

RETAINED = "execution.checkpointing.num-retained"
WORDS = [["kelp", "rock"], ["kelp", "ü"], ["kelp"]]


class CountAt(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, word: str, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield word, self.count.value(), ctx.timer_service().current_processing_time()


class Striding(ManualClock):
    def now_ms(self) -> int:
        self.advance(1000)
        return super().now_ms()


def program(out: Path) -> Program:
    program = Program()
    counted = (
        program.source("in", "string")
        .key_by(lambda word: word, "string")
        .process(CountAt(), "word string, n bigint, at bigint")
    )
    counted.uid("count").sink_to(Journal(out)).uid("out")
    return program


def rows(out: Path) -> list[Any]:
    return sorted(journal.as_tuples(journal.read(out)))


def test_an_epoch_has_its_rows_its_state_and_its_time_again(place: Path) -> None:
    options = {"execution.checkpointing.num-retained": 10}
    run(program(place / "out"), place / "job", epochs("in", WORDS), options, clock=Striding(0))
    first, second, third = tidiness.retained(tidiness.job_directory(place / "job"))
    before = {path: path.read_bytes() for path in (place / "job").rglob("*") if path.is_file()}
    for checkpoint, following, words in ((first, second, WORDS[:2]), (second, third, WORDS)):
        again = prepare_replay(checkpoint)
        assert again.recorded == following.metadata.processing_time
        start = place / f"start-{checkpoint.checkpoint_id}"
        start.mkdir()
        (start / "_metadata").write_bytes(encode(again.metadata))
        out = place / f"again-{checkpoint.checkpoint_id}"
        settings = {"execution.state-recovery.path": str(start)}
        run(
            program(out),
            place / "scratch",
            epochs("in", words),
            settings,
            clock=RecordedClock(again.now),
            name=out.name,
        )
        assert rows(out) == [row for row in rows(place / "out") if row[2] == again.recorded]
        assert rows(out)
    assert {path: path.read_bytes() for path in (place / "job").rglob("*") if path.is_file()} == before


class Late(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Any:
        yield row.word, row.at, ctx.timer_service().current_watermark()


READINGS = [[("kelp", 1000), ("rock", 5000)], [("kelp", 2000)], [("rock", 9000)], [("kelp", 3000)]]


def timed(out: Path) -> Program:
    program = Program()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(100)).with_timestamp_assigner(
        lambda row, recorded: row.at
    )
    stamped = program.source("in", "word string, at bigint").assign_timestamps_and_watermarks(strategy).uid("stamped")
    told = stamped.key_by("word").process(Late(), "word string, at bigint, watermark bigint").uid("late")
    told.sink_to(Journal(out)).uid("out")
    return program


def test_event_time_goes_on_from_where_it_was_and_begins_anew_for_a_job(place: Path) -> None:
    options = {"execution.checkpointing.num-retained": 10}
    run(timed(place / "out"), place / "job", epochs("in", READINGS), options, clock=Striding(0))
    retained = tidiness.retained(tidiness.job_directory(place / "job"))
    seen = {row[1]: row[2] for row in rows(place / "out")}
    assert seen == {1000: MIN, 5000: MIN, 2000: 4899, 9000: 4899, 3000: 8899}
    for number, checkpoint in enumerate(retained[:-1], 1):
        start = place / f"start-{number}"
        start.mkdir()
        (start / "_metadata").write_bytes(encode(prepare_replay(checkpoint).metadata))
        for name, path in (("again", str(start)), ("job", checkpoint.path)):
            out = place / f"{name}-{number}"
            settings = {"execution.state-recovery.path": path}
            run(timed(out), place / "scratch", epochs("in", READINGS[: number + 1]), settings, name=out.name)
            [(_, at)] = READINGS[number]  # a job commits what the checkpoint had staged, too
            assert [row[2] for row in rows(out) if row[1] == at] == [seen[at] if name == "again" else MIN]


def test_an_epoch_after_the_newest_checkpoint_cannot_be_replayed(place: Path) -> None:
    run(program(place / "out"), place / "job", epochs("in", WORDS), clock=Striding(0))
    newest = tidiness.retained(tidiness.job_directory(place / "job"))[-1]
    again = prepare_replay(newest)
    assert again.recorded is None
    assert (again.now, again.metadata.processing_time) == (newest.metadata.processing_time,) * 2
    [output] = [operator for operator in newest.metadata.operators if operator.uid == "out"]
    assert output.committables["out"]
    assert all(not operator.committables for operator in again.metadata.operators)


@pytest.mark.parametrize(("epoch", "batch", "is_next"), [(2, 2, True), (4, 2, True), (4, 3, False), (4, None, False)])
def test_abandoned_epochs_of_a_real_time_job_do_not_hide_its_next_batch(
    place: Path, epoch: int, batch: int | None, is_next: bool
) -> None:
    run(program(place / "out"), place / "job", epochs("in", WORDS), {RETAINED: 10}, clock=Striding(0))
    first, second, *_ = tidiness.retained(tidiness.job_directory(place / "job"))

    def at(checkpoint: CompletedCheckpoint, epoch: int, batch: int | None) -> CompletedCheckpoint:
        streaming = {"batch_id": batch, "offsets": {str(batch): f"v1\n{{}}\n{batch}"}, "sources": {}}
        positions = {} if batch is None else {"streaming": streaming}
        changed = replace(checkpoint.metadata, epoch=epoch, source_positions=positions)
        (Path(checkpoint.path) / "_metadata").write_bytes(encode(changed))
        return read_by_path(checkpoint.path)

    first, second = at(first, 1, 1), at(second, epoch, batch)
    assert prepare_replay(first).recorded == (second.metadata.processing_time if is_next else None)


def test_a_batch_that_is_to_run_again_stays_so_for_other_sources() -> None:
    streaming = {"batch_id": 1, "offsets": {"0": "v1\n{}\n0", "1": "v1\n{}\n1"}, "sources": {}}
    plan = [PlannedLine("in", 0, 0)]
    assert AGAIN not in (rearranged(streaming, [0], plan) or {})
    assert (rearranged({**streaming, AGAIN: True}, [0], plan) or {})[AGAIN] is True


def test_the_processing_time_of_a_replay_stands_still() -> None:
    time_of_replay = ForwardTime(RecordedClock(1_000), 900)
    assert [time_of_replay.now_ms() for _ in range(3)] == [1_000] * 3
    time.sleep(0.01)
    assert time_of_replay.now_ms() == 1_000
