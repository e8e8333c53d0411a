"""Files in real-time jobs without a JVM: each line once, whatever fails, and positions that stay after a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.datastream import ParquetFileSink
from holdfast.datastream.connectors.file_system import StreamFormat
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.connectors.file_system.file_split_source import FileSplitSource
from holdfast.datastream.formats.json import JsonLinesFormat
from holdfast.datastream.stream.stream_factory import read_by
from holdfast.errors import InputError, JobExecutionError
from holdfast.runtime.master.job_client import JobClient
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories import ledger
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS, RESTARTS, Count, Failing, each_once, until

LINES = StreamFormat.text_line_format()


def put(folder: Path, name: str, begin: int, end: int) -> None:
    """Add a file with numbers; it is complete when it gets its name."""
    folder.mkdir(exist_ok=True)
    new = folder.parent / f"{name}.new"
    new.write_text("".join(f"{n}\n" for n in range(begin, end)))
    new.rename(folder / name)


def same(row: Any) -> Any:
    return row.key, row.n


def counted(program: RealTimeProgram, root: Path, fails_at: int = -1, read: Any = same) -> Any:
    source = FileSplitSource(LINES, (str(root / "in"),), 0.05, {})
    rows = program.source("files", source, "splits string")
    lines = read_by(FileSplits(LINES), rows, Types.STRING()).uid("read")
    pairs = lines.map(lambda line: (int(line) % KEYS, int(line)), "key bigint, n bigint").uid("pairs")
    checked = pairs.map(Failing(root / "failed", fails_at), "key bigint, n bigint").uid("numbers")
    checked = checked.map(read, "key bigint, n bigint").uid("seen")
    return checked.key_by("key").process(Count(), "key bigint, count bigint").uid("count")


def start(root: Path, found: dict[int, list[Any]], fails_at: int = -1) -> JobClient:
    program = RealTimeProgram()
    counts = counted(program, root, fails_at)

    def take(frame: Any, epoch: int) -> None:
        found[epoch] = frame.to_pylist()  # an epoch may come again after a failure

    counts.for_each_epoch(take).uid("out")
    return JobClient(program.master(root / "checkpoints", RESTARTS))


def rows_of(found: dict[int, list[Any]]) -> list[Any]:
    return [row for rows in list(found.values()) for row in rows]


@pytest.mark.parametrize("fails_at", [0, 1500, 2999])
def test_each_line_of_files_that_come_is_counted_once(tmp_path: Path, fails_at: int) -> None:
    found: dict[int, list[Any]] = {}
    put(tmp_path / "in", "first", 0, 700)
    client = start(tmp_path, found, fails_at)

    def add() -> None:
        for number in range(7, 30):
            put(tmp_path / "in", str(number), 100 * number, 100 * (number + 1))
            time.sleep(0.02)

    adder = threading.Thread(target=add)
    adder.start()
    until(lambda: len(rows_of(found)) >= 3000)
    adder.join()
    client.stop()
    client.await_termination()
    each_once(rows_of(found), 3000)
    assert (tmp_path / "failed").exists()


def test_an_unreadable_line_ends_the_job_as_by_epochs(tmp_path: Path) -> None:
    """At the third failure, as an error of the input: the class of the error passes from the task to the driver."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text('{"n": 1}\n{"n": \n')
    lines = JsonLinesFormat("n bigint")
    program = RealTimeProgram()
    source = FileSplitSource(lines, (str(tmp_path / "in"),), 0.05, {})
    rows = read_by(
        FileSplits(lines), program.source("files", source, "splits string"), Types.ROW_NAMED(["n"], [Types.LONG()])
    )
    rows.uid("read").for_each_epoch(lambda frame, epoch: None).uid("out")
    options = {**RESTARTS, "restart-strategy.fixed-delay.attempts": "20", "execution.checkpointing.interval": "1 h"}
    with pytest.raises(JobExecutionError, match="3 times in a row") as failed:
        JobClient(program.master(tmp_path, options)).await_termination()
    assert isinstance(failed.value.__cause__, InputError)


def test_a_job_that_was_stopped_reads_only_new_files(tmp_path: Path) -> None:
    found: dict[int, list[Any]] = {}
    for run in range(3):
        put(tmp_path / "in", f"run-{run}", 1000 * run, 1000 * (run + 1))
        client = start(tmp_path, found)
        wanted = 1000 * (run + 1)
        until(lambda wanted=wanted: len(rows_of(found)) >= wanted)
        client.stop()
        client.await_termination()
        each_once(rows_of(found), wanted)


READ: list[int] = []


def read(row: Any) -> Any:
    """Remember a number; tasks are threads here, and this function is pickled by its name."""
    READ.append(row.n)
    return row.key, row.n


def test_files_that_come_while_a_checkpoint_is_under_way_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    READ.clear()
    found: dict[int, list[Any]] = {}
    writing, may_write = threading.Event(), threading.Event()
    write_state = LocalFileSystem.write_state

    def held(self: LocalFileSystem, path: str, data: Any) -> None:
        writing.set()
        may_write.wait()
        write_state(self, path, data)

    monkeypatch.setattr(LocalFileSystem, "write_state", held)
    put(tmp_path / "in", "first", 0, 100)
    program = RealTimeProgram()
    counts = counted(program, tmp_path, read=read)
    counts.for_each_epoch(lambda frame, epoch: found.update({epoch: frame.to_pylist()})).uid("out")
    client = JobClient(program.master(tmp_path / "checkpoints", RESTARTS))
    try:
        until(writing.is_set)
        put(tmp_path / "in", "second", 100, 200)
        until(lambda: len(READ) == 200)
        assert rows_of(found) == [], "the checkpoint is under way"
    finally:
        may_write.set()
    until(lambda: len(rows_of(found)) >= 200)
    client.stop()
    client.await_termination()
    each_once(rows_of(found), 200)


def into_files(root: Path) -> JobClient:
    """Begin to count the lines of a folder into files."""
    program = RealTimeProgram()
    counted(program, root).sink_to(ParquetFileSink(root / "out")).uid("out")
    return JobClient(program.master(root / "checkpoints", RESTARTS))


@pytest.mark.parametrize("point", ["source.copy", "metadata.write", "pointer.write", "sink.commit"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_job_killed_at_a_durable_write_reads_each_line_once(tmp_path: Path, moment: str, point: str) -> None:
    """The process dies at the third write of its kind; files go on coming, and the next process finds all of them."""
    root = tmp_path
    for number in range(3):
        put(root / "in", f"before-{number}", 100 * number, 100 * (number + 1))
    place = "tests.unit.runtime.realtime.test_real_time_files"
    program = f"from pathlib import Path; from {place} import killed; killed(Path({str(root)!r}))"
    environment = {**os.environ, "HOLDFAST_FAULT": f"{moment}:{point}:3=kill"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, timeout=240, check=False)
    assert ended.returncode == -signal.SIGKILL
    written = sorted(path.name for path in (root / "in").iterdir())
    client = into_files(root)
    until(lambda: len(ledger.read(root / "out")) >= 100 * len(written))
    client.stop()
    client.await_termination()
    seen = sorted(ledger.read(root / "out"))
    assert seen == sorted({*seen}), "a line was counted twice"
    assert len(seen) == 100 * len(written)


def killed(root: Path) -> None:
    """Run the job, and add files until a fault point ends this process."""
    into_files(root)
    for number in range(3, 200):
        put(root / "in", f"beside-{number}", 100 * number, 100 * (number + 1))
        time.sleep(0.15)
