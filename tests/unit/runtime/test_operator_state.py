"""Operator state in running jobs: lists and maps of subtasks over epochs, crashes, and any change of parallelism."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.datastream.functions import CheckpointedFunction, CheckpointListener, RichMapFunction
from holdfast.errors import ConfigurationError, JobExecutionError, RestoreError, UserFunctionError
from holdfast.kernel import fault
from holdfast.runtime.exchange.task_report import TaskReport, encode_report
from holdfast.runtime.task import stage_task as task
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.storage.job_directory import FileName, JobDirectory
from tests.examples import examples
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, master, run
from tests.stories.tidiness import inspect, job_directory, retained

STAMP = "n bigint, subtask bigint, parallelism bigint, kept string, everybody string, shared string, restored boolean"


class Keeper(RichMapFunction, CheckpointedFunction):
    """Keeps each element in a split list and, when the epoch ends, the last one in a union list and the map.

    Emits each element with what the lists and the map held when the epoch began.
    """

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.kept = store.get_list_state(ListStateDescriptor("kept", "bigint"))
        self.last = store.get_union_list_state(ListStateDescriptor("last"))
        self.shared = store.get_broadcast_state(MapStateDescriptor("shared", "string", "bigint"))
        assert store.get_registered_state_names() == {"kept", "last"}
        assert store.get_registered_broadcast_state_names() == {"shared"}
        self.restored = context.is_restored()
        self.before = (list(self.kept.get()), list(self.last.get()), dict(self.shared.items()))
        self.buffer: list[int] = []

    def snapshot_state(self, context: Any) -> None:
        assert context.get_checkpoint_id() > 0 and context.get_checkpoint_timestamp() > 0
        subtask = self.runtime_context.get_index_of_this_subtask()
        self.kept.add_all(self.buffer)
        self.last.update([(subtask, len(list(self.kept.get())))])
        self.shared.put("epochs", (self.shared.get("epochs") or 0) + 1)

    def map(self, value: Any) -> Any:
        self.buffer.append(value)
        kept, last, shared = self.before
        context = self.runtime_context
        return (
            value,
            context.get_index_of_this_subtask(),
            context.get_number_of_parallel_subtasks(),
            json.dumps(kept),
            json.dumps(last),
            json.dumps(shared),
            self.restored,
        )


def keeping(out: Path, parallelism: int, *, keyed: bool) -> Program:
    program = Program()
    numbers = program.source("in", "bigint")
    stream: Any = numbers.key_by(lambda n: n % 7, "bigint") if keyed else numbers
    stream.map(Keeper(), STAMP).uid("keeper").set_parallelism(parallelism).sink_to(Journal(out)).uid("out")
    return program


class Curious(RichMapFunction, CheckpointedFunction):
    """Asks for a union list if it is to, and emits it; leaves it alone otherwise."""

    def __init__(self, asks: bool) -> None:
        self.asks = asks

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def initialize_state(self, context: Any) -> None:
        if self.asks:
            store = context.get_operator_state_store()
            self.union = store.get_union_list_state(ListStateDescriptor("union", "bigint"))
            self.found = sorted(self.union.get())

    def snapshot_state(self, context: Any) -> None:
        if self.asks:
            self.union.update([self.runtime_context.get_index_of_this_subtask()])

    def map(self, value: Any) -> Any:
        return json.dumps(self.found if self.asks else None)


@pytest.mark.parametrize("parallelism", [4, 3])
def test_an_unread_union_list_is_the_same_after_many_restarts(place: Path, parallelism: int) -> None:
    batches: list[Any] = []
    for asks, subtasks in ((True, 4), (False, parallelism), (False, parallelism), (False, 4), (True, parallelism)):
        program = Program()
        program.source("in", "bigint").map(Curious(asks), "string").uid("c").set_parallelism(subtasks).sink_to(
            Journal(place / "out")
        ).uid("out")
        batches.append([len(batches)])
        run(program, place / "job", epochs("in", batches))
    assert [json.loads(text) for text in journal.read(place / "out")][-1] == [0, 1, 2, 3]


class Model:
    """What the journal must say, told from outside: which element went to which subtask is taken from it."""

    def __init__(self) -> None:
        self.parts: list[list[int]] = []
        self.epochs = 0

    def restart(self, parallelism: int) -> None:
        """Another job attempt begins with a checkpoint."""
        if self.parts and parallelism != len(self.parts):
            everything = [n for part in self.parts for n in part]
            each, surplus = divmod(len(everything), parallelism)
            sizes = [each + (i < surplus) for i in range(parallelism)]
            self.parts = [[everything.pop(0) for _ in range(size)] for size in sizes]
            self.union = True
        elif not self.parts:
            self.parts = [[] for _ in range(parallelism)]

    def epoch(self, rows: Sequence[Any]) -> None:
        for row in rows:
            assert json.loads(row[3]) == self.parts[row[1]]
            assert json.loads(row[5]) == ({"epochs": self.epochs} if self.epochs else {})
            assert row[6] is (self.epochs > 0)
        for row in rows:
            self.parts[row[1]].append(row[0])
        self.epochs += 1


starts = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.integers(0, 6), min_size=1, max_size=3)), min_size=1, max_size=3
)


@pytest.mark.parametrize("keyed", [False, True])
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=starts, amnesia=st.booleans(), options=st.sampled_from([{}, {"data-inline-threshold": "0 b"}]))
def test_lists_and_maps_over_starts_at_any_parallelism(
    place: Path, keyed: bool, starts: list[tuple[int, list[int]]], amnesia: bool, options: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory(dir=place) as directory:
        out, model, batches = Path(directory) / "out", Model(), list[list[int]]()
        settings = {f"execution.checkpointing.{key}": value for key, value in options.items()}
        for parallelism, sizes in starts:
            before = len(batches)
            for size in sizes:
                batches.append([100 * len(batches) + i for i in range(size)])
            run(
                keeping(out, parallelism, keyed=keyed),
                Path(directory) / "job",
                epochs("in", batches),
                settings,
                amnesia=amnesia,
                source_tasks=3,
            )
            model.restart(parallelism)
            found = list(journal.read(out))
            for batch in batches[before:]:
                mine = [row for row in found if row[0] in batch]
                assert sorted(row[0] for row in mine) == batch
                assert {row[2] for row in mine} <= {parallelism}
                model.epoch(mine)
        inspect(Path(directory) / "job")


def test_a_union_is_given_to_all_when_a_job_starts_and_stays_with_its_subtask_between_epochs(place: Path) -> None:
    out = place / "out"
    run(keeping(out, 2, keyed=False), place / "job", epochs("in", [[0, 1], [2, 3]]))
    run(keeping(out, 3, keyed=False), place / "job", epochs("in", [[0, 1], [2, 3], [4, 5, 6]]), source_tasks=3)
    unions = {row[0]: (row[1], json.loads(row[4])) for row in journal.read(out)}
    assert unions[0][1] == unions[1][1] == []
    assert unions[2] == (0, [[0, 1]]) and unions[3] == (1, [[1, 1]])
    assert [unions[n] for n in (4, 5, 6)] == [(subtask, [[0, 2], [1, 2]]) for subtask in range(3)]


@pytest.mark.parametrize("point", ["run.write", "metadata.write", "pointer.write", "sink.commit"])
@pytest.mark.parametrize("moment", ["before", "after", "lost"])
def test_a_crash_leaves_the_lists_as_if_nothing_had_happened(place: Path, point: str, moment: str) -> None:
    batches = [[10 * epoch + i for i in range(5)] for epoch in range(4)]
    fault.install(f"{moment}:{point}:3=raise")
    options = {**RESTARTING, "execution.checkpointing.data-inline-threshold": "0 b"}
    run(keeping(place / "out", 2, keyed=True), place / "job", epochs("in", batches), options)
    assert fault.arrivals(point) >= 3
    fault.clear()
    model = Model()
    model.restart(2)
    rows = list(journal.read(place / "out"))
    for batch in batches:
        mine = [row for row in rows if row[0] in batch]
        assert sorted(row[0] for row in mine) == batch
        model.epoch(mine)
    inspect(place / "job")


def test_a_running_job_deals_its_lists_out_when_it_is_rescaled(place: Path) -> None:
    batches = [[10 * epoch + i for i in range(6)] for epoch in range(6)]
    job = master(keeping(place / "out", 2, keyed=False), place / "job", epochs("in", batches), source_tasks=5)
    wanted = iter([3, 1, 5, 4])

    def rescale(stage: int, partition: int) -> None:
        if partition == 0 and (parallelism := next(wanted, None)) is not None:
            job.control.rescale({"keeper": parallelism})

    job.job.engine._interceptor = rescale  # type: ignore[attr-defined]
    job.run()
    by_epoch: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for row in journal.read(place / "out"):
        batch = tuple(batches[row[0] // 10])
        by_epoch.setdefault(batch, {})[row[1]] = json.loads(row[3])
    assert {row[2] for row in journal.read(place / "out")} >= {2, 4}
    for batch, held in by_epoch.items():
        before = [n for other in batches if other[0] < batch[0] for n in other]
        kept = [n for part in held.values() for n in part]
        assert len(set(kept)) == len(kept) and set(kept) <= set(before)
    last = retained(job_directory(place / "job"))[-1].metadata.operator("keeper")
    assert last is not None and len(last.subtasks) == 4
    assert sum(c["count"] for part in last.subtasks for c in part["states"]["kept"]["chunks"]) == 36


def test_a_checkpoint_of_several_epochs_holds_the_state_of_the_last(place: Path) -> None:
    batches = [[epoch] for epoch in range(5)]
    run(
        keeping(place / "out", 1, keyed=False),
        place / "job",
        epochs("in", batches),
        {"execution.checkpointing.interval": "1 h", "execution.checkpointing.data-inline-threshold": "0 b"},
    )
    [*_, newest] = retained(job_directory(place / "job"))
    operator = newest.metadata.operator("keeper")
    assert operator is not None and operator.parallelism == 1 and len(operator.subtasks) == 1
    assert sum(chunk["count"] for chunk in operator.subtasks[0]["states"]["kept"]["chunks"]) == 5
    inspect(place / "job")


def test_a_checkpoint_taken_elsewhere_is_adopted_with_its_files(place: Path) -> None:
    options = {"execution.checkpointing.data-inline-threshold": "0 b"}
    run(keeping(place / "out", 2, keyed=False), place / "one", epochs("in", [[0, 1, 2]]), options)
    [*_, newest] = retained(job_directory(place / "one"))
    chosen = {**options, "execution.state-recovery.path": newest.path}
    run(keeping(place / "other", 3, keyed=False), place / "two", epochs("in", [[], [3, 4, 5]]), chosen, source_tasks=3)
    kept = [json.loads(row[3]) for row in journal.read(place / "other")]
    assert sorted(n for part in kept for n in part) == [0, 1, 2]
    inspect(place / "two")


def test_state_of_a_removed_operator_is_rejected(place: Path) -> None:
    run(keeping(place / "out", 2, keyed=False), place / "job", epochs("in", [[0, 1]]))
    program = Program()
    program.source("in", "bigint").map(lambda n: n, "bigint").uid("keeper").sink_to(Journal(place / "o")).uid("out")
    with pytest.raises(RestoreError, match="keeper"):
        run(program, place / "job", epochs("in", [[0, 1], [2]]))
    run(program, place / "job", epochs("in", [[0, 1], [2]]), {"execution.state-recovery.ignore-unclaimed-state": True})


class Careless(RichMapFunction, CheckpointedFunction):
    def __init__(self, where: str) -> None:
        self.where = where

    def initialize_state(self, context: Any) -> None:
        if self.where == "initialize":
            raise ValueError("no state today")
        if self.where == "keyed":
            context.get_keyed_state_store().get_state(ValueStateDescriptor("v"))

    def snapshot_state(self, context: Any) -> None:
        if self.where == "snapshot":
            raise ValueError("no snapshot today")

    def map(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("initialize", UserFunctionError, "initializing its state"),
        ("snapshot", UserFunctionError, "saving its state"),
        ("keyed", ConfigurationError, "key_by"),
    ],
)
def test_a_failing_state_method_is_named(place: Path, where: str, error: type[Exception], message: str) -> None:
    program = Program()
    program.source("in", "bigint").map(Careless(where), "bigint").uid("careless").sink_to(Journal(place / "out"))
    with pytest.raises((JobExecutionError, ConfigurationError)) as caught:
        run(program, place / "job", epochs("in", [[1]]))
    cause = caught.value if isinstance(caught.value, ConfigurationError) else caught.value.__cause__
    assert isinstance(cause, error) and message in str(cause) and "careless" in str(cause)


class Listening(RichMapFunction, CheckpointListener, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        self.told = context.get_operator_state_store().get_list_state(ListStateDescriptor("told", "bigint"))
        self.restored = context.get_restored_checkpoint_id()

    def snapshot_state(self, context: Any) -> None:
        self.saving = context.get_checkpoint_id()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.told.add(checkpoint_id)

    def map(self, value: Any) -> Any:
        return value, json.dumps(self.told.get()), self.restored or 0


def test_a_listener_hears_in_the_next_epoch_that_a_checkpoint_is_complete(place: Path) -> None:
    program = Program()
    heard = program.source("in", "bigint").map(Listening(), "n bigint, told string, restored bigint")
    heard.uid("listener").set_parallelism(1).sink_to(Journal(place / "out"))
    run(program, place / "job", epochs("in", [[0], [1], [2]]))
    found = sorted((row[0], json.loads(row[1]), row[2]) for row in journal.read(place / "out"))
    assert found == [(0, [], 0), (1, [1], 1), (2, [1, 2], 2)]


class BarrierRows:
    """The length of the longest barrier row of each stage, and how many barriers went to files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: Counter[int] = Counter()
        self.files = 0
        monkeypatch.setattr(task, "encode_report", self._measured)

    def _measured(
        self, barrier: TaskReport, directory: JobDirectory, name: Callable[[], FileName], carried: Sequence[bytes]
    ) -> bytes:
        def counted() -> FileName:
            self.files += 1
            return name()

        content = encode_report(barrier, directory, counted, carried)
        self.sizes[barrier.stage] = max(self.sizes[barrier.stage], len(content))
        return content


class Holding(RichMapFunction, CheckpointedFunction):
    """Keeps a kilobyte for each element, which cannot be compressed to much less."""

    def initialize_state(self, context: Any) -> None:
        self.held = context.get_operator_state_store().get_list_state(ListStateDescriptor("held", "string"))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        self.held.add(random.Random(value).randbytes(500).hex())
        return value


@pytest.mark.parametrize(("subtasks", "lasting"), [(16, 3), (200, 2)])
def test_a_barrier_stays_small_however_many_subtasks_have_state(
    place: Path, monkeypatch: pytest.MonkeyPatch, subtasks: int, lasting: int
) -> None:
    rows = BarrierRows(monkeypatch)
    program = Program()
    first = program.source("in", "bigint").map(Holding(), "bigint").uid("a").set_parallelism(subtasks)
    second = first.key_by(lambda n: n, "bigint").map(Holding(), "bigint").uid("b").set_parallelism(8)
    second.filter(lambda n: n == 0).sink_to(Journal(place / "out")).uid("out")
    run(program, place / "job", epochs("in", [range(1000)] * lasting), source_tasks=4)
    assert sorted(rows.sizes) == [1, 2] and max(rows.sizes.values()) < 64 * 1024


LUCK = random.Random(5)
LONG_WORDS = [[LUCK.randbytes(60).hex() for _ in range(2_000)] for _ in range(3)]
"""So many in an epoch that what the sink stages makes barriers longer than a row."""


def write_long_words(place: Path, options: Mapping[str, str] = RESTARTING) -> None:
    """Runs a job to its end whose tasks write no files but those of their barriers."""
    program = Program()
    same = program.source("in", "string").key_by(lambda word: word, "string").map(lambda word: word, "string").uid("a")
    same.sink_to(Journal(place / "out")).uid("out")
    run(program, place / "job", epochs("in", LONG_WORDS), options)


def judge_long_words(place: Path) -> None:
    assert sorted(journal.read(place / "out")) == sorted(word for epoch in LONG_WORDS for word in epoch)
    inspect(place / "job")
    owned = job_directory(place / "job")
    assert [name for name in owned.fs.list_names(owned.taskowned_dir) if "-barrier-" in name] == []


def test_a_sink_that_hands_out_more_than_a_row_holds_loses_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = BarrierRows(monkeypatch)
    write_long_words(place)
    judge_long_words(place)
    assert rows.files >= len(LONG_WORDS) and max(rows.sizes.values()) < 64 * 1024


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
def test_a_failure_while_a_barrier_goes_to_a_file_costs_the_attempt_and_nothing_else(place: Path, moment: str) -> None:
    fault.install(f"{moment}:run.write:2=raise,{moment}:run.write:5=raise")
    write_long_words(place)
    assert fault.arrivals("run.write") > 2 * len(LONG_WORDS)
    judge_long_words(place)


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
def test_a_process_killed_while_a_report_goes_to_a_file_leaves_nothing_behind(place: Path, moment: str) -> None:
    call = f"from {__name__} import *; write_long_words(Path({str(place)!r}))"
    killed = subprocess.run(
        [sys.executable, "-c", call],
        cwd=Path(__file__).parents[3],
        env={**os.environ, fault.VARIABLE: f"{moment}:run.write:4=kill", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    write_long_words(place)
    judge_long_words(place)
