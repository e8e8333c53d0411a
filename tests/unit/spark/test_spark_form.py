"""What a stateful processor of Spark is given has Spark's form, and what it says is taken in that form; no JVM."""

import time
from collections import Counter
from datetime import UTC

import numpy as np
import pytest

pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="StatefulProcessor came with Spark 4.0")

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType

from holdfast.datastream.environment.transform_with_state import apply_processor
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.spark.processor_state import StatefulProcessorHandle
from holdfast.spark.stateful_processor import Processor, ProcessorInput
from holdfast.testing import EpochProgram
from holdfast.types.type_parser import to_type
from tests.spark.processors.local import emitted
from tests.spark.processors.programs import Program
from tests.stories.journal import Journal, pages


def written(directory, processor, output, rows, elements, mode="None"):
    """What a processor emits for elements of its own, grouped by their first column, page by page."""
    kind, running = to_type(rows), EpochProgram()
    wanted = Processor.checked(processor, output, "Append", mode, "", False)
    stream = apply_processor(running.source("rows", kind), wanted, ProcessorInput(kind, kind.names[:1]))
    stream.uid("tws").sink_to(Journal(directory / "out"))
    running.run(directory / "checkpoints", [{"rows": elements}])
    return sorted((tuple(row) for page in pages(directory / "out").values() for row in page), key=str)


class Polling(StatefulProcessor):
    """Wakes up whenever it can."""

    def init(self, handle):
        self.handle, self.calls = handle, handle.getValueState("calls", "int")

    def handleInputRows(self, key, rows, timerValues):
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        calls = (self.calls.get() or (0,))[0] + 1
        assert calls < 100, "it would be called for ever"
        self.calls.update((calls,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - calls)
        yield Row(key=key[0], calls=calls)


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_a_timer_that_a_timer_sets_waits_for_the_next_epoch_though_it_is_due(tmp_path, backend):
    program = Program(Polling, "key string, calls int", [[("a", 0, 1), ("b", 0, 1)]], "ProcessingTime", pauses=[5])
    emitted(program, tmp_path, amnesia=True, options={"state.backend.type": backend})
    told = [(page[:6], *row) for page, rows in pages(tmp_path / "out").items() for row in rows]
    assert max(Counter((epoch, key) for epoch, key, _ in told).values()) == 1, "a key is called once an epoch"
    for name in "ab":
        calls = [n for _, key, n in sorted(told) if key == name]
        assert calls == list(range(1, len(calls) + 1)) and calls


class OfOneType(StatefulProcessor):
    """Declares its states as `TwsTester` takes them: by the type of their only column."""

    def init(self, handle):
        self.count, self.seen = handle.getValueState("count", LongType()), handle.getMapState("seen", "string", "int")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.count.update(((self.count.get() or (0,))[0] + 1,))
            self.seen.updateValue((row.key,), (1,))
        yield Row(key=key[0], told=f"{self.count.get()} {list(self.seen.iterator())}")


def test_a_state_of_one_column_is_declared_by_its_type_too(tmp_path):
    program = Program(OfOneType, "key string, told string", [[("a", 0, 1), ("a", 1, 1)]])
    assert emitted(program, tmp_path) == [[["a", "(2,) [(('a',), (1,))]"]]]
    with pytest.raises(ConfigurationError, match="its schema is 'name type"):
        StatefulProcessorHandle(None, "none").getValueState("count", None)


class Local(StatefulProcessor):
    def init(self, handle):
        self.at = handle.getMapState("at", "at timestamp", "at struct<first: timestamp, all: array<timestamp>>")

    def handleInputRows(self, key, rows, timerValues):
        for (instant,), (kept,) in self.at.iterator():
            yield Row(key=key[0], told=f"{instant} {kept.first} {kept.all[0]}", at=instant.astimezone(UTC))
        [row] = rows
        self.at.updateValue((row.at,), ({"first": row.at.astimezone().replace(tzinfo=None), "all": [row.at]},))


def test_instants_in_state_are_in_the_time_zone_of_the_worker(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        program = Program(Local, "key string, told string, at timestamp", [[("a", 0, 1)], [("a", 1, 1)]])
        local = "2026-01-01 05:30:00"
        assert emitted(program, tmp_path)[1] == [["a", " ".join([local] * 3), "2026-01-01T00:00:00"]]
    finally:
        monkeypatch.undo()
        time.tzset()


class Nested(StatefulProcessor):
    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        [row] = rows
        self.handle.registerTimer(0)
        yield Row(told=repr([key, row.place, row.places, row.sizes]), place=row.place)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(told=repr(key), place=None)


def test_structs_in_rows_and_keys_are_dicts(tmp_path):
    rows = (
        "at struct<x: int>, place struct<city: string, at: struct<x: int>>, places array<struct<city: string>>, "
        "sizes map<struct<city: string>, struct<x: int>>"
    )
    output = "told string, place struct<city: string, at: struct<x: int>>"
    elements = [((1,), ("Kiel", (1,)), [("Rom",)], {("Ulm",): (2,)}), ((2,), None, None, None)]
    assert written(tmp_path, Nested(), output, rows, elements, "ProcessingTime") == [
        ("({'x': 1},)", None),
        ("({'x': 2},)", None),
        (
            "[({'x': 1},), {'city': 'Kiel', 'at': {'x': 1}}, [{'city': 'Rom'}], {Row(city='Ulm'): {'x': 2}}]",
            ("Kiel", (1,)),
        ),
        ("[({'x': 2},), None, None, None]", None),
    ]


class ByNumpy(StatefulProcessor):
    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for due in (1, 2):
            self.handle.registerTimer(np.int64(due))
        self.handle.deleteTimer(np.int64(2))
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(key=key[0], at=expiredTimerInfo.getExpiryTimeInMs())


def test_the_time_of_a_timer_may_come_out_of_a_frame(tmp_path):
    assert emitted(Program(ByNumpy, "key string, at bigint", [[("a", 0, 1)]], "ProcessingTime"), tmp_path) == [
        [["a", 1]]
    ]


class Twice(ByNumpy):
    def init(self, handle):
        handle.getValueState("n", "n int")
        handle.getListState("n", "n int")


def test_a_state_is_asked_for_once(tmp_path):
    with pytest.raises(HoldfastError, match="asks for state 'n' twice"):
        emitted(Program(Twice, "key string, at bigint", [[("a", 0, 1)]]), tmp_path)
