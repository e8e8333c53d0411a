"""Keys: one dict key for each key, however it is written, and the hash of Spark.

Spark itself judges the hash in tests/spark/test_key_hash.py; the golden vectors here were printed by Spark 4.3.0.
"""

import dataclasses
import json
import math
import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, CorruptFileError, NullKeyError, OutputTypeError
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import codec_from_json, hashes_of_columns, key_codec_for, keys_of_columns, lazy_keys
from holdfast.types.row import Row
from holdfast.types.type_parser import parse_schema, parse_type, to_type
from holdfast.types.types import Types
from tests.unit.types.test_tagged import KEYS
from tests.unit.types.type_strategies import ATOMIC, FIELD_NAMES

GOLDEN = [
    ("k string", "", -7444071767201028348),
    ("k string", "a", -8582455328737087284),
    ("k string", "hello", -4367754540140381902),
    ("k string", "日本", 5255273406210089560),
    ("k int", 42, -387659249110444264),
    ("k int", -1, 2017008487422258757),
    ("k bigint", 42, -6876166290308861218),
    ("k bigint", -(2**63), -8619748838626508300),
    ("k tinyint", 5, 504019808641096632),
    ("k smallint", -5, 9201179564109417620),
    ("k boolean", True, -6698625589789238999),
    ("k double", 1.5, 7738255526519901366),
    ("k double", -0.0, -5252525462095825812),
    ("k double", math.nan, -3127944061524951246),
    ("k float", 1.5, 6163473420726370430),
    ("k binary", b"\x00\xff", 879945414100663330),
    ("k date", date(1969, 12, 31), 2017008487422258757),
    ("k timestamp", datetime(2020, 1, 1, 0, 0, 0, 1, UTC), 5384428974688748778),
    ("k timestamp_ntz", datetime(2020, 1, 1, 12), -8306330824020665990),
    ("k decimal(10,2)", Decimal("-1.25"), -7646224701292229936),
    ("k decimal(20,2)", Decimal("-1.25"), 7643149620469691090),
    ("k decimal(38,0)", Decimal("12345678901234567890123456789"), -8105224579872532365),
    (
        "k interval day to second",
        timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=5),
        -1481965526383450804,
    ),
    ("k time", time(1, 2, 3, 4), 6425569229933067245),
    ("a string, b int", ("x", 1), 7642086833496664389),
    ("a string, b int", (None, 1), -6698625589789238999),
    ("a int, b string", (1, None), -6698625589789238999),
    ("a string, b string", (None, None), 42),
]


@st.composite
def atomic_keys(draw):
    kind, values = draw(st.sampled_from(ATOMIC))
    return kind, draw(st.lists(values, max_size=8))


@st.composite
def composite_keys(draw):
    pairs = draw(st.lists(st.sampled_from(ATOMIC), min_size=1, max_size=3))
    names = draw(st.lists(FIELD_NAMES, min_size=len(pairs), max_size=len(pairs), unique=True))
    kind = RowTypeInformation(names, [kind for kind, _ in pairs])
    rows = st.tuples(*[st.one_of(st.none(), values) for _, values in pairs])
    return kind, draw(st.lists(rows, max_size=8))


def check_round_trips(codec, columns, values):
    dict_keys = codec.dict_keys(columns)
    assert dict_keys == [codec.dict_key(value) for value in values]
    stored = codec.storage_array(dict_keys)
    assert stored.type == codec.storage_type
    assert codec.from_storage(stored) == dict_keys
    assert codec.from_storage(stored.slice(1)) == dict_keys[1:]
    assert [codec.dict_key(codec.user_key(key)) for key in dict_keys] == dict_keys
    assert len({codec.canonical_bytes(key) for key in dict_keys}) == len(set(dict_keys))
    assert codec.hashes(dict_keys).tolist() == [codec.hash(key) for key in dict_keys]
    for again in (codec_from_json(json.loads(json.dumps(codec.to_json()))), pickle.loads(pickle.dumps(codec))):
        assert again == codec
        assert again.dict_keys(columns) == dict_keys
        assert again.hashes(dict_keys).tolist() == codec.hashes(dict_keys).tolist()


@given(atomic_keys())
def test_a_simple_key_is_the_same_as_column_value_dict_key_and_file(keys):
    kind, values = keys
    codec = key_codec_for(kind, ("k",))
    check_round_trips(codec, [kind.to_array(values)], values)
    assert [codec.user_key(codec.dict_key(value)) for value in values] == values
    assert codec.storage_type == kind.arrow_type


@given(composite_keys())
def test_a_composite_key_is_the_same_as_columns_row_dict_key_and_file(keys):
    kind, rows = keys
    codec = key_codec_for(kind, kind.names)
    columns = [part.to_array([row[at] for row in rows]) for at, part in enumerate(kind.types)]
    check_round_trips(codec, columns, rows)
    assert codec.dict_keys([kind.to_array(rows)]) == codec.dict_keys(columns)
    for row in rows:
        seen = codec.user_key(codec.dict_key(row))
        assert seen == row
        assert seen.as_dict() == dict(zip(kind.names, row, strict=True))


@given(st.lists(KEYS.filter(lambda key: key is not None), max_size=8))
def test_a_key_without_a_declared_type_is_its_tagged_bytes(values):
    codec = key_codec_for(None)
    dict_keys = [codec.dict_key(value) for value in values]
    check_round_trips(codec, [pa.array(dict_keys, pa.binary())], values)


@given(atomic_keys())
def test_the_bytes_of_simple_keys_are_sorted_as_the_dict_keys(keys):
    kind, values = keys
    codec = key_codec_for(kind)
    dict_keys = sorted(codec.dict_key(value) for value in values)
    assert [codec.canonical_bytes(key) for key in dict_keys] == sorted(map(codec.canonical_bytes, dict_keys))


@pytest.mark.parametrize("ddl", ["float", "double"])
def test_there_is_one_zero_and_one_nan(ddl):
    kind = parse_type(ddl)
    codec = key_codec_for(kind)
    negative_nan = np.array([-math.nan, math.nan, -0.0, 0.0], kind.arrow_type.to_pandas_dtype())
    nan, other_nan, zero, other_zero = codec.dict_keys([pa.array(negative_nan, kind.arrow_type)])
    assert nan == other_nan == codec.dict_key(math.nan)
    assert zero == other_zero == codec.dict_key(-0.0)
    assert math.copysign(1, codec.user_key(zero)) == 1
    assert math.isnan(codec.user_key(nan))
    composite = key_codec_for(RowTypeInformation(["x", "y"], [kind, kind]))
    assert composite.dict_key((-0.0, math.nan)) == composite.dict_key((0.0, -math.nan))


def test_char_keys_are_padded():
    codec = key_codec_for(parse_type("char(3)"))
    assert codec.dict_keys([pa.array(["a", "a  ", "ab"])]) == ["a  ", "a  ", "ab "]
    assert codec.dict_key("a") == "a  "


def test_the_same_instant_is_the_same_key():
    codec = key_codec_for(Types.INSTANT())
    instant = datetime(2024, 1, 1, 12, tzinfo=UTC)
    elsewhere = instant.astimezone(timezone(timedelta(hours=5)))
    column = pa.array([instant], pa.timestamp("us", tz="Asia/Tokyo"))
    assert codec.dict_key(instant) == codec.dict_key(elsewhere) == codec.dict_keys([column])[0]
    assert codec.user_key(codec.dict_key(elsewhere)) == instant


def test_a_key_that_is_null_as_a_whole_is_refused_and_its_row_named():
    with pytest.raises(NullKeyError) as caught:
        key_codec_for(Types.STRING()).dict_keys([pa.array(["a", "b", None, "c"])])
    assert caught.value.row == 2
    with pytest.raises(NullKeyError):
        key_codec_for(None).dict_keys([pa.array([None], pa.binary())])
    with pytest.raises(NullKeyError):
        key_codec_for(Types.ROW([Types.LONG()])).dict_keys([pa.array([{"f0": 1}, None], pa.struct({"f0": pa.int64()}))])
    for codec in (key_codec_for(Types.LONG()), key_codec_for(None), key_codec_for(Types.ROW([Types.LONG()]))):
        with pytest.raises(NullKeyError):
            codec.dict_key(None)


def test_parts_of_a_composite_key_may_be_null_and_nothing_is_mixed_up():
    kind = parse_schema("a string, b string")
    codec = key_codec_for(kind)
    rows = [(None, "x"), ("x", None), (None, None), ("", "x"), ("x", "")]
    keys = [codec.dict_key(row) for row in rows]
    assert len(set(keys)) == len({codec.canonical_bytes(key) for key in keys}) == 5
    # Spark's hash takes nulls for nothing, so these two collide; the keys must not.
    assert codec.hash(keys[0]) == codec.hash(keys[1])


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("string collate UTF8_LCASE", "collation"),
        ("struct<a: int, b: string collate unicode>", "Field 'b'"),
        ("array<int>", "Keys cannot be array<int>"),
        ("map<string, int>", "no hash for maps"),
        ("struct<a: array<int>>", "Field 'a'"),
        ("struct<>", "at least one column"),
    ],
)
def test_what_cannot_be_a_key_is_refused_with_the_reason(ddl, reason):
    with pytest.raises(ConfigurationError, match=reason):
        key_codec_for(parse_type(ddl))


def test_pickles_are_no_keys():
    with pytest.raises(ConfigurationError, match="Declare the type"):
        key_codec_for(Types.ROW([Types.PICKLED_BYTE_ARRAY()]))
    # On its own it says that the type is not declared.
    assert key_codec_for(Types.PICKLED_BYTE_ARRAY()) == key_codec_for(None)
    with pytest.raises(OutputTypeError, match="object"):
        key_codec_for(None).dict_key({"a": object()})
    with pytest.raises(OutputTypeError):
        key_codec_for(Types.LONG()).dict_key("x")


@dataclasses.dataclass
class Place:
    city: str
    point: tuple[int, int]


@dataclasses.dataclass
class Named:
    id: int
    name: str = dataclasses.field(compare=False)


@dataclasses.dataclass(eq=False)
class Itself:
    id: int


@dataclasses.dataclass
class Loosely:
    id: int

    def __eq__(self, other):
        return abs(self.id - other.id) < 2


def test_instances_of_a_dataclass_are_keys_by_their_fields():
    codec = key_codec_for(to_type(Place))
    one, same, other = Place("Oslo", (1, 2)), Place("Oslo", (1, 2)), Place("Oslo", (2, 1))
    assert codec.dict_key(one) == codec.dict_key(same) != codec.dict_key(other)
    assert codec.user_key(codec.dict_key(one)) == one
    assert codec.from_storage(codec.storage_array([codec.dict_key(other)])) == [codec.dict_key(other)]
    # Who has only the file sees rows.
    assert codec_from_json(codec.to_json()).user_key(codec.dict_key(one)) == ("Oslo", (1, 2))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Named, r"\['name'\] do not take part in =="), (Itself, "== of its own"), (Loosely, "== of its own")],
)
def test_a_dataclass_that_compares_otherwise_is_no_key(kind, reason):
    with pytest.raises(ConfigurationError, match=reason):
        key_codec_for(to_type(kind))


def test_names_given_win_over_those_of_the_type():
    codec = key_codec_for(Types.ROW([Types.LONG(), Types.STRING()]), ("id", "name"))
    assert codec.user_key(codec.dict_key((1, "a"))).as_dict() == {"id": 1, "name": "a"}
    assert codec.dict_key({"name": "a", "id": 1}) == (1, "a")
    as_tuple = key_codec_for(Types.TUPLE([Types.LONG(), Types.STRING()]))
    assert type(as_tuple.user_key(as_tuple.dict_key([1, "a"]))) is tuple


def test_nested_rows_are_keys_too():
    kind = parse_schema("a struct<x: int, y: string>, b date")
    codec = key_codec_for(kind)
    rows = [((1, "p"), date(2020, 1, 1)), ((None, None), None), (None, date(1969, 12, 31))]
    keys = codec.dict_keys([part.to_array([row[at] for row in rows]) for at, part in enumerate(kind.types)])
    assert keys == [codec.dict_key(row) for row in rows]
    assert codec.from_storage(codec.storage_array(keys)) == keys
    assert [codec.user_key(key) for key in keys] == rows
    assert codec.user_key(keys[0]).a == Row(x=1, y="p")


@pytest.mark.parametrize(
    ("within", "values"),
    [
        ("struct<a: int, b: string>", [(1, "p"), (None, "q")]),
        ("struct<a: int>", [(1,), (None,)]),
        ("struct<x: struct<a: int>>", [((1,),), ((2,),)]),
    ],
)
def test_a_row_alone_in_a_row_is_a_key_in_a_column_of_its_own_and_in_one_of_whole_keys(within, values):
    kind = parse_schema(f"s {within}")
    codec = key_codec_for(kind)
    rows = [(value,) for value in values]
    expected = [codec.dict_key(row) for row in rows]
    whole, part = kind.to_array(rows), kind.types[0].to_array(values)
    for column in (whole, part):
        assert codec.dict_keys([column]) == expected
        assert list(lazy_keys(codec, [column])) == expected
        stored, hashes = keys_of_columns(codec, [column])
        assert codec.from_storage(stored) == expected
        assert hashes.tolist() == hashes_of_columns(codec, [column]).tolist() == list(map(codec.hash, expected))


def test_damaged_composite_keys_are_refused():
    codec = key_codec_for(parse_schema("a string, b bigint"))
    whole = codec.canonical_bytes(codec.dict_key(("x", 1)))
    for wrong in (whole[:-1], whole + b"x", whole[:3], b"\x00\x00\x00\x01\xff\x00\x00\x00\x01x"):
        with pytest.raises(CorruptFileError):
            codec.from_storage(pa.array([wrong], pa.binary()))


def test_times_and_intervals_are_keys():
    for ddl, value in [("time(6)", time(23, 59, 59, 999_999)), ("interval day to second", timedelta(-1, 5, 7))]:
        codec = key_codec_for(parse_type(ddl))
        assert codec.user_key(codec.dict_key(value)) == value


@pytest.mark.parametrize(("ddl", "value", "expected"), GOLDEN)
def test_the_hash_is_that_of_spark(ddl, value, expected):
    schema = parse_schema(ddl)
    codec = key_codec_for(schema if len(schema.names) > 1 else schema.types[0])
    assert codec.hash(codec.dict_key(value)) == expected % 2**64
