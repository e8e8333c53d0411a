"""Keys and values of a table become those of a state only if they are equal to them; all others are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.datastream import CheckpointedFunction, RichMapFunction
from holdfast.errors import ConfigurationError, OutputTypeError, StateError
from holdfast.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state_processor import OperatorTransformation, SavepointReader, SavepointWriter
from holdfast.state_processor.sql import query
from holdfast.state_processor.state_form import cast_array, times_of
from holdfast.testing import EpochProgram
from holdfast.types.type_parser import to_type

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


FIRST: dict[str, Any] = {
    "string": "a",
    "bigint": 1,
    "int": 1,
    "double": 1.0,
    "date": date(2026, 1, 1),
    "timestamp": EPOCH,
    "timestamp_ntz": datetime(1970, 1, 1),
}


def savepoint(path: Path, key: str, value: str = "bigint", table: pa.Table | None = None) -> str:
    """A savepoint of one operator with a value state, of the rows of a table with the columns `key` and `value`."""
    rows = (
        table if table is not None else pa.table({"key": pa.array([FIRST[key]], to_type(key).arrow_type), "value": [1]})
    )
    keyed = OperatorTransformation.bootstrap_with(rows).key_by("key", key_type=key)
    writer = SavepointWriter.new_savepoint(None, 8)
    return writer.with_operator("op", keyed.to_state(ValueStateDescriptor("s", value), "value")).write(str(path))


KEYS: dict[str, tuple[str, Any]] = {
    "integers over texts": ("string", pa.array([1])),
    "doubles over texts": ("string", pa.array([1.0])),
    "booleans over texts": ("string", pa.array([True])),
    "dates over texts": ("string", pa.array([date(2026, 1, 1)])),
    "booleans over integers": ("bigint", pa.array([True])),
    "timestamps over integers": ("bigint", pa.array([EPOCH])),
    "texts over integers": ("bigint", pa.array(["1"])),
    "a fraction over integers": ("bigint", pa.array([1.5])),
    "an integer over 32 bits": ("int", pa.array([1 << 40])),
    "an integer that no double is": ("double", pa.array([2**53 + 1])),
    "local times over instants": ("timestamp", pa.array([datetime(2026, 3, 29, 2, 30)])),
    "instants over local times": ("timestamp_ntz", pa.array([EPOCH])),
    "a time of day over dates": ("date", pa.array([datetime(2026, 1, 1, 1)])),
}


@pytest.mark.parametrize("what", list(KEYS))
def test_keys_of_another_kind_are_refused_and_not_converted(tmp_path: Path, what: str) -> None:
    declared, column = KEYS[what]
    path = savepoint(tmp_path / "0", declared)
    table = pa.table({"key": column, "value": [7]})
    with pytest.raises(OutputTypeError, match=rf"'key' .*{declared}"):
        SavepointWriter.from_existing_savepoint(None, path).update_state("op", "s", table).write(str(tmp_path / "1"))
    with pytest.raises(OutputTypeError, match=rf"'key' .*{declared}"):
        savepoint(tmp_path / "2", declared, table=table)


def test_keys_that_are_equal_to_declared_ones_are_converted(tmp_path: Path) -> None:
    path = savepoint(tmp_path / "0", "bigint", table=pa.table({"key": pa.array([1, 2], pa.int8()), "value": [1, 2]}))
    change = pa.table({"key": pa.array([2.0, 3.0]), "value": [20, 30]})
    path = (
        SavepointWriter.from_existing_savepoint(None, path).update_state("op", "s", change).write(str(tmp_path / "1"))
    )
    rows = SavepointReader.read(None, path).read_keyed_state("op", "s").sort_by("key").to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(1, 1), (2, 20), (3, 30)]


def test_parts_of_composite_keys_and_keys_of_maps_are_refused_alike(tmp_path: Path) -> None:
    table = pa.table({"a": ["x"], "b": [1.5], "value": [1]})
    keyed = OperatorTransformation.bootstrap_with(table).key_by(["a", "b"], key_type="a string, b bigint")
    writer = SavepointWriter.new_savepoint(None, 8)
    with pytest.raises(OutputTypeError, match=r"'a', 'b' .*1\.5 .*row 0"):
        writer.with_operator("op", keyed.to_state(ValueStateDescriptor("s", "bigint"), "value")).write(
            str(tmp_path / "0")
        )
    maps = pa.table({"key": [1, 2], "value": pa.array([[(1, 1)], [(2, 2)]], pa.map_(pa.int64(), pa.int64()))})
    entries = OperatorTransformation.bootstrap_with(maps).key_by("key", key_type="bigint")
    with pytest.raises(OutputTypeError, match="map keys of state 's'"):
        state = entries.to_state(MapStateDescriptor("s", "string", "bigint"), "value")
        SavepointWriter.new_savepoint(None, 8).with_operator("op", state).write(str(tmp_path / "1"))


VALUES: dict[str, tuple[str, Any, str]] = {
    "more digits than a decimal": ("decimal(9,2)", pa.array([0.5, 0.125]), r"0\.125 in row 1"),
    "a large double": ("decimal(9,2)", pa.array([1e8]), "row 0"),
    "not a number": ("decimal(9,2)", pa.array([float("nan")]), "row 0"),
    "a double over floats": ("float", pa.array([0.5, 0.1]), r"0\.1 in row 1"),
    "a decimal over doubles": ("double", pa.array([Decimal("0.1"), Decimal("0.12345678901234567890")]), "row 1"),
    "an instant over dates": ("date", pa.array([datetime(2026, 1, 1, 0, 0, 0, 1)]), "row 0"),
}


@pytest.mark.parametrize("what", list(VALUES))
def test_values_that_would_be_rounded_are_refused_with_state_column_and_row(tmp_path: Path, what: str) -> None:
    declared, column, message = VALUES[what]
    table = pa.table({"key": list(range(len(column))), "value": column})
    with pytest.raises(OutputTypeError, match=rf"'value' .*state 's'.*{message}"):
        savepoint(tmp_path / "0", "bigint", declared, table)


def test_errors_about_elements_name_the_row_of_their_list(tmp_path: Path) -> None:
    def write(column: pa.Array, declared: str) -> None:
        table = pa.table({"key": [0, 1, 2], "value": column})
        keyed = OperatorTransformation.bootstrap_with(table).key_by("key", key_type="bigint")
        state = keyed.to_state(ListStateDescriptor("s", declared), "value")
        SavepointWriter.new_savepoint(None, 8).with_operator("op", state).write(str(tmp_path / "0"))

    with pytest.raises(StateError, match="a null in row 2"):
        write(pa.array([[1, 2], [], [3, None]]), "bigint")
    with pytest.raises(OutputTypeError, match=r"0\.1 in row 2"):
        write(pa.array([[0.5, 1.5], [], [2.5, 0.1]]), "float")
    with pytest.raises(OutputTypeError, match=r"0\.1 in row 1"):
        write(pa.array([[[0.5]], [[], [0.25, 0.1]], [[0.1]]]), "array<float>")


def test_a_column_of_more_digits_than_a_decimal_has_is_named(tmp_path: Path) -> None:
    table = pa.table({"key": [1], "value": pa.array([Decimal(1)], pa.decimal256(50, 2))})
    with pytest.raises(ConfigurationError, match=r"'value': decimal256\(50, 2\) has more than 38 digits"):
        savepoint(tmp_path / "0", "bigint", "decimal(38,2)", table)


def test_a_relative_path_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'sub/new' is relative"):
        SavepointWriter.from_existing_savepoint(None, savepoint(tmp_path / "0", "bigint")).write("sub/new")


class Numbers(RichMapFunction, CheckpointedFunction):
    """Keeps what it sees in a list, which a later program declares otherwise and only its first subtask asks for."""

    def __init__(self, declared: str, only_first: bool) -> None:
        self.declared, self.only_first = declared, only_first

    def open(self, runtime_context: Any) -> None:
        self.runtime = runtime_context

    def initialize_state(self, context: Any) -> None:
        self.numbers = None
        if not self.only_first or self.runtime.get_index_of_this_subtask() == 0:
            self.numbers = context.get_operator_state_store().get_list_state(ListStateDescriptor("n", self.declared))

    def snapshot_state(self, context: Any) -> None: ...

    def map(self, value: Any) -> Any:
        if self.numbers is not None:
            self.numbers.add(value.n)
        return value.n


def test_a_list_of_which_some_subtasks_have_the_older_type_is_read_as_the_wider_one(tmp_path: Path) -> None:
    def run(declared: str, only_first: bool, epochs: int) -> None:
        program = EpochProgram()
        program.source("in", "n bigint").map(Numbers(declared, only_first), "bigint").uid("op").print()
        program.run(tmp_path / "checkpoints", [{"in": [(1,), (2,)]}] * epochs, source_tasks=2)

    run("int", False, 1)
    run("bigint", True, 2)
    [*_, newest] = sorted((tmp_path / "checkpoints").glob("*/chk-*"))
    table = SavepointReader.read(None, str(newest)).read_list_state("op", "n")
    assert table.schema.field("value").type == pa.int64()
    assert sorted(table.column("value").to_pylist()) in ([1, 1, 2], [1, 2, 2])


@pytest.mark.parametrize("uid", ["temp", "System", "memory", "information_schema", "pg_catalog", "main"])
def test_sql_reads_operators_whose_uids_duckdb_keeps_for_itself(tmp_path: Path, uid: str) -> None:
    keyed = OperatorTransformation.bootstrap_with(pa.table({"key": [1], "value": [2]})).key_by("key")
    state = keyed.to_state(ValueStateDescriptor("s", "bigint"), "value")
    path = SavepointWriter.new_savepoint(None, 8).with_operator(uid, state).write(str(tmp_path / "0"))
    reader = SavepointReader.read(None, path)
    statement = f"""select value, '{uid}.s' as text from "{uid}"."s" where "{uid}".s.value = 2 -- {uid}.s"""
    assert query(reader, statement).to_pylist() == [{"value": 2, "text": f"{uid}.s"}]


@given(st.lists(st.one_of(st.none(), st.floats(width=64)), max_size=20))
def test_what_is_taken_for_a_decimal_or_a_float_is_equal_to_what_was_given(values: list[float | None]) -> None:
    for wanted in (pa.decimal128(18, 4), pa.float32()):
        for value in values:
            try:
                [made] = cast_array(pa.array([value], pa.float64()), wanted).to_pylist()
            except pa.ArrowInvalid:
                continue
            if value is None:
                assert made is None
            elif pa.types.is_decimal(wanted):
                assert made == Decimal(repr(value))
            else:
                assert made == value or (np.isnan(made) and np.isnan(value))


@given(st.integers(-(10**15), 10**15))
def test_times_are_rounded_down_also_before_1970(microseconds: int) -> None:
    column = pa.array([microseconds], pa.timestamp("us", "UTC"))
    assert times_of(column, "t").to_pylist() == [
        (EPOCH + timedelta(microseconds=microseconds) - EPOCH) // timedelta(milliseconds=1)
    ]
