"""The description of a program: every kind of step is told, with the state that its function would ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream import CheckpointedFunction, KeyedBroadcastProcessFunction, OutputTag, RichMapFunction
from holdfast.datastream.state import MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.master.job_description import StepDescription, describe_job
from tests.stories.journal import Journal
from tests.stories.local import Program

PAIR = "k string, n bigint"
RULES = MapStateDescriptor("rules", "string", "bigint")


class Alarm(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", PAIR))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", max, "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        raise AssertionError("nothing is run")

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        raise AssertionError("nothing is run")


class Sketch(RichMapFunction, CheckpointedFunction):
    """Has raw state of both kinds, which has no name."""

    def initialize_state(self, context: Any) -> None:
        assert not context.is_restored()
        assert context.get_raw_operator_state_inputs() == context.get_raw_keyed_state_inputs() == []

    def snapshot_state(self, context: Any) -> None:
        raise AssertionError("nothing is run")

    def map(self, value: Any) -> Any:
        return value


def outlined(program: Program, parallelism: int = 2, **options: Any) -> dict[str, StepDescription]:
    steps = describe_job(program.get_stream_graph(), Configuration(options), parallelism)
    return {step.uid: step for step in steps}


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_every_kind_of_step_is_described(place: Path, backend: str) -> None:
    program = Program()
    both = program.source("a", PAIR).union(program.source("b", PAIR)).uid("both")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.n)
    timed = both.assign_timestamps_and_watermarks(strategy).uid("timed")
    reduced = timed.key_by("k").reduce(lambda one, other: one).uid("reduced")
    rules = program.source("rules", PAIR)
    alarms = reduced.key_by("k").connect(rules.broadcast(RULES)).process(Alarm(), PAIR).uid("alarm")
    alarms.get_side_output(OutputTag("late", "string")).sink_to(Journal(place / "late")).uid("late")
    alarms.key_by("k").map(Sketch(), PAIR).uid("sketch").sink_to(Journal(place / "out")).uid("out")

    found = outlined(program, **{"state.backend.type": backend})

    kinds = {uid: step.kind for uid, step in found.items() if not uid[-1].isdigit()}
    assert kinds == {
        **dict.fromkeys(("a", "b", "rules"), "source"),
        "both": "union",
        "timed": "timestamps",
        "reduced": "keyed reduce",
        "alarm": "keyed process",
        "late": "sink",
        "sketch": "keyed map",
        "out": "sink",
    }
    assert {step.kind for uid, step in found.items() if uid not in kinds} == {"broadcast", "side output"}
    assert [(state.name, state.kind, state.type) for state in found["alarm"].state] == [
        ("last", "value", "struct<k: string, n: bigint>"),
        ("sum", "reducing", "bigint"),
        ("rules", "broadcast", "map<string, bigint>"),
    ]
    assert [(state.name, state.kind) for state in found["reduced"].state] == [("_reduce", "value")]
    assert found["sketch"].state == () and found["sketch"].problem is None
    assert {step.problem for step in found.values()} == {None}


def test_parallelism_is_that_of_the_job(place: Path) -> None:
    program = Program()
    stream = program.source("in", "string").key_by(lambda word: word, "string").map(len, "bigint").uid("len")
    stream.sink_to(Journal(place / "out")).uid("out")
    assert (outlined(program, 100)["len"].parallelism, outlined(program, 100)["len"].max_parallelism) == (100, 256)
    assert outlined(program, 1)["out"].parallelism is None
    with pytest.raises(ConfigurationError, match=r"pipeline\.max-parallelism"):
        outlined(program, 1, **{"pipeline.max-parallelism": 0})
