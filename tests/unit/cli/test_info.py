"""`holdfast info`: what a program would run, without Spark and without running it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.stories.served import holdfast

PROGRAM = """
    import sys
    from holdfast.datastream import (
        CheckpointedFunction, KeyedProcessFunction, RichMapFunction, StreamExecutionEnvironment,
    )
    from holdfast.datastream.state import (
        ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor,
    )
    from holdfast.common.time import Time


    class Count(KeyedProcessFunction):
        def open(self, runtime_context):
            count = ValueStateDescriptor("count", "bigint", 0)
            count.set_queryable("counts")
            self.count = runtime_context.get_state(count)
            seen = MapStateDescriptor("seen", "string", "boolean")
            seen.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
            self.seen = runtime_context.get_map_state(seen)

        def process_element(self, row, ctx):
            raise AssertionError("nothing is run")


    class Keep(RichMapFunction, CheckpointedFunction):
        def initialize_state(self, context):
            self.kept = context.get_operator_state_store().get_list_state(ListStateDescriptor("kept", "string"))
            assert list(self.kept.get()) == []

        def snapshot_state(self, context):
            raise AssertionError("nothing is run")

        def map(self, value):
            raise AssertionError("nothing is run")


    class Unreachable(RichMapFunction):
        def open(self, runtime_context):
            raise OSError("the model is on another machine")

        def map(self, value):
            return value


    out, = sys.argv[1:]
    env = StreamExecutionEnvironment.get_execution_environment({"parallelism.default": 3})
    words = env.from_collection([("kelp",), ("rock",)], "word string").uid("words")
    counted = words.key_by("word").process(Count(), "word string, n bigint").uid("count")
    kept = counted.map(Keep(), "string").uid("keep").set_parallelism(2)
    far = kept.key_by(lambda word: word, "string").map(Unreachable(), "string").uid("far")
    far.print().uid("out")
    try:
        env.execute("words of the sea")
    except Exception:
        pass
    print("never reached")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def steps(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return {step["uid"]: step for step in map(json.loads, result.stdout.splitlines())}


def test_the_steps_of_a_program_are_told_with_their_state_and_nothing_is_run(script: Path, tmp_path: Path) -> None:
    found = steps(holdfast("info", script, "--json", "--", tmp_path / "out"))
    assert list(found) == ["words", "count", "keep", "far", "out"]
    assert {uid: (step["kind"], step["does"]) for uid, step in found.items()} == {
        "words": ("source", "2 elements"),
        "count": ("keyed process", "Count"),
        "keep": ("map", "Keep"),
        "far": ("keyed map", "Unreachable"),
        "out": ("sink", "PrintSink"),
    }
    assert {uid: (step["parallelism"], step["max_parallelism"]) for uid, step in found.items()} == {
        "words": (None, None),
        "count": (3, 128),
        "keep": (2, 128),
        "far": (3, 128),
        "out": (None, None),
    }
    assert found["count"]["inputs"] == ["words"]
    assert found["count"]["state"] == [
        {"name": "count", "kind": "value", "type": "bigint", "ttl": None, "queryable": "counts"},
        {"name": "seen", "kind": "map", "type": "map<string, boolean>", "ttl": 3_600_000, "queryable": None},
    ]
    assert [(state["name"], state["kind"], state["type"]) for state in found["keep"]["state"]] == [
        ("kept", "split", "array<string>")
    ]
    assert found["far"]["state"] == [] and "the model is on another machine" in found["far"]["problem"]
    assert list(tmp_path.iterdir()) == [script]


def test_options_of_the_command_line_count(script: Path) -> None:
    result = holdfast(
        "info", script, "-D", "parallelism.default=7", "-D", "pipeline.max-parallelism=200", "--json", "x"
    )
    assert (steps(result)["count"]["parallelism"], steps(result)["count"]["max_parallelism"]) == (7, 200)


def test_people_get_tables_and_the_reason_why_state_is_not_known(script: Path) -> None:
    result = holdfast("info", script, "x")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "job 'words of the sea'"
    assert ["count", "keyed", "process", "Count", "3", "of", "128", "words"] in [line.split()[:8] for line in lines]
    assert ["count", "seen", "map", "map<string,", "boolean>"] in [line.split() for line in lines]
    assert "the model is on another machine" in lines[-1]
    assert "never reached" not in result.stdout


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("print('hello')", "ended without executing a job"),
        (
            "from holdfast.datastream import StreamExecutionEnvironment as E\nE.get_execution_environment().execute()",
            "no sink",
        ),
    ],
)
def test_a_program_that_could_not_run_is_refused_in_the_same_words(tmp_path: Path, body: str, why: str) -> None:
    (tmp_path / "job.py").write_text(body)
    result = holdfast("info", tmp_path / "job.py")
    assert (result.exit_code, why in result.stderr) == (2, True), result.output


def test_options_that_are_not_known_and_files_that_are_not_there(script: Path, tmp_path: Path) -> None:
    assert "parallelism.default" in holdfast("info", script, "-D", "parallelism.defualt=1", "x").stderr
    assert holdfast("info", tmp_path / "nothing.py").exit_code == 2
