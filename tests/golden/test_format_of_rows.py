"""What docs/format.md says about the rows of segments and the hash of keys, checked on every golden archive."""

from __future__ import annotations

import itertools
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xxhash

from examples import read_checkpoint
from examples.read_checkpoint import APPEND, CLEAR, DELETE, PUT
from holdfast.errors import ConfigurationError
from holdfast.state.operator_snapshot import Mode, OperatorSnapshot, SnapshotChunk, StoredState
from holdfast.state.operator_state import RoundRobinOperatorStateRepartitioner
from holdfast.types.key_codec import codec_from_json, key_codec_for
from holdfast.types.type_parser import to_type
from holdfast.types.types import Types
from tests.golden.test_golden import HERE, unpacked

ARCHIVES = sorted(HERE.glob("format-*.zip"))
OPERATIONS = {"list": {PUT, DELETE, APPEND}, "map": {PUT, DELETE, CLEAR}, "timers": {PUT, DELETE}}
SINGLE = {PUT, DELETE}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.stem)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The directory of an archive."""
    return unpacked(request.param, tmp_path)


def segments(place: Path) -> Iterator[tuple[Any, Any, Any, pa.Table]]:
    """Each segment of each run of each checkpoint: the operator, the run, what the footer says, and the rows."""
    for path in place.rglob("_metadata"):
        document, root = read_checkpoint.checkpoint(path.parent)
        for operator in document["operators"]:
            for handle in operator["runs"]:
                run = read_checkpoint.Run(root, handle)
                for segment in run.footer["segments"]:
                    data = run.data[segment["offset"] : segment["offset"] + segment["length"]]
                    yield operator, run, segment, pa.ipc.open_file(pa.py_buffer(data)).read_all()


def test_a_segment_has_at_most_one_row_about_each_thing(place: Path) -> None:
    """One about a key, of maps one about each entry and a clear before them, of timers one about each time."""
    for _, _, segment, table in segments(place):
        kind = segment["schema"]["kind"]
        named = {"map": ["key", "namespace", "map_key"], "timers": ["key", "namespace", "timestamp"]}
        about = [name for name in named.get(kind, ["key", "namespace"]) if name in table.column_names]
        counted = table.group_by(about).aggregate([([], "count_all")])
        assert pc.max(counted.column("count_all")).as_py() in (1, None), segment["name"]
        ops = table.column("op").to_pylist()
        assert set(ops) <= OPERATIONS.get(kind, SINGLE)
        if kind == "map":
            assert [op == CLEAR for op in ops] == table.column("map_key").is_null().to_pylist()
            cells = zip(*(table.column(name).to_pylist() for name in about[:-1]), strict=True)
            for _, rows in itertools.groupby(zip(cells, ops, strict=True), key=lambda row: row[0]):
                of_cell = [op for _, op in rows]
                assert CLEAR not in of_cell[1:]
                assert not {CLEAR, DELETE} <= set(of_cell), "what is cleared needs no delete"


def test_rows_stand_in_the_order_of_hashes_and_timers_in_that_of_groups_and_times(place: Path) -> None:
    for operator, _, segment, table in segments(place):
        hashes = table.column("hash").to_pylist()
        groups = [((hashed >> 32) * operator["max_parallelism"]) >> 32 for hashed in hashes]
        if segment["schema"]["kind"] == "timers":
            order = list(zip(groups, table.column("timestamp").to_pylist(), strict=True))
            assert order == sorted(order)
        else:
            assert hashes == sorted(hashes)
        firsts = [at for at, group in enumerate(groups) if at == 0 or group != groups[at - 1]]
        assert segment["first_rows"] == firsts
        assert segment["key_groups"] == [groups[at] for at in firsts]
        assert segment["rows"] == table.num_rows


def test_a_stamp_stands_beside_each_value_and_each_element_where_there_is_a_time_to_live(place: Path) -> None:
    for _, _, segment, table in segments(place):
        schema = segment["schema"]
        if schema["kind"] == "timers":
            continue
        assert ("stamp" in table.column_names) == schema["ttl"]
        for row in table.to_pylist() if schema["ttl"] else ():
            if schema["kind"] == "list":
                assert len(row["stamp"] or ()) == len(row["value"] or ())
            else:
                assert (row["stamp"] is None) == (row["op"] != PUT)


def test_the_hash_of_each_key_is_that_of_the_page(place: Path) -> None:
    for operator, _, _, table in segments(place):
        for key, found in zip(table.column("key"), table.column("hash").to_pylist(), strict=True):
            assert hashed(operator["key"], key) == found, (operator["key"], key)


def test_the_examples_of_keys_on_the_page_have_these_bytes_and_hashes() -> None:
    page = (HERE.parent.parent / "docs" / "format.md").read_text(encoding="utf-8")
    examples = re.findall(r"^\| `(\{.*\})` \| .* \| `([0-9a-f]+)` \| `([0-9a-f]{16})` \|$", page, re.MULTILINE)
    assert len(examples) == 16
    for text, data, wanted in examples:
        codec, content = json.loads(text), bytes.fromhex(data)
        if codec["kind"] == "atomic":
            part = read_checkpoint.decode_part(codec["type"], content)
            found = hashed(codec, as_arrow(codec["type"], part))
        else:
            found = hashed(codec, pa.scalar(content))
        assert f"{found:016x}" == wanted, text
        key = codec_from_json(codec)
        user_key = read_checkpoint.decode_tagged(content, 0)[0] if codec["kind"] == "tagged" else None
        if codec["kind"] == "composite":
            user_key = read_checkpoint.decode_composite(codec["type"], content)
        elif codec["kind"] == "atomic":
            user_key = part
        if content[:1] not in b"lm":  # the reader has them as tuples
            dict_key = key.dict_key(user_key)
            assert (key.canonical_bytes(dict_key), key.hash(dict_key)) == (content, int(wanted, 16)), text


@pytest.mark.parametrize(
    "kind", ["array<int>", "map<string, int>", "string collate UTF8_LCASE", Types.PICKLED_BYTE_ARRAY()]
)
def test_a_key_never_is_or_has_an_array_a_map_a_collated_text_or_a_pickled_part(kind: Any) -> None:
    whole = to_type(kind)
    with pytest.raises(ConfigurationError, match="Keys cannot be"):
        key_codec_for(Types.ROW([Types.INT(), whole]))
    if whole == Types.PICKLED_BYTE_ARRAY():
        assert key_codec_for(whole).to_json() == {"kind": "tagged"}
    else:
        with pytest.raises(ConfigurationError, match="Keys cannot be"):
            key_codec_for(whole)


def test_a_list_of_chunks_of_two_types_has_the_type_of_its_last_chunk() -> None:
    def stored(kind: str) -> OperatorSnapshot:
        chunk = SnapshotChunk({"inline": ""}, 0, 0, 2, 0, 2)
        return OperatorSnapshot({"kept": StoredState(Mode.SPLIT_DISTRIBUTE, {"type": kind}, (chunk,))})

    newer, older = stored("bigint"), stored("int")
    [both] = RoundRobinOperatorStateRepartitioner().repartition_state([newer, older], 2, 1)
    assert both is not None
    state = both.states["kept"]
    assert state.description["type"] == "int"
    assert [(chunk.type, state.type_of(chunk)) for chunk in state.chunks] == [("bigint", "bigint"), (None, "int")]


def hashed(codec: Any, key: pa.Scalar) -> int:
    """The hash of a key: of each column with that of the one before as its seed."""
    if codec["kind"] == "tagged":
        return xxhash.xxh64_intdigest(key.as_py(), 42)
    if codec["kind"] == "atomic":
        return xxhash.xxh64_intdigest(hashed_bytes(codec["type"], key), 42)
    return hashed_parts(codec["type"], read_checkpoint.decode_composite(codec["type"], key.as_py()), 42)


def hashed_parts(kind: Any, parts: tuple[Any, ...], seed: int) -> int:
    types = kind["types"] if kind["type"] == "tuple" else [field["type"] for field in kind["fields"]]
    for part_type, part in zip(types, parts, strict=True):
        if part is None:
            continue
        if isinstance(part_type, dict) and part_type["type"] in ("row", "tuple", "dataclass", "avro"):
            seed = hashed_parts(part_type, part, seed)
        else:
            seed = xxhash.xxh64_intdigest(hashed_bytes(part_type, as_arrow(part_type, part)), seed)
    return seed


ARROW = {
    "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "boolean": pa.bool_(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"), "time": pa.time64("ns"),
    "interval day to second": pa.duration("us"),
}  # fmt: skip


def as_arrow(kind: Any, value: Any) -> pa.Scalar:
    if isinstance(kind, dict):
        return pa.scalar(value, pa.decimal128(kind["precision"], kind["scale"]) if kind["type"] == "decimal" else None)
    return pa.scalar(value, ARROW[kind])


def hashed_bytes(kind: Any, key: pa.Scalar) -> bytes:
    """What of a value of a simple type is hashed."""
    name = kind if isinstance(kind, str) else kind["type"]
    value = key.as_py()
    if name in ("string", "char"):
        return str(value).encode()
    if name == "binary":
        return bytes(value)
    if name == "decimal":
        sign, digits, _ = value.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        if kind["precision"] <= 18:
            return struct.pack("<q", unscaled)
        length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return unscaled.to_bytes(length, "big", signed=True)
    if name in ("float", "double"):
        assert str(value) != "-0.0"
        return struct.pack("<f" if name == "float" else "<d", value)
    if name in ("boolean", "tinyint", "smallint"):
        return struct.pack("<i", value)
    is_short = name in ("int", "date")
    number = pa.array([key]).view(pa.int32() if is_short else pa.int64())[0].as_py()
    return struct.pack("<i" if is_short else "<q", number)
