"""Spark's stateful processors, unchanged, emit here what Spark emitted, batch by batch; no JVM."""

import json

import pandas as pd
import pytest

pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="StatefulProcessor came with Spark 4.0")

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from holdfast.datastream.environment.transform_with_state import apply_processor, transform_with_state
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.graph.compiler import compile_graph
from holdfast.spark.stateful_processor import Processor, ProcessorInput
from holdfast.state.run_file import handle_of
from holdfast.storage.local import LocalFileSystem
from holdfast.testing import EpochProgram
from holdfast.types.type_parser import to_type
from tests.spark.processors.further_programs import EXPIRING
from tests.spark.processors.local import elements_of, emitted, given, plain
from tests.spark.processors.programs import INPUT, PROGRAMS, Program
from tests.spark.processors.record import ALL, RECORDING
from tests.stories.journal import Journal, pages

RECORDED = json.loads(RECORDING.read_text())["programs"]


@pytest.mark.parametrize("name", ALL)
def test_a_processor_emits_what_it_emits_on_spark(name, tmp_path):
    assert emitted(ALL[name], tmp_path) == RECORDED[name]


@pytest.mark.parametrize("name", ["appended", "sessions", "listed timers", "sessions are counted"])
@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_it_does_the_same_in_workers_that_forget_everything(name, backend, tmp_path):
    options = {"state.backend.type": backend}
    assert emitted(ALL[name], tmp_path, amnesia=True, parallelism=3, options=options) == RECORDED[name]


def test_a_processor_goes_on_where_it_stopped_with_another_number_of_subtasks(tmp_path):
    program = PROGRAMS["sessions"]
    elements, columns = given(program)
    # Without the rows that are late: after a start the watermark begins anew, as in Flink.
    inputs = [
        {"rows": [row for row in elements_of(program, number) if row[2] not in (5, 9)]}
        for number in range(len(program.batches))
    ]
    for number, parallelism in enumerate((1, 4, 2, 3, 1), start=1):
        running = EpochProgram()
        wanted = Processor.checked(program.processor(), program.output, "Append", "EventTime", "", False)
        apply_processor(running.source("rows", elements), wanted, columns).uid("tws").sink_to(Journal(tmp_path / "out"))
        running.run(tmp_path / "checkpoints", inputs[:number], parallelism=parallelism)
    written = sorted((plain(row) for page in pages(tmp_path / "out").values() for row in page), key=str)
    assert written == sorted((row for part in RECORDED["sessions"] for row in part), key=str)


class FramesOfPandas(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "total bigint")

    def handleInitialState(self, key, initialState, timerValues):
        self.total.update((initialState["value"].sum(),))

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            total = (self.total.get() or (0,))[0] + frame["value"].sum()
            self.total.update((total,))
            yield pd.DataFrame({"total": [total], "key": [key[0]], "first": [frame["at"].min()]})

    def close(self):
        pass


def test_the_form_in_pandas_gets_and_returns_frames(tmp_path):
    output = "key string, total bigint, first timestamp"
    program = Program(FramesOfPandas, output, PROGRAMS["running count"].batches, initial=[("a", 90), ("a", 10)])
    started = "2026-01-01T00:00:0"
    assert emitted(program, tmp_path, in_pandas=True) == [
        [["a", 103, f"{started}0"], ["b", 5, f"{started}1"]],
        [["a", 106, f"{started}0"], ["c", 22, f"{started}1"]],
        [["a", 117, f"{started}1"], ["b", 11, f"{started}0"], ["c", 23, f"{started}2"]],
    ]


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
@pytest.mark.parametrize("amnesia", [False, True])
def test_what_expires_is_gone_for_value_list_and_map_each_at_its_time(backend, amnesia, tmp_path):
    """Forty seconds after it was written; the batches come at 0, 25, 50, 75 and 75 seconds."""
    told = [[dict(zip(("value", "values", "map"), row[1:4], strict=True)) for row in epoch] for epoch in
            emitted(EXPIRING, tmp_path, amnesia=amnesia, options={"state.backend.type": backend})]  # fmt: skip
    nothing = {"value": "none", "values": "[]", "map": "[]"}
    assert told == [
        [nothing, nothing],
        [{"value": "1", "values": "[1]", "map": "[(1, 10)]"}],
        [{"value": "3", "values": "[3]", "map": "[(3, 30)]"}, nothing],
        [nothing],
        [nothing],
    ]


def test_who_names_an_event_time_needs_a_watermark_and_keeps_its_uid(tmp_path):
    program = ALL["sessions are counted"]
    rows, running = to_type(INPUT), EpochProgram()
    wanted = Processor.checked(program.processor(), program.output, "Append", "EventTime", "ended", False)
    stream = apply_processor(running.source("rows", INPUT), wanted, ProcessorInput(rows, ("key",), "at", 5000))
    sessions = stream.uid("sessions").name("Sessions").set_parallelism(3).set_max_parallelism(8)
    assert sessions.get_name() == "Sessions"
    then = transform_with_state(
        sessions.key_by("key"), program.then.processor(), program.then.output, "Append", "EventTime"
    )
    then.uid("counted").sink_to(Journal(tmp_path / "out"))
    steps = {step.uid: step for step in compile_graph(running.get_stream_graph(), 2).keyed_steps()}
    assert {uid: step.parallelism for uid, step in steps.items()} == {"sessions": 3, "counted": 2}
    assert steps["sessions"].clocks == steps["counted"].clocks, "the watermark is that of the input"
    inputs = [{"rows": elements_of(program, number)} for number in range(len(program.batches))]
    running.run(tmp_path / "checkpoints", inputs)
    found = sorted((plain(row) for page in pages(tmp_path / "out").values() for row in page), key=str)
    assert found == sorted((row for part in RECORDED["sessions are counted"] for row in part), key=str)

    untimed = Processor.checked(program.processor(), program.output, "Append", "None", "ended", False)
    with pytest.raises(ConfigurationError, match="eventTimeColumnName needs withWatermark"):
        apply_processor(running.source("more", INPUT), untimed, ProcessorInput(rows, ("key",)))
    with pytest.raises(ConfigurationError, match="or eventTimeColumnName of the processor before"):
        transform_with_state(running.source("other", INPUT).key_by("key"), program.processor(), program.output,
                             "Append", "EventTime")  # fmt: skip
    with pytest.raises(ConfigurationError, match="keyed by columns"):
        transform_with_state(running.source("x", INPUT).key_by(lambda row: row.key), Remembering(), "n int", "Append",
                             "None")  # fmt: skip
    with pytest.raises(ConfigurationError, match="not for a stream"):
        transform_with_state(sessions.key_by("key"), Remembering(), "n int", "Append", "None", env=running)


def failing(tmp_path, call, mode="None"):
    """Runs a processor whose rows are given to a function; returns how the job failed."""

    class Failing(StatefulProcessor):
        def init(self, handle):
            self.handle, self.values = handle, handle.getListState("values", "value bigint, name string")

        def handleInputRows(self, key, rows, timerValues):
            call(self)
            return iter([])

        def close(self):
            pass

    program = Program(Failing, "key string", [[("a", 0, 1)]], mode)
    with pytest.raises(HoldfastError) as failed:
        emitted(program, tmp_path)
    return str(failed.value)


def test_what_spark_refuses_is_refused_by_name(tmp_path):
    tried = {
        "one": (lambda self: self.values.appendValue((1,)), "State 'values' takes a tuple of 2 values"),
        "two": (lambda self: self.values.put([]), "an empty list is no value"),
        "three": (lambda self: self.handle.registerTimer(1), "registerTimer() needs timeMode 'ProcessingTime'"),
        "four": (lambda self: self.handle.getValueState("late", "n bigint"), "'late' is allowed in init() only"),
        "five": (lambda self: self.handle.deleteIfExists("old"), "'old' is allowed in init() only"),
    }
    for name, (call, told) in tried.items():
        assert told in failing(tmp_path / name, call)


class Remembering(StatefulProcessor):
    """Counts the rows of a key in one state of each kind."""

    def init(self, handle):
        self.value = handle.getValueState("value", "n bigint")
        self.list = handle.getListState("list", "n bigint")
        self.map = handle.getMapState("map", "k bigint", "n bigint")
        self.kept = handle.getValueState("kept", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.value.update(((self.value.get() or (0,))[0] + 1,))
            self.list.appendValue((row.value,))
            self.map.updateValue((row.value,), (1,))
            self.kept.update(((self.kept.get() or (0,))[0] + 1,))
        counts = self.value.get()[0], len(list(self.list.get())), len(list(self.map.keys())), self.kept.get()[0]
        yield Row(key=key[0], counts=str(counts))

    def close(self):
        pass


class Forgetting(Remembering):
    def init(self, handle):
        for name in ("value", "list", "map", "never"):
            handle.deleteIfExists(name)
        self.kept = handle.getValueState("kept", "n bigint")

    def handleInputRows(self, key, rows, timerValues):
        yield Row(key=key[0], counts=f"kept {self.kept.get()[0]}")


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
@pytest.mark.parametrize(("amnesia", "subtasks"), [(False, (2, 3, 1, 3)), (False, (1, 1, 1, 1)), (True, (2, 2, 3, 3))])
def test_a_state_that_is_deleted_is_empty_for_whoever_asks_for_it_again(tmp_path, backend, amnesia, subtasks):
    batches = [[(key, second, second) for key in "abcdef" for second in range(2)] for _ in range(7)]

    def written(upto, processor, parallelism):
        program = Program(processor, "key string, counts string", batches[:upto])
        options = {"state.backend.type": backend}
        return emitted(program, tmp_path, parallelism=parallelism, options=options, amnesia=amnesia)

    first, second, third, fourth = subtasks
    assert written(3, Remembering, first)[-1] == [[key, "(6, 6, 2, 6)"] for key in "abcdef"]
    assert written(5, Forgetting, second)[3:] == [[[key, "kept 6"] for key in "abcdef"]] * 2
    assert written(6, Remembering, third)[-1] == [[key, "(2, 2, 2, 8)"] for key in "abcdef"]
    assert written(7, Remembering, fourth)[-1] == [[key, "(4, 4, 2, 10)"] for key in "abcdef"]


def test_a_state_is_deleted_for_keys_that_do_not_come_and_written_once(tmp_path):
    first, second = (
        Program(p, "key string, counts string", [[("a", 0, 0), ("b", 0, 0)]]) for p in (Remembering, Forgetting)
    )
    second.batches = [*first.batches, [("a", 0, 1)], [("a", 0, 2)], [("a", 0, 3)]]
    emitted(first, tmp_path)
    emitted(second, tmp_path)
    job = next(path for path in (tmp_path / "checkpoints").iterdir() if path.is_dir())
    with_value = [
        handle.rows.get("value")
        for path in sorted((job / "shared").rglob("*.run"))
        for handle in [handle_of(LocalFileSystem(), str(job), str(path.relative_to(job)))]
    ]
    assert [rows for rows in with_value if rows is not None] == [2, 2], "what was there, and what deletes it"


def test_a_state_is_asked_for_or_deleted(tmp_path):
    class Both(Remembering):
        def init(self, handle):
            super().init(handle)
            handle.deleteIfExists("value")

    with pytest.raises(HoldfastError, match="asks for state 'value' and deletes it"):
        emitted(Program(Both, "key string, counts string", [[("a", 0, 0)]]), tmp_path)


def test_numbers_of_numpy_become_plain_ones_as_in_spark(tmp_path):
    import numpy as np

    class Counting(PROGRAMS["running count"].processor):
        def handleInputRows(self, key, rows, timerValues):
            self.count.update((np.int64(len(list(rows))),))
            yield Row(n=self.count.get()[0], key=key[0])

    program = Program(Counting, "key string, n bigint", [[("a", 0, 1), ("a", 1, 1)]])
    assert emitted(program, tmp_path) == [[["a", 2]]]
