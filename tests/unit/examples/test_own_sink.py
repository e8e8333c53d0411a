"""The documented sink of one's own does what the documentation promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.own_sink import JsonLinesSink
from holdfast.common import Row
from holdfast.errors import StorageError
from holdfast.runtime.commit.commit_manager import CommitManager, CommitReport, CommittingJob
from holdfast.runtime.function.sink import WriterInitContext
from holdfast.types.type_parser import to_type

JOB = "cd" * 16
INCARNATION = "ef" * 16


def write(sink: JsonLinesSink, epoch: int, numbers: list[int], attempt: int = 1) -> list[dict[str, Any]]:
    context = WriterInitContext(
        job_id=JOB, uid="out", epoch=epoch, subtask=0, parallelism=1, attempt=attempt, token=1,
        input_type=to_type("n bigint"), staging_dir="/nowhere", incarnation=INCARNATION,
    )  # fmt: skip
    writer: Any = sink.create_writer(context)
    for number in numbers:
        writer.write(Row(n=number), None)
    writer.flush(False)
    return [{"epoch": epoch, "subtask": 0, "value": value} for value in writer.prepare_commit()]


def committing(sink: JsonLinesSink) -> CommitManager:
    return CommitManager({"out": sink}, CommittingJob(JOB, "/nowhere", incarnations=(INCARNATION,)))


def visible(directory: Path) -> list[int]:
    lines = [line for file in directory.glob("*.jsonl") for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


def test_lines_appear_with_the_commit_and_once(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path))
    write(sink, 1, [9], attempt=1)
    committables = write(sink, 1, [1, 2], attempt=2) + write(sink, 2, [3]) + write(sink, 3, [])
    assert visible(tmp_path) == []

    assert committing(sink).commit(1, {"out": committables}) == CommitReport(committed=2)
    assert committing(sink).commit(1, {"out": committables}) == CommitReport(committed=2)

    assert visible(tmp_path) == [1, 2, 3]
    assert committing(sink).sweep(lambda name: name.attempt == 1 and name.epoch == 1) == 1
    assert visible(tmp_path) == [1, 2, 3]


def test_lines_that_are_lost_fail_the_job(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path))
    committables = write(sink, 1, [1])
    for file in (tmp_path / ".staged").glob("*/*"):
        file.unlink()
    with pytest.raises(StorageError, match="Failed to commit 1 committables"):
        committing(sink).commit(1, {"out": committables})
