"""Aggregates of windows by columns over each kind of value: as Python has them by element."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import ParquetFileSink
from holdfast.datastream.window import (
    DistinctCountAggregate,
    FirstAggregate,
    LastAggregate,
    MaxAggregate,
    MinAggregate,
    TopNAggregate,
    TumblingEventTimeWindows,
)
from tests.stories import ledger
from tests.stories.local import Program, epochs, run
from tests.unit.window.stories import late_by

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-3, 100],
    "smallint": [5, -2],
    "int": [5, -2],
    "bigint": [2**60, -1],
    "float": [0.5, -2.0],
    "double": [1.5, 0.0, -0.0],
    "decimal(10, 2)": [Decimal("1.10"), Decimal("-2.00")],
    "string": ["b", "a", ""],
    "binary": [b"b", b"", b"a"],
    "date": [date(2020, 1, 2), date(1969, 1, 1)],
    "time": [time(1, 2, 3), time(0, 0, 1)],
    "timestamp": [datetime(2020, 1, 2, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)],
    "timestamp_ntz": [datetime(2020, 1, 2), datetime(1969, 1, 1)],
    "interval day to second": [timedelta(days=1), timedelta(seconds=-1)],
}


@pytest.mark.parametrize("kind", VALUES)
def test_each_kind_of_value_is_aggregated_by_columns_as_by_element(kind: str, tmp_path: Path) -> None:
    program = Program()
    stream = program.source("rows", f"k string, at bigint, v {kind}").assign_timestamps_and_watermarks(late_by(0))
    stream.key_by("k").window(TumblingEventTimeWindows.of(Time.seconds(1))).aggregate_batches(
        least=MinAggregate("v"),
        most=MaxAggregate("v"),
        first=FirstAggregate("v"),
        last=LastAggregate("v"),
        best=TopNAggregate(2, "v"),
        different=DistinctCountAggregate("v"),
    ).uid("aggregates").sink_to(ParquetFileSink(tmp_path / "out"))
    values = [*VALUES[kind], None, VALUES[kind][0]]
    batches = [[("k", at, value), ("none", at, None)] for at, value in enumerate(values)]
    run(program, tmp_path / "job", epochs("rows", batches), is_bounded=True)
    known = [value for value in values if value is not None]
    bounds = 0, 1000
    assert sorted(ledger.read(tmp_path / "out")) == [
        ("k", *bounds, min(known), max(known), known[0], known[-1], sorted(known)[:-3:-1], len(set(known))),
        ("none", *bounds, None, None, None, None, [], 0),
    ]
