"""What is adopted is what would be read back, and nobody outside can change what is stored."""

from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import OutputTypeError
from holdfast.state.layout import CopyCodec, Encoded, OpaqueCodec, SharedCodec, value_codec_for
from holdfast.types.row import Row
from holdfast.types.serializer import TypeSerializer
from holdfast.types.type_parser import to_type

Tags = namedtuple("Tags", ["of", "names"])


@dataclass(frozen=True)
class Berth:
    boats: list[Any]


class Upper(TypeSerializer[str]):
    def serialize(self, value):
        return value.upper().encode()

    def deserialize(self, data):
        return data.decode()


def codec(described):
    return value_codec_for(to_type(described))


VALUES = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
    "float": st.floats(width=32, allow_nan=False) | st.integers(-1000, 1000),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "char(5)": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "binary": st.binary(),
    "decimal(20,3)": st.decimals(-(10**10), 10**10, places=2) | st.integers(-100, 100),
    "timestamp": st.datetimes() | st.datetimes(timezones=st.just(UTC)),
    "array<double>": st.lists(st.none() | st.floats(allow_nan=False) | st.integers(-5, 5)),
    "map<string, array<int>>": st.dictionaries(st.text("ab"), st.lists(st.integers(-5, 5))),
    "a double, b string": st.tuples(st.floats(allow_nan=False), st.text("ab")),
    "a timestamp": st.tuples(st.datetimes()),
    None: st.recursive(st.integers() | st.text("ab") | st.none(), lambda inner: st.lists(inner)).filter(
        lambda value: value is not None
    ),
}


@pytest.mark.parametrize("described", VALUES, ids=str)
def test_what_is_adopted_is_what_is_read_back_from_a_column(described):
    made = codec(described)

    @given(st.lists(VALUES[described], max_size=4))
    def check(values):
        stored = [made.adopt(value) for value in values]
        read_back = made.to_stored(made.to_array(stored))
        assert [made.expose(item) for item in read_back] == [made.expose(item) for item in stored]
        assert list(map(type, map(made.expose, read_back))) == list(map(type, map(made.expose, stored)))

    check()


@pytest.mark.parametrize(
    ("described", "value"),
    [("bigint", 5), ("double", 0.5), ("string", "x"), ("a int, b string", Row(a=1, b="x")), ("boolean", True)],
)
def test_values_that_cannot_change_are_shared(described, value):
    made = codec(described)
    assert isinstance(made, SharedCodec)
    assert made.exact is type(value)
    assert made.expose(value) is value


@pytest.mark.parametrize(
    ("described", "value", "adopted"),
    [
        ("double", 3, 3.0),
        ("float", 0.1, 0.10000000149011612),
        ("char(3)", "a", "a  "),
        ("timestamp", datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)),
        ("decimal(10,2)", Decimal(1), Decimal("1.00")),
        ("a int", (1,), Row(a=1)),
    ],
)
def test_what_would_be_read_back_otherwise_is_adopted_at_once(described, value, adopted):
    made = codec(described)
    found = made.adopt(value)
    assert found == adopted
    assert (type(found), str(found)) == (type(adopted), str(adopted))
    # Where a value of the right class is not always right, no class is taken for exact.
    assert made.exact is not type(value)


@pytest.mark.parametrize("described", ["array<int>", "map<string, int>", "a array<int>", None])
def test_values_that_can_change_share_nothing(described):
    value = {"array<int>": [1], "map<string, int>": {"a": 1}, "a array<int>": Row(a=[1]), None: [[1]]}[described]
    made = codec(described)
    stored = made.adopt(value)
    first, second = made.expose(stored), made.expose(stored)
    assert first == second == value
    inner = {"a array<int>": lambda row: row.a, None: lambda outer: outer[0]}.get(described, lambda whole: whole)
    assert inner(first) is not inner(value)
    assert inner(first) is not inner(second)
    assert isinstance(made, OpaqueCodec if described is None else CopyCodec)


def test_undeclared_numbers_and_texts_stay_what_they_are():
    made = codec(None)
    for value in (5, "x", 0.5, True, b"y", datetime(2020, 1, 1)):
        assert made.adopt(value) is value
    assert type(made.adopt([1])) is Encoded
    assert made.expose(made.to_stored(made.to_array([b"y"]))[0]) == b"y"


@pytest.mark.parametrize("value", [Tags("pier", ["a", "b"]), Berth([1]), [Tags(("x",), {})]], ids=str)
def test_undeclared_values_may_have_a_hash_by_their_class_and_none_by_what_is_in_them(value):
    made = codec(None)
    with pytest.raises(TypeError):
        hash(value)
    again = made.expose(made.adopt(value))
    assert again == value
    assert type(again) is type(value)


def test_a_serializer_of_ones_own_is_asked_at_once():
    made = codec(Upper())
    assert made.expose(made.adopt("tide")) == "TIDE"


def test_what_does_not_fit_is_refused():
    for described, value in (("bigint", "x"), ("array<int>", 5), ("a int", (1, 2))):
        with pytest.raises(OutputTypeError):
            codec(described).adopt(value)
