"""Many JSON messages at once, read and written by columns, are what one message after the other gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Types
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema
from holdfast.datastream.connectors.kafka.kafka_source import _ValueDecoder
from holdfast.datastream.formats import json as of_json
from holdfast.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.types.arrow import batch_to_elements, elements_to_batch
from holdfast.types.serialization import SerializationSchema, SimpleStringSchema
from tests.examples import examples
from tests.unit.datastream.test_json_lines import COLUMNS, MESSAGES, OBJECTS

MANY = 300
USUAL = [b'{"n": %d, "word": "w%d"}' % (n, n) for n in range(MANY)]
FEW = USUAL[:20]  # are parsed by Python, and many by Arrow


def by_columns(messages: list[bytes]) -> list[Any] | None:
    batch = MESSAGES.deserialize_batch(messages)
    return None if batch is None else batch_to_elements(batch, MESSAGES.get_produced_type())


def singly(messages: list[bytes]) -> list[Any] | None:
    try:
        return [MESSAGES.deserialize(message) for message in messages]
    except ValueError:
        return None


@pytest.mark.parametrize("usual", [USUAL[:1], FEW, USUAL])
def test_usual_messages_are_read_by_columns(usual: list[bytes]) -> None:
    assert by_columns(usual) == singly(usual)


@pytest.mark.parametrize("usual", [[], FEW, USUAL])
@settings(max_examples=examples(100), deadline=None)
@given(rows=st.lists(OBJECTS, min_size=1, max_size=4))
def test_rows_are_those_of_single_messages(usual: list[bytes], rows: list[Any]) -> None:
    messages = [*usual, *(json.dumps(row).encode() for row in rows)]
    found, expected = by_columns(messages), singly(messages)
    assert found == expected if usual != USUAL else found in (None, expected)


@pytest.mark.parametrize(
    "messages",
    [
        [b""], [b" "], [b"null"], [b"[]"], [b'{"n": 1} {"n": 2}', b""], [b'{"n": 1}\n{"n": 2}', b""],
        [b'{"n": 1},{"n": 2}'], [b'{"days": [', b"]}"], [b'{"place": {}', b"}"], [b'{"n":\n1}'], [b'{"n": NaN}'],
        ['{"n": 1}'.encode("utf-16")], [b'{"word": "\xff"}'], [b'{"n": 1}\r\n{"n": 2}', b"\r"],
    ],
)  # fmt: skip
def test_messages_that_are_not_one_object_each_are_left_to_single_reads(messages: list[bytes]) -> None:
    for at in (0, 10, MANY):
        assert by_columns([*USUAL[:at], *messages, *USUAL[at:]]) is None
        few = [*FEW[:at], *messages, *FEW[at:]]
        assert by_columns(few) == singly(few)


def test_strict_schemas_read_messages_one_by_one() -> None:
    strict = JsonRowDeserializationSchema.builder().type_info(COLUMNS).fail_on_missing_field().build()
    assert strict.deserialize_batch(FEW) is None
    assert strict.deserialize_batch(USUAL) is None


@pytest.mark.parametrize("ddl", ["bigint", "int", "tinyint", "array<int>", "map<string, int>", "struct<a: int>"])
@pytest.mark.parametrize("number", [2**31, 2**63, -(2**63) - 1, 10**40])
def test_whole_numbers_that_are_too_large_are_left_to_single_reads(ddl: str, number: int) -> None:
    nested = {"array<int>": [number], "map<string, int>": {"a": number}, "struct<a: int>": {"a": number}}
    message = json.dumps({"n": nested.get(ddl, number)}).encode()
    builder = JsonRowDeserializationSchema.builder().type_info(f"n {ddl}")
    fits = ddl == "bigint" and number == 2**31
    assert (builder.build().deserialize_batch([message]) is not None) is fits
    assert (builder.ignore_parse_errors().build().deserialize_batch([message]) is not None) is fits


def test_errors_of_few_messages_are_ignored_one_by_one() -> None:
    builder = JsonRowDeserializationSchema.builder().type_info("n bigint, word string")
    lenient = builder.ignore_parse_errors().build()
    assert lenient.deserialize_batch([b'{"n": 1}', b'{"n": "kelp"}']) is None
    assert lenient.deserialize_batch([b'{"n": 1}', b"{"]) is None
    assert lenient.deserialize_batch([b'{"n": "1", "word": 7}']).to_pylist() == [{"n": 1, "word": "7"}]  # type: ignore[union-attr]


def test_a_schema_that_extends_ours_gets_each_message_itself() -> None:
    class Doubled(JsonRowDeserializationSchema):
        def deserialize(self, message: bytes) -> Any:
            n, *rest = super().deserialize(message)
            return (2 * n, *rest)

    class Shouted(JsonRowSerializationSchema):
        def serialize(self, element: Any) -> bytes:
            return super().serialize(element).upper()

    doubled = Doubled(MESSAGES.get_produced_type(), fails_on_missing=False, ignores_errors=False)
    shouted = Shouted(Types.ROW_NAMED(["n"], [Types.LONG()]))
    assert doubled.deserialize_batch(USUAL) is None
    assert shouted.serialize_batch(pa.record_batch({"n": pa.array([1])})) is None


class Miscounting(JsonRowDeserializationSchema):
    def deserialize_batch(self, messages: Sequence[bytes]) -> pa.RecordBatch | None:
        return pa.record_batch({"n": pa.array([1])})


def test_a_batch_that_has_not_a_row_for_each_message_is_refused() -> None:
    schema = Miscounting(Types.ROW_NAMED(["n"], [Types.LONG()]), fails_on_missing=False, ignores_errors=False)
    with pytest.raises(ValueError, match=r"Miscounting returned 1 rows with the columns .* for 2 messages"):
        _ValueDecoder(schema).decode(pa.record_batch({"value": pa.array([b"{}", None, b"{}"])}))


def test_values_of_a_schema_without_batches_are_left_to_single_reads() -> None:
    assert _ValueDecoder(SimpleStringSchema()).decode(pa.record_batch({"value": pa.array([b"kelp"])})) is None


# Writing

KINDS: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-128, 127), "bigint": st.integers(-(2**63), 2**63 - 1), "boolean": st.booleans(),
    "string": st.text(max_size=8), "double": st.floats(), "float": st.floats(width=32), "date": st.dates(),
    "timestamp_ntz": st.datetimes(), "time": st.times(), "binary": st.binary(max_size=4),
    "decimal(10, 2)": st.decimals(-(10**6), 10**6, places=2), "array<int>": st.lists(st.integers(0, 9), max_size=2),
    "struct<a: int, b: string>": st.tuples(st.integers(0, 9), st.text(max_size=3)),
}  # fmt: skip
NAMES = ["n", "%s", 'a "quoted" name', "größe", "100%"]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=len(NAMES)))
    row_type = Types.ROW_NAMED(NAMES[: len(kinds)], [of_kind(kind) for kind in kinds])
    rows = draw(st.lists(st.tuples(*(st.none() | KINDS[kind] for kind in kinds)), min_size=1, max_size=4))
    return row_type, rows


def of_kind(kind: str) -> Any:
    return JsonRowSerializationSchema.builder().with_type_info(f"v {kind}").build()._type.types[0]


def written(schema: JsonRowSerializationSchema, row: Any) -> bytes | None:
    try:
        return schema.serialize(row)
    except ValueError:
        return None


@settings(max_examples=examples(300), deadline=None)
@given(tables())
def test_what_is_written_by_columns_is_what_single_rows_give(table: tuple[Any, list[Any]]) -> None:
    row_type, rows = table
    schema = JsonRowSerializationSchema(row_type)
    singly = [written(schema, row) for row in rows]
    together = schema.serialize_batch(elements_to_batch(rows, row_type, "rows"))
    if together is not None:
        assert together == singly
    for row, text in zip(rows, singly, strict=True):
        if text is not None:
            assert text == former_text(row_type, row)


def former_text(row_type: Any, row: Any) -> bytes:
    """How each row was written before writers were made once for a type."""
    numbers, adopted = of_json.json_number_formatter(row_type), row_type.adopt(row)
    return of_json.flink_json_text(adopted if numbers is None else numbers(adopted)).encode()


def test_flat_rows_are_written_by_columns() -> None:
    row_type = Types.ROW_NAMED(["word", "n", "ok"], [Types.STRING(), Types.LONG(), Types.BOOLEAN()])
    batch = elements_to_batch([("kelp", 7, True), (None, None, None), ('"\n', -1, False)], row_type, "rows")
    assert JsonRowSerializationSchema(row_type).serialize_batch(batch) == [
        b'{"word":"kelp","n":7,"ok":true}',
        b'{"word":null,"n":null,"ok":null}',
        b'{"word":"\\"\\n","n":-1,"ok":false}',
    ]


def test_records_of_columns_are_those_of_rows() -> None:
    row_type = Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()])
    values = JsonRowSerializationSchema(row_type)
    rows: list[tuple[Any, ...]] = [("kelp", 7), ("cod", None)]
    batch = elements_to_batch(rows, row_type, "rows")
    builder = KafkaRecordSerializationSchema.builder().set_topic("counts").set_value_serialization_schema(values)
    schema = builder.build()
    times = [1_000, None]
    singly = [schema.serialize(row, at) for row, at in zip(rows, times, strict=True)]
    assert schema.serialize_batch(batch, pa.array(times, pa.int64())) == singly
    assert schema.serialize_batch(batch, None) == [schema.serialize(row, None) for row in rows]
    keyed = builder.set_key_serialization_schema(lambda row: row[0]).build()
    assert keyed.serialize_batch(batch, None) is None  # a function gets the rows


class Forgetful(SerializationSchema):
    def serialize(self, element: Any) -> bytes:
        return b""

    def serialize_batch(self, batch: pa.RecordBatch) -> list[bytes]:
        return [b""]


class Textual(Forgetful):
    def serialize_batch(self, batch: pa.RecordBatch) -> Any:
        return [""] * batch.num_rows


@pytest.mark.parametrize("schema", [Forgetful(), Textual()])
def test_a_schema_that_has_not_bytes_for_each_element_is_refused(schema: SerializationSchema) -> None:
    records = KafkaRecordSerializationSchema.builder().set_topic("counts").set_value_serialization_schema(schema)
    with pytest.raises(TypeError, match="must return bytes or None for each of the 2 elements"):
        records.build().serialize_batch(pa.record_batch({"n": pa.array([1, 2])}), None)


def test_no_columns_are_made_for_functions() -> None:
    records = (
        KafkaRecordSerializationSchema.builder().set_topic("counts").set_value_serialization_schema(lambda row: b"")
    )
    assert not records.build().takes_columns
