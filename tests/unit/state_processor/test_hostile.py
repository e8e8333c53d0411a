"""Large segments, damaged files and forged documents are read completely, or refused with their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import (
    ConfigurationError,
    CorruptFileError,
    HoldfastError,
    NotExistError,
    OutputTypeError,
    StateError,
)
from holdfast.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor, batch
from holdfast.state.run_file import forget_runs
from holdfast.state_processor import OperatorTransformation, SavepointReader, SavepointWriter
from holdfast.state_processor.sql import query

COUNT = ValueStateDescriptor("count", "bigint")


def made(place: Path, table: pa.Table, *, name: str = "savepoint", **columns: str) -> str:
    keyed = OperatorTransformation.bootstrap_with(table).key_by("k")
    transformation = keyed.to_state(COUNT, columns.get("count", "n"))
    if "text" in table.column_names:
        transformation = transformation.to_state(ValueStateDescriptor("text", "string"), "text")
        transformation = transformation.to_state(ListStateDescriptor("list", "string"), "list")
        transformation = transformation.to_state(MapStateDescriptor("map", "bigint", "string"), "map")
    writer = SavepointWriter.new_savepoint(None, 8).set_parallelism(2).with_operator("op", transformation)
    return writer.write(str(place / name))


def test_segments_of_many_batches_are_written_read_and_changed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "BATCH_BYTES", 4096)
    keys = list(range(500))
    texts = [f"text {key} " + "x" * 30 for key in keys]
    maps = pa.array([[(1, text), (2, text)] for text in texts], pa.map_(pa.int64(), pa.string()))
    table = pa.table({"k": keys, "n": keys, "text": texts, "list": [[text, text] for text in texts], "map": maps})
    path = made(place, table)
    forget_runs()
    reader = SavepointReader.read(None, path)

    def content(state: str, read: SavepointReader = reader) -> dict[Any, Any]:
        rows = read.read_keyed_state("op", state).to_pylist()
        return {(row["key"], row.get("map_key")): row["value"] for row in rows}

    assert content("text") == {(key, None): text for key, text in zip(keys, texts, strict=True)}
    assert content("list") == {(key, None): [text, text] for key, text in zip(keys, texts, strict=True)}
    assert content("map") == {(key, at): texts[key] for key in keys for at in (1, 2)}
    shorter = reader.read_keyed_state("op", "map").filter(pa.array([True, False] * 500))
    edit = SavepointWriter.from_existing_savepoint(None, path).replace_state("op", "map", shorter)
    edited = SavepointReader.read(None, edit.write(str(place / "edited")))
    assert content("map", edited) == {(key, 1): texts[key] for key in keys}


def test_a_flipped_bit_is_found(place: Path) -> None:
    path = Path(made(place, pa.table({"k": [1, 2, 3], "n": [1, 2, 3]})))
    run = next((path / "shared").iterdir())
    content = bytearray(run.read_bytes())
    content[200] ^= 1
    run.write_bytes(content)
    forget_runs()
    with pytest.raises(CorruptFileError):
        SavepointReader.read(None, str(path)).read_keyed_state("op", "count")
    run.unlink()
    with pytest.raises(HoldfastError):
        SavepointReader.read(None, str(path)).read_keyed_state("op", "count")


def test_a_document_that_was_changed_is_none(place: Path) -> None:
    path = Path(made(place, pa.table({"k": [1], "n": [1]})))
    document = json.loads((path / "_metadata").read_text())
    document["operators"][0]["uid"] = "other"
    (path / "_metadata").write_text(json.dumps(document))
    with pytest.raises(CorruptFileError):
        SavepointReader.read(None, str(path))
    with pytest.raises(CorruptFileError):
        SavepointWriter.from_existing_savepoint(None, str(path))


def test_names_are_names_in_sql_whatever_they_are(place: Path) -> None:
    uid = 'x"; drop schema main; --'
    keyed = OperatorTransformation.bootstrap_with(pa.table({"k": [1], "n": [7]})).key_by("k")
    path = SavepointWriter.new_savepoint().with_operator(uid, keyed.to_state(COUNT, "n")).write(str(place / "named"))
    quoted = uid.replace('"', '""')
    answer = query(SavepointReader.read(None, path), f'select value from "{quoted}"."count"')
    assert answer.column("value").to_pylist() == [7]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**63 - 1, -(2**63)], pa.int64()),
        pa.array([np.nan, -0.0], pa.float64()),
        pa.array(["", "\x00"]),
        pa.array([b"", b"\xff" * 100]),
        pa.array([True, False]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([0, 10**15], pa.timestamp("us", "UTC")),
    ],
    ids=lambda column: str(column.type),
)
def test_keys_at_the_ends_of_their_types_come_back(place: Path, column: pa.Array) -> None:
    path = made(place, pa.table({"k": column, "n": [1, 2]}))
    table = SavepointReader.read(None, path).read_keyed_state("op", "count")
    assert sorted(table.column("value").to_pylist()) == [1, 2]
    for row in table.to_pylist():
        [same] = SavepointReader.read(None, path).read_keyed_state("op", "count", keys=[row["key"]]).to_pylist()
        assert same["value"] == row["value"]


def test_two_zeros_are_one_key_and_a_nested_one_is_none(place: Path) -> None:
    with pytest.raises(StateError, match="two rows"):
        made(place, pa.table({"k": [0.0, -0.0], "n": [1, 2]}))
    with pytest.raises(HoldfastError, match="Keys cannot be"):
        made(place, pa.table({"k": [[1], [2]], "n": [1, 2]}), name="nested")
    with pytest.raises((OutputTypeError, NotExistError, HoldfastError)):
        made(place, pa.table({"k": [1, 2], "n": [{"a": 1}, {"a": 2}]}), name="struct")


def test_lists_and_maps_that_are_null_inside_a_value_stay_null(place: Path) -> None:
    kind = "struct<n: bigint, list: array<bigint>, map: map<string, bigint>>"
    row = pa.struct([("n", pa.int8()), ("list", pa.large_list(pa.int8())), ("map", pa.map_(pa.string(), pa.int8()))])
    values = [
        {"n": 1, "list": [1], "map": [("a", 1)]},
        {"n": 2, "list": None, "map": None},
        {"n": 3, "list": [2, None], "map": []},
    ]
    hidden = pa.ListArray.from_arrays([0, 1, 3, 3], pa.array([1, 9, 9]), mask=pa.array([False, True, False]))
    table = pa.table({"k": ["a", "b", "c"], "row": pa.array(values, row), "m": [1, 2, 3], "hidden": hidden})
    keyed = OperatorTransformation.bootstrap_with(table).key_by("k").to_state(ValueStateDescriptor("row", kind), "row")
    entries = MapStateDescriptor("entries", "bigint", "array<smallint>")
    keyed = keyed.to_state(entries, "hidden", map_key="m")
    reader = SavepointReader.read(
        None, SavepointWriter.new_savepoint().with_operator("op", keyed).write(str(place / "a"))
    )
    rows = {found["key"]: found["value"] for found in reader.read_keyed_state("op", "row").to_pylist()}
    assert rows == dict(zip("abc", values, strict=True))
    rows = {found["key"]: found["value"] for found in reader.read_keyed_state("op", "entries").to_pylist()}
    assert rows == {"a": [1], "b": None, "c": []}


@pytest.mark.parametrize(
    "column", [pa.list_(pa.field("element", pa.int64(), False)), pa.large_list(pa.int8()), pa.list_(pa.int32(), 2)]
)
def test_a_list_may_be_an_element_of_a_list_whatever_its_numbers_are_in_the_table(
    place: Path, column: pa.DataType
) -> None:
    table = pa.table({"k": ["a", "a"], "one": pa.array([[1, 2], [3, 4]], column)})
    keyed = OperatorTransformation.bootstrap_with(table).key_by("k")
    path = str(place / "lists")
    state = keyed.to_state(ListStateDescriptor("s", "array<bigint>"), "one")
    state = state.to_state(ListStateDescriptor("flat", "bigint"), "one")
    reader = SavepointReader.read(None, SavepointWriter.new_savepoint().with_operator("op", state).write(path))
    assert reader.read_keyed_state("op", "s").column("value").to_pylist() == [[[1, 2], [3, 4]]]
    assert reader.read_keyed_state("op", "flat").column("value").to_pylist() == [[1, 2, 3, 4]]


def test_a_relative_path_is_that_of_the_moment_when_it_was_given(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(place, pa.table({"k": [1], "n": [7]}), name="a savepoint")
    monkeypatch.chdir(place)
    reader, writer = (
        SavepointReader.read(None, "a savepoint"),
        SavepointWriter.from_existing_savepoint(None, "a savepoint"),
    )
    monkeypatch.chdir("/")
    assert reader.read_keyed_state("op", "count").column("value").to_pylist() == [7]
    copy = writer.update_state("op", "count", {"key": [1], "value": [8]}).write(str(place / "copy"))
    assert SavepointReader.read(None, copy).read_keyed_state("op", "count").column("value").to_pylist() == [8]
    with pytest.raises(ConfigurationError, match="by an Arrow table, not by a list"):
        writer.replace_state("op", "count", [(1, 8)])
