"""How elements look where Flink shows them; `tests/programs/pyflink` has what Flink really printed."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from holdfast.common import Row, RowKind, Types
from holdfast.types.flink_text import flink_formatter
from holdfast.types.type_parser import to_type

AT = datetime(2026, 11, 25, 3, 4, 5, 60_000)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string", "kelp", "kelp"),
        ("string", None, "null"),
        ("boolean", True, "true"),
        ("bigint", -7, "-7"),
        ("double", 1.0, "1.0"),
        ("double", -0.0, "-0.0"),
        ("double", 0.001, "0.001"),
        ("double", 9999999.5, "9999999.5"),
        ("double", 1e7, "1.0E7"),
        ("double", 123456789.125, "1.23456789125E8"),
        ("double", -2.5e-7, "-2.5E-7"),
        ("double", float("nan"), "NaN"),
        ("double", float("-inf"), "-Infinity"),
        ("float", 0.1, "0.1"),
        ("float", 16777216.0, "1.6777216E7"),
        ("decimal(10, 2)", Decimal("1.50"), "1.50"),
        ("binary", b"\x00\x7f\xff", "[0, 127, -1]"),
        ("date", date(2026, 11, 25), "2026-11-25"),
        ("time", time(3, 4, 5), "03:04:05"),
        (Types.SQL_TIMESTAMP(), AT, "2026-11-25 03:04:05.06"),
        (Types.SQL_TIMESTAMP(), AT.replace(microsecond=0), "2026-11-25 03:04:05.0"),
        ("timestamp", AT.replace(tzinfo=UTC), "2026-11-25T03:04:05.060Z"),
        ("timestamp", AT.replace(microsecond=0, tzinfo=UTC), "2026-11-25T03:04:05Z"),
        ("array<double>", [1e10, None], "[1.0E10, null]"),
        ("map<string, boolean>", {"a": False}, "{a=false}"),
        (Types.TUPLE([Types.STRING(), Types.LIST(Types.INT())]), ("a", [1, 2]), "(a,[1, 2])"),
        ("a string, b struct<c: int>", Row(a=None, b=Row(c=1)), "+I[null, +I[1]]"),
        ("changelog<a: int>", Row.of_kind(RowKind.DELETE, a=1), "-D[1]"),
        (None, ("kelp", None), "('kelp', None)"),
        (None, None, "None"),
    ],
)
def test_an_element_looks_as_in_flink(kind: Any, value: Any, text: str) -> None:
    assert flink_formatter(to_type(kind))(value) == text
