"""Times of day cross exchanges between stages and jobs of an epoch, in every place of an element, and are the same."""

from __future__ import annotations

from datetime import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.datastream.sinks.driver_sinks import ForEachEpochSink
from holdfast.runtime.exchange.layout import RowLayout
from holdfast.runtime.graph.plan import Edge, Port
from holdfast.state.descriptor import MapStateDescriptor, ValueStateDescriptor
from holdfast.testing.sink_contract import SinkStage
from holdfast.types.type_parser import to_type
from tests.stories.local import Program, run
from tests.unit.runtime.test_transforms import transformed

COLUMNS = "at time, parts struct<of: time, several: array<time>>, by map<time, struct<next: time, n: int>>"
EARLY, LATE = time(0, 0, 0, 1), time(23, 59, 59, 999_999)
ROWS = [
    (EARLY, (LATE, [EARLY, None, LATE]), {EARLY: (LATE, 1), LATE: None}),
    (LATE, (None, []), {}),
    (EARLY, None, None),
]
PLAIN = [
    {"at": EARLY, "parts": {"of": LATE, "several": [EARLY, None, LATE]},
     "by": [(EARLY, {"next": LATE, "n": 1}), (LATE, None)]},
    {"at": LATE, "parts": {"of": None, "several": []}, "by": []},
    {"at": EARLY, "parts": None, "by": None},
]  # fmt: skip


class Before(KeyedProcessFunction):
    """Emits each row with the number that it has among those of its key; keeps rows and times as they are."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", to_type(COLUMNS)))
        self.numbers = runtime_context.get_map_state(MapStateDescriptor("numbers", "time", "array<time>"))

    def process_element(self, row: Any, ctx: Any) -> Any:
        before = self.numbers.get(row.at) or []
        assert ctx.get_current_key() == row.at and (self.seen.value() is None) == (not before)
        assert self.seen.value() is None or self.seen.value().at == row.at
        self.numbers.put(row.at, [*before, row.at])
        self.seen.update(row)
        yield row


def plain(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["at"], row["parts"] is None))


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "messages"])
def test_times_of_day_cross_every_border_and_come_out_as_they_were(tmp_path: Path, packed: bool) -> None:
    program = Program()
    rows = program.source("in", COLUMNS).map(lambda row: row, COLUMNS).uid("given")
    kept = rows.key_by("at").process(Before(), COLUMNS).uid("kept")
    again = kept.key_by(lambda row: row.at, "time").process(Before(), COLUMNS).uid("again")
    again.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
    again.union(transformed(kept, lambda table: table, COLUMNS)).sink_to(ParquetFileSink(tmp_path / "later")).uid("l")
    run(program, tmp_path / "job", [{"in": ROWS[:2]}, {"in": ROWS[2:]}], {"execution.exchange.packed": packed})

    assert plain(pq.read_table(tmp_path / "out")) == sorted(PLAIN, key=lambda row: (row["at"], row["parts"] is None))
    assert len(plain(pq.read_table(tmp_path / "later"))) == 2 * len(ROWS)
    assert pq.read_table(tmp_path / "out").schema.field("at").type == pa.time64("ns"), "files of ours have times"


def test_the_columns_of_an_exchange_have_nothing_that_spark_refuses() -> None:
    edges = [Edge(f"edge-{i}", Port("step", "above"), "below", 0, 1, to_type(COLUMNS), None, 2) for i in range(2)]
    for layout in (RowLayout(edges[:1]), RowLayout(edges)):
        assert "time" not in str(layout.schema)


def test_a_frame_of_an_epoch_has_texts_which_every_spark_reads(tmp_path: Path) -> None:
    seen: list[Any] = []
    sink = ForEachEpochSink(lambda frame, epoch: seen.append(frame))
    stage = SinkStage(sink, tmp_path, COLUMNS)
    stage.commit(stage.write(1, ROWS))
    [table] = seen
    assert table.column("at").to_pylist() == ["00:00:00.000001", "23:59:59.999999", "00:00:00.000001"]
    assert table.column("by").to_pylist()[0][0] == ("00:00:00.000001", {"next": "23:59:59.999999", "n": 1})
    assert table.column("parts").to_pylist()[0]["several"] == ["00:00:00.000001", None, "23:59:59.999999"]
