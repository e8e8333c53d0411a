"""A time to live that is declared otherwise when a job is started again: what is to live longer is not dropped.

Compaction merges the oldest runs first, and these were written under the older declaration.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.functions import RichMapFunction
from holdfast.kernel.clock import ManualClock
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.state_processor import SavepointReader
from tests.stories.local import Program, epochs, master

ASK = -1
FILLED = [[1], [2], [3]]
TWO_HOURS = 2 * 3600 * 1000


class Remembering(RichMapFunction):
    """Puts what comes into state of each kind, and tells what was there."""

    def __init__(self, ttl: Any) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        value, many = ValueStateDescriptor("value", "bigint"), ListStateDescriptor("many", "bigint")
        by_name = MapStateDescriptor("by_name", "string", "bigint")
        if self.ttl is not None:
            for descriptor in (value, many, by_name):
                descriptor.enable_time_to_live(StateTtlConfig.new_builder(self.ttl).build())
        self.value = runtime_context.get_state(value)
        self.many = runtime_context.get_list_state(many)
        self.by_name = runtime_context.get_map_state(by_name)

    def map(self, value: Any) -> Any:
        found = (self.value.value(), list(self.many.get()), dict(self.by_name.items()))
        if value != ASK:
            self.value.update(value)
            self.many.add(value)
            self.by_name.put(str(value), value)
        return repr(found)


def told(place: Path, ttl: Any, batches: list[list[int]], backend: str, clock: ManualClock) -> list[Any]:
    """What the function tells in one life of the job, element by element."""
    found: list[str] = []
    program = Program()
    numbers = program.source("in", "bigint").key_by(lambda n: 0, "bigint")
    texts = numbers.map(Remembering(ttl), "string").uid("remember").set_parallelism(1)
    texts.for_each_epoch(lambda frame, epoch: found.extend(row["value"] for row in frame.to_pylist())).uid("out")
    options = {"state.backend.type": backend, "state.compaction.max-runs": "3", "state.backend.hashmap.memory": "0 b"}
    job = master(program, place, epochs("in", batches), options, clock=clock)
    job.run()
    return [ast.literal_eval(text) for text in found]


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
@pytest.mark.parametrize(
    ("before", "now", "stays"),
    [("1 h", None, True), ("1 h", "3 h", True), ("1 h", "1 h", False), (None, "1 h", True), ("3 h", "1 h", False)],
    ids=["switched off", "longer", "the same", "switched on", "shorter"],
)
def test_the_current_time_to_live_applies_to_restored_state(
    place: Path, backend: str, before: Any, now: Any, stays: bool
) -> None:
    clock = ManualClock(1_000_000)
    told(place, before, FILLED, backend, clock)
    clock.advance(TWO_HOURS)
    lives = [*FILLED, [4], *[[ASK]] * 6]
    first, *others = told(place, now, lives, backend, clock)
    kept = {"1": 1, "2": 2, "3": 3}
    assert first == ((3, [1, 2, 3], kept) if stays else (None, [], {}))
    assert all(other == (4, [1, 2, 3, 4] if stays else [4], {**(kept if stays else {}), "4": 4}) for other in others)
    assert len(others) == 6


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_it_is_so_also_if_the_first_life_left_too_many_runs(place: Path, backend: str) -> None:
    clock = ManualClock(1_000_000)
    filled = [[n] for n in range(1, 9)]
    options = {"state.backend.type": backend, "state.compaction.enabled": "false"}
    program = Program()
    numbers = program.source("in", "bigint").key_by(lambda n: 0, "bigint")
    numbers.map(Remembering("1 h"), "string").uid("remember").set_parallelism(1).for_each_epoch(
        lambda frame, epoch: None
    ).uid("out")
    master(program, place, epochs("in", filled), options, clock=clock).run()
    clock.advance(TWO_HOURS)
    found = told(place, None, [*filled, *[[ASK]] * 3], backend, clock)
    assert found == [(8, list(range(1, 9)), {str(n): n for n in range(1, 9)})] * 3


class Latest(RichMapFunction):
    """Returns the number before, and keeps the newest."""

    def __init__(self, ttl: str | None) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor[str]("latest", "string")
        if self.ttl is not None:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(self.ttl).build())
        self.latest = runtime_context.get_state(descriptor)

    def map(self, value: Any) -> Any:
        before = self.latest.value()
        self.latest.update(value)
        return before or "nothing"


OLD, NEW = "k0", "k2"
"""Keys of different subtasks, of which one has a value before the time to live is enabled."""


def run_latest(place: Path, ttl: str | None, batches: list[list[str]], parallelism: int, **options: str) -> Any:
    """A job over the batches: its master, and what it emitted."""
    found: list[str] = []
    program = Program()
    words = program.source("in", "string").key_by(lambda word: word, "string").map(Latest(ttl), "string").uid("latest")
    words.for_each_epoch(lambda frame, epoch: found.extend(row["value"] for row in frame.to_pylist())).uid("out")
    settings = {"state.backend.hashmap.memory": "0 b", **options}
    job = master(
        program, place, epochs("in", batches), settings, clock=ManualClock(10_000_000), parallelism=parallelism
    )
    job.run()
    return job, found


def test_values_of_one_subtask_outlive_the_newer_runs_of_another_that_never_had_older_ones(place: Path) -> None:
    """The newest run is of a subtask that does not know when the time to live was enabled: its form has no history."""
    kept = {"state.compaction.enabled": "false"}
    run_latest(place, None, [[OLD]], 2, **kept)
    batches = [[OLD], [], [OLD + "x"], [NEW], [NEW]]
    job, _ = run_latest(place, "1 h", batches, 2, **kept)
    checkpoint = max(Path(job.job.directory.path).glob("chk-*"), key=lambda path: int(path.name[4:]))
    table = SavepointReader.read(None, str(checkpoint)).read_keyed_state("latest", "latest", columns=["key"])
    assert sorted(table.column("key").to_pylist()) == sorted([OLD, OLD + "x", NEW])

    merging = {"state.compaction.max-runs": "3"}
    _, found = run_latest(place, "1 h", [*batches, *[[NEW]] * 6, [OLD]], 1, **merging)
    assert found[-1] == OLD, "after one subtask took over both, and merged their runs"
