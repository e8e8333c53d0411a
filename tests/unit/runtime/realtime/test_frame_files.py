"""Static frames in files: what is written, and what is read of it after a restart."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CorruptFileError
from holdfast.kernel.ids import JobID
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import EpochJob, JobPlan, SourcePlan
from holdfast.runtime.graph.stream_graph import SourceNode
from holdfast.runtime.realtime.frame_files import FrameSource, write_frame
from holdfast.runtime.realtime.source_coordinator import SourceCoordinator
from holdfast.runtime.realtime.source_readers import SourceReaders
from holdfast.storage.job_directory import FileName, JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.types.arrow import batch_to_elements, elements_to_batch, times_to_nanos
from holdfast.types.type_parser import to_type

TYPE = to_type("word string, at time")
ROWS = [(f"word {n}", time(n % 24, n % 60)) for n in range(10_000)]


class Died(BaseException):
    """The driver is dead."""


class DyingFileSystem(LocalFileSystem):
    """The file system of a driver that dies when it writes the n-th file: before, within or after."""

    def __init__(self, moment: str, number: int) -> None:
        self.moment, self.left = moment, number

    @contextmanager
    def open_output(self, path: str) -> Iterator[Any]:
        self.left -= 1
        if self.left == 0 and self.moment == "before":
            raise Died
        with super().open_output(path) as file:
            yield file
            if self.left == 0 and self.moment == "within":
                raise Died
        if self.left == 0 and self.moment == "after":
            raise Died


class Job:
    """A job that reads one frame, whose partitions are written once in each attempt that has no checkpoint."""

    def __init__(self, root: Path, token: int = 5, file_system: LocalFileSystem | None = None) -> None:
        self.token = token
        self.directory = JobDirectory(file_system or LocalFileSystem(), str(root), JobID("0" * 32))
        self.directory.create()
        self.written = 0
        node = SourceNode(name="frame", uid="frame", element_type=TYPE, reads="a table", frame=object())
        self.plan = JobPlan((EpochJob(0, (SourcePlan("frame", node, TYPE),), ()),), ())

    def write(self) -> list[str]:
        self.written += 1
        batches = [times_to_nanos(elements_to_batch(ROWS[at : at + 3000], TYPE)) for at in range(0, 10_000, 3000)]
        parts = [batches[:1], [], [batches[1].slice(0, 0), *batches[1:]]]
        paths = [write_frame(part, self.directory, self.token, number) for number, part in enumerate(parts)]
        return [path for path in paths if path is not None]

    def begin(self, positions: Any = None, tasks: int = 1) -> tuple[SourceCoordinator, list[SourceReaders]]:
        source = FrameSource(self.directory.path, TYPE, self.write)
        coordinator = SourceCoordinator(self.plan, positions, tasks, InputRules(), written={"frame": source})
        copy = pickle.loads(pickle.dumps(source))
        readers = [SourceReaders(self.plan.sources, {"frame": copy}, task) for task in range(tasks)]
        for task, splits in coordinator.assignments().items():
            readers[task].add(splits)
        return coordinator, readers


def rows_of(readers: list[SourceReaders], polls: int) -> list[Any]:
    found = []
    for reader in readers:
        for _ in range(polls):
            polled = reader.poll()
            if polled is not None:
                found += [tuple(row) for row in batch_to_elements(polled[1], TYPE)]
    return found


def test_each_row_is_read_once_and_written_once_also_after_a_restart(tmp_path: Path) -> None:
    job = Job(tmp_path)
    coordinator, readers = job.begin()
    for reader in readers:
        reader.limit(1100)
    found = rows_of(readers, polls=4)
    assert 0 < len(found) < len(ROWS)
    coordinator.acknowledge([reader.snapshot(1) for reader in readers])
    positions = json.loads(json.dumps(coordinator.positions()))
    coordinator, readers = job.begin(positions, tasks=2)
    found += rows_of(readers, polls=1000)
    assert sorted(found) == sorted(ROWS)
    coordinator.acknowledge([reader.snapshot(1) for reader in readers])
    assert coordinator.is_exhausted
    assert coordinator.positions()["static_consumed"] and "splits" not in coordinator.positions()
    assert job.written == 1
    again, _ = job.begin(coordinator.positions())
    assert again.is_exhausted and job.written == 1


def test_the_first_checkpoint_names_all_files_so_that_none_is_deleted(tmp_path: Path) -> None:
    job = Job(tmp_path)
    coordinator, _ = job.begin()
    coordinator.acknowledge([{}])
    text = json.dumps(coordinator.positions())
    names = [path.name for path in Path(job.directory.shared_dir).iterdir()]
    assert len(names) == 2 and all(name in text and FileName.parse(name) for name in names)


def test_a_frame_without_rows_is_read_at_once(tmp_path: Path) -> None:
    source = FrameSource(str(tmp_path), TYPE, list)
    enumerator = source.create_enumerator(None, 2)
    assert enumerator.discover() == [] and enumerator.is_exhausted()


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"rows")])
def test_files_that_are_gone_or_damaged_are_reported(tmp_path: Path, damage: Any) -> None:
    job = Job(tmp_path)
    _, readers = job.begin()
    for path in Path(job.directory.shared_dir).iterdir():
        damage(path)
    with pytest.raises(CorruptFileError, match="rows of a static frame"):
        readers[0].poll()


def tokens_of(positions: Any) -> set[int]:
    """The tokens of the files that a checkpoint names."""
    [split] = positions["splits"]
    paths = [state[0] for state in split["positions"]["frame"]["splits"].values()]
    return {name.token for path in paths if (name := FileName.parse(Path(path).name)) is not None}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_after_a_driver_that_died_in_a_write_the_next_one_writes_and_reads_its_own_files(
    tmp_path: Path, moment: str, number: int
) -> None:
    with pytest.raises(Died):
        Job(tmp_path, file_system=DyingFileSystem(moment, number)).begin()
    job = Job(tmp_path, token=6)
    coordinator, readers = job.begin()
    coordinator.acknowledge([{}])
    assert tokens_of(coordinator.positions()) == {6}
    assert sorted(rows_of(readers, polls=1000)) == sorted(ROWS)


def test_files_that_an_old_attempt_writes_late_are_not_read(tmp_path: Path) -> None:
    old, job = Job(tmp_path), Job(tmp_path, token=6)
    coordinator, readers = job.begin()
    readers[0].limit(1100)
    found = rows_of(readers, polls=3)
    coordinator.acknowledge([reader.snapshot(1) for reader in readers])
    positions = json.loads(json.dumps(coordinator.positions()))
    assert len(old.write()) == 2
    coordinator, readers = job.begin(positions)
    assert tokens_of(coordinator.positions()) == {6}
    assert sorted(found + rows_of(readers, polls=1000)) == sorted(ROWS)
