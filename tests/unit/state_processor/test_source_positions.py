"""Source positions in a written savepoint: complete or absent, and kept by later edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from holdfast.checkpoint.completed_checkpoint import read_by_path
from holdfast.errors import ConfigurationError, NotExistError
from holdfast.kernel import fault
from holdfast.runtime.graph.source_positions import require_positions
from holdfast.state import ValueStateDescriptor
from holdfast.state_processor import OperatorTransformation, SavepointReader, SavepointWriter, SourcePositions

LEAF = {"uid": "days", "ordinal": 0, "reads": "parquet of path '/days'", "schema": "struct<n:bigint>", "source": 0}
STREAMING = {
    "batch_id": 4,
    "offsets": {"3": 'v1\n{}\n{"logOffset":3}', "4": 'v1\n{}\n{"logOffset":4}'},
    "inputs": [LEAF],
}
FILES = {"0/3": b"v1\nthree", "0/4": b"v1\nfour"}


def made(place: Path, name: str) -> str:
    table = pa.table({"word": ["kelp"], "n": [5]})
    counts = OperatorTransformation.bootstrap_with(table).key_by("word")
    writer = SavepointWriter.new_savepoint(None, 16)
    writer.with_operator("count", counts.to_state(ValueStateDescriptor("count", "bigint"), "n"))
    return writer.with_source_positions(SourcePositions(STREAMING, FILES)).write(str(place / name))


def require_all(path: str) -> dict[str, Any]:
    found: dict[str, Any] = read_by_path(path).metadata.source_positions
    require_positions(found)
    assert {name: found["streaming"][name] for name in STREAMING} == STREAMING
    assert found["static"] == []
    handles = found["streaming"]["sources"]
    for name, content in FILES.items():
        assert (Path(path) / handles[name]["path"]).read_bytes() == content
        assert (handles[name]["size"], handles[name]["digest"]) == (len(content), xxhash.xxh3_64_hexdigest(content))
    return handles


def test_positions_are_written_with_the_files_of_the_sources(place: Path) -> None:
    path = made(place, "savepoint")
    handles = require_all(path)
    copy = SavepointWriter.from_existing_savepoint(None, path).remove_operator("count").with_operator(
        "other", OperatorTransformation.bootstrap_with(pa.table({"k": [1], "v": [1]})).key_by("k").to_state(
            ValueStateDescriptor("v", "bigint"), "v"
        ),
    )  # fmt: skip
    assert require_all(copy.write(str(place / "copy"))).keys() == handles.keys()
    with pytest.raises(ConfigurationError, match="SourcePositions"):
        copy.with_source_positions({"days": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["before", "after", "lost"])
@pytest.mark.parametrize("which", [1, 2])
def test_a_writer_that_dies_while_it_copies_source_files_leaves_no_savepoint(
    place: Path, when: str, which: int
) -> None:
    fault.install(f"{when}:source.copy:{which}=raise")
    with pytest.raises(fault.FaultInjectedError):
        made(place, "savepoint")
    fault.clear()
    with pytest.raises(NotExistError):
        SavepointReader.read(None, str(place / "savepoint"))
    require_all(made(place, "again"))
