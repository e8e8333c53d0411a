"""What is told of a job's checkpoints: sizes that add up, whoever adds them, and how long each subtask took."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.statistics import StatsSnapshot, entry, subtask_details
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.runtime.job.progress import EpochProgress
from holdfast.state.descriptor import ListStateDescriptor, ValueStateDescriptor
from tests.stories import local

SAVING_SECONDS = 0.03
BATCHES = [list(range(200)), [1], [2, 3], [1]]


class Keeper(RichMapFunction, CheckpointedFunction):
    """Keeps each number under its key, and in a list of the subtask; saving takes its time."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint"))

    def initialize_state(self, context: Any) -> None:
        self.seen = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen", "bigint"))

    def snapshot_state(self, context: Any) -> None:
        time.sleep(SAVING_SECONDS)

    def map(self, value: Any) -> Any:
        self.last.update(value)
        self.seen.add(value)
        return value


def statistics(
    place: Path,
    threshold: str,
    parallelism: int = 2,
    batches: Any = BATCHES,
    *,
    with_savepoint: bool = False,
    **options: str,
) -> StatsSnapshot:
    program = local.Program()
    kept = program.source("in", "bigint").key_by(lambda n: n, "bigint").map(Keeper(), "bigint").uid("keep")
    kept.set_parallelism(parallelism).print().uid("out")
    settings = {
        "execution.checkpointing.data-inline-threshold": threshold,
        "state.compaction.enabled": "false",
        "pipeline.max-parallelism": "128",
        **options,
    }
    job = local.master(program, place, local.epochs("in", batches), settings)
    wanted = SnapshotRequest(is_savepoint=True, directory=str(place / "savepoints"))

    def ask(record: EpochProgress) -> None:
        if record.epoch == 2:
            job.control.request(wanted)

    if with_savepoint:
        job.progress.listen(ask)
    job.run()
    return job.statistics.create_snapshot()


def sums(snapshot: StatsSnapshot, *, savepoints: bool = False) -> list[tuple[int, int]]:
    """What was written for each checkpoint, oldest first, and what it holds: the same whoever adds it up."""
    found = []
    for stats in reversed(snapshot.history):
        if stats.properties.is_savepoint() is not savepoints:
            continue
        whole, details = entry(stats), subtask_details(stats, "keep")
        assert details is not None
        for name in ("checkpointed_size", "state_size"):
            assert sum(subtask[name] for subtask in details["subtasks"]) == details[name] == whole[name]
        found.append((whole["checkpointed_size"], whole["state_size"]))
    return found


@pytest.mark.parametrize("threshold", ["0 b", "20 kb"], ids=["in files", "inline"])
def test_sizes_add_up_and_only_new_files_count_as_written(place: Path, threshold: str) -> None:
    snapshot = statistics(place, threshold, with_savepoint=True)
    first, *others = sums(snapshot)
    assert first[0] == first[1] > 200 * 8 * 2
    assert len(others) >= len(BATCHES) - 1
    for before, (written, held) in zip([first, *others], others, strict=False):
        assert written < held
        assert held >= before[1], "epochs without input, such as that of the savepoint, add nothing"
    assert sum(held > before[1] > 0 for before, (_, held) in zip([first, *others], others, strict=False)) == 3
    [(written, held)] = sums(snapshot, savepoints=True)
    assert written == held > first[1], "a savepoint holds files of its own"
    summary = snapshot.summary("checkpointed_size").to_json()
    assert (summary["min"], summary["max"]) == (min(written for written, _ in others), max(first[0], written))


def test_the_written_size_of_a_checkpoint_includes_all_its_epochs(place: Path) -> None:
    snapshot = statistics(place, "0 b", batches=BATCHES[:2], **{"execution.checkpointing.interval": "1 h"})
    [(written, held)] = sums(snapshot)
    assert written == held > 200 * 8 * 2


def test_after_a_rescaling_each_subtask_has_its_part_of_the_state(place: Path) -> None:
    statistics(place, "0 b", parallelism=2)
    snapshot = statistics(place, "0 b", parallelism=5, batches=[*BATCHES, [4]])
    sums(snapshot)
    details = subtask_details(snapshot.history[0], "keep")
    assert details is not None
    assert len(details["subtasks"]) == 5
    assert all(subtask["state_size"] > 0 for subtask in details["subtasks"])


def test_the_time_to_save_state_is_reported_for_each_subtask(place: Path) -> None:
    details = subtask_details(statistics(place, "0 b").history[0], "keep")
    assert details is not None
    for subtask in details["subtasks"]:
        assert subtask["checkpoint"]["sync"] >= 1000 * SAVING_SECONDS
        assert subtask["checkpoint"]["async"] >= 0
    assert details["summary"]["checkpoint_duration"]["sync"]["min"] >= 1000 * SAVING_SECONDS
