"""The tagged form: what is written is read back, and keys that are equal have equal bytes and no others have."""

import contextlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.types.row import Row
from holdfast.types.tagged import TaggedValueError, decode, encode, encode_key
from tests.unit.types.type_strategies import DURATIONS, TEXTS


class Color(Enum):
    RED = 1


@dataclass
class Point:
    x: int
    y: int


KEY_ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    TEXTS,
    st.binary(max_size=8),
    st.dates(),
    st.decimals(allow_nan=False, allow_infinity=False),
)
HASHABLE = st.one_of(KEY_ATOMS, st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.times(), DURATIONS, st.uuids())
KEYS = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.frozensets(HASHABLE, max_size=3),
        st.sets(HASHABLE, max_size=3),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(TEXTS, inner, max_size=3),
        st.sets(TEXTS, max_size=3),
        st.frozensets(TEXTS, max_size=3),
    ),
    max_leaves=6,
)


def without_address(value):
    """The name of a case, the same in every process."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def exact(value):
    """A form in which == means: the same class and the same value, all the way down."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [exact(item) for item in value]
    if isinstance(value, dict):
        return "dict", [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value.hex()
    return type(value).__name__, str(value) if isinstance(value, Decimal) else value


def same_members(ones, others) -> bool:
    """Whether each has its like on the other side, in any order."""
    rest = list(others)
    for one in ones:
        at = next((at for at, other in enumerate(rest) if same_key(one, other)), None)
        if at is None:
            return False
        del rest[at]
    return not rest


def same_key(one, other) -> bool:
    """The oracle: equal, and of the same kinds; one NaN, one zero."""
    for kind in (tuple, list):
        if isinstance(one, kind) and isinstance(other, kind):
            return len(one) == len(other) and all(map(same_key, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return same_members(list(one.items()), list(other.items()))
    if isinstance(one, (set, frozenset)) and isinstance(other, (set, frozenset)):
        return same_members(list(one), list(other))
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return one == other


@given(VALUES)
def test_a_value_is_read_back_exactly(value):
    assert exact(decode(encode(value))) == exact(value)


@given(KEYS)
def test_a_key_is_read_back_as_an_equal_key(key):
    again = decode(encode_key(key))
    assert same_key(again, key)
    assert encode_key(again) == encode_key(key)


@given(KEYS, KEYS)
def test_keys_have_the_same_bytes_exactly_if_they_are_the_same(one, other):
    assert (encode_key(one) == encode_key(other)) == same_key(one, other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.0, -0.0, True),
        (math.nan, -math.nan, True),
        (Decimal("1.0"), Decimal("1.00"), True),
        (Decimal("1E+2"), Decimal("100"), True),
        (Decimal("0E+5"), Decimal("-0.00"), True),
        ((1, "a"), Row(x=1, y="a"), True),
        (1, True, False),
        (1, 1.0, False),
        (1, Decimal(1), False),
        ("a", b"a", False),
        ((1,), 1, False),
        ((), None, False),
        (("a", "bc"), ("ab", "c"), False),
        ((("a",), "b"), ("a", ("b",)), False),
        ([1, 2], (1, 2), False),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({1, 2}, frozenset([2, 1]), True),
        ({1}, {True}, False),
        (datetime(2020, 1, 1, 12, tzinfo=UTC), datetime(2020, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))), True),
        (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1), False),
        (datetime(2020, 1, 1), date(2020, 1, 1), False),
        (UUID(int=7), UUID(int=7).bytes, False),
        (timedelta(days=1), timedelta(hours=24), True),
    ],
)
def test_which_keys_are_the_same(one, other, same):
    assert (encode_key(one) == encode_key(other)) is same


@pytest.mark.parametrize(
    "value",
    [
        object(),
        1j,
        [object()],
        {"a": 1j},
        time(1, tzinfo=UTC),
        Color.RED,
        Point(1, 2),
        "\ud800",
    ],
    ids=without_address,
)
def test_what_has_no_canonical_bytes_is_no_key(value):
    with pytest.raises(TaggedValueError):
        encode_key(value)


@pytest.mark.parametrize(
    "value", [{1j}, object(), 1j, [object()], time(1, tzinfo=UTC), timedelta.max], ids=without_address
)
def test_what_is_not_plain_is_no_value(value):
    with pytest.raises(TaggedValueError):
        encode(value)


def test_it_is_said_what_to_do_with_a_value_that_is_no_key():
    with pytest.raises(TaggedValueError, match="Take its name or its value"):
        encode_key(Color.RED)
    with pytest.raises(TaggedValueError, match=r"key_type=Point in key_by\(\)"):
        encode_key((1, Point(1, 2)))


def test_depth_is_bounded():
    deep: tuple = ()
    for _ in range(200):
        deep = (deep,)
    with pytest.raises(TaggedValueError, match="nested"):
        encode_key(deep)


def test_the_bytes_of_keys_are_stable_for_ever():
    # They are in files: a change would lose every untyped key.
    key = (None, True, False, -1, 300, 1.5, "é", b"\x00", date(1970, 1, 2), Decimal("12.50"), ("x",))
    assert (
        encode_key(key).hex()
        == "740b4e54466901ff6902012c643ff80000000000007302c3a96201004400000001630431322e357401730178"
    )


@given(VALUES, st.data())
def test_damaged_bytes_are_refused_or_another_value_but_nothing_else_happens(value, data):
    whole = encode(value)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(TaggedValueError):
        decode(cut)
    with pytest.raises(TaggedValueError):
        decode(whole + b"N")
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(TaggedValueError):
        decode(bytes(flipped))


def test_bytes_of_others_are_refused():
    for wrong in (
        b"",
        b"?",
        b"i\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"s\x01\xff",
        b"c\x01x",
        b"m\x01l\x00N",
        b"l\x01" * 9999,
    ):
        with pytest.raises(TaggedValueError):
            decode(wrong)


def test_numbers_of_numpy_are_keys_equal_to_those_of_python():
    for number in (np.int64(-4), np.uint8(200), np.float32(0.1), np.float64(2.5), np.bool_(True), np.float16("nan")):
        assert encode_key(number) == encode_key(number.item())
        assert encode_key((1, [number])) == encode_key((1, [number.item()]))
    for other in (np.timedelta64(5, "ns"), np.datetime64(5, "ns"), np.longdouble(1.5), np.array(5), np.complex64(1)):
        with pytest.raises(TaggedValueError):
            encode_key(other)
    with pytest.raises(TaggedValueError):
        encode(np.int64(4))
