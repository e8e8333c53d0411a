"""What the driver makes of Spark's log of listed files, and what it records of an epoch; no Spark runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.datastream.connectors.file_system import StreamFormat
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.errors import InputGoneError
from holdfast.spark.input.files import listed_in_log, plain
from holdfast.spark.input.source import _recorded

SESSION: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))


def entry(folder: Path, name: str, *files: tuple[str, int]) -> None:
    lines = [json.dumps({"path": path, "timestamp": 1, "batchId": batch}) for path, batch in files]
    (folder / name).write_text("\n".join(["v1", *lines]))


def test_an_epoch_has_the_files_of_its_entries_compacted_or_not(tmp_path: Path) -> None:
    entry(tmp_path, "8", ("file:///in/a%20b.txt", 8), ("file:///in/a%2525.txt", 8))
    entry(tmp_path, "9.compact", ("file:///in/0.txt", 0), ("file:///in/a%20b.txt", 8), ("file:///in/9.txt", 9))
    (tmp_path / "splits").mkdir()
    assert listed_in_log(tmp_path, 7, 8) == ["/in/a b.txt", "/in/a%25.txt"]
    assert listed_in_log(tmp_path, 8, 9) == ["/in/9.txt"]
    assert listed_in_log(tmp_path, 7, 9) == ["/in/9.txt", "/in/a b.txt", "/in/a%25.txt"]
    assert listed_in_log(tmp_path, 9, 9) == []


@pytest.mark.parametrize(
    ("path", "is_encoded", "found"),
    [
        ("file:/in/a%20b", False, "/in/a%20b"),
        ("file:///in/a%20b", True, "/in/a b"),
        ("s3a://bucket/a%20b", True, "s3://bucket/a b"),
        ("hdfs://host/a", True, "hdfs://host/a"),
    ],
)
def test_paths_of_hadoop_are_those_of_our_file_systems(path: str, is_encoded: bool, found: str) -> None:
    assert plain(path, is_encoded=is_encoded) == found


def test_an_epoch_that_is_planned_again_has_the_files_of_its_record_or_none(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("kelp\n")
    splits, folder = FileSplits(StreamFormat.text_line_format()), tmp_path / "splits"
    first = _recorded(splits, folder, 4, [str(path)], SESSION)
    assert _recorded(splits, folder, 4, ["/is not looked at"], SESSION) == first
    os.utime(path, (1, 1))
    with pytest.raises(InputGoneError, match=r"cannot be repeated: the file '.*a\.txt' was changed"):
        _recorded(splits, folder, 4, [str(path)], SESSION)
    assert _recorded(splits, folder, 5, [str(path)], SESSION) != first
    assert [record.name for record in folder.iterdir()] == ["5"], "only the newest is kept, and goes into checkpoints"
