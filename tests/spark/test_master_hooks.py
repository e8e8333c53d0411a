"""A hook of the driver in jobs on Spark: told of every checkpoint, and given back its state by the next process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import MasterTriggerRestoreHook, ParquetFileSink, RichMapFunction, WithMasterCheckpointHook
from holdfast.storage import DocumentSerializer
from tests.spark.test_shapes import environment, name, rows, stream, words

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Bookmark(MasterTriggerRestoreHook[int]):
    def __init__(self, log: Path) -> None:
        self._log = log
        self._page = 0

    def get_identifier(self) -> str:
        return "bookmark"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Any) -> int:
        self._page += 1
        self._write(f"page {self._page}")
        return self._page

    def restore_checkpoint(self, checkpoint_id: int, state: int | None) -> None:
        self._page = state or 0
        self._write(f"restored {state}")

    def create_checkpoint_data_serializer(self) -> DocumentSerializer[int]:
        return DocumentSerializer("bookmark", 1, lambda page: {"page": page}, lambda body: int(body["page"]))

    def close(self) -> None:
        self._write("closed")

    def _write(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{line}\n")


class Read(RichMapFunction, WithMasterCheckpointHook[int]):
    def __init__(self, log: Path) -> None:
        self._log = log

    def create_master_trigger_restore_hook(self) -> Bookmark:
        return Bookmark(self._log)

    def map(self, row: Any) -> Any:
        return (row.word.upper(),)


def test_the_state_of_a_hook_passes_between_processes_with_the_checkpoints(spark: Any, tmp_path: Path) -> None:
    job, folder = name(), words(tmp_path, ["kelp", "rock"])

    def run(**options: Any) -> None:
        env = environment(spark, tmp_path, execution_trigger="available-now", **options)
        read = env.from_dataframe(stream(spark, folder)).map(Read(tmp_path / "log"), "word string").uid("read")
        read.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
        env.execute(job)

    run()
    first = (tmp_path / "log").read_text().splitlines()
    assert first[0] == "page 1" and first[-1] == "closed"
    pages = len(first) - 1

    words(tmp_path, ["sand"])
    run()
    then = (tmp_path / "log").read_text().splitlines()[len(first) :]
    assert then[:2] == [f"restored {pages}", f"page {pages + 1}"]
    assert sorted(rows(tmp_path / "out")) == [("KELP",), ("ROCK",), ("SAND",)]
