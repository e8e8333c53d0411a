"""Tasks that read splits of files: their elements cross exchanges in messages, and a failed task reads again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.stream_factory import read_by
from holdfast.errors import EngineError
from holdfast.runtime.exchange.layout import MessageWriter
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.task import stage_task
from holdfast.testing.epoch_runner import EpochProgram
from tests.stories import journal
from tests.stories.functions import Numbering
from tests.stories.journal import Journal

COLUMNS = "word string, n bigint"


def files(place: Path, count: int) -> list[Path]:
    place.mkdir(exist_ok=True)
    for number in range(count):
        words = [f"w{n % (number + 2)}" for n in range(200)]
        pq.write_table(pa.table({"word": words, "n": range(200)}), place / f"{number}.parquet", row_group_size=30)
    return sorted(place.iterdir())


def stream_of(program: EpochProgram) -> tuple[DataStream, FileSplits]:
    splits = FileSplits(ParquetColumnarRowInputFormat(COLUMNS))
    rows = program.source("files", "splits string")
    return read_by(splits, rows, ParquetColumnarRowInputFormat(COLUMNS).element_type()), splits


def counted(place: Path, inputs: list[list[Path]], packers: list[MessageWriter], **how: Any) -> Counter[str]:
    program = EpochProgram()
    stream, splits = stream_of(program)
    numbered = stream.key_by("word").process(Numbering(lambda row, number: (row.word, number)), COLUMNS)
    numbered.uid("count").sink_to(Journal(place / "out")).uid("out")
    epochs = [{"files": [(task,) for task in splits.plan(list(map(str, paths)), None, 2).tasks]} for paths in inputs]
    status = program.run(place / "job", epochs, is_bounded=True, **how)
    assert status is JobStatus.FINISHED
    found = [tuple(row) for row in journal.read(place / "out")]
    words = Counter(word for word, _ in found)
    assert sorted(found) == sorted((word, n) for word, count in words.items() for n in range(1, count + 1))
    return words


@pytest.fixture
def packers(monkeypatch: pytest.MonkeyPatch) -> list[MessageWriter]:
    made: list[MessageWriter] = []

    class Noted(MessageWriter):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(stage_task, "MessageWriter", Noted)
    return made


def wanted(paths: list[Path]) -> Counter[str]:
    return Counter(word for path in paths for word in pq.read_table(path).column("word").to_pylist())


def test_elements_of_files_cross_in_messages_unless_disabled(place: Path, packers: list[MessageWriter]) -> None:
    paths = files(place / "in", 5)
    assert counted(place / "a", [paths[:3], paths[3:]], packers) == wanted(paths)
    assert packers
    packers.clear()
    how = {"options": {"execution.exchange.packed": "false"}}
    assert counted(place / "b", [paths[:3], paths[3:]], packers, **how) == wanted(paths)
    assert not packers


def test_a_task_that_fails_reads_its_splits_again(place: Path, packers: list[MessageWriter]) -> None:
    paths = files(place / "in", 4)
    failures = iter([False, True, False, True])

    def fail_now(stage: int, subtask: int) -> None:
        if stage and next(failures, False):
            raise EngineError("a task fails")

    options = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "3",
        "restart-strategy.fixed-delay.delay": "0 ms",
    }
    found = counted(place / "a", [paths[:2], paths[2:]], packers, interceptor=fail_now, options=options)
    assert found == wanted(paths)
    assert next(failures, None) is None
