"""Lines of JSON are read by columns, and what is read is what reading one message after the other gives."""

from __future__ import annotations

import base64
import codecs
import json
from datetime import UTC, date, datetime, time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.datastream.formats import json as of_json
from holdfast.datastream.formats.json import JsonLinesFormat, JsonRowDeserializationSchema
from holdfast.types.arrow import batch_to_elements
from tests.examples import examples

COLUMNS = (
    "n bigint, word string, ok boolean, ratio double, part float, day date, clock time, raw binary, at timestamp, "
    "local timestamp_ntz, price decimal(10, 2), days array<date>, place struct<day: date, clock: time, n: int>"
)
LINES = JsonLinesFormat(COLUMNS)
MESSAGES = JsonRowDeserializationSchema.builder().type_info(COLUMNS).build()

DAYS = st.dates().map(date.isoformat) | st.sampled_from(["20201231", "2020-W01-1", "0000-01-01", "10000-01-01", ""])
CLOCKS = st.times().map(time.isoformat) | st.sampled_from(
    [
        "12",
        "12:30",
        "T12:30",
        "123000",
        "12:30:00.5",
        "12:30:00.1234567",
        "24:00",
        "12:30Z",
        "12:30+01:00",
        " 12:30",
        "",
    ]
)
MOMENTS = st.datetimes().map(datetime.isoformat) | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
RAW = st.binary(max_size=5).map(lambda raw: base64.b64encode(raw).decode()) | st.sampled_from(["A", "AA==\n", "é"])
NUMBERS = st.integers(-(2**31), 2**31 - 1)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(2**63), 2**63 - 1),
    "word": st.text(max_size=5),
    "ok": st.booleans(),
    "ratio": st.floats(allow_nan=False, allow_infinity=False) | NUMBERS,
    "part": st.floats(allow_nan=False, allow_infinity=False, width=32) | st.floats(-1e30, 1e30),
    "day": DAYS | st.integers(-800_000, 3_000_000),
    "clock": CLOCKS,
    "raw": RAW,
    "at": MOMENTS,
    "local": MOMENTS,
    "price": st.decimals(-(10**8), 10**8, places=2).map(str) | st.integers(-(10**7), 10**7),
    "days": st.lists(st.none() | DAYS, max_size=3),
    "place": st.fixed_dictionaries({}, optional={"day": st.none() | DAYS, "clock": CLOCKS, "n": NUMBERS}),
}
OBJECTS = st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in FIELDS.items()})


def by_message(content: bytes) -> list[Any] | None:
    """The rows, one message after the other; None if one cannot be read."""
    try:
        return [MESSAGES.deserialize(line) for line in content.split(b"\n") if line.strip()]
    except ValueError:
        return None


def by_columns(content: bytes) -> list[Any] | None:
    try:
        return [row for batch in LINES.parse(content) for row in batch_to_elements(batch, LINES.element_type())]
    except ValueError:
        return None


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(OBJECTS, max_size=4), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_what_is_read_is_what_reading_one_message_after_the_other_gives(rows: list[Any], end: str) -> None:
    content = b"".join(json.dumps(row).encode() + end.encode() for row in rows)
    assert by_columns(content) == by_message(content)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(sorted(FIELDS)).flatmap(lambda name: st.tuples(st.just(name), FIELDS[name])))
def test_each_value_alone_is_read_or_refused_as_in_a_message(field: tuple[str, Any]) -> None:
    content = json.dumps(dict([field])).encode()
    assert by_columns(content) == by_message(content)


@pytest.mark.parametrize(
    "line",
    [
        b'{"ratio": 1e999}', b'{"ratio": NaN}', b'{"ratio": -Infinity}', b'{"ratio": 123456789012345678901234567890}',
        b'{"ratio": 9007199254740993}', b'{"ratio": 9007199254740992}', b'{"part": 16777217}', b'{"part": 0.1}',
        b'{"n": 1, "n": 2}', b'{"n": null, "n": 2}', b'{"word": "a", "word": "b"}', b'{"place": {"n": 1, "n": 2}}',
        b'{"n": 1.0}', b'{"n": 1e2}', b'{"n": 99999999999999999999}', b'{"n": "1"}', b'{"n": true}', b'{"ok": 1}',
        b'{"word": "\\ud800"}', b'{"word": "\\u0000"}', b'{"word": "\0"}',
        b'{"word": "\xff"}', b'{"word": "\\ud83d\\ude00"}',
        b'{"price": 1.005}', b'{"price": "1.005"}', b'{"price": 1.50}', b'{"price": 1e3}', b'{"price": 123456789012}',
        b'{"place": {"n": 1.5}}', b'{"place": []}', b'{"days": {}}', b'{"days": "2026-11-26"}',
        b'{"day": ["2026-11-26"]}',
        b'{"extra": {"a": [1, {"b": 2}]}, "n": 1}', b'{"extra": 1, "extra": "x"}', b'{"n": 1}x', b'{"n": 1} {"n": 2}',
        b'{"n": 1,}', b"{'n': 1}", b'{"n": 01}', b'{"n": +1}', b'{"n": -0}', b'// {"n": 1}', b'{"n": 1 /* one */}',
    ],
)  # fmt: skip
def test_a_line_is_read_or_refused_as_a_message(line: bytes) -> None:
    assert by_columns(line) == by_message(line)


def test_most_forms_are_read_without_a_look_at_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "n": 1, "day": "2026-11-26", "clock": "07:30:00.000001", "raw": "/wA=", "at": "2026-11-26T07:30:00+00:00",
        "local": "2026-11-26 07:30:00Z", "days": ["0001-01-01", None], "place": {"day": "9999-12-31", "clock": "07:30"},
    }  # fmt: skip
    content = codecs.BOM_UTF8 + (json.dumps(row) + "\r\n" + json.dumps({"days": None, "place": None})).encode()
    expected = by_message(content.removeprefix(codecs.BOM_UTF8))
    monkeypatch.setattr(of_json, "parse_json", lambda line: pytest.fail("a row was read alone"))
    assert by_columns(content) == expected
    assert expected is not None and expected[0].days == [date(1, 1, 1), None] and expected[1].place is None


@pytest.mark.parametrize("columns", ["n bigint", "n bigint, day date", "n bigint, sizes map<string, int>"])
def test_two_objects_in_one_line_are_none(columns: str) -> None:
    with pytest.raises(ValueError, match=r"one object|no JSON|Extra data"):
        list(JsonLinesFormat(columns).parse(b'{"n": 1} {"n": 2}\n{"n": 3}\n'))


@pytest.mark.parametrize(
    "columns", ["local timestamp_ntz", "local timestamp_ntz, day date", "places array<timestamp_ntz>"]
)
def test_a_time_of_a_zone_is_none_without_a_zone_whatever_other_columns_there_are(columns: str) -> None:
    """Arrow would make it one of UTC."""
    name, text = columns.partition(" ")[0], "2026-11-26T09:30:00+02:00"
    with pytest.raises(ValueError, match="is not of the declared type timestamp_ntz"):
        list(JsonLinesFormat(columns).parse(json.dumps({name: [text] if name == "places" else text}).encode()))
