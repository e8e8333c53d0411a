"""Rows from and to the binary form of Avro: what is written is read back, and bytes of others are one clear error."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import Row, Types
from holdfast.datastream.formats.avro import AvroRowDeserializationSchema, AvroRowSerializationSchema
from holdfast.errors import ConfigurationError
from holdfast.types.avro import avro_type


def record(*fields: tuple[str, Any], name: str = "Sale") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def nested(times: int) -> Any:
    return {"type": "array", "items": nested(times - 1)} if times else "int"


def doubled(times: int) -> list[tuple[str, Any]]:
    """Fields of records, each of which has the one before it inside twice."""
    links: list[tuple[str, Any]] = [("f0", record(("x", "int"), name="A0"))]
    for n in range(1, times):
        links.append((f"f{n}", record(("x", f"A{n - 1}"), ("y", f"A{n - 1}"), name=f"A{n}")))
    return links


EVERYTHING = json.dumps(
    record(
        ("id", "long"),
        ("n", "int"),
        ("name", ["null", "string"]),
        ("ratio", "double"),
        ("ok", "boolean"),
        ("raw", "bytes"),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("clock", {"type": "int", "logicalType": "time-millis"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["KELP", "ROCK"]}),
        ("code", {"type": "fixed", "name": "Code", "size": 2}),
        ("tags", {"type": "array", "items": "string"}),
        ("sizes", {"type": "map", "values": "int"}),
        ("place", record(("city", "string"), ("rank", "int"), name="Place")),
        ("stops", {"type": "array", "items": "Place"}),
    )
)
OSLO = Row(city="Oslo", rank=1)
ROW = Row(
    id=-(2**62), n=7, name=None, ratio=0.5, ok=True, raw=b"\x00\xff", price=Decimal("-1.50"), day=date(2026, 11, 1),
    clock=time(5, 15), at=datetime(2026, 11, 1, 5, tzinfo=UTC), kind="ROCK", code=b"ab", tags=["a", ""],
    sizes={"x": 1}, place=OSLO, stops=[OSLO, Row(city="", rank=-1)],
)  # fmt: skip


def pair(schema: str) -> tuple[AvroRowSerializationSchema, AvroRowDeserializationSchema]:
    """What writes, and what reads, after a way through pickle."""
    both = (
        AvroRowSerializationSchema(avro_schema_string=schema),
        AvroRowDeserializationSchema(avro_schema_string=schema),
    )
    writes, reads = pickle.loads(pickle.dumps(both))
    return writes, reads


def test_a_row_of_every_type_comes_back() -> None:
    writes, reads = pair(EVERYTHING)
    found = reads.deserialize(writes.serialize(ROW))
    assert found == ROW and found.place.city == "Oslo" and isinstance(found.stops[1], Row)
    assert reads.get_produced_type().adopt(ROW) == ROW


def test_what_is_nested_ninety_times_is_read_and_written() -> None:
    writes, reads = pair(json.dumps(record(("x", nested(90)))))
    value: Any = 7
    for _ in range(90):
        value = [value]
    assert reads.deserialize(writes.serialize((value,))) == (value,)


def test_bytes_are_those_of_avros_specification() -> None:
    writes, reads = pair(json.dumps(record(("n", "long"), ("word", "string"))))
    assert writes.serialize((-64, "foo")) == b"\x7f\x06foo"
    assert reads.deserialize(b"\x80\x01\x02a") == (64, "a")
    assert reads.get_produced_type() == Types.ROW_NAMED(["n", "word"], [Types.LONG(), Types.STRING()])


@given(st.binary(max_size=40))
def test_bytes_of_others_are_a_row_or_a_value_error(message: bytes) -> None:
    writes, reads = pair(json.dumps(record(("n", "long"), ("words", {"type": "array", "items": "string"}))))
    try:
        row = reads.deserialize(message)
    except ValueError as error:
        assert "it is no Avro of" in str(error)
    else:
        assert reads.deserialize(writes.serialize(row)) == row


def test_what_does_not_fit_is_told() -> None:
    writes, reads = pair(EVERYTHING)
    with pytest.raises(ValueError, match="1 bytes are too many"):
        reads.deserialize(writes.serialize(ROW) + b"\x00")
    with pytest.raises(ValueError, match="no record of the Avro schema"):
        writes.serialize((None, *ROW[1:]))
    kind = list(ROW._names).index("kind")
    with pytest.raises(ValueError, match="no record of the Avro schema"):
        writes.serialize((*ROW[:kind], "SAND", *ROW[kind + 1 :]))
    for wrong, reason in (
        ({"record_class": "org.example.Sale"}, "a class of Java"),
        ({"avro_schema_string": "{"}, "not JSON"),
        ({"avro_schema_string": '{"type": "record", "name": "Empty", "fields": []}'}, "has no fields"),
        ({"avro_schema_string": json.dumps(record(("x", ["int", "string"])))}, "2 types beside null"),
        ({"avro_schema_string": json.dumps(record(("x", ["null", "Sale"])))}, "'Sale' contains itself"),
        ({"avro_schema_string": json.dumps(record(("x", nested(99))))}, "nested more than 100 times"),
        ({"avro_schema_string": json.dumps(record(*doubled(60)))}, "more than 20000 parts"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            AvroRowDeserializationSchema(**wrong)


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


MONEY = logical("fixed", "decimal", name="Money", size=4, precision=9, scale=2)
CENTS = logical("bytes", "decimal", precision=9, scale=2)
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "since", "type": logical("int", "date")}]}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (logical("int", "date"), 1, date(1970, 1, 2)),
        (logical("int", "time-millis"), 1500, time(0, 0, 1, 500_000)),
        (logical("long", "time-micros"), 1, time(0, 0, 0, 1)),
        (logical("long", "timestamp-millis"), 0, datetime(1970, 1, 1, tzinfo=UTC)),
        (logical("long", "timestamp-micros"), -1, datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        (logical("long", "local-timestamp-millis"), 86_400_000, datetime(1970, 1, 2)),
        (CENTS, "\u00ff", Decimal("-0.01")),
        (MONEY, "\u0000\u0000\u0001\u0000", Decimal("2.56")),
        ([logical("int", "date"), "null"], 0, date(1970, 1, 1)),
        (["null", logical("int", "date")], None, None),
        ({"type": "array", "items": "bytes"}, ["\u0001", "a"], [b"\x01", b"a"]),
        ({"type": "map", "values": logical("int", "date")}, {"x": 0}, {"x": date(1970, 1, 1)}),
        (PLACE, {"since": 0}, {"since": date(1970, 1, 1)}),
        ("long", 7, 7),
    ],
    ids=str,
)
def test_a_default_is_a_value_of_its_field_also_where_avro_writes_it_as_a_number_or_a_text(
    kind: Any, default: Any, value: Any
) -> None:
    before = avro_type(record(("id", "int")))
    schema = record(("id", "int"))
    schema["fields"].append({"name": "more", "type": kind, "default": default})
    now = avro_type(json.dumps(schema))
    assert now.migrate({"id": 1}, before) == {"id": 1, "more": value}
    assert type(now.defaults["more"]) is type(value)


def test_a_default_that_is_none_of_its_type_is_told() -> None:
    for kind, default in ((logical("int", "date"), "yesterday"), ("bytes", 5), ("long", "x"), (CENTS, 1)):
        schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind, "default": default}]}
        with pytest.raises(ConfigurationError, match=r"default .*field 'x'"):
            avro_type(schema)


def test_a_decimal_of_a_fixed_size_is_named_again() -> None:
    writes, reads = pair(json.dumps(record(("price", MONEY), ("paid", ["null", "Money"]))))
    row = (Decimal("12.50"), Decimal("-0.01"))
    assert reads.deserialize(writes.serialize(row)) == row
    assert reads.deserialize(writes.serialize((Decimal("1.00"), None))) == (Decimal(1), None)


ID = UUID(int=5)
NANOS = -1_500
MONTH = b"\x01\x00\x00\x00" * 3
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999_000)
LOGICAL = {
    "date": (logical("int", "date"), -1, date(1969, 12, 31)),
    "time-millis": (logical("int", "time-millis"), 1500, time(0, 0, 1, 500_000)),
    "time-micros": (logical("long", "time-micros"), 1, time(0, 0, 0, 1)),
    "timestamp-millis": (logical("long", "timestamp-millis"), -1, BEFORE.replace(tzinfo=UTC)),
    "timestamp-micros": (logical("long", "timestamp-micros"), -1000, BEFORE.replace(tzinfo=UTC)),
    "timestamp-nanos": (logical("long", "timestamp-nanos"), NANOS, NANOS),
    "local-timestamp-millis": (logical("long", "local-timestamp-millis"), -1, BEFORE),
    "local-timestamp-micros": (logical("long", "local-timestamp-micros"), -1000, BEFORE),
    "local-timestamp-nanos": (logical("long", "local-timestamp-nanos"), NANOS, NANOS),
    "decimal": (CENTS, b"\xff", Decimal("-0.01")),
    "decimal of a fixed size": (MONEY, b"\x00\x00\x01\x00", Decimal("2.56")),
    "uuid": (logical("string", "uuid"), str(ID), str(ID)),
    "uuid of a fixed size": (logical("fixed", "uuid", name="Id", size=16), ID.bytes, ID.bytes),
    "duration": (logical("fixed", "duration", name="Span", size=12), MONTH, MONTH),
    "date of a long": (logical("long", "date"), 2**40, 2**40),
    "timestamp of an int": (logical("int", "timestamp-millis"), 5, 5),
    "an unknown one": (logical("string", "colour"), "red", "red"),
}
AROUND: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "alone": (lambda kind: kind, lambda value: value),
    "or null": (lambda kind: ["null", kind], lambda value: value),
    "in an array": (lambda kind: {"type": "array", "items": ["null", kind]}, lambda value: [value, None]),
    "in a map": (lambda kind: {"type": "map", "values": kind}, lambda value: {"k": value}),
    "in a record": (lambda kind: record(("y", kind), name="Inner"), lambda value: {"y": value}),
}


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return list(map(without_logical_types, schema))
    if not isinstance(schema, dict):
        return schema
    return {name: without_logical_types(part) for name, part in schema.items() if name != "logicalType"}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", LOGICAL)
def test_each_logical_type_is_read_from_its_bytes_and_written_to_them(name: str, around: str) -> None:
    kind, stored, value = LOGICAL[name]
    schema_around, value_around = AROUND[around]
    schema = record(("x", schema_around(kind)))
    message = io.BytesIO()
    underlying = fastavro.parse_schema(without_logical_types(schema))
    fastavro.schemaless_writer(message, underlying, {"x": value_around(stored)})
    writes, reads = pair(json.dumps(schema))
    [found] = reads.deserialize(message.getvalue())
    expected = value_around(value)
    assert (found.as_dict() if isinstance(found, Row) else found) == expected
    assert writes.serialize((expected,)) == message.getvalue()


def test_a_text_that_is_not_a_uuid_is_read_and_is_not_written() -> None:
    """Others may have written it as text, but readers in other languages refuse it."""
    writes, reads = pair(json.dumps(record(("id", logical("string", "uuid")))))
    assert reads.deserialize(b"\x06abc") == ("abc",)
    for text in ("abc", ID.hex, f"{{{ID}}}"):
        with pytest.raises(ValueError, match="is not a UUID"):
            writes.serialize((text,))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (logical("bytes", "decimal", precision=50, scale=2), "precision from 1 to 38"),
        (logical("bytes", "decimal", precision=5, scale=7), "scale from 0 to the precision"),
        (logical("bytes", "decimal", scale=2), "'precision'"),
        (MONEY | {"size": 2}, "2 bytes do not hold a decimal of 9 digits"),
        (["int", "string"], "2 types beside null"),
    ],
    ids=str,
)
def test_what_rows_cannot_have_is_refused_with_the_name_of_its_field(kind: Any, reason: str) -> None:
    schema = json.dumps(record(("id", "long"), ("place", record(("price", kind), name="Place"))))
    for schema_class in (AvroRowDeserializationSchema, AvroRowSerializationSchema):
        with pytest.raises(ConfigurationError, match=f"(?s)'place'.*'price'.*{reason}"):
            schema_class(avro_schema_string=schema)
