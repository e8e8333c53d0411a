"""Values are compared as in Spark: NaN equals NaN and is greater than all other numbers, -0.0 equals 0.0."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.common import Time
from holdfast.datastream import KeyedStream
from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges
from holdfast.datastream.window import (
    DistinctCountAggregate,
    MaxAggregate,
    MinAggregate,
    TopNAggregate,
    TumblingProcessingTimeWindows,
)
from holdfast.testing import EpochProgram
from holdfast.types.ordering import are_equal

NAN = math.nan
OTHER_NAN = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
"""NaN of other bits."""


def emitted(
    path: Path, schema: str, rows: Sequence[tuple[Any, ...]], build: Callable[[KeyedStream], Any]
) -> list[tuple[Any, ...]]:
    """Return what an operator emits for rows that come one in each epoch, as text, since NaN is not equal to NaN."""
    program, found = EpochProgram(), []
    out = build(program.source("in", schema).key_by("k")).uid("out")
    out.for_each_epoch(lambda table, epoch, _: found.extend(map(repr, table.to_pylist()))).uid("rows")
    program.run(str(path), [{"in": [row]} for row in rows], source_tasks=1, parallelism=1)
    return found


def test_after_a_version_that_is_not_a_number_only_another_one_counts(tmp_path: Path) -> None:
    rows = [("a", 5.0, 1), ("a", NAN, 2), ("a", 1.0, 3), ("a", math.inf, 4), ("a", OTHER_NAN, 5)]
    found = emitted(tmp_path, "k string, v double, n int", rows, lambda stream: stream.last_value(by="v"))
    assert [eval(row, {"nan": NAN, "inf": math.inf})["n"] for row in found] == [1, 1, 2, 2, 5]


@pytest.mark.parametrize(
    ("kind", "one", "again"),
    [
        ("double", NAN, OTHER_NAN),
        ("double", 0.0, -0.0),
        ("array<double>", [1.0, NAN], [1.0, OTHER_NAN]),
        ("map<string,double>", {"x": NAN}, {"x": OTHER_NAN}),
        ("map<double,int>", {NAN: 1}, {OTHER_NAN: 1}),
        ("struct<x: float, y: array<struct<z: double>>>", (NAN, [(NAN,)]), (NAN, [(OTHER_NAN,)])),
    ],
)
def test_a_row_that_comes_again_is_no_change(tmp_path: Path, kind: str, one: Any, again: Any) -> None:
    rows = [("a", one), ("a", again), ("a", one), ("a", None), ("a", again)]
    found = emitted(tmp_path, f"k string, v {kind}", rows, lambda stream: stream.normalize_changes())
    assert len(found) == 5, "an insert, and an update to null and back"


BEST = [("max", NAN), ("min", 1.5), ("max_by", NAN), ("min_by", 1.5)]


@pytest.mark.parametrize(("name", "expected"), BEST)
@pytest.mark.parametrize("kind", ["double", "float"])
def test_the_greatest_number_is_not_a_number(tmp_path: Path, kind: str, name: str, expected: float) -> None:
    rows = [("a", 2.0), ("a", NAN), ("a", 1.5), ("a", None)]
    found = emitted(tmp_path, f"k string, v {kind}", rows, lambda stream: getattr(stream, name)("v"))
    assert found[-1] == repr({"k": "a", "v": expected})


@pytest.mark.parametrize(("name", "expected"), BEST)
def test_tuples_without_a_type_are_compared_in_the_same_way(tmp_path: Path, name: str, expected: float) -> None:
    program, found = EpochProgram(), []
    tuples = program.source("in", "k string, v double").map(lambda row: (row.k, row.v)).uid("tuples")
    best = (
        getattr(tuples.key_by(lambda pair: pair[0]), name)(1).uid("best").map(lambda pair: pair[1], "double").uid("v")
    )
    best.for_each_epoch(lambda table, epoch, _: found.extend(table.column(0).to_pylist())).uid("out")
    epochs = [{"in": [("a", value)]} for value in (2.0, NAN, 1.5)]
    program.run(str(tmp_path), epochs, source_tasks=1, parallelism=1)
    assert repr(found[-1]) == repr(expected)


def test_windows_rank_and_count_what_is_not_a_number(tmp_path: Path) -> None:
    program, found = EpochProgram(), []
    values = [2.0, NAN, None, -0.0, 0.0, OTHER_NAN, -3.0]
    stream = program.source("in", "k string, v double").key_by("k")
    stream.window(TumblingProcessingTimeWindows.of(Time.milliseconds(1))).aggregate_batches(
        most=MaxAggregate("v"),
        least=MinAggregate("v"),
        best=TopNAggregate(3, "v"),
        worst=TopNAggregate(9, "v", ascending=True),
        different=DistinctCountAggregate("v"),
    ).uid("w").for_each_epoch(lambda table, epoch, _: found.extend(table.to_pylist())).uid("out")
    program.run(str(tmp_path), [{"in": [("a", value) for value in values]}, {}], source_tasks=1, parallelism=1)
    (row,) = found
    assert (repr(row["most"]), row["least"]) == ("nan", -3.0)
    assert repr(row["best"]) == repr([NAN, NAN, 2.0])
    assert repr(row["worst"]) == repr([-3.0, -0.0, 0.0, 2.0, NAN, NAN])
    assert row["different"] == 4, "-3.0, 0.0, 2.0 and NaN"


def test_a_table_has_one_row_for_keys_that_are_equal() -> None:
    rows = pa.table({"key": pa.array([NAN, 0.0, 1.0, OTHER_NAN, -0.0, None]), "n": [1, 2, 3, 4, 5, 6]})
    kept, deleted = EpochChanges("sink", ChangeColumns(("key",))).last_of_each_key([rows])
    assert kept.column("n").to_pylist() == [3, 4, 5, 6]
    assert not deleted.num_rows


def test_values_are_equal_or_not() -> None:
    assert are_equal([NAN, {"a": (NAN, None)}], [OTHER_NAN, {"a": (OTHER_NAN, None)}])
    for one, other in (
        (NAN, 1.0),
        (1.0, NAN),
        (NAN, None),
        ([NAN], [NAN, NAN]),
        ({"a": NAN}, {"b": NAN}),
        ({"a": NAN}, {"a": 1.0}),
        ("a", "b"),
        ([1], None),
        ({}, None),
        ({NAN: 1}, {NAN: 2}),
    ):
        assert not are_equal(one, other), (one, other)
