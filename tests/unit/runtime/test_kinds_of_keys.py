"""Keys of every kind: what is one key stays one key, over epochs, restarts and another parallelism."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast.datastream import KeyedProcessFunction
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.state.version import STATE_CACHE
from tests.stories import journal, tidiness
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run

NAN, OTHER_NAN = float("nan"), struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
EAST = timezone(timedelta(hours=5))

# By type: values, of which those in one group are one key.
COLUMNS: dict[str, list[list[Any]]] = {
    "boolean": [[True], [False]],
    "tinyint": [[0], [-1], [127], [-128]],
    "smallint": [[0], [-1], [2**15 - 1], [-(2**15)]],
    "int": [[0], [-1], [2**31 - 1], [-(2**31)]],
    "bigint": [[0], [-1], [2**63 - 1], [-(2**63)], [2**53 + 1], [2**53]],
    "float": [[0.0, -0.0], [NAN, OTHER_NAN], [float("inf")], [float("-inf")], [1.5], [-1.5]],
    "double": [[0.0, -0.0], [NAN, OTHER_NAN], [float("inf")], [1e308], [5e-324], [0.1]],
    "string": [[""], [" "], ["a"], ["A"], ["ä"], ["a\u0308"], ["\U0001f40b"], ["a\0b"], ["x" * 1000]],
    "binary": [[b""], [b"\0"], [b"\xff\xfe"], [b"a"]],
    "decimal(10,2)": [[Decimal("1.0"), Decimal("1.00"), Decimal("1")], [Decimal("-0.01")], [Decimal("12345678.90")]],
    "decimal(38,0)": [[Decimal(10**37)], [Decimal(-(10**37))], [Decimal(0)]],
    "date": [[date(1970, 1, 1)], [date(1969, 12, 31)], [date(1, 1, 1)], [date(9999, 12, 31)]],
    "time": [[time(0)], [time(23, 59, 59, 999999)], [time(12, 0, 0, 1)]],
    "struct<of: time, n: int>": [[(time(1), 1)], [(time(1), None)], [(None, 1)], [(time(2), 1)]],
    "timestamp": [
        [datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 17, tzinfo=EAST)],
        [datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    ],
    "timestamp_ntz": [[datetime(2024, 1, 1, 12)], [datetime(1900, 1, 1)], [datetime(2024, 1, 1, 12, 0, 0, 1)]],
}

UNTYPED: list[list[Any]] = [
    [1], [True], [1.0], [Decimal(1), Decimal("1.0")], ["1"], [b"1"],
    [0.0, -0.0], [0], [False], [NAN, OTHER_NAN], [""], [b""], ["ä"],
    [date(2024, 1, 1)], [()], [("a",)], [("a", None)], [("a", (1, 2.0))], [("a", (1, 2))], [("a", 1, 2)],
    [2**100], [-(2**100)],
    [datetime(2024, 1, 1)], [datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 17, tzinfo=EAST)], [time(1)],
    [timedelta(days=1), timedelta(hours=24)], [UUID(int=1)], [["a"]], [["a", 1]], [[]],
    [{"a": 1, "b": [2]}, {"b": [2], "a": 1}], [{}], [{1, 2}, frozenset([2, 1])], [("a", {"b": {3}})],
]  # fmt: skip


class Counting(KeyedProcessFunction):
    """Emits the group of each element with the number that its key has come to, and how the key looks."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value[1], self.count.value(), repr(ctx.get_current_key())


def judge(place: Path, groups: list[list[Any]], key: Any, key_type: Any, source: Any) -> list[tuple[int, int, str]]:
    batch = [(value, group) for group, values in enumerate(groups) for value in values]
    inputs = epochs("in", [batch, batch[::-1], batch, batch])
    for count, parallelism in ((2, 3), (3, 2), (4, 5)):
        program = Program()
        program.source("in", source).key_by(key, key_type).process(Counting()).uid("count").sink_to(
            Journal(place / "out")
        ).uid("out")
        STATE_CACHE.clear()
        run(program, place / "job", inputs[:count], parallelism=parallelism)
    found: list[tuple[int, int, str]] = journal.read(place / "out")
    sizes = Counter(group for _, group in batch)
    expected = [(group, n) for group, size in sizes.items() for n in range(1, 4 * size + 1)]
    assert sorted((group, number) for group, number, _ in found) == sorted(expected)
    looks = {group: {look for other, _, look in found if other == group} for group in sizes}
    assert all(len(look) == 1 for look in looks.values()), "the current key is the same for all that are one key"
    assert len(set.union(*looks.values())) == len(groups)
    tidiness.inspect(place / "job")
    return found


@pytest.mark.parametrize("declared", COLUMNS)
def test_keys_in_columns(place: Path, declared: str) -> None:
    judge(place, COLUMNS[declared], "k", None, f"k {declared}, g bigint")


@pytest.mark.parametrize("declared", COLUMNS)
def test_keys_of_selectors_with_a_type(place: Path, declared: str) -> None:
    judge(place, COLUMNS[declared], lambda row: row.k, declared, f"k {declared}, g bigint")


def test_keys_of_selectors_without_a_type_tell_kinds_apart(place: Path) -> None:
    judge(place, UNTYPED, lambda pair: pair[0], None, None)


@dataclass(frozen=True)
class Place:
    """A key with fields."""

    city: str
    block: int | None


def test_instances_of_a_dataclass_are_keys_where_the_type_is_declared(place: Path) -> None:
    groups: list[list[Any]] = [[Place("a", 1), Place("a", 1)], [Place("a", None)], [Place("", 1)]]
    found = judge(place, groups, lambda pair: pair[0], Place, None)
    assert {look for _, _, look in found} == {repr(one) for one, *_ in groups}


def test_composite_keys_in_columns(place: Path) -> None:
    groups = [[("", 0.0), ("", -0.0)], [("a", NAN), ("a", OTHER_NAN)], [("a", None)], [(None, 1.0)], [(None, None)]]
    flat = [[(*value,) for value in values] for values in groups]
    batch = [(*value, group) for group, values in enumerate(flat) for value in values]
    program = Program()
    program.source("in", "s string, d double, g bigint").key_by(["s", "d"]).map(lambda row: row.g, "bigint").uid(
        "pass"
    ).key_by(lambda group: group, "bigint").process(CountingGroups()).uid("count").sink_to(Journal(place / "groups"))
    stream = program.source("again", "s string, d double, g bigint").key_by(["s", "d"])
    stream.process(CountingRows()).uid("rows").sink_to(Journal(place / "out"))
    run(program, place / "job", [{"in": batch, "again": batch}, {"in": batch, "again": batch[::-1]}])
    sizes = Counter(row[2] for row in batch)
    expected = sorted((group, n) for group, size in sizes.items() for n in range(1, 2 * size + 1))
    assert sorted(journal.read(place / "out")) == expected
    assert sorted(journal.read(place / "groups")) == expected


class CountingGroups(Counting):
    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value, self.count.value()


class CountingRows(Counting):
    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value.g, self.count.value()
