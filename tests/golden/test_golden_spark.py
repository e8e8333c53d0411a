"""The archive of a job on Spark is read without Spark: its state, and where its sources stand.

That a job on Spark goes on from it, `tests/spark/test_golden.py` shows.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples import read_checkpoint
from holdfast.checkpoint.completed_checkpoint import read_by_path, root_of
from holdfast.errors import CorruptFileError
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.spark.input.positions import COMMIT_ENTRY, QueryDirectory
from holdfast.state import HashMapStateBackend
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.state.environment import Environment
from holdfast.state.version import StateVersion
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.types.key_codec import codec_from_json
from tests.golden.spark_positions import AT_ONCE, FOLDER, NAME, STREAMED
from tests.golden.test_golden import HERE, unpacked

ARCHIVES = sorted(HERE.glob("format-*-spark.zip"))
JOB = JobID.from_name(NAME)
COUNTED = Counter([*AT_ONCE, *(word for words in STREAMED for word in words)])


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.stem)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The checkpoint directory of all jobs."""
    return unpacked(request.param, tmp_path / "checkpoints")


def test_the_reader_in_the_examples_reads_it(root: Path) -> None:
    found = {(uid, name): content for uid, name, _, content in read_checkpoint.states(root / str(JOB))}
    assert found == {("count", "seen"): COUNTED}

    files = read_checkpoint.source_files(root / str(JOB))
    assert set(files) == {"offsets/0", "offsets/1", "sources/0/0", "sources/0/1"}
    for batch in range(len(STREAMED)):
        # What the texts mean is Spark's; here they are of its source of files.
        assert files[f"offsets/{batch}"].decode().splitlines()[-1] == json.dumps(
            {"logOffset": batch}, separators=(",", ":")
        )
        entry = json.loads(files[f"sources/0/{batch}"].decode().splitlines()[1])
        assert (entry["path"], entry["batchId"]) == (f"file://{FOLDER}/{batch:03}.parquet", batch)


def test_holdfast_reads_its_state(root: Path) -> None:
    checkpoint = read_by_path(str(newest(root)))
    (operator,) = (operator for operator in checkpoint.metadata.operators if operator.uid == "count")
    backend = HashMapStateBackend().create_keyed_state_backend(
        Environment(str(JOB), "count"),
        str(JOB),
        "count",
        codec_from_json(operator.key),
        operator.max_parallelism,
        KeyGroupRange(0, operator.max_parallelism - 1),
    )
    backend.open_version(StateVersion(operator.runs), LocalFileSystem(), root_of(checkpoint))
    seen = backend.get_state(ValueStateDescriptor("seen", "bigint"))
    found = {}
    for key in backend.get_keys("seen"):
        backend.set_current_key(key)
        found[key] = seen.value()
    assert found == COUNTED


def newest(root: Path) -> Path:
    return read_checkpoint.newest(root / str(JOB)).parent


def positions(root: Path) -> Any:
    return read_by_path(str(newest(root))).metadata.source_positions


def test_a_new_directory_for_spark_is_made_of_it(root: Path, tmp_path: Path) -> None:
    assert positions(root)["static_consumed"]
    query = QueryDirectory(tmp_path / "query", JobDirectory(LocalFileSystem(), str(root), JOB), 2)
    query.seed(positions(root)["streaming"])

    made = {str(path.relative_to(query.path)): path.read_bytes() for path in query.path.rglob("*") if path.is_file()}
    commits = {f"commits/{batch}": COMMIT_ENTRY.encode() for batch in range(len(STREAMED))}
    assert set(json.loads(made.pop("metadata"))) == {"id"}
    assert made == read_checkpoint.source_files(root / str(JOB)) | commits


def test_a_damaged_copy_of_a_source_entry_is_noticed(root: Path, tmp_path: Path) -> None:
    handle = positions(root)["streaming"]["sources"]["0/1"]
    copy = root / str(JOB) / handle["path"]
    copy.write_bytes(copy.read_bytes().replace(b"001", b"002"))
    with pytest.raises(SystemExit, match="is damaged"):
        read_checkpoint.source_files(root / str(JOB))
    query = QueryDirectory(tmp_path / "query", JobDirectory(LocalFileSystem(), str(root), JOB), 2)
    with pytest.raises(CorruptFileError, match="is damaged"):
        query.seed(positions(root)["streaming"])
