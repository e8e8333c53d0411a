"""Elements that a program places itself: in a subtask that it chooses by number, or in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import (
    CoMapFunction,
    DataStream,
    JoinFunction,
    KeyedProcessFunction,
    KeySelector,
    ParquetFileSink,
    Partitioner,
    RichMapFunction,
)
from holdfast.datastream.state import MapStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError
from tests.stories import ledger
from tests.stories.functions import Numbering
from tests.stories.local import RESTARTING, Program

NAMES = ["a", "bb", "ccc", "dddd", "eeeee", "ff", "g", "hhh", "ii", "jjjj"]
EPOCHS = [{"names": [(name,) for name in NAMES[:4]]}, {"names": [(name,) for name in NAMES[4:]]}]


class Here(RichMapFunction):
    """Says in which of how many subtasks an element is."""

    def open(self, runtime_context: Any) -> None:
        self.context = runtime_context

    def map(self, value: Any) -> Any:
        context = self.context
        return value.name, context.get_index_of_this_subtask(), context.get_number_of_parallel_subtasks()


class ByLength(Partitioner):
    """Names of equal length go together."""

    def partition(self, key: Any, num_partitions: int) -> int:
        return int(key % num_partitions)


class Length(KeySelector):
    """The length of a name."""

    def get_key(self, value: Any) -> Any:
        return len(value.name)


LIFE: list[str] = []
"""What happened to the functions of this process that are opened."""


class Opened(KeySelector):
    """The length of a name, by what was made when it was opened."""

    def open(self, runtime_context: Any) -> None:
        LIFE.append(f"open {type(self).__name__} before {runtime_context.get_task_name()}")
        self.lengths: dict[str, int] = {name: len(name) for name in NAMES}
        self.seen = 0

    def close(self) -> None:
        LIFE.append(f"close {type(self).__name__}")

    def get_key(self, value: Any) -> Any:
        self.seen += 1
        assert self.seen <= len(NAMES), "a task works on a copy of its own"
        return self.lengths[value.name]


class OpenedPartitioner(Partitioner):
    """As `ByLength`, opened."""

    def open(self, runtime_context: Any) -> None:
        LIFE.append(f"open {type(self).__name__} before {runtime_context.get_task_name()}")
        self.remainder = divmod

    def close(self) -> None:
        LIFE.append(f"close {type(self).__name__}")

    def partition(self, key: Any, num_partitions: int) -> int:
        return self.remainder(key, num_partitions)[1]


def told(stream: DataStream, directory: Path) -> None:
    """Writes where each element of a stream is."""
    here = stream.map(Here(), "name string, subtask int, subtasks int")
    here.sink_to(ParquetFileSink(str(directory))).uid(directory.name)


@pytest.mark.parametrize("packed", ["false", "true"])
def test_a_partitioner_chooses_the_subtask_by_number(tmp_path: Path, packed: str) -> None:
    program = Program()
    names = program.source("names", "name string")
    told(names.partition_custom(ByLength(), Length()).set_parallelism(3), tmp_path / "objects")
    told(names.partition_custom(lambda key, n: n - 1, lambda name: name).set_parallelism(3), tmp_path / "functions")
    program.run(tmp_path / "checkpoints", EPOCHS, {"execution.exchange.packed": packed})
    assert sorted(ledger.read(tmp_path / "objects")) == sorted((name, len(name) % 3, 3) for name in NAMES)
    assert sorted(ledger.read(tmp_path / "functions")) == sorted((name, 2, 3) for name in NAMES)


def test_partitioners_and_key_selectors_are_opened_once_a_process_and_closed(tmp_path: Path) -> None:
    program = Program()
    names = program.source("names", "name string")
    told(names.partition_custom(OpenedPartitioner(), Opened()).uid("placed").set_parallelism(3), tmp_path / "out")
    counted = numbered(names.key_by(Opened(), Types.INT())).uid("counted")
    counted.sink_to(ParquetFileSink(str(tmp_path / "counted"))).uid("counts")
    LIFE.clear()
    program.run(tmp_path / "checkpoints", EPOCHS * 2)
    assert sorted(ledger.read(tmp_path / "out")) == sorted((name, len(name) % 3, 3) for name in NAMES * 2)
    several = Counter(len(name) for name in NAMES * 2)
    counts = [count for number in several.values() for count in range(1, number + 1)]
    assert sorted(count for _, count in ledger.read(tmp_path / "counted")) == sorted(counts)
    opened = ["open Opened before counted", "open Opened before placed", "open OpenedPartitioner before placed"]
    assert sorted(LIFE) == ["close Opened", "close Opened", "close OpenedPartitioner", *opened]


class Pair(JoinFunction):
    """Two names."""

    def join(self, first: Any, second: Any) -> Any:
        return first.name, second.name


def test_selectors_of_a_join_are_opened(tmp_path: Path) -> None:
    program = Program()
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, before: 1)
    left, right = (
        program.source(side, "name string").assign_timestamps_and_watermarks(times) for side in ("left", "right")
    )
    joined = left.join(right).where(Opened()).equal_to(Opened()).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    pairs = joined.apply(Pair(), "one string, other string")
    pairs.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    LIFE.clear()
    program.run(tmp_path / "checkpoints", [{"left": [("a",), ("bb",)], "right": [("g",)]}], is_bounded=True)
    assert ledger.read(tmp_path / "out") == [("a", "g")]
    opened = [line for line in LIFE if line.startswith("open")]
    assert opened and [*opened, *["close Opened"] * len(opened)] == LIFE


def test_a_selector_has_no_state_and_no_metrics(tmp_path: Path) -> None:
    class Counting(Length):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_metrics_group().counter("keys")

    program = Program()
    keyed = numbered(program.source("names", "name string").key_by(Counting()))
    keyed.uid("counted").sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    with pytest.raises(ConfigurationError, match="before 'counted' requests metrics"):
        program.run(tmp_path / "checkpoints", EPOCHS)


@pytest.mark.parametrize("packed", ["false", "true"])
def test_every_subtask_gets_what_is_broadcast_once(tmp_path: Path, packed: str) -> None:
    program = Program()
    names = program.source("names", "name string").map(lambda row: row, "name string")
    told(names.broadcast().set_parallelism(3), tmp_path / "out")
    options = {**RESTARTING, "execution.exchange.packed": packed}
    struck: list[tuple[int, int]] = []

    def fail_once_in_each(stage: int, subtask: int) -> None:
        if (stage, subtask) not in struck:
            struck.append((stage, subtask))
            raise EngineError("this worker is lost")

    program.run(tmp_path / "checkpoints", EPOCHS, options, interceptor=fail_once_in_each)
    assert len(struck) > 3
    assert sorted(ledger.read(tmp_path / "out")) == sorted((name, at, 3) for name in NAMES for at in range(3))


def test_other_subtasks_are_chosen_among_when_the_job_goes_on_with_more_of_them(tmp_path: Path) -> None:
    for read, parallelism in ((1, 2), (2, 5)):
        program = Program()
        placed = program.source("names", "name string").partition_custom(ByLength(), Length())
        told(placed.set_parallelism(parallelism), tmp_path / "out")
        program.run(tmp_path / "checkpoints", EPOCHS[:read])
    first, then = NAMES[:4], NAMES[4:]
    expected = [(name, len(name) % 2, 2) for name in first] + [(name, len(name) % 5, 5) for name in then]
    assert sorted(ledger.read(tmp_path / "out")) == sorted(expected)


def numbered(names: DataStream) -> DataStream:
    """Each name with how often its key has come."""
    return names.process(Numbering(lambda row, number: (row.name, number)), "name string, n bigint")


def test_a_program_may_gain_such_a_step_and_lose_it_between_two_runs(tmp_path: Path) -> None:
    epochs = [{"names": [("a",), ("bb",)]}] * 3
    for read, is_placed in ((1, False), (2, True), (3, False)):
        program = Program()
        names: Any = program.source("names", "name string")
        if is_placed:
            names = names.partition_custom(ByLength(), Length()).set_parallelism(3)
        counts = numbered(names.key_by("name")).uid("count")
        counts.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
        program.run(tmp_path / "checkpoints", epochs[:read])
        documents = sorted((tmp_path / "checkpoints").glob("**/_metadata"))
        assert "partition" not in documents[-1].read_text()
    assert sorted(ledger.read(tmp_path / "out")) == [(name, n) for name in ("a", "bb") for n in (1, 2, 3)]


class Waits(KeyedProcessFunction):
    """Emits a name when event time has passed its length."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp


def test_event_time_goes_through_both(tmp_path: Path) -> None:
    program = Program()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, before: len(row.name))
    timed = program.source("names", "name string").assign_timestamps_and_watermarks(strategy)
    for way, stream in (("placed", timed.partition_custom(ByLength(), Length())), ("to all", timed.broadcast())):
        waited = stream.key_by("name").process(Waits(), "name string, at bigint").uid(way)
        waited.sink_to(ParquetFileSink(str(tmp_path / way))).uid(f"out of {way}")
    program.run(tmp_path / "checkpoints", EPOCHS, is_bounded=True)
    expected = sorted((name, len(name)) for name in NAMES)
    assert sorted(ledger.read(tmp_path / "placed")) == expected
    # Copies of one key and time share a timer.
    assert sorted(ledger.read(tmp_path / "to all")) == expected


class Either(CoMapFunction):
    """Marks the input that an element comes from."""

    def map1(self, value: Any) -> Any:
        return (f"element {value.name}",)

    def map2(self, value: Any) -> Any:
        return (f"copy {value.name}",)


def test_a_stream_is_connected_with_copies_of_another_one_in_each_subtask(tmp_path: Path) -> None:
    program = Program()
    names, rules = program.source("names", "name string"), program.source("rules", "name string")
    placed = names.partition_custom(ByLength(), Length()).set_parallelism(2)
    both = placed.connect(rules.broadcast().set_parallelism(2)).map(Either(), "what string")
    both.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    program.run(tmp_path / "checkpoints", [{"rules": [("r",)], **EPOCHS[0]}])
    expected = sorted([*(f"element {name}" for name in NAMES[:4]), "copy r", "copy r"])
    assert sorted(what for (what,) in ledger.read(tmp_path / "out")) == expected


@pytest.mark.parametrize("chosen", [2, -1, True, "0", None])
def test_a_subtask_that_there_is_not_fails_the_job_and_is_named(tmp_path: Path, chosen: Any) -> None:
    program = Program()
    told(program.source("names", "name string").partition_custom(lambda key, n: chosen, Length()), tmp_path / "out")
    with pytest.raises(JobExecutionError, match=r"returned .* the index of one of 2 subtasks, from 0 to 1"):
        program.run(tmp_path / "checkpoints", EPOCHS)


def test_what_cannot_place_elements_is_refused_where_it_is_written() -> None:
    names = Program().source("names", "name string")
    with pytest.raises(ConfigurationError, match=r"an instance, not the class: write ByLength\(\)"):
        names.partition_custom(ByLength, Length())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="called with 2 arguments"):
        names.partition_custom(lambda key: 0, Length())  # type: ignore[arg-type, misc]
    with pytest.raises(ConfigurationError, match="takes a KeySelector, or a function"):
        names.partition_custom(ByLength(), 3)  # type: ignore[arg-type]
    keyed = names.key_by("name")
    with pytest.raises(ConfigurationError, match="where their keys are"):
        keyed.partition_custom(ByLength(), Length())
    with pytest.raises(ConfigurationError, match="where their keys are"):
        keyed.broadcast()
    with pytest.raises(ConfigurationError, match="MapStateDescriptor"):
        names.broadcast("rules")  # type: ignore[call-overload]
    assert names.broadcast(MapStateDescriptor("rules", Types.STRING(), Types.LONG())).descriptors
