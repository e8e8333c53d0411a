"""Functions that ask for operator state on some subtasks only, or for something else on each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.errors import JobExecutionError, StateError
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run
from tests.stories.tidiness import inspect


def start(directory: Path, function: Any, number: int, parallelism: int) -> list[Any]:
    """Runs the job for one more epoch than before, and returns what it emits."""
    made = Program()
    asked = made.source("in", "bigint").map(function, "string").uid("asking")
    asked.set_parallelism(parallelism).sink_to(Journal(directory / str(number))).uid("out")
    run(made, directory / "job", epochs("in", [range(9)] * number))
    return journal.read(directory / str(number))


class Asking(RichMapFunction, CheckpointedFunction):
    """A union and a list, for which only some subtasks ask; emits what these find."""

    def __init__(self, number: str, asking: int) -> None:
        self.number, self.asking = number, asking

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def initialize_state(self, context: Any) -> None:
        self.found: Any = None
        if self.runtime_context.get_index_of_this_subtask() < self.asking:
            store = context.get_operator_state_store()
            self.union = store.get_union_list_state(ListStateDescriptor("union", self.number))
            self.split = store.get_list_state(ListStateDescriptor("split", self.number))
            self.found = sorted(self.union.get()), sorted(self.split.get())

    def snapshot_state(self, context: Any) -> None:
        subtask = self.runtime_context.get_index_of_this_subtask()
        if subtask < self.asking:
            self.union.update([subtask])
            self.split.update([subtask])

    def map(self, value: Any) -> Any:
        return json.dumps(self.found)


def test_lists_for_which_only_some_subtasks_ask_outlast_a_change_of_their_type(tmp_path: Path) -> None:
    starts = [("int", 3, 3), ("bigint", 1, 3), ("bigint", 1, 3), ("bigint", 0, 2), ("bigint", 9, 1)]
    for number, (kind, asking, parallelism) in enumerate(starts, start=1):
        found = start(tmp_path, Asking(kind, asking), number, parallelism)
    # What two subtasks did not write anew stays once; the first one has written its own in the second start and in the
    # third.
    assert {*found} == {json.dumps(([0, 0, 0, 1, 2], [0, 1, 2]))}
    inspect(tmp_path / "job")


class AtOdds(RichMapFunction, CheckpointedFunction):
    """Asks for a map on the first subtask and for a list of the same name on the others."""

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        if self.runtime_context.get_index_of_this_subtask():
            store.get_list_state(ListStateDescriptor("both", "int")).update([1])
        else:
            store.get_broadcast_state(MapStateDescriptor("both", "string", "int")).put("a", 1)

    def snapshot_state(self, context: Any) -> None:
        return

    def map(self, value: Any) -> Any:
        return str(value)


def test_one_name_is_not_a_list_here_and_a_map_there(tmp_path: Path) -> None:
    """No other number of subtasks could be given both."""
    with pytest.raises(JobExecutionError) as caught:
        start(tmp_path, AtOdds(), 1, 2)
    cause = caught.value.__cause__
    assert isinstance(cause, StateError) and "'both' of 'asking' is 'broadcast' on one subtask" in str(cause)
    assert start(tmp_path, AtOdds(), 1, 1) == [str(n) for n in range(9)]
