"""Rows from and to lines of CSV: what is written is read back, in the bytes that Flink writes, or one clear error."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import ByteArraySchema, Row, Types
from holdfast.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from holdfast.errors import ConfigurationError
from tests.examples import examples

EVERYTHING = """
    id bigint, small tinyint, name string, code char(3), ratio double, single float, price decimal(10, 2), ok boolean,
    raw binary, day date, clock time, at timestamp, local timestamp_ntz, tags array<string>, sizes array<int>
"""
ROW = Row(
    id=-(2**62), small=-3, name='kelp, "rock" ☃\nand sand', code="ab ", ratio=0.1, single=0.5, price=Decimal("1.50"),
    ok=False, raw=b"\x00\xff", day=date(2026, 11, 1), clock=time(5, 15), at=datetime(2026, 11, 1, 5, tzinfo=UTC),
    local=datetime(2026, 11, 1, 5, 0, 0, 1), tags=["a", "b, c"], sizes=[1, -2],
)  # fmt: skip
MARKS = st.sampled_from(list(",\"\\;|\t' aä\n\r#"))


def pair(
    described: Any, delimiter: str = ",", escape: str | None = None, null: str | None = None, quote: str = '"'
) -> tuple[CsvRowSerializationSchema, CsvRowDeserializationSchema]:
    """What writes, and what reads, after a way through pickle."""
    built = []
    for kind in (CsvRowSerializationSchema, CsvRowDeserializationSchema):
        builder = kind.Builder(described).set_field_delimiter(delimiter).set_quote_character(quote)
        if escape is not None:
            builder.set_escape_character(escape)
        if null is not None:
            builder.set_null_literal(null)
        built.append(pickle.loads(pickle.dumps(builder.build())))
    return built[0], built[1]


@pytest.mark.parametrize(("delimiter", "escape", "null"), [(",", None, None), ("|", "\\", "NULL"), ("\t", None, "")])
def test_a_row_of_every_type_comes_back(delimiter: str, escape: str | None, null: str | None) -> None:
    writes, reads = pair(EVERYTHING, delimiter, escape, null)
    assert reads.deserialize(writes.serialize(ROW)) == ROW
    assert reads.get_produced_type().adopt(ROW) == ROW
    if null is not None:
        nothing = tuple(None for _ in ROW)
        assert reads.deserialize(writes.serialize(nothing)) == nothing


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.text(MARKS, max_size=30), min_size=2, max_size=3), st.sampled_from([None, "\\", "'"]))
def test_a_text_with_marks_of_csv_comes_back(texts: list[str], escape: str | None) -> None:
    described = Types.ROW([Types.STRING()] * len(texts))
    writes, reads = pair(described, escape=escape)
    assert reads.deserialize(writes.serialize(tuple(texts))) == tuple(texts)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (("kelp", 7), b"kelp,7\n"),
        (("kelp rock", -7), b'"kelp rock",-7\n'),  # a space comes before the comma
        (("x" * 24, 1), b"x" * 24 + b",1\n"),
        (("x" * 25, 1), b'"' + b"x" * 25 + b'",1\n'),
        (('say "no"', 1), b'"say ""no""",1\n'),
        (("", None), b",\n"),
    ],
)
def test_lines_are_those_of_flink(value: tuple[Any, ...], line: bytes) -> None:
    writes, _ = pair("name string, n int")
    assert writes.serialize(value) == line


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ((0.1, 0.1, [0.1]), b"0.1,0.1,0.1\n"),
        ((float("nan"), float("inf"), [float("-inf"), None]), b"NaN,Infinity,-Infinity;\n"),
        ((1e20, 1e-5, [3.0]), b"1.0E20,1.0E-5,3.0\n"),
    ],
)
def test_floating_point_numbers_are_those_of_java(value: tuple[Any, ...], line: bytes) -> None:
    """Java reads no "nan" and no "inf", and a FLOAT of 0.1 is not 0.10000000149011612."""
    writes, reads = pair("single float, ratio double, singles array<float>", null="")
    assert writes.serialize(value) == line
    assert writes.serialize(reads.deserialize(line)) == line


def test_a_quote_is_doubled_and_an_escape_too_where_there_is_one() -> None:
    writes, reads = pair("name string, n int", escape="\\")
    assert writes.serialize(('a"\\b', 1)) == b'"a""\\\\b",1\n'
    assert writes.serialize(("a\\b", 1)) == b'"a\\\\b",1\n'
    assert reads.deserialize(b'"a\\"b",1') == reads.deserialize(b'"a""b",1') == ('a"b', 1)


def test_a_line_may_have_no_end_no_quotes_and_arrays() -> None:
    builder = CsvRowSerializationSchema.Builder("name string, tags array<string>").disable_quote_character()
    schema = builder.set_line_delimiter("").set_array_element_delimiter("/").set_null_literal("-").build()
    assert schema.serialize(("a b", ["x", None])) == b"a b,x/-"


def test_an_empty_value_is_null_except_for_texts_binaries_and_arrays() -> None:
    schema = "n int, d double, x decimal(9, 2), ok boolean, day date, name string, raw binary, tags array<string>"
    row = CsvRowDeserializationSchema.Builder(schema).build().deserialize(b",,,,,,,")
    assert tuple(row) == (None, None, None, None, None, "", b"", [])
    assert CsvRowSerializationSchema.Builder(schema).set_line_delimiter("").build().serialize(row) == b",,,,,,,"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "0 lines"),
        (b"1", "1 values, and the type 2"),
        (b"1,a,b", "3 values"),
        (b"1,a\n2,b", "2 lines"),
        (b"x,a", "field 'n'"),
        (b"9999999999,a", "32 bits"),
        (b'1,"a', "unexpected end"),
        (b"1,\xff", "can't decode"),
    ],
)
def test_what_is_no_line_is_one_error_or_is_left_out(line: bytes, reason: str) -> None:
    builder = CsvRowDeserializationSchema.Builder("n int, name string")
    with pytest.raises(ValueError, match=reason):
        builder.build().deserialize(line)
    lenient = builder.set_ignore_parse_errors(True).build()
    # As in Flink a value that cannot be read, or is missing, is null, and only a line that is none is left out.
    read = {b"1": (1, None), b"x,a": (None, "a"), b",a": (None, "a"), b"9999999999,a": (None, "a")}
    assert lenient.deserialize(line) == read.get(line)


def test_a_row_in_a_row_stands_like_an_array_as_in_flink() -> None:
    described = Types.ROW([Types.STRING(), Types.ROW([Types.STRING(), Types.INT()]), Types.STRING()])
    writes, reads = (
        kind.Builder(described).set_array_element_delimiter(":").set_null_literal("-").set_quote_character("'").build()
        for kind in (CsvRowSerializationSchema, CsvRowDeserializationSchema)
    )
    for row, line in (
        (Row("a", Row("b c", 1), "d"), b"a,'b c:1',d\n"),
        (Row("a", Row(None, None), "d"), b"a,-:-,d\n"),
        (Row("a", None, "d"), b"a,-,d\n"),
    ):
        assert writes.serialize(row) == line
        assert reads.deserialize(line) == row
    assert reads.deserialize(b"a,,d") == Row("a", None, "d")
    with pytest.raises(ValueError, match="it has 3 values, and the row 2"):
        reads.deserialize(b"a,b:1:2,d")


@pytest.mark.parametrize("kind", ["int", "bigint", "double", "decimal(10, 2)", "array<int>"])
@pytest.mark.parametrize("text", ["1_000", "\u0661", "1\u00a0"])
def test_what_only_python_takes_for_a_number_is_none(kind: str, text: str) -> None:
    _, reads = pair(f"n {kind}")
    assert reads.deserialize(b" 1 ") == reads.deserialize(b"1")
    with pytest.raises(ValueError, match="is not a number"):
        reads.deserialize(text.encode())


def test_a_long_text_comes_back() -> None:
    writes, reads = pair("name string, n int")
    row = ("kelp " * 100_000, 7)
    assert reads.deserialize(writes.serialize(row)) == row


def test_a_comment_is_left_out() -> None:
    builder = CsvRowDeserializationSchema.Builder("name string, n int")
    assert builder.build().deserialize(b"#kelp,1") == ("#kelp", 1)
    assert builder.set_allow_comments(True).build().deserialize(b"#kelp,1") is None


def test_what_csv_has_no_form_for_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match="no form for map"):
        CsvRowSerializationSchema.Builder("sizes map<string, int>").build()
    with pytest.raises(ConfigurationError, match="one character"):
        CsvRowDeserializationSchema.Builder("n int").set_field_delimiter("::")
    with pytest.raises(ConfigurationError, match="are different ones"):
        CsvRowDeserializationSchema.Builder("n int").set_quote_character(",")
    with pytest.raises(ConfigurationError, match="type of its rows"):
        CsvRowSerializationSchema.Builder(None)


def test_bytes_stay_as_they_are() -> None:
    schema = ByteArraySchema()
    assert schema.deserialize(schema.serialize(bytearray(b"\x00kelp"))) == b"\x00kelp"
    assert schema.get_produced_type() == Types.BINARY()
    with pytest.raises(TypeError, match="map the stream first"):
        schema.serialize("kelp")
