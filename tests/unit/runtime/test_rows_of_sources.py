"""What a job has read from its sources: each row counts once, however many operators read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.datastream import BroadcastProcessFunction, DataStream
from holdfast.datastream.state import MapStateDescriptor
from holdfast.datastream.stream.stream_factory import read_by
from holdfast.runtime.function.source import SplitInput, SplitPlan
from holdfast.runtime.master.job_master import JobMaster
from holdfast.testing import EpochProgram
from holdfast.testing.epoch_runner import LocalEngine, run_job
from holdfast.types.type_parser import to_type

RULES = MapStateDescriptor("rules", "bigint", "bigint")
ORDERS = "id bigint, version bigint"


class Join(BroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.id, value.version)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.id, value.version


def deduplicated(orders: DataStream) -> DataStream:
    return orders.key_by(["id", "version"]).deduplicate().uid("deduplicated")


def joined(orders: DataStream, rules: DataStream) -> DataStream:
    return orders.connect(rules.broadcast(RULES)).process(Join(), ORDERS).uid("joined")


PROGRAMS: dict[str, Callable[[DataStream, DataStream], DataStream]] = {
    "an operator without keys reads a source": lambda orders, rules: orders.filter(lambda row: True).union(rules),
    "an operator reads a source and another operator": lambda orders, rules: joined(deduplicated(orders), rules),
    "both inputs are behind another operator": lambda orders, rules: joined(deduplicated(orders), deduplicated2(rules)),
    "two operators read the same source": lambda orders, rules: deduplicated(orders).union(orders, rules),
    "a source goes to every subtask": joined,
    "a source is united with itself": lambda orders, rules: orders.union(orders, rules),
}


def deduplicated2(rules: DataStream) -> DataStream:
    return rules.key_by("id").deduplicate().uid("rules-deduplicated")


def finished(program: EpochProgram, directory: Path, inputs: Sequence[dict[str, Any]]) -> JobMaster:
    master = run_job(program.get_stream_graph(), directory, LocalEngine(inputs), {"restart-strategy.type": "none"})
    master.run()
    return master


@pytest.mark.parametrize("shape", PROGRAMS)
def test_each_row_of_a_source_counts_once(shape: str, tmp_path: Path) -> None:
    program = EpochProgram()
    orders, rules = program.source("orders", ORDERS), program.source("rules", ORDERS)
    PROGRAMS[shape](orders, rules).print()
    three, one = [(1, 1), (2, 1), (3, 1)], [(1, 2)]
    inputs = [{"orders": three, "rules": []}, {"orders": one, "rules": one}, {"orders": [], "rules": three}]
    master = finished(program, tmp_path, inputs)
    assert [epoch.rows for epoch in master.progress.recent] == [3, 2, 3]
    assert master.metrics.numbers.rows == 8


class Numbers(SplitInput):
    """A split is a count of numbers."""

    def plan(self, paths: Sequence[str], known: str | None, tasks: int) -> SplitPlan:
        raise AssertionError("the test plans")

    def read(self, splits: str, refuse: Callable[[Any], None] | None = None) -> Iterator[pa.RecordBatch]:
        for begin in range(0, int(splits), 10):
            yield pa.record_batch({"n": pa.array(range(begin, min(begin + 10, int(splits))), pa.int64())})


def test_the_edge_of_a_source_of_files_counts_rows_and_their_bytes_and_not_ranges_of_files(tmp_path: Path) -> None:
    program = EpochProgram()
    read_by(Numbers(), program.source("files", "splits string"), to_type("n bigint")).uid("read").print()
    master = finished(program, tmp_path, [{"files": [("25",), ("3",)]}, {"files": [("1",)]}])
    assert [epoch.rows for epoch in master.progress.recent] == [28, 1]
    edge = master.flow.edge("files", "read")
    assert edge is not None
    assert (edge.rows, edge.bytes, edge.last_rows, edge.last_bytes) == (29, 29 * 8, 1, 8)
