"""`holdfast diff`: what two checkpoints differ in, told from the files alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.runtime.job.control import SnapshotRequest
from tests.stories import tidiness
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, master
from tests.stories.served import holdfast

OPTIONS = {"state.compaction.enabled": False, "execution.checkpointing.num-retained": 10}


class Remember(KeyedProcessFunction):
    """Counts, and keeps the words that begin with a capital letter apart."""

    def __init__(self, count_type: str = "int") -> None:
        self._type = count_type

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", self._type))
        self.names = runtime_context.get_map_state(MapStateDescriptor("names", "string", "bigint"))

    def process_element(self, word: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        if word[0].isupper():
            self.names.put(word, 1)
        yield word


def run(place: Path, batches: Sequence[Sequence[str]], *, grown: bool = False, savepoint: Path | None = None) -> str:
    """Runs a job over some epochs; returns the path of its newest checkpoint, or of a savepoint of the last epoch."""
    program = Program()
    words = program.source("in", "string").key_by(lambda word: word, "string")
    kept = words.process(Remember("bigint" if grown else "int"), "string").uid("remember").set_parallelism(1 + grown)
    if grown:
        kept = kept.key_by(lambda word: word, "string").process(Numbering(lambda word, _: word), "string").uid("more")
    kept.sink_to(Journal(place / "out")).uid("out")
    job = master(program, place / "job", epochs("in", batches), OPTIONS)
    asked: list[Any] = []

    def ask(stage: int, partition: int) -> None:
        if savepoint is not None and not asked:
            asked.append(job.control.request(SnapshotRequest(is_savepoint=True, directory=str(savepoint))))

    job.job.engine._interceptor = ask  # type: ignore[attr-defined]
    job.run()
    if asked:
        return str(asked[0].result(0))
    return tidiness.retained(tidiness.job_directory(place / "job"))[-1].path


def differences(a: object, b: object) -> list[tuple[Any, ...]]:
    result = holdfast("diff", a, b, "--json")
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(list(one) == ["uid", "state", "change", "before", "after"] for one in found)
    return [(one["uid"], one["state"], one["change"], one["before"], one["after"]) for one in found]


def test_states_that_grew_are_told_and_those_that_nobody_touched_are_not(tmp_path: Path) -> None:
    first = run(tmp_path, [["Kelp", "rock"]])
    second = run(tmp_path, [["Kelp", "rock"], ["rock", "sand"]])
    operator, state = differences(first, second)
    assert operator[:3] == ("remember", None, "changed") and set(operator[3]) == {"bytes"}
    assert state[:3] == ("remember", "count", "changed"), "the map was not touched"
    assert (state[3]["rows"], state[4]["rows"]) == (2, 3)
    assert state[4]["bytes"] > state[3]["bytes"]


def test_an_operator_that_was_added_another_type_and_another_parallelism_are_told(tmp_path: Path) -> None:
    first = run(tmp_path, [["Kelp", "rock"]])
    second = run(tmp_path, [["Kelp", "rock"], ["rock"]], grown=True)
    found = {(uid, state): (change, before, after) for uid, state, change, before, after in differences(first, second)}
    assert found["more", None][0] == found["more", "count"][0] == "added"
    assert found["more", "count"][2]["rows"] == 1
    assert (found["remember", None][1]["parallelism"], found["remember", None][2]["parallelism"]) == (1, 2)
    assert (found["remember", "count"][1]["type"], found["remember", "count"][2]["type"]) == ("int", "bigint")
    assert ("remember", "names") not in found
    people = [line.split() for line in holdfast("diff", first, second).stdout.splitlines()]
    assert ["key", "string"] in people, "and not as the document has it"
    backwards = {(uid, state): change for uid, state, change, _, _ in differences(second, first)}
    assert backwards["more", "count"] == "removed"


def test_a_savepoint_and_the_checkpoint_of_the_same_epoch_hold_the_same(tmp_path: Path) -> None:
    savepoint = run(tmp_path, [["Kelp", "rock"]], savepoint=tmp_path / "savepoints")
    (job,) = (tmp_path / "job").iterdir()
    assert differences(savepoint, job) == []
    people = holdfast("diff", savepoint, tmp_path / "job")
    assert people.stdout.splitlines()[-1] == "no difference"
    assert people.stdout.startswith("A: checkpoint 2 of 'job', epoch 1")


def test_values_that_changed_without_a_trace_in_the_numbers_are_told(tmp_path: Path) -> None:
    one, other = run(tmp_path / "a", [["Kelp"]]), run(tmp_path / "b", [["Alga"]])
    assert ("remember", "names", "rewritten", {}, {}) in differences(one, other)


def test_people_get_a_line_for_each_number(tmp_path: Path) -> None:
    first, second = run(tmp_path, [["kelp"]]), run(tmp_path, [["kelp"], ["rock"]])
    lines = [line.split() for line in holdfast("diff", first, second).stdout.splitlines()]
    assert ["uid", "state", "change", "what", "before", "after"] in lines
    assert ["remember", "count", "changed", "rows", "1", "2"] in lines


@pytest.mark.parametrize("wrong", ["nothing", "job"])
def test_what_is_not_there_is_said(tmp_path: Path, wrong: str) -> None:
    good = run(tmp_path, [["kelp"]])
    (tmp_path / "empty").mkdir()
    result = holdfast("diff", good, tmp_path / "empty" / wrong)
    assert result.exit_code == 1
    assert "There is no directory" in result.stderr
    assert holdfast("diff", good).exit_code == 2
