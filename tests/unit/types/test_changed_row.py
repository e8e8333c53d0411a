"""Rows that are changed: what whoever changes one sees, what everybody else sees, and what is emitted on the way."""

from __future__ import annotations

import copy
import json
import operator
import pickle
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Row, RowKind
from holdfast.types import tagged
from holdfast.types.arrow import batch_to_elements, elements_to_batch
from holdfast.types.composite import DataclassTypeInformation
from holdfast.types.row import Emission, collect_emitted, current_value, original, originals, row_class
from holdfast.types.type_parser import to_type
from tests.examples import examples

WHOLE = "a: bigint, b: string"


def changed(**fields: Any) -> Any:
    """A row of these fields, of which each was something else before."""
    row: Any = Row(**dict.fromkeys(fields, "before"))
    for name, value in fields.items():
        row[name] = value
    return row


def test_a_field_is_set_by_place_by_name_and_as_an_attribute() -> None:
    row = same = Row(a=1, b="x", c=None)
    row[0] = 2
    row["b"] = "y"
    row.c = 3.0
    row[-1] += 1
    assert (row.a, row["a"], row[0], row.b, row.c, row[-1]) == (2, 2, 2, "y", 4.0, 4.0)
    row[0:2] = [5, "z"]
    assert same is row and row == (5, "z", 4.0) and row.as_dict() == {"a": 5, "b": "z", "c": 4.0}
    assert repr(row) == "Row(a=5, b='z', c=4.0)" and row.get_fields_by_names(["c", "a"]) == [4.0, 5]
    assert isinstance(row, Row) and isinstance(row, tuple) and row.get_row_kind() is RowKind.INSERT


def test_what_cannot_be_set_is_refused_and_nothing_has_changed() -> None:
    for row in (Row(a=1, b="x"), changed(a=1, b="x")):
        with pytest.raises(KeyError, match=r"No field 'c'; the row has \['a', 'b'\]"):
            row["c"] = 1
        with pytest.raises(AttributeError, match="No field 'c' can be set"):
            row.c = 1
        with pytest.raises(AttributeError, match="No field 'as_dict' can be set"):
            row.as_dict = 1
        for index, error in ((2, IndexError), (-3, IndexError), (1.5, TypeError)):
            with pytest.raises(error):
                row[index] = 1
        with pytest.raises(ValueError, match="1 values for 2 fields: a Row keeps its fields"):
            row[0:2] = [1]
        with pytest.raises(AttributeError):
            del row[0]
        assert row == (1, "x") and original(row) != ("before",)
    with pytest.raises(KeyError, match="No field 'a'"):
        Row(1)["a"] = 2


@pytest.mark.parametrize("name", ["count", "index", "unchanged", "_change", "now", "make", "as_dict", "__dict__"])
def test_a_field_of_any_name_is_changed_by_subscript(name: str) -> None:
    row = row_class((name, "z"))(1, 2)
    row[name] = 3
    row.z = 4
    assert row[name] == row[0] == 3 and row.as_dict() == {name: 3, "z": 4} == current_value(row).as_dict()
    if name in ("count", "index", "unchanged", "_change", "now"):
        setattr(row, name, 5)
        assert getattr(row, name) == 5


def test_a_changed_row_is_compared_hashed_and_added_as_what_it_is() -> None:
    row: Any = changed(a=2, b="y")
    others = [Row(a=2, b="y"), Row(2, "y"), Row(c=2, d="y"), (2, "y"), changed(e=2, f="y")]
    others.append(Row.of_kind(RowKind.DELETE, a=2, b="y"))
    for other in others:
        assert row == other and other == row and row <= other >= row
        assert not operator.ne(row, other) and not operator.ne(other, row)
        assert hash(row) == hash(other) and {other: 1}[row] == 1 and {row: 1}[other] == 1
    for other in (Row(a=1, b="y"), (1, "y"), changed(z=1, b="y")):
        assert row != other and other != row and other < row and row > other
    assert sorted([Row(3, "x"), row, Row(1, "x")]) == [(1, "x"), (2, "y"), (3, "x")]
    one = (1,)
    assert row + one == (2, "y", 1) and one + row == (1, 2, "y") and row + row == row * 2 == 2 * row
    assert row.count("y") == 1 and row.index("y") == 1 and "a" in row and "y" not in row
    positional: Any = Row(1, 2)
    positional[0] = 7
    assert 7 in positional and 1 not in positional and list(reversed(positional)) == [2, 7]
    assert max(positional, Row(9, 9)) == (9, 9) and (positional, 1) == (Row(7, 2), 1)


def test_python_unpacks_a_changed_row_as_what_it_is() -> None:
    row = changed(a=2, b="y")
    first, second = row
    assert (first, second) == (2, "y") == tuple(row) == (*row,) == tuple.__new__(tuple, row)
    assert list(row) == [*row] == [2, "y"] and operator.itemgetter(0)(row) == 2
    assert (lambda *given: given)(*row) == (2, "y")  # noqa: PLC3002 - how a call unpacks a row
    assert dict([row]) == {2: "y"} and list(zip(*[row], strict=True))
    match row:
        case (found, "y"):
            assert found == 2
        case _:
            pytest.fail("not matched")
    assert json.dumps(row) == '[2, "y"]' and f"{row}" == str(row) == "Row(a=2, b='y')"
    assert np.array(changed(a=2, b=3)).tolist() == [2, 3]


def test_c_that_reads_a_tuple_by_itself_sees_what_the_row_was() -> None:
    """Told in the guide; if one of these begins to see the change, so much the better."""
    row = changed(a=2, b=3)
    assert "%s %s" % row == "before before"  # noqa: UP031
    assert "%s %s" % tuple(row) == "2 3"  # noqa: UP031
    assert pa.array([tuple(row)]).to_pylist() == [[2, 3]]
    assert pa.array([current_value(row)]).to_pylist() == [[2, 3]]


def test_a_changed_row_is_copied_and_pickled_as_what_it_is() -> None:
    row = changed(a=2, b=[changed(c=1)])
    row.set_row_kind(RowKind.DELETE)
    made = [pickle.loads(pickle.dumps(row, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    made += [cloudpickle.loads(cloudpickle.dumps(row)), copy.copy(row), copy.deepcopy(row), type(row).make(row)]
    for again in made:
        assert again == row and again.a == 2 and again.get_row_kind() is RowKind.DELETE
        again.a = 3
        assert row.a == 2, "a copy is another row"
    assert type(row)(5, 6) == (5, 6) and type(current_value(row)) is row_class(("a", "b"), RowKind.DELETE)
    again = copy.deepcopy(row)
    again.b[0].c = 2
    assert row.b[0].c == 1


def test_names_and_kind_are_changes_too() -> None:
    row: Any = Row(a=1, b="x")
    row.set_row_kind(RowKind.DELETE)
    row.set_field_names(["c", "d"])
    row.c = 2
    assert repr(row) == "-D Row(c=2, d='x')" and not hasattr(row, "a")
    assert repr(original(row)) == "Row(a=1, b='x')" and repr(current_value(row)) == "-D Row(c=2, d='x')"
    row.set_row_kind(RowKind.INSERT)
    assert row.get_row_kind() is RowKind.INSERT and row.c == 2


def test_what_a_value_was_and_is_is_found_wherever_rows_are() -> None:
    inner: Any = Row(n=1)
    untouched: Any = Row(n=2)
    value = (Row(inner=inner, other=untouched), [inner, {"k": inner, inner: "v"}], untouched, "text")
    assert original(value) is value and current_value(value) is value
    inner.n = 5
    was, now = original(value), current_value(value)
    assert was == ((Row(n=1), Row(n=2)), [Row(n=1), {"k": Row(n=1), Row(n=1): "v"}], Row(n=2), "text")
    assert now == ((Row(n=5), Row(n=2)), [Row(n=5), {"k": Row(n=5), Row(n=5): "v"}], Row(n=2), "text")
    assert was[0].inner.n == 1 and now[0].inner.n == 5 and was[2] is now[2] is untouched
    assert originals([inner, untouched]) == [(1,), (2,)]
    endless: list[Any] = [inner]
    endless.append(endless)
    assert current_value(endless) is endless, "no value of a declared type, and pickled as it is"
    spark = pytest.importorskip("pyspark.sql").Row(a=inner)
    assert current_value(spark).a == (5,) and original(spark).a == (1,)


def test_what_is_emitted_is_what_it_was_then() -> None:
    def emits() -> Any:
        row = Row(n=0, inner=Row(m=0))
        for n in range(4):
            yield row
            yield (row, [row.inner])
            row.n = n + 1
            row.inner.m -= 1
        row.set_row_kind(RowKind.DELETE)
        yield row

    emitted = collect_emitted(emits())
    assert [row.n for row in emitted[:8:2]] == [0, 1, 2, 3] == [pair[0].n for pair in emitted[1:8:2]]
    assert [pair[1][0].m for pair in emitted[1:8:2]] == [0, -1, -2, -3]
    assert emitted[0].get_row_kind() is RowKind.INSERT and emitted[8].get_row_kind() is RowKind.DELETE


actions = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("set"), st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("kind"), st.integers(0, 2), st.sampled_from(RowKind)),
    ),
    max_size=30,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(actions, min_size=1, max_size=3))
def test_emissions_are_snapshots_whatever_is_changed_before_between_and_after(epochs: list[Any]) -> None:
    """A model: an emission takes a deep copy. Rows live on from one emission to the next."""
    rows: list[Any] = [Row(a=0, b=0), Row(a=1, b=1), Row(a=2, b=2)]
    nested: list[Any] = [Row(row=row, several=[row]) for row in rows]
    number = 100
    for steps in epochs:
        out: list[Any] = []
        expected: list[Any] = []
        emission = Emission(out)
        for what, which, more in steps:
            number += 1
            if what == "emit":
                out.append(nested[which] if more else rows[which])
                expected.append(copy.deepcopy(out[-1]))
            elif what == "set":
                rows[which][more] = number
            else:
                rows[which].set_row_kind(more)
        emission.end()
        rows[0].a = -1  # nobody who has the emission sees this
        assert list(map(repr, originals(out))) == list(map(repr, expected))


class Model:
    """What PyFlink's Row is: a list of values, and one of names."""

    def __init__(self, names: tuple[str, ...], values: list[Any]) -> None:
        self.names = names
        self.values = values


values = st.one_of(st.integers(-3, 3), st.text(max_size=2), st.none(), st.floats(allow_nan=False))


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_rows_are_lists_with_names(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    names = tuple(f"f{at}" for at in range(count)) if data.draw(st.booleans()) else ()
    model = Model(names, data.draw(st.lists(values, min_size=count, max_size=count)))
    before = list(model.values)
    row: Any = row_class(names).make(model.values)
    for _ in range(data.draw(st.integers(1, 8))):
        at, value = data.draw(st.integers(-count, count - 1)), data.draw(values)
        how = data.draw(st.sampled_from(["place", "slice", *(["name", "attribute", "rename"] if names else [])]))
        if how == "rename":
            names = tuple(f"{name}_" for name in names)
            row.set_field_names(names)
        elif how == "slice":
            end = data.draw(st.integers(at % count, count))
            model.values[at % count : end] = row[at % count : end] = [value] * (end - at % count)
        else:
            model.values[at] = value
            if how == "place":
                row[at] = value
            elif how == "name":
                row[names[at]] = value
            else:
                setattr(row, names[at], value)
        assert list(row) == model.values == [row[i] for i in range(count)] and len(row) == count
        assert row == tuple(model.values) and hash(row) == hash(tuple(model.values))
        assert row[::-1] == tuple(model.values[::-1])
        assert (value in row) == (value in (names or model.values))
        if names:
            assert row.as_dict() == dict(zip(names, model.values, strict=True))
            assert [row[name] for name in names] == [getattr(row, name) for name in names] == model.values
        assert repr(pickle.loads(pickle.dumps(row))) == repr(row) == repr(current_value(row))
        assert original(row) == tuple(before)


@pytest.mark.parametrize(
    ("declared", "value", "read"),
    [
        (f"struct<{WHOLE}>", changed(a=1, b="x"), (1, "x")),
        (f"struct<{WHOLE}>", changed(b="x", a=1), (1, "x")),
        (f"struct<row: struct<{WHOLE}>>", (changed(a=1, b="x"),), ((1, "x"),)),
        (f"array<struct<{WHOLE}>>", [changed(a=1, b="x")], [(1, "x")]),
        ("array<bigint>", changed(a=1, b=2), [1, 2]),
        (f"map<string, struct<{WHOLE}>>", {"k": changed(a=1, b="x")}, {"k": (1, "x")}),
        (f"map<struct<{WHOLE}>, bigint>", {changed(a=1, b="x"): 1}, {(1, "x"): 1}),
        (f"changelog<{WHOLE}>", changed(a=1, b="x"), (1, "x")),
    ],
)
def test_columns_are_made_of_what_a_row_is(declared: str, value: Any, read: Any) -> None:
    kind = to_type(declared)
    whole = to_type(f"struct<v: {declared}>")
    assert batch_to_elements(elements_to_batch([(value,)] * 3, whole), whole) == [(read,)] * 3
    assert batch_to_elements(elements_to_batch([value, value], kind), kind) == [read, read]
    assert kind.adopt(value) == read == kind.create_serializer().copy(value)
    serializer = kind.create_serializer()
    assert serializer.deserialize(serializer.serialize(value)) == read and not serializer.is_immutable_type()


def test_kinds_of_changed_rows_go_into_columns() -> None:
    kind = to_type(f"changelog<{WHOLE}>")
    row = changed(a=1, b="x")
    row.set_row_kind(RowKind.UPDATE_BEFORE)
    [read] = batch_to_elements(elements_to_batch([row], kind), kind)
    assert read == (1, "x") and read.get_row_kind() is RowKind.UPDATE_BEFORE


def test_keys_are_made_of_what_a_row_is() -> None:
    assert tagged.encode_key(changed(a=1, b="x")) == tagged.encode_key((1, "x"))


def test_a_record_whose_class_is_not_known_is_a_row_and_copied_as_it_was() -> None:
    fields = "struct<list: array<bigint>, row: struct<n: bigint>>"
    struct: Any = to_type(fields)
    kind = DataclassTypeInformation("Unknown", struct.names, struct.types)
    row: Any = kind.adopt(([1], (2,)))
    row.list, row.row.n = [5], 6
    assert kind.copy(row) == ([1], (2,)) and kind.adopt(row) == ([5], (6,))
