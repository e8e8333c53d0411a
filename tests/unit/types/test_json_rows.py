"""Rows from and to JSON: what comes back is what was written, and whatever comes in is a row or one clear error."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Row, RowKind, Types
from holdfast.datastream.formats.csv import CsvRowSerializationSchema
from holdfast.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.errors import ConfigurationError
from tests.examples import examples

EVERYTHING = """
    id bigint, small tinyint, name string, code char(3), ratio double, single float, price decimal(10, 2), ok boolean,
    raw binary, day date, clock time, at timestamp, local timestamp_ntz, tags array<string>, sizes map<string, int>,
    place struct<city: string, rank: smallint>
"""
ROW = Row(
    id=2**62, small=-3, name="kelp ☃", code="ab ", ratio=0.1, single=0.5, price=Decimal("1.50"), ok=True,
    raw=b"\x00\xff", day=date(2026, 11, 1), clock=time(5, 15), at=datetime(2026, 11, 1, 5, tzinfo=UTC),
    local=datetime(2026, 11, 1, 5), tags=["a", None], sizes={"x": 1, "y": None}, place=Row(city="Kiel", rank=7),
)  # fmt: skip
NOTHING = tuple(None for _ in ROW)


def reader(described: Any) -> JsonRowDeserializationSchema:
    made = JsonRowDeserializationSchema.builder().type_info(described).build()
    restored: JsonRowDeserializationSchema = pickle.loads(pickle.dumps(made))
    return restored


@pytest.mark.parametrize("row", [ROW, NOTHING])
def test_a_row_of_every_type_comes_back(row: tuple[Any, ...]) -> None:
    schema = reader(EVERYTHING)
    writer = JsonRowSerializationSchema.builder().with_type_info(EVERYTHING).build()
    assert schema.deserialize(writer.serialize(row)) == row
    assert schema.get_produced_type().adopt(row) == row


def test_no_digit_of_a_number_is_lost_and_fields_that_nobody_asked_for_are_passed_over() -> None:
    found = reader("price decimal(30, 20), ratio double").deserialize(
        b'{"price": 0.12345678901234567890, "ratio": 3, "more": [1e400]}'
    )
    assert found == (Decimal("0.12345678901234567890"), 3.0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "Expecting value"),
        (b"\xff", "can't decode"),
        (b"null", "it is null"),
        (b"[1]", "an object with"),
        (b'{"id": 1.5}', "whole number"),
        (b'{"id": 9223372036854775808}', "64 bits"),
        (b'{"id": ' + b"1" * 5000 + b"}", "digits"),
        (b'{"name": "\\ud800"}', "surrogates"),
        (b'{"ratio": NaN}', "NaN is not a number in JSON"),
        (b'{"ratio": 1e999}', "too large"),
        (b'{"single": 1e39}', "32 bits"),
        (b'{"price": "much"}', "'much' is not a number"),
        (b'{"price": "1_0"}', "'1_0' is not a number"),
        ('{"price": "\u0661"}'.encode(), "'\u0661' is not a number"),
        (b'{"price": 1e99999}', "decimal"),
        (b'{"raw": "?"}', "'raw'"),
        (b'{"at": 5}', "'at'"),
        (b'{"day": "yesterday"}', "'day'"),
        (b'{"tags": {}}', "an array is needed"),
        (b'{"sizes": {"x": "1_0"}}', "'1_0' is not a number"),
        (b'{"id": "1.5"}', "invalid literal"),
        (b'{"ratio": "inf"}', "'inf' is not a number"),
        (b'{"ratio": "1e999"}', "too large"),
        (b'{"ratio": "-"}', "not a decimal number"),
        (b'{"ratio": true}', "a number is needed"),
        (b'{"place": 1}', "an object with"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_row_is_refused_with_the_reason(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)it is no JSON of .*{reason}"):
        reader(EVERYTHING).deserialize(value)


def test_whole_numbers_of_any_length_are_whole_numbers() -> None:
    row_type = Types.ROW_NAMED(["n"], [Types.BIG_INT()])
    for text, number in ((str(10**37), 10**37), ("-0", 0), ("1.50e2", 150), ('"12"', 12), ("7.0", 7), ("null", None)):
        assert reader(row_type).deserialize(f'{{"n": {text}}}'.encode()) == (number,)
    for text in ("1.5", "-0.5", "1e-3", "true", "false", '"1.5"', "[1]", "1e99"):
        with pytest.raises(ValueError, match="it is no JSON of"):
            reader(row_type).deserialize(f'{{"n": {text}}}'.encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(ROW.as_dict())), JSON))
def test_any_json_is_a_row_of_the_type_or_an_error(value: dict[str, Any]) -> None:
    schema = reader(EVERYTHING)
    try:
        row = schema.deserialize(json.dumps(value).encode("utf-8", "surrogatepass"))
    except ValueError:
        return
    assert schema.get_produced_type().adopt(row) == row


def test_errors_may_be_ignored_and_missing_fields_may_be_errors() -> None:
    builder = JsonRowDeserializationSchema.builder
    lenient = builder().type_info("id bigint").ignore_parse_errors().build()
    assert lenient.deserialize(b"?") is None and lenient.deserialize(b'{"id": 1}') == (1,)
    # As in Flink a field that cannot be read is null, and only what is no object is left out.
    assert lenient.deserialize(b"[1]") is None and lenient.deserialize(b"null") is None
    assert lenient.deserialize(b'{"id": 1e30}') == lenient.deserialize(b'{"id": {}}') == (None,)
    several = builder().type_info("id int, tags array<int>, place struct<city: string, n: tinyint>")
    message = b'{"id": "q", "tags": [1, {}], "place": {"city": "a", "n": 999}}'
    assert several.ignore_parse_errors().build().deserialize(message) == (None, [1, None], ("a", None))
    strict = builder().type_info("id bigint, place struct<city: string>").fail_on_missing_field().build()
    with pytest.raises(ValueError, match="field 'city' is missing"):
        strict.deserialize(b'{"id": 1, "place": {}}')
    with pytest.raises(ConfigurationError, match="exclude each other"):
        builder().type_info("id bigint").fail_on_missing_field().ignore_parse_errors().build()
    with pytest.raises(ConfigurationError, match=r"needs type_info\(\)"):
        builder().build()
    with pytest.raises(ConfigurationError, match="JSON has no form for interval"):
        builder().type_info("took interval day to second").build()
    with pytest.raises(ConfigurationError, match="Names in JSON objects are texts"):
        builder().type_info("m map<bigint, string>").build()


def test_as_in_flink_a_text_is_read_for_a_number_and_anything_for_a_text() -> None:
    schema = reader("id bigint, small tinyint, ratio double, ok boolean, name string, names array<string>")
    message = rb"""{"id": " -5 ", "small": "7", "ratio": "1.5e3", "ok": "TRUE", "name": 1.50,
                  "names": ["a", 7, false, {"x": [1, "\u00e4"]}, null]}"""
    assert schema.deserialize(message) == (
        -5, 7, 1500.0, True, "1.50", ["a", "7", "false", '{"x":[1,"ä"]}', None],
    )  # fmt: skip


def test_json_is_written_without_spaces_as_flink_writes_it() -> None:
    schema = JsonRowSerializationSchema.builder().with_type_info("id int, place struct<city: string>, n array<int>")
    assert (
        schema.build().serialize(Row(1, Row("Köln"), [1, 2])) == '{"id":1,"place":{"city":"Köln"},"n":[1,2]}'.encode()
    )
    assert schema.build().serialize(Row(1, None, None)) == b'{"id":1,"place":null,"n":null}'


def test_decimals_are_written_as_numbers_and_times_with_a_z_as_flink_writes_them_and_reads_them() -> None:
    """What Flink's class wrote for these values; it refuses times without a Z."""
    described = "d decimal(38, 18), n array<decimal(10, 2)>, t time, at timestamp_ntz, i timestamp, name string"
    writer = JsonRowSerializationSchema.builder().with_type_info(described).build()
    for text in ("1.500000000000000000", "2.7000000000E-8", "0E-18", "12345678901234567890.123456789012345678"):
        written = writer.serialize(Row(Decimal(text), None, None, None, None, None)).decode()
        assert written.startswith(f'{{"d":{text},')
        assert json.loads(written, parse_float=Decimal)["d"] == Decimal(text)
    zone = timezone(timedelta(hours=2))
    row = Row(
        None, [Decimal("-1.50"), None], time(5, 15), datetime(2026, 1, 1), datetime(2026, 1, 1, 2, 0, 0, 5, zone), '"1"'
    )
    assert writer.serialize(row) == (
        rb'{"d":null,"n":[-1.50,null],"t":"05:15:00Z","at":"2026-01-01T00:00:00Z",'
        rb'"i":"2026-01-01T00:00:00.000005Z","name":"\"1\""}'
    )
    assert reader(described).deserialize(writer.serialize(row)) == row
    older = b'{"d":"1.5","n":["2.50"],"t":"05:15:00","at":"2026-01-01T00:00:00","i":"2026-01-01T00:00:00+00:00"}'
    assert reader(described).deserialize(older) == (
        Decimal("1.5"), [Decimal("2.50")], time(5, 15), datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), None,
    )  # fmt: skip
    with pytest.raises(ValueError, match="without a time zone"):
        reader(described).deserialize(b'{"at":"2026-01-01T00:00:00+02:00"}')


FLOATS = "f float, d double, l array<float>, m map<string, float>, s struct<f: float, deeper: array<struct<f: float>>>"


def test_a_float_has_the_digits_of_its_32_bits_wherever_it_stands() -> None:
    """As Java writes it, also where it needs an exponent."""
    writer = pickle.loads(pickle.dumps(JsonRowSerializationSchema.builder().with_type_info(FLOATS).build()))
    row = Row(0.1, 1e16, [1e10, None, 1.0e-5], {"x": 3.4028235e38}, Row(-0.1, [Row(16777216.0), None]))
    assert writer.serialize(row) == (
        b'{"f":0.1,"d":1.0E16,"l":[1.0E10,null,1.0E-5],"m":{"x":3.4028235E38},'
        b'"s":{"f":-0.1,"deeper":[{"f":1.6777216E7},null]}}'
    )
    assert writer.serialize((None,) * 5) == b'{"f":null,"d":null,"l":null,"m":null,"s":null}'
    changes = JsonRowSerializationSchema.builder().with_type_info(Types.CHANGELOG(["f"], [Types.FLOAT()])).build()
    assert changes.serialize(Row.of_kind(RowKind.DELETE, f=0.1)) == b'{"f":0.1,"row_kind":3}'
    for wrong in (float("nan"), float("-inf")):
        with pytest.raises(ValueError, match="is not a number in JSON"):
            writer.serialize((wrong, None, None, None, None))


@settings(max_examples=examples(300), deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_floating_numbers_come_back(single: float, double: float) -> None:
    writer = JsonRowSerializationSchema.builder().with_type_info(FLOATS).build()
    row = (single, double, [single], {"x": single}, (single, [(single,)]))
    written = writer.serialize(row)
    assert reader(FLOATS).deserialize(written) == row
    assert np.float32(json.loads(written)["f"]) == np.float32(single)


def test_what_is_no_number_of_json_is_not_written() -> None:
    writer = JsonRowSerializationSchema.builder().with_type_info(Types.ROW_NAMED(["any"], [Types.PICKLED_BYTE_ARRAY()]))
    for value in (Decimal("NaN"), Decimal("-Infinity"), float("nan")):
        with pytest.raises(ValueError, match="JSON"):
            writer.build().serialize(Row(value))


DOUBLED = {
    n: {"type": "object", "properties": {name: {"$ref": f"#/d/{n + 1}"} for name in "xy"}} for n in range(30)
} | {30: {"type": "string"}}


SCHEMA = """{
    "type": "object",
    "definitions": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
    "properties": {
        "id": {"type": "integer"}, "ratio": {"type": ["number", "null"]}, "ok": {"type": "boolean"},
        "day": {"type": "string", "format": "date"}, "clock": {"type": "string", "format": "time"},
        "at": {"type": "string", "format": "date-time"}, "mail": {"type": "string", "format": "email"},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "home": {"$ref": "#/definitions/place"},
        "other": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/place"}]}
    }
}"""


def test_a_row_of_changes_is_written_with_what_it_does_to_a_table() -> None:
    """A row that is deleted would be one that is there to whoever reads it."""
    changes = Types.CHANGELOG(["id", "name"], [Types.LONG(), Types.STRING()])
    deleted = Row.of_kind(RowKind.DELETE, id=1, name="kelp")
    schema = JsonRowSerializationSchema.builder().with_type_info(changes).build()
    assert schema.serialize(deleted) == b'{"id":1,"name":"kelp","row_kind":3}'
    assert CsvRowSerializationSchema.Builder(changes).build().serialize(deleted) == b"1,kelp,3\n"


def test_the_type_of_rows_is_said_by_a_json_schema_as_in_flink() -> None:
    schema = JsonRowDeserializationSchema.builder().json_schema(json_schema=SCHEMA).build()
    place = Types.ROW_NAMED(["city"], [Types.STRING()])
    assert schema.get_produced_type() == Types.ROW_NAMED(
        ["id", "ratio", "ok", "day", "clock", "at", "mail", "raw", "tags", "home", "other"],
        [
            Types.BIG_DEC(), Types.BIG_DEC(), Types.BOOLEAN(), Types.SQL_DATE(), Types.SQL_TIME(),
            Types.SQL_TIMESTAMP(), Types.STRING(), Types.PRIMITIVE_ARRAY(Types.BYTE()),
            Types.OBJECT_ARRAY(Types.STRING()), place, place,
        ],
    )  # fmt: skip
    message = (
        b'{"id": 1, "ratio": 0.5, "at": "2026-11-01T05:00:00Z", "raw": "eA==", "tags": ["a"], "home": {"city": "Kiel"}}'
    )
    row = schema.deserialize(message)
    assert row.as_dict(recursive=True) == {
        **dict.fromkeys(schema.get_produced_type().names), "id": Decimal(1), "ratio": Decimal("0.5"),
        "at": datetime(2026, 11, 1, 5), "raw": b"x", "tags": ["a"], "home": {"city": "Kiel"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "takes a JSON schema as a text"),
        ('{"type": "string"}', "of an object with properties"),
        ('{"type": "object"}', "of an object with properties"),
        ("[]", "<root> is not a schema"),
        ('{"anyOf": []}', "<root> is a union"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "number"]}}}', "<root>/a needs one type"),
        ('{"type": "object", "properties": {"a": {}}}', "<root>/a needs one type"),
        ('{"type": "object", "properties": {"a": {"type": "array"}}}', "<root>/a has type 'array'"),
        ('{"type": "object", "properties": {"a": {"type": "date"}}}', "<root>/a has type 'date'"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/b"}}}', "refers to '#/b', which does not exist"),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}}', "nested too deeply"),
        ("[" * 100_000, "a JSON schema as a text"),
        (json.dumps({"type": "object", "properties": {"a": {"$ref": "#/d/0"}}, "d": DOUBLED}), "more than 20000 parts"),
        ('{"type": "object", "properties": {"a": {"type": "string", "contentEncoding": "hex"}}}', "not 'base64'"),
    ],
)
def test_a_json_schema_of_which_there_is_no_type_is_refused_where_it_is_written(schema: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        JsonRowDeserializationSchema.builder().json_schema(schema)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be"])
def test_json_is_found_in_each_encoding_that_it_may_have(codec: str) -> None:
    schema = JsonRowDeserializationSchema.builder().type_info("id bigint, name string").build()
    assert schema.deserialize('{"id": 1, "name": "Zoë"}'.encode(codec)) == (1, "Zoë")
    assert schema.deserialize(' {"id": 1, "name": "Zoë"}'.encode(codec)) == (1, "Zoë")
