"""A line of a file has the values that a message with the same bytes has, or neither can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.datastream.formats import input_format
from holdfast.datastream.formats.csv import CsvReaderFormat, CsvRowDeserializationSchema
from holdfast.datastream.formats.json import JsonLinesFormat, JsonRowDeserializationSchema
from tests.examples import examples
from tests.fuzz.lines import read_as_messages, read_lines

COLUMNS = (
    "n bigint, tiny tinyint, word string, ok boolean, ratio double, part float, day date, clock time, raw binary, "
    "at timestamp, local timestamp_ntz, price decimal(9, 2), wei decimal(38, 18), unit decimal(38, 38)"
)
NAMES = [column.split()[0] for column in COLUMNS.split(", ") if not column[0].isdigit()]
SIGNS = st.sampled_from(["", "", "-", "+", " ", "0"])
NUMBERS = st.builds(
    "{}{}{}{}".format,
    SIGNS,
    st.integers(0, 10**40).map(str) | st.integers(0, 300).map(str) | st.sampled_from(["", "1", "9" * 400, "0" * 40]),
    st.sampled_from(["", "", ".", ".5", ".50", ".500", ".005", "." + "0" * 40, "." + "1" * 18, "." + "9" * 38]),
    st.sampled_from(["", "", "", "e1", "E-1", "e400", "E-41", "E-100000", "E-100000000", "e+5", "e"]),
)
WORDS = st.sampled_from(
    [
        "", "true", "True", "FALSE", "1", "0", "yes", "NaN", "nan", "Infinity", "-inf", "0x10", "-0X1F", "1_000", "-0",
        "-0.0", "null", "2026-11-29", "20261129", "0000-01-01", "2026-11-29T07:30:00", "2026-11-29 07:30", "07:30",
        "2026-11-29T07:30:00Z", "2026-11-29T07:30:00.123456789+02:00", "07:30:00.5", "23:59:60", "24:00:00", "YQ==",
        "YQ", " 7 ", "a b", "\u00e9", "\u2028", "16777217", "9007199254740993", "3.5e38", "1e39",
    ]
)  # fmt: skip
FORMS = st.sampled_from(["{}", "{}", '"{}"', '{}"', '"{}', '"{}"x', "{}\r"])
TEXTS = NUMBERS | WORDS
CSV = CsvReaderFormat.for_schema(COLUMNS), CsvRowDeserializationSchema.Builder(COLUMNS).build()
JSON = JsonLinesFormat(COLUMNS), JsonRowDeserializationSchema.builder().type_info(COLUMNS).build()
GOOD = ["7", "7", "a", "true", "0.5", "0.5", "2026-11-29", "07:30:00", "YQ==", "2026-11-29 07:30:00+00:00"]
GOOD += ["2026-11-29 07:30:00", "1.50", "1.5", "0.5"]
ONE_OTHER = st.tuples(
    st.sampled_from(NAMES), TEXTS, st.sampled_from(["{}", "{}", '"{}"', '{}"', '"{}', '"{}"x', "{}\r"])
)
EXACT = "12345678901234567890.123456789012345678"


@pytest.fixture(autouse=True, scope="module")
def without_company() -> Iterator[None]:
    """Lines that Arrow can read are read by Arrow, whatever lines there are beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_format, "_FEW", 0)
        yield


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(ONE_OTHER, min_size=1, max_size=6))
def test_a_line_of_csv_is_read_as_a_message(others: list[tuple[str, str, str]]) -> None:
    lines = [",".join(GOOD)]
    for name, text, form in others:
        at = NAMES.index(name)
        lines.append(",".join([*GOOD[:at], form.format(text), *GOOD[at + 1 :]]))
    content = "\n".join([*lines, lines[0]]).encode()
    assert repr(read_lines(CSV[0], content)) == repr(read_as_messages(CSV[1], content))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(ONE_OTHER, min_size=1, max_size=6))
def test_a_line_of_json_is_read_as_a_message(others: list[tuple[str, str, str]]) -> None:
    numbers = ("n", "tiny", "ratio", "part")
    good = {
        name: text if name in numbers else json.dumps(text) if name != "ok" else text
        for name, text in zip(NAMES, GOOD, strict=True)
    }
    rows = [good, *(good | {name: form.format(text)} for name, text, form in others), good]
    content = "\n".join(
        f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in row.items())}}}" for row in rows
    ).encode()
    assert repr(read_lines(JSON[0], content)) == repr(read_as_messages(JSON[1], content))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("decimal(38,18)", "1000000000000000000000000000000"), ("decimal(38,18)", "10000000000000000000000"),
        ("decimal(38,18)", "12345678901234567890123456789012345678"), ("decimal(38,2)", "9" * 38),
        ("decimal(38,37)", "1000000000000000"), ("decimal(10,2)", "1767225600"), ("decimal(9,2)", "123456789"),
        ("decimal(10,2)", "1E-41"), ("decimal(38,18)", "1E-100000"), ("decimal(38,18)", "1E-100000000"),
        ("decimal(38,18)", "1E-2000000000"), ("decimal(9,2)", "1.005"), ("double", "9" * 400), ("float", "1e39"),
        ("double", "1e999"), ("boolean", "yes"), ("boolean", "2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_unreadable_line(kind: str, text: str) -> None:
    for form, content in (
        (JsonLinesFormat(f"n bigint, a {kind}"), f'{{"n": 1}}\n{{"a": {text}}}\n{{"a": "{text}"}}\n{{"n": 2}}\n'),
        (CsvReaderFormat.for_schema(f"n bigint, a {kind}"), f"1,\n1,{text}\n2,\n"),
    ):
        rows, refused = read_lines(form, content.encode())
        assert len(rows) == 2
        assert [line for _, line in refused] == content.encode().split(b"\n")[1:-2]


@pytest.mark.parametrize(
    ("columns", "csv", "json_value", "value"),
    [
        ("a decimal(38,18)", EXACT, None, Decimal(EXACT)),
        ("a decimal(9,2)", "1.5e3", None, Decimal("1500.00")),
        ("a decimal(38,38)", "0." + "1" * 38, None, Decimal("0." + "1" * 38)),
        ("a bigint", "0010", '"0010"', 10),
        ("a boolean", "1", None, True),
        ("a boolean", "FALSE", '"FALSE"', False),
        ("a binary", "YQ==", '"YQ=="', b"a"),
        ("a double", "1e-400", None, 0.0),
        ("a char(3)", "x", '"x"', "x  "),
        ("a time", "07:30", '"07:30"', time(7, 30)),
        ("a string", "", '{"x": 0.1000000000000000000001, "y": [12345678901234567890123]}', None),
    ],
)  # fmt: skip
def test_files_and_messages_have_the_same_values(columns: str, csv: str, json_value: Any, value: Any) -> None:
    of_json, of_csv = JsonLinesFormat(columns), CsvReaderFormat.for_schema(columns)
    line, messages = f'{{"a": {json_value or csv}}}'.encode(), JsonRowDeserializationSchema.builder()
    [row], [message] = read_lines(of_json, line)[0], [messages.type_info(columns).build().deserialize(line)]
    expected = json_value.replace(" ", "") if value is None else value
    assert tuple(row) == tuple(message) == (expected,)
    if value is not None:
        assert [tuple(row) for row in read_lines(of_csv, csv.encode())[0]] == [(value,)]


def test_quoted_lines_with_ends_of_lines_are_read_exactly_too() -> None:
    lines = CsvReaderFormat.for_schema("word string, wei decimal(38,18), ok boolean", multi_line=True)
    [batch] = lines.parse(b'"a\nb",1.5,1\n"c ""d""\r\ne",1e3,true\n')
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        ("a\nb", Decimal("1.5"), True), ('c "d"\r\ne', Decimal(1000), True),
    ]  # fmt: skip
    for wrong, reason in (
        (b'"a\nb",1E-100000000,1\n', "field 'wei'"),
        (b'"a\nb"x,1,1\n', "text follows"),
        (b'a,1,1\n"b,1,1\n', "not closed"),
    ):
        with pytest.raises(ValueError, match=reason):
            list(lines.parse(wrong))
