"""What goes into Arrow comes back the same, for any type; what does not fit is named."""

import math
import pickle
import threading
from collections import namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.arrow import (
    batch_to_elements,
    columns_to_lists,
    element_ddl,
    element_schema,
    elements_to_batch,
    rows_to_batch,
)
from holdfast.types.composite import RowTypeInformation
from holdfast.types.row import Row
from holdfast.types.type_information import type_from_json
from holdfast.types.type_parser import parse_schema, parse_type
from holdfast.types.types import Types
from tests.unit.types.type_strategies import tables, typed_columns

PAIR = parse_schema("a bigint, b string")
BERLIN = timezone(timedelta(hours=2))


@given(tables())
def test_rows_come_back_as_they_went_in(table):
    row_type, rows = table
    batch = rows_to_batch(rows, row_type, "op")
    assert batch.schema == row_type.arrow_schema
    batch.validate(full=True)
    again = batch_to_elements(batch, row_type)
    assert again == rows
    assert all(type(row) is row_type.row_type for row in again)


@given(typed_columns(), st.data())
def test_a_slice_of_a_column_comes_back_as_the_slice_of_the_values(column, data):
    kind, values = column
    array = kind.to_array(values)
    assert array.type == kind.arrow_type
    start = data.draw(st.integers(0, len(values)))
    length = data.draw(st.integers(0, len(values) - start))
    assert kind.to_list(array.slice(start, length)) == values[start : start + length]
    assert kind.to_list(array) == [kind.adopt(value) for value in values]


@given(typed_columns())
def test_a_column_that_was_cut_into_chunks_and_written_to_a_file_comes_back(column):
    kind, values = column
    array = kind.to_array(values)
    sink = pa.BufferOutputStream()
    table = pa.table({"c": pa.chunked_array([array[:2], array[2:]], type=kind.arrow_type)})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    read = pa.ipc.open_file(sink.getvalue()).read_all()
    assert kind.to_list(read["c"]) == values


@given(typed_columns())
def test_a_type_survives_json_and_pickle(column):
    kind, _ = column
    for again in (type_from_json(kind.to_json()), pickle.loads(pickle.dumps(kind))):
        assert again == kind
        assert hash(again) == hash(kind)
        assert (again.arrow_type, again.ddl, str(again)) == (kind.arrow_type, kind.ddl, str(kind))


def test_rows_of_every_shape_are_taken():
    Pair = namedtuple("Pair", ["b", "a"])
    rows = [(1, "x"), [1, "x"], Row(1, "x"), Row(a=1, b="x"), Row(b="x", a=1), {"b": "x", "a": 1}, Pair("x", 1)]
    for row in rows:
        assert batch_to_elements(rows_to_batch([row], PAIR, "op"), PAIR) == [(1, "x")]
    assert batch_to_elements(rows_to_batch(rows, PAIR, "op"), PAIR) == [(1, "x")] * len(rows)


def test_a_row_of_pyspark_is_taken_by_its_names():
    sql = pytest.importorskip("pyspark.sql")
    rows = [sql.Row(b="x", a=1), sql.Row(a=2, b="y"), sql.Row(3, "z")]
    assert batch_to_elements(rows_to_batch(rows, PAIR, "op"), PAIR) == [(1, "x"), (2, "y"), (3, "z")]


def test_names_do_not_matter_where_none_were_declared():
    unnamed = Types.ROW([Types.LONG(), Types.STRING()])
    assert batch_to_elements(rows_to_batch([Row(a=1, b="x")], unnamed), unnamed) == [Row(f0=1, f1="x")]


@pytest.mark.parametrize("number", [511, 512, 513, 1500])
def test_many_rows_are_turned_into_columns_and_one_of_another_length_is_told(number):
    sql = pytest.importorskip("pyspark.sql")
    expected = [Row(a=n, b=str(n)) for n in range(number)]
    for make in (lambda n: (n, str(n)), lambda n: sql.Row(a=n, b=str(n)), lambda n: sql.Row(b=str(n), a=n)):
        rows = [make(n) for n in range(number)]
        assert batch_to_elements(rows_to_batch(rows, PAIR, "op"), PAIR) == expected
    mixed = [sql.Row(a=n, b=str(n)) for n in range(number - 2)] + [sql.Row(b="x", a=-1), sql.Row(-2, "y")]
    assert batch_to_elements(rows_to_batch(mixed, PAIR, "op"), PAIR)[-2:] == [(-1, "x"), (-2, "y")]
    with pytest.raises(OutputTypeError, match="1 fields instead of 2"):
        rows_to_batch([*expected[:-1], (1,)], PAIR)


def test_rows_of_a_type_without_names_are_taken_by_position():
    unnamed = Types.ROW([Types.LONG(), Types.STRING()])
    [row] = batch_to_elements(rows_to_batch([(1, "x")], unnamed), unnamed)
    assert batch_to_elements(rows_to_batch([row], PAIR), PAIR) == [Row(a=1, b="x")]
    with pytest.raises(OutputTypeError, match="missing are"):
        rows_to_batch([Row(f1="x", f0=1)], PAIR)


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        (("x", "y"), "a", "'x' of class 'str' is not of the declared type bigint"),
        ((1, 2), "b", "2 of class 'int' is not of the declared type string"),
        ((1.5, "y"), "a", "1.5 of class 'float'"),
        ((1.0, "y"), "a", "a whole number is needed"),
        ((True, "y"), "a", "True of class 'bool'"),
        ((2**63, "y"), "a", "does not fit into 64 bits"),
        ((float("nan"), "y"), "a", "a whole number is needed"),
        ((1, b"y"), "b", "text is needed"),
        ((1, "\ud800"), "b", "surrogate"),
        ((1,), None, "it has 1 fields instead of 2"),
        ((1, "y", 3), None, "it has 3 fields instead of 2"),
        (None, None, "a Row, tuple, list or dict is needed"),
        (7, None, "a Row, tuple, list or dict is needed"),
        ("xy", None, "a Row, tuple, list or dict is needed"),
        (Row(a=1, c="y"), None, "missing are ['b'], unknown are ['c']"),
        ({"a": 1}, None, "missing are ['b']"),
    ],
)
def test_the_wrong_row_is_named_with_its_field_and_value(row, field, words):
    with pytest.raises(OutputTypeError) as caught:
        rows_to_batch([(0, "fine")] * 3 + [row] + [(5, "fine")], PAIR, "my-map")
    error = caught.value
    assert (error.uid, error.row, error.field) == ("my-map", 3, field)
    assert "'my-map'" in str(error)
    assert words in str(error)


def test_a_single_value_in_place_of_a_row_with_one_column_is_shown_as_a_row():
    with pytest.raises(OutputTypeError, match=r"such as \(value,\)"):
        rows_to_batch(["kelp"], parse_schema("word string"), "my-map")


def test_the_path_leads_to_the_wrong_part_of_a_nested_value():
    nested = parse_schema("a array<struct<x: int, y: map<string, double>>>")
    with pytest.raises(OutputTypeError) as caught:
        rows_to_batch([([{"x": 1, "y": {}}, {"x": 2, "y": {"k": "no"}}],)], nested, "op")
    assert caught.value.field == "a[1].y['k']"
    assert caught.value.declared == "double"


@pytest.mark.parametrize(
    ("ddl", "value", "adopted"),
    [
        ("bigint", np.int64(4), 4),
        ("double", np.float64(0.5), 0.5),
        ("double", 3, 3.0),
        ("float", 0.1, float(np.float32(0.1))),
        ("boolean", np.bool_(True), True),
        ("string", np.str_("x"), "x"),
        ("binary", bytearray(b"x"), b"x"),
        ("binary", memoryview(b"x"), b"x"),
        ("char(3)", "a", "a  "),
        ("decimal(10,2)", 3, Decimal("3.00")),
        ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
        ("decimal(10,2)", Decimal("1.5000"), Decimal("1.50")),
        ("timestamp", datetime(2020, 1, 1, 12), datetime(2020, 1, 1, 12, tzinfo=UTC)),
        ("timestamp", datetime(2020, 1, 1, 12, tzinfo=BERLIN), datetime(2020, 1, 1, 10, tzinfo=UTC)),
        ("timestamp_ntz", datetime(2020, 1, 1, 12), datetime(2020, 1, 1, 12)),
        ("array<bigint>", (1, 2), [1, 2]),
        ("array<bigint>", np.array([1, 2]), [1, 2]),
        ("struct<a: int>", [1], Row(a=1)),
        ("struct<a: int>", {"a": None}, Row(a=None)),
    ],
)
def test_equivalent_values_are_taken_in_their_one_form(ddl, value, adopted):
    kind = parse_type(ddl)
    through_arrow = kind.to_list(kind.to_array([value, None]))
    for found in (kind.adopt(value), through_arrow[0]):
        assert found == adopted
        assert type(found) is type(adopted)
    assert through_arrow[1] is None
    if isinstance(adopted, datetime):
        assert through_arrow[0].tzinfo is adopted.tzinfo
    if isinstance(adopted, Decimal):
        assert through_arrow[0].as_tuple() == adopted.as_tuple()


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("tinyint", 128),
        ("int", -(2**31) - 1),
        ("boolean", 1),
        ("double", "1"),
        ("double", 2**53 + 1),
        ("double", True),
        ("float", 1e39),
        ("float", 2**24 + 1),
        ("string", 1),
        ("binary", "x"),
        ("char(2)", "abc"),
        ("date", datetime(2020, 1, 1)),
        ("date", "2020-01-01"),
        ("date", 5),
        ("timestamp", date(2020, 1, 1)),
        ("timestamp", 5),
        ("timestamp_ntz", datetime(2020, 1, 1, tzinfo=UTC)),
        ("time", time(1, tzinfo=UTC)),
        ("interval day to second", 5),
        ("interval day to second", timedelta.max),
        ("decimal(10,2)", Decimal("1.005")),
        ("decimal(4,2)", Decimal("100")),
        ("decimal(10,2)", 1.5),
        ("decimal(10,2)", True),
        ("decimal(10,2)", Decimal("NaN")),
        ("decimal(10,2)", Decimal("Infinity")),
        ("array<bigint>", [1.5]),
        ("array<string>", "abc"),
        ("array<bigint>", {1: 2}),
        ("map<string, bigint>", [("a", 1)]),
        ("map<string, bigint>", {None: 1}),
        ("map<string, bigint>", {"a": "b"}),
        ("struct<a: int>", (1, 2)),
    ],
)
def test_a_value_that_would_be_changed_silently_is_refused(ddl, value):
    kind = parse_type(ddl)
    with pytest.raises(OutputTypeError):
        kind.adopt(value)
    with pytest.raises(OutputTypeError, match="Element 0 of a batch"):
        elements_to_batch([value], kind, "op")


def test_floats_keep_what_only_floats_have():
    for kind in (Types.DOUBLE(), Types.FLOAT()):
        nan, zero, infinity, nothing = kind.to_list(kind.to_array([math.nan, -0.0, -math.inf, None]))
        assert math.isnan(nan)
        assert math.copysign(1, zero) == -1
        assert infinity == -math.inf
        assert nothing is None


def test_a_timestamp_from_a_session_in_another_zone_is_the_same_instant():
    instant = datetime(2024, 7, 1, 12, 30, 0, 7, tzinfo=UTC)
    from_spark = pa.array([instant, None], pa.timestamp("us", tz="America/Los_Angeles"))
    assert Types.INSTANT().to_list(from_spark) == [instant, None]
    assert Types.INSTANT().to_list(from_spark)[0].tzinfo is UTC


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (Types.STRING(), pa.array(["a", None], pa.large_string())),
        (Types.STRING(), pa.array(["a", None]).dictionary_encode()),
        (Types.LONG(), pa.array([97, None], pa.int32())),
        (Types.LIST(Types.STRING()), pa.array([["a"], None], pa.large_list(pa.large_string()))),
        (Types.BINARY(), pa.array([b"a", None], pa.large_binary())),
    ],
)
def test_other_layouts_of_the_same_type_are_read(kind, array):
    assert kind.to_list(array) == kind.to_list(kind.to_array(array.to_pylist()))


def test_the_stream_of_another_type_than_rows_has_one_column():
    kind = Types.LIST(Types.LONG())
    assert element_schema(kind) == pa.schema([("value", kind.arrow_type)])
    assert element_ddl(kind) == "value array<bigint>"
    batch = elements_to_batch([[1], None, []], kind)
    assert batch.schema == element_schema(kind)
    assert batch_to_elements(batch, kind) == [[1], None, []]


def test_values_without_a_declared_type_are_pickled():
    class Local:
        def __eq__(self, other):
            return type(self).__name__ == type(other).__name__

    kind = Types.PICKLED_BYTE_ARRAY()
    values = [1, None, {"a": {1, 2}}, Row(a=1), Local(), lambda x: x + 1]
    again = batch_to_elements(elements_to_batch(values, kind), kind)
    assert again[:4] == values[:4]
    assert again[4] == values[4]
    assert again[5](1) == 2
    assert element_schema(kind) == pa.schema([("value", pa.binary())])


def test_a_value_that_cannot_be_pickled_is_named():
    with pytest.raises(OutputTypeError, match=r"Element 1 .*'op'"):
        elements_to_batch([1, threading.Lock()], Types.PICKLED_BYTE_ARRAY(), "op")


def test_no_rows_make_an_empty_batch():
    batch = rows_to_batch([], PAIR)
    assert (batch.num_rows, batch.schema) == (0, PAIR.arrow_schema)
    assert batch_to_elements(batch, PAIR) == []


def test_a_batch_with_other_columns_is_refused():
    with pytest.raises(OutputTypeError, match="columns"):
        columns_to_lists(pa.record_batch({"a": [1]}), PAIR)
    with pytest.raises(ConfigurationError, match="at least one field"):
        element_schema(RowTypeInformation([], []))


def test_the_arrow_types_are_those_that_spark_expects():
    types = pytest.importorskip("pyspark.sql.pandas.types")

    from pyspark.sql import types as spark

    pairs = [
        (Types.STRING(), spark.StringType()),
        (Types.BINARY(), spark.BinaryType()),
        (Types.BOOLEAN(), spark.BooleanType()),
        (Types.BYTE(), spark.ByteType()),
        (Types.SHORT(), spark.ShortType()),
        (Types.INT(), spark.IntegerType()),
        (Types.LONG(), spark.LongType()),
        (Types.FLOAT(), spark.FloatType()),
        (Types.DOUBLE(), spark.DoubleType()),
        (Types.SQL_DATE(), spark.DateType()),
        (Types.SQL_TIMESTAMP(), spark.TimestampType()),
        (Types.TIMESTAMP_NTZ(), spark.TimestampNTZType()),
        (Types.DURATION(), spark.DayTimeIntervalType()),
        (Types.SQL_TIME(), spark.TimeType()),
        (Types.DECIMAL(12, 3), spark.DecimalType(12, 3)),
        (Types.BIG_INT(), spark.DecimalType(38, 0)),
        (Types.LIST(Types.LONG()), spark.ArrayType(spark.LongType())),
        (Types.MAP(Types.STRING(), Types.INT()), spark.MapType(spark.StringType(), spark.IntegerType())),
        (
            Types.ROW_NAMED(["a"], [Types.LIST(Types.SHORT())]),
            spark.StructType([spark.StructField("a", spark.ArrayType(spark.ShortType()))]),
        ),
    ]
    for ours, theirs in pairs:
        assert ours.arrow_type == types.to_arrow_type(theirs, timezone="UTC")


@pytest.mark.parametrize("ddl", ["array<int>", "map<string, int>"])
def test_the_offsets_of_an_array_without_rows_mean_nothing(ddl: str) -> None:
    kind = parse_type(ddl)
    full = kind.to_array([])
    garbage = pa.py_buffer(np.array([-7, 3], np.int32))
    empty = pa.Array.from_buffers(kind.arrow_type, 0, [None, garbage], children=[full.values])
    assert kind.to_list(empty) == []


@pytest.mark.parametrize(
    "kind",
    [Types.SQL_DATE(), Types.INSTANT(), Types.TIMESTAMP_NTZ(), Types.SQL_TIMESTAMP(), Types.LIST(Types.SQL_DATE())],
    ids=["date", "instant", "local", "sql", "list"],
)
def test_days_that_python_has_not_are_refused_by_name_and_are_no_numbers(kind):
    simple = kind.element_type if kind == Types.LIST(Types.SQL_DATE()) else kind
    whole, unit = (pa.int32(), 1) if simple == Types.SQL_DATE() else (pa.int64(), 86_400_000_000)
    first = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
    last = date(9999, 12, 31).toordinal() - date(1970, 1, 1).toordinal()

    def batch_of(*days):
        array = pa.array([None if day is None else day * unit for day in days], whole).cast(simple.arrow_type)
        if simple is not kind:
            array = pa.ListArray.from_arrays(pa.array([0, len(days)], pa.int32()), array, type=kind.arrow_type)
        return pa.RecordBatch.from_arrays([array], ["day"])

    found = batch_to_elements(batch_of(first, None, last), kind)
    assert [None if day is None else (day.year, day.month, day.day) for day in np.ravel(found)] == [
        (1, 1, 1),
        None,
        (9999, 12, 31),
    ]
    for day in (first - 1, last + 1):
        with pytest.raises(OutputTypeError, match="'calendar' produced a row whose value of 'day'"):
            batch_to_elements(batch_of(0, day, None), kind, "calendar")
