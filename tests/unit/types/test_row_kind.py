"""Rows that say what they do to a table: by themselves, in columns, in state, and across the steps of a job."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Row, RowKind, Types
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.testing import OperatorHarness
from holdfast.types.arrow import batch_to_elements, elements_to_batch
from holdfast.types.type_information import type_from_json
from holdfast.types.type_parser import to_type
from tests.examples import examples

CHANGES = "changelog<id: bigint, name: string>"


def kinds(rows: list[Any]) -> list[str]:
    return [str(row.get_row_kind()) for row in rows]


def test_a_row_has_a_kind_as_in_pyflink() -> None:
    row = Row(id=1, name="kelp")
    assert row.get_row_kind() is RowKind.INSERT
    row.set_row_kind(RowKind.DELETE)
    assert row.get_row_kind() is RowKind.DELETE and repr(row) == "-D Row(id=1, name='kelp')"
    assert row.name == "kelp" and row == (1, "kelp") and row == Row.of_kind(RowKind.INSERT, id=1, name="kelp")
    for again in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):
        assert again == row and again.get_row_kind() is RowKind.DELETE and again.name == "kelp"
    positional = Row.of_kind(RowKind.UPDATE_AFTER, 1, "kelp")
    assert positional.get_row_kind() is RowKind.UPDATE_AFTER and positional == (1, "kelp")
    assert [kind.value for kind in RowKind] == [0, 1, 2, 3] and list(map(str, RowKind)) == ["+I", "-U", "+U", "-D"]
    with pytest.raises(TypeError, match="takes a RowKind"):
        row.set_row_kind("-D")  # type: ignore[arg-type]


ROWS = st.lists(
    st.one_of(
        st.builds(Row.of_kind, st.sampled_from(RowKind), id=st.integers(0, 9), name=st.none() | st.text(max_size=3)),
        st.builds(Row.of_kind, st.sampled_from(RowKind), st.integers(0, 9), st.text(max_size=3)),
        st.tuples(st.integers(0, 9), st.text(max_size=3)),
        st.builds(
            lambda i, kind: {"row_kind": kind, "id": i, "name": "x"}, st.integers(0, 9), st.sampled_from(RowKind)
        ),
    ),
    max_size=8,
)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS)
def test_rows_of_changes_come_back_from_columns_with_their_kinds(rows: list[Any]) -> None:
    declared = to_type(CHANGES)
    expected = [declared.adopt(row) for row in rows]
    batch = elements_to_batch(rows, declared)
    assert batch.schema.names == ["id", "name", "row_kind"]
    for found in (batch_to_elements(batch, declared), declared.to_list(declared.to_array(rows))):
        assert found == expected and kinds(found) == kinds(expected)
        assert all(row.id == row[0] and len(row) == 2 for row in found)
    for row in expected:
        assert kinds([declared.from_plain(declared.to_plain(row)), declared.copy(row)]) == kinds([row, row])
    assert declared.to_list(declared.to_array([None, *rows])) == [None, *expected]


def test_the_type_is_written_down_and_read_again() -> None:
    declared = to_type(CHANGES)
    assert declared == Types.CHANGELOG(["id", "name"], [Types.LONG(), Types.STRING()])
    assert type_from_json(declared.to_json()) == declared == pickle.loads(pickle.dumps(declared))
    assert declared != to_type("id bigint, name string, row_kind tinyint")
    with pytest.raises(ConfigurationError, match="none of them is called 'row_kind'"):
        to_type("changelog<row_kind: tinyint>")


def test_a_kind_is_never_lost_without_a_word() -> None:
    gone = Row.of_kind(RowKind.DELETE, id=1, name="kelp")
    for value in (gone, Row.of_kind(RowKind.DELETE, 1, "kelp")):
        with pytest.raises(OutputTypeError, match=r"its kind would be lost.*Types.CHANGELOG"):
            elements_to_batch([value], to_type("id bigint, name string"))
    with pytest.raises(OutputTypeError, match=r"kinds are \+I, -U, \+U, -D"):
        elements_to_batch([{"id": 1, "name": "", "row_kind": "-X"}], to_type(CHANGES))


class Remember(KeyedProcessFunction):
    """Emits the change before this one, kept in state of the type of changes."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", to_type(CHANGES)))

    def process_element(self, row: Row, ctx: Any) -> Any:
        before = self.last.value()
        self.last.update(row)
        if before is not None:
            yield before


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_changes_are_kept_in_state_with_their_kinds(backend: str) -> None:
    options: dict[str, Any] = {"key_by": "id", "key_type": "bigint", "output_type": CHANGES, "backend": backend}
    with OperatorHarness(Remember(), amnesia=True, **options) as harness:
        harness.process_element(Row.of_kind(RowKind.DELETE, id=1, name="kelp"))
        taken = harness.snapshot(1)
    with OperatorHarness.restore([taken], Remember(), **options) as harness:
        harness.process_element(Row.of_kind(RowKind.INSERT, id=1, name="rock"))
        assert kinds(harness.output) == ["-D"] and harness.output == [(1, "kelp")]
