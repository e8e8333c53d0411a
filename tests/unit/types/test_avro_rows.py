"""Rows from and to the binary form of Avro: what is written is read back, and bytes of others are one clear error."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

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
