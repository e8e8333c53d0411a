"""`holdfast inspect` counts the timers that still wait, whatever happened to the others, and so does a stranger."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from examples import read_checkpoint
from holdfast.cli import main
from holdfast.common import Duration, TimestampAssigner, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction
from holdfast.kernel.clock import ManualClock
from holdfast.runtime import compaction as compaction
from tests.golden.evolved import AtOnce
from tests.stories.local import Program, epochs, master

GOLDEN = Path(__file__).parents[2] / "golden"
ROW = "key string, at bigint, due bigint"
EVENT, PROCESSING = "_timer_state/event_user-timers", "_timer_state/processing_user-timers"
START = 1_000_000
MERGING = {"state.compaction.max-runs": "4", "pipeline.max-parallelism": "16"}

Element = tuple[str, int, int]


class At(TimestampAssigner):
    """The time of an element is in a column."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value.at)


class Alarms(KeyedProcessFunction):
    """Each element sets an alarm by both clocks; a negative time takes one back."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        if value.due < 0:
            timers.delete_event_time_timer(-value.due)
        else:
            timers.register_event_time_timer(value.due)
            timers.register_processing_time_timer(START + value.due)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key()


def job(place: Path, batches: Sequence[Sequence[Element]], clock: ManualClock, **settings: Any) -> Any:
    program = Program()
    in_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0)).with_timestamp_assigner(At())
    rows = program.source("in", ROW).assign_timestamps_and_watermarks(in_time)
    rows.key_by("key").process(Alarms(), "string").uid("alarms").print().uid("out")
    # What is printed beside the next epoch would come into what is read from the command there.
    options = {**MERGING, "sink.committer.max-pending-checkpoints": "0"}
    return master(program, place, epochs("in", batches), options, clock=clock, **settings)


def inspected(place: Path) -> dict[str, int]:
    """How many timers `holdfast inspect` finds; a stranger finds as many."""
    result = CliRunner().invoke(main, ["inspect", str(place), "--json"])
    assert result.exit_code == 0, result.output
    states = [json.loads(line) for line in result.stdout.splitlines()]
    found = {state["state"]: state["rows"] for state in states if state["kind"] == "timers"}
    read = {name: content for _, name, schema, content in read_checkpoint.states(place) if schema["kind"] == "timers"}
    assert found == {name: sum(map(len, times.values())) for name, times in read.items()}
    return found


@pytest.fixture
def merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are merged at the end of each epoch in which there are too many, not some time later."""
    monkeypatch.setattr(compaction, "create_compaction_executor", lambda name: AtOnce())


@pytest.mark.usefixtures("merging")
def test_timers_that_have_fired_are_not_counted_in_any_checkpoint(tmp_path: Path) -> None:
    """Merging drops the rows that delete fired timers: only what a run has fired through tells that they are dead."""
    batches = [[(f"k{(epoch + i) % 9}", 100 * epoch, 100 * (epoch + 3 * i)) for i in range(6)] for epoch in range(14)]
    clock, waiting = ManualClock(START), set[tuple[str, int]]()
    running = job(tmp_path, batches, clock)
    place = Path(running.job.directory.path)
    counted: list[tuple[int, int]] = []

    def count(record: Any) -> None:
        batch = batches[record.epoch - 1]
        watermark = batch[0][1] - 1
        waiting.update((key, due) for key, _, due in batch)
        waiting.difference_update({timer for timer in waiting if timer[1] <= watermark})
        counted.append((inspected(place)[EVENT], len(waiting)))

    running.progress.listen(count)
    running.run()

    assert len(counted) == len(batches)
    assert [found for found, _ in counted] == [expected for _, expected in counted]
    document = read_checkpoint.document(read_checkpoint.newest(place))
    assert any("lineage" in handle for operator in document["operators"] for handle in operator["runs"])


def test_timers_of_both_clocks_are_gone_when_all_have_fired(tmp_path: Path) -> None:
    clock = ManualClock(START)
    batches: list[list[Element]] = [[("a", 0, 50), ("b", 0, 60)], [("c", 40, 55)]]
    running = job(tmp_path, batches, clock)
    place = Path(running.job.directory.path)
    running.run()
    assert inspected(place) == {EVENT: 3, PROCESSING: 3}

    clock.advance(1_000)
    batches.append([("d", 1_000, 10_000)])
    job(tmp_path, batches, clock, parallelism=3).run()
    assert inspected(place) == {EVENT: 1, PROCESSING: 1}

    clock.advance(20_000)
    batches.append([("e", 20_000, 20_000)])
    job(tmp_path, batches, clock).run()
    assert inspected(place) == {EVENT: 1, PROCESSING: 0}


def test_a_timer_below_what_has_fired_before_waits_if_it_was_set_later(tmp_path: Path) -> None:
    """The watermark begins anew with each start: a time that it had passed can be ahead of it once more."""
    clock = ManualClock(START)
    batches: list[list[Element]] = [[("a", 0, 150)], [("b", 300, 10_000)]]
    running = job(tmp_path, batches, clock)
    place = Path(running.job.directory.path)
    running.run()
    assert inspected(place)[EVENT] == 1, "that of 'a' has fired"

    batches.append([("a", 100, 150), ("c", 100, 120)])
    job(tmp_path, batches, clock).run()
    assert inspected(place)[EVENT] == 3

    batches.append([("c", 100, -120)])
    job(tmp_path, batches, clock).run()
    assert inspected(place)[EVENT] == 2, "that of 'c' was taken back"


@pytest.mark.parametrize("archive", ["merged", "compressed-merged"])
def test_timers_of_the_golden_archives_of_merged_runs_are_counted_as_they_are(archive: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / f"format-1-{archive}.zip") as opened:
        opened.extractall(tmp_path)
    (savepoint,) = (tmp_path / "savepoints").iterdir()
    assert inspected(savepoint)[EVENT] == 52
    newest = max(tmp_path.glob("*/chk-*"), key=lambda place: int(place.name[4:]))
    assert inspected(newest)[EVENT] == 56
