"""The chain in PyFlink 2.3, thread mode and hashmap backend: lines that its JVM makes, words, and two counts by key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.engines.pyflink import SINK, Marks, PyFlinkEngine, drop, interpreter, start
from benchmarks.harness.workload import Engine, Workload

__all__ = ["SINK", "interpreter", "make_engine"]


def run_job(workload: Workload, epochs: int, marks: Path) -> None:
    """Counts the words of so many epochs, and the ends of the words, and blocks until the job has finished."""
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction, RuntimeContext
    from pyflink.datastream.state import ValueStateDescriptor

    class Counter(KeyedProcessFunction):
        def __init__(self, notes: bool) -> None:
            self._notes = notes

        def open(self, runtime_context: RuntimeContext) -> None:
            self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
            self._marks = Marks(workload, marks) if self._notes else None

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, ...]]:
            count = (self._count.value() or 0) + 1
            self._count.update(count)
            if self._marks is not None:
                self._marks.count()
            yield (*value, count)

    tables = start(workload)
    numbers = [f"n{word}" for word in range(workload.words)]
    columns = ", ".join(f"{number} bigint" for number in numbers)
    bounds = "".join(f", 'fields.{n}.min' = '0', 'fields.{n}.max' = '{workload.keys - 1}'" for n in numbers)
    # A margin of one epoch: the keys do not fall evenly on the subtasks, and each must see its share of every epoch.
    lines = workload.rows * (epochs + 1) // workload.words
    tables.execute_sql(
        f"create temporary table numbers ({columns}) with "
        f"('connector' = 'datagen', 'number-of-rows' = '{lines}'{bounds})"
    )
    words = ", ".join(f"concat('key-', lpad(cast({number} as string), 9, '0'))" for number in numbers)
    text, counted = Types.STRING(), Types.LONG()
    stream = (
        tables.to_data_stream(tables.sql_query(f"select concat_ws(' ', {words}) from numbers"))
        .flat_map(lambda row: ((word, word[-3:]) for word in row[0].split()), Types.TUPLE([text, text]))
        .key_by(lambda row: row[0], key_type=text)
        .process(Counter(notes=False), Types.TUPLE([text, text, counted]))
        .key_by(lambda row: row[1], key_type=text)
        .process(Counter(notes=True), Types.TUPLE([text, text, counted, counted]))
    )
    drop(tables, stream, "a string, b string, c bigint, d bigint")


def make_engine(workload: Workload) -> Engine:
    return PyFlinkEngine(workload, run_job)
