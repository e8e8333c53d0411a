import copy
import pickle
import threading

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.types.row import Row, row_class

NAMES = st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=6).map(tuple)


def test_a_row_is_read_by_name_index_and_unpacking():
    row = Row(a=1, b="x")
    assert (row.a, row["a"], row[0], row[-1], row[0:1]) == (1, 1, 1, "x", (1,))
    a, b = row
    assert (a, b) == (1, "x")
    assert row.as_dict() == {"a": 1, "b": "x"}
    assert repr(row) == "Row(a=1, b='x')"
    assert row.get_fields_by_names(["b", "a"]) == ["x", 1]


def test_a_row_without_names_is_a_tuple():
    row = Row(1, "a")
    assert row == (1, "a") == Row(x=1, y="a")
    assert hash(row) == hash((1, "a"))
    assert repr(row) == "<Row(1, 'a')>"
    with pytest.raises(TypeError, match="no field names"):
        row.as_dict()


def test_a_missing_field_is_named_with_those_there_are():
    row = Row(a=1)
    with pytest.raises(AttributeError, match=r"No field 'b'; the row has \['a'\]"):
        _ = row.b
    with pytest.raises(KeyError, match="No field 'b'"):
        _ = row["b"]
    with pytest.raises(IndexError):
        _ = row[1]
    assert not hasattr(row, "b")


def test_names_are_given_to_a_row_and_asked_for():
    row = Row(1, "a")
    assert 1 in row and "id" not in row
    row.set_field_names(["id", "name"])
    assert row == Row(id=1, name="a") and row.as_dict() == {"id": 1, "name": "a"}
    assert "id" in row and "a" not in row, "as in PyFlink: of a row with names they are asked for"
    row.set_field_names(("key", "name"))
    assert row.key == 1 and pickle.loads(pickle.dumps(row)).key == 1
    with pytest.raises(TypeError, match=r"has 2 fields, and set_field_names.. got 1 names"):
        row.set_field_names(["id"])
    with pytest.raises(TypeError, match="distinct"):
        row.set_field_names(["id", "id"])


@pytest.mark.parametrize("name", ["count", "index", "class", "0", "a b", "_private", "self", "ä"])
def test_any_text_can_be_a_fields_name(name):
    row = row_class((name, "z"))(1, 2)
    assert getattr(row, name) == row[name] == 1


@pytest.mark.parametrize("name", ["as_dict", "make", "make_all", "__reduce__", "_names"])
def test_a_field_named_like_a_method_is_read_by_subscript_and_breaks_nothing(name):
    row = row_class((name, "z"))(1, 2)
    assert row[name] == 1
    assert row.as_dict() == {name: 1, "z": 2}
    assert pickle.loads(pickle.dumps(row)).as_dict() == {name: 1, "z": 2}


def test_names_must_differ():
    with pytest.raises(TypeError, match="distinct"):
        row_class(("a", "a"))
    with pytest.raises(TypeError, match="takes 2 values"):
        row_class(("a", "b"))(1)
    with pytest.raises(TypeError, match="not both"):
        Row(1, a=2)


def test_a_row_of_names_makes_rows_as_in_pyflink():
    person = Row("name", "age")
    assert person("Ada", 36) == Row(name="Ada", age=36)
    assert person("Ada", 36).age == 36
    with pytest.raises(TypeError):
        Row(1, 2)(3, 4)


@given(NAMES, st.data())
def test_rows_survive_pickling_and_copying(names, data):
    values = data.draw(
        st.tuples(*[st.one_of(st.integers(), st.text(), st.none(), st.lists(st.integers()))] * len(names))
    )
    row = row_class(names).make(values)
    for again in (
        pickle.loads(pickle.dumps(row)),
        cloudpickle.loads(cloudpickle.dumps(row)),
        copy.copy(row),
        copy.deepcopy(row),
    ):
        assert type(again) is type(row)
        assert again == row == values
        assert again.as_dict() == dict(zip(names, values, strict=True))


def test_many_rows_are_made_from_columns():
    made = row_class(("a", "b")).make_all([[1, 2, 3], ["x", "y", "z"]])
    assert made == [(1, "x"), (2, "y"), (3, "z")]
    assert [row.b for row in made] == ["x", "y", "z"]
    with pytest.raises(ValueError):
        row_class(("a", "b")).make_all([[1, 2], ["x"]])


def test_threads_get_the_same_class_for_the_same_names():
    found = []
    barrier = threading.Barrier(8)

    def ask():
        barrier.wait()
        found.extend(row_class((f"n{i}", "m")) for i in range(50))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 50
