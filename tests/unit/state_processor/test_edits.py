"""A state of a savepoint is changed: keys in the table change, and others stay or are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, OutputTypeError, StateError
from holdfast.kernel.clock import ManualClock
from holdfast.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.state_processor import OperatorTransformation, SavepointReader, SavepointWriter

KEYS = st.integers(0, 6)
VALUE = st.dictionaries(KEYS, st.integers(-5, 5), max_size=6)
LIST = st.dictionaries(KEYS, st.lists(st.integers(-5, 5), min_size=1, max_size=3), max_size=6)
MAP = st.dictionaries(st.tuples(KEYS, st.sampled_from(["x", "y", "z"])), st.integers(-5, 5), max_size=8)
EXPIRING = ValueStateDescriptor("state", "bigint")
EXPIRING.enable_time_to_live(StateTtlConfig.new_builder(100).build())


def table_of(kind: str, content: dict[Any, Any]) -> pa.Table:
    if kind == "map":
        columns = {"key": [key for key, _ in content], "map_key": [entry for _, entry in content]}
        columns["value"] = list(content.values())
        types = [("key", pa.int64()), ("map_key", pa.string()), ("value", pa.int64())]
    else:
        columns = {"key": list(content), "value": list(content.values())}
        types = [("key", pa.int64()), ("value", pa.list_(pa.int64()) if kind == "list" else pa.int64())]
    return pa.table(columns, pa.schema(types))


def content_of(kind: str, table: pa.Table) -> dict[Any, Any]:
    rows = table.to_pylist()
    return {((row["key"], row["map_key"]) if kind == "map" else row["key"]): row["value"] for row in rows}


DESCRIPTORS: dict[str, Any] = {
    "value": ValueStateDescriptor("state", "bigint"),
    "expiring": EXPIRING,
    "list": ListStateDescriptor("state", "bigint"),
    "map": MapStateDescriptor("state", "string", "bigint"),
}


def made(path: str, kind: str, table: pa.Table, **key: Any) -> str:
    # A timer for each key, too: an operator has a key, even if the state is empty.
    keyed = OperatorTransformation.bootstrap_with(table).key_by("key", **key)
    state = keyed.to_state(DESCRIPTORS[kind], "value", map_key="map_key" if kind == "map" else None)
    writer = SavepointWriter.new_savepoint(None, 8).set_clock(ManualClock(5)).set_parallelism(2)
    return writer.with_operator("op", state).write(path)


@pytest.mark.parametrize("kind", list(DESCRIPTORS))
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_edits_do_to_a_state_what_they_do_to_a_dictionary(kind: str, data: Any, tmp_path_factory: Any) -> None:
    place = tmp_path_factory.mktemp("edits")
    contents = {"map": MAP, "list": LIST}.get(kind, VALUE)
    model = data.draw(contents.filter(bool))
    path = made(str(place / "0"), kind, table_of(kind, model))
    for number in range(1, 3):
        change, is_whole = data.draw(contents), data.draw(st.booleans())
        model = dict(change) if is_whole else {**model, **change}
        writer = SavepointWriter.from_existing_savepoint(None, path).set_parallelism(data.draw(st.integers(1, 4)))
        edit = writer.replace_state if is_whole else writer.update_state
        path = edit("op", "state", table_of(kind, change)).write(str(place / str(number)))
        assert content_of(kind, SavepointReader.read(None, path).read_keyed_state("op", "state")) == model


def test_what_is_read_can_be_written_back_also_with_untyped_keys(tmp_path: Path) -> None:
    path = made(str(tmp_path / "0"), "value", pa.table({"key": ["a", "b"], "value": [1, 2]}), untyped=True)
    table = SavepointReader.read(None, path).read_keyed_state("op", "state")
    assert pa.types.is_binary(table.schema.field("key").type)
    path = (
        SavepointWriter.from_existing_savepoint(None, path)
        .replace_state("op", "state", table)
        .write(str(tmp_path / "1"))
    )
    assert SavepointReader.read(None, path).read_keyed_state("op", "state").equals(table)
    with pytest.raises(OutputTypeError, match="no key without a declared type"):
        wrong = table.set_column(1, "key", pa.array([b"\x00a", b"b"]))
        SavepointWriter.from_existing_savepoint(None, path).replace_state("op", "state", wrong).write(
            str(tmp_path / "2")
        )


TABLE = pa.table({"key": [1, 2], "value": [1, 2]})
BAD: dict[str, tuple[pa.Table, str, type[HoldfastError], str]] = {
    "another key group": (TABLE.append_column("key_group", pa.array([7, 7])), "state", StateError, "hashes to"),
    "another column": (TABLE.append_column("n", pa.array([7, 7])), "state", ConfigurationError, "may be"),
    "another state": (TABLE, "nothing", NotExistError, "no keyed state 'nothing'"),
    "twice": (pa.concat_tables([TABLE, TABLE]), "state", StateError, "two rows"),
    "not of the type": (pa.table({"key": [1], "value": ["x"]}), "state", OutputTypeError, "bigint"),
    "keys of another type": (pa.table({"key": ["x"], "value": [1]}), "state", OutputTypeError, "bigint"),
}


@pytest.mark.parametrize("what", list(BAD))
def test_what_cannot_be_the_state_is_refused(tmp_path: Path, what: str) -> None:
    table, state, error, message = BAD[what]
    path = made(str(tmp_path / "0"), "value", TABLE)
    with pytest.raises(error, match=message):
        SavepointWriter.from_existing_savepoint(None, path).update_state("op", state, table).write(str(tmp_path / "1"))
    with pytest.raises(NotExistError):
        SavepointReader.read(None, str(tmp_path / "1"))
    with pytest.raises(NotExistError, match="'who'"):
        SavepointWriter.from_existing_savepoint(None, path).update_state("who", "state", TABLE).write(
            str(tmp_path / "2")
        )
