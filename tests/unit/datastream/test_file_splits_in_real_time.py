"""Files of real-time jobs: which are found, in which splits they are read, and what their positions are."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.datastream.connectors.file_system import StreamFormat
from holdfast.datastream.connectors.file_system.file_log import FileLog
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.connectors.file_system.file_split_source import FileSplitSource
from holdfast.datastream.formats.input_format import InputFile
from holdfast.errors import ConfigurationError, CorruptFileError
from holdfast.kernel.ids import JobID
from holdfast.runtime.function.source import EpochOffset, ListedFile
from holdfast.runtime.job.position_files import JobPositionFiles
from holdfast.spark.input.files import listed_in_log
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem

LINES = StreamFormat.text_line_format()


class MemoryFiles:
    """Files of positions in memory."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def write(self, content: bytes) -> dict[str, Any]:
        self.contents.append(content)
        return {"path": str(len(self.contents) - 1)}

    def read(self, handle: Mapping[str, Any]) -> bytes:
        return self.contents[int(handle["path"])]


class Job:
    """A stream of files with one reader, from one position to the next."""

    def __init__(self, files: MemoryFiles, *paths: Path, position: Any = None, **options: str) -> None:
        self.source = FileSplitSource(LINES, tuple(map(str, paths)), 0.1, options).with_files(files)
        self.enumerator = self.source.create_enumerator(position, 1)
        self.reader = pickle.loads(pickle.dumps(self.source)).create_reader(0)
        self.open: dict[str, Any] = {}
        self.splits = FileSplits(LINES)

    def read(self, most: int = 1000) -> list[str]:
        """Discover, read at most so many splits, and take a barrier."""
        found = self.enumerator.discover()
        self.open.update((split.split_id, split.state) for split in found)
        self.reader.add_splits(found)
        values = []
        for _ in range(most):
            batch = self.reader.poll()
            if batch is None:
                break
            (text,) = batch.column("splits").to_pylist()
            values += [line for part in self.splits.read(text) for line in part.column(0).to_pylist()]
        for split_id, state in self.reader.snapshot().items():
            if state is None:
                del self.open[split_id]
                self.enumerator.split_finished(split_id)
        return values

    def position(self) -> Any:
        position = json.loads(json.dumps(self.enumerator.snapshot(self.open)))
        assert json.loads(json.dumps(self.enumerator.snapshot(self.open))) == position
        return position


def write(path: Path, *lines: str, time: float | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    if time is not None:
        os.utime(path, (time, time))
    return path


def test_a_listing_does_not_look_at_files_that_were_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory is listed many times a second, and may have many thousand files."""
    job = Job(MemoryFiles(), tmp_path)
    looked_at: list[str] = []
    stat = Path.stat

    def counted(path: Path, **options: Any) -> os.stat_result:
        if path.suffix == ".txt":
            looked_at.append(path.name)
        return stat(path, **options)

    for n in range(20):
        write(tmp_path / f"{n:02}.txt", str(n))
    assert len(job.read()) == 20
    monkeypatch.setattr(Path, "stat", counted)
    assert job.read() == []
    assert looked_at == []
    write(tmp_path / "20.txt", "20")
    assert job.read() == ["20"]
    assert set(looked_at) == {"20.txt"}


def test_each_file_is_read_once_also_after_a_restart(tmp_path: Path) -> None:
    files, folder = MemoryFiles(), tmp_path / "in"
    write(folder / "a", "1", "2", time=100)
    write(folder / "sub" / "b", "3", time=200)
    write(folder / "_hidden", "no")
    write(folder / ".hidden", "no")
    job = Job(files, folder)
    assert job.read() == ["1", "2", "3"]
    assert job.read() == []
    write(folder / "c", "4")
    write(folder / "empty")
    position = job.position()
    assert job.read() == ["4"]
    again = Job(files, folder, position=position)
    assert again.read() == ["4"]
    position = again.position()
    assert Job(files, folder, position=position).read() == []
    write(folder / "a", "changed")  # Spark reads a file once, too
    assert Job(files, folder, position=position).read() == []


def test_files_come_oldest_first_or_newest_first(tmp_path: Path) -> None:
    for name, seconds in (("x", 300), ("y", 100), ("z", 200)):
        write(tmp_path / name, name, time=seconds)
    assert Job(MemoryFiles(), tmp_path).read() == ["y", "z", "x"]
    assert Job(MemoryFiles(), tmp_path, latestFirst="true").read() == ["x", "z", "y"]


def test_files_that_are_too_old_or_of_another_name_are_skipped(tmp_path: Path) -> None:
    write(tmp_path / "new.txt", "new", time=2_000_000)
    job = Job(MemoryFiles(), tmp_path, maxFileAge="10s", pathGlobFilter="*.txt")
    assert job.read() == ["new"]
    write(tmp_path / "old.txt", "old", time=1_999_000)
    write(tmp_path / "young.txt", "young", time=1_999_995)
    write(tmp_path / "young.csv", "csv", time=2_000_000)
    assert job.read() == ["young"]


def test_a_file_read_in_part_is_read_further_and_epochs_have_no_position_of_it(tmp_path: Path) -> None:
    files = MemoryFiles()
    lines = [f"{n:0100}" for n in range(30_000)]  # 3 MB, so several splits
    write(tmp_path / "long", *lines, time=100)
    write(tmp_path / "next", "end", time=200)
    job = Job(files, tmp_path)
    first = job.read(most=1)
    assert 0 < len(first) < len(lines)
    position = job.position()
    assert job.source.to_epoch_offsets(position) is None
    assert len(position["partial"]) == 1
    again = Job(files, tmp_path, position=position)
    assert first + again.read() == [*lines, "end"]
    offsets = again.source.to_epoch_offsets(again.position())
    assert offsets is not None
    assert [one.offset for one in offsets] == [{"logOffset": 0}]


def test_a_file_of_which_nothing_was_read_is_not_in_the_position(tmp_path: Path) -> None:
    write(tmp_path / "a", "1")
    job = Job(MemoryFiles(), tmp_path)
    assert job.read(most=0) == []
    position = job.position()
    assert position == {"paths": [{"offset": None, "files": {}}], "partial": [], "has_skipped": False}
    assert job.source.to_epoch_offsets(position) == [EpochOffset(None)]


def test_an_old_file_is_read_after_a_restart_although_a_new_one_was_read_before_it(tmp_path: Path) -> None:
    """One of two tasks is a day behind the other, and a listing skips files of the day before."""
    files = MemoryFiles()
    for day in range(4):
        write(tmp_path / str(day), str(day), time=86_400 * (day + 1))
    job = Job(files, tmp_path, maxFileAge="1d")
    found = job.enumerator.discover()
    job.open.update((split.split_id, split.state) for split in found)
    (newest,) = [split.split_id for split in found if split.split_id.endswith("/3")]
    del job.open[newest]
    job.enumerator.split_finished(newest)
    again = Job(files, tmp_path, position=job.position(), maxFileAge="1d")
    assert again.read() == ["0", "1", "2"]
    assert Job(files, tmp_path, position=again.position(), maxFileAge="1d").read() == []


def test_an_old_file_is_read_after_a_restart_although_a_new_one_is_empty(tmp_path: Path) -> None:
    files = MemoryFiles()
    write(tmp_path / "old", "0", time=86_400)
    write(tmp_path / "new", time=86_400 * 3)
    job = Job(files, tmp_path, maxFileAge="1d")
    job.open.update((split.split_id, split.state) for split in job.enumerator.discover())
    assert Job(files, tmp_path, position=job.position(), maxFileAge="1d").read() == ["0"]


def test_all_files_are_read_newest_first_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.datastream.connectors.file_system.file_split_source._MOST_OPEN", 2)
    files = MemoryFiles()
    for day in range(6):
        write(tmp_path / str(day), str(day), time=86_400 * (day + 1))
    job = Job(files, tmp_path, maxFileAge="1d", latestFirst="true")
    assert [job.read(), job.read()] == [["5", "4"], ["3", "2"]]
    again = Job(files, tmp_path, position=job.position(), maxFileAge="1d", latestFirst="true")
    assert again.read() == ["1", "0"]


@pytest.mark.parametrize("most", [2, 10])
def test_epochs_have_no_position_while_they_would_skip_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Without a limit for an epoch, Spark's `latestFirst` skips files by their age."""
    monkeypatch.setattr("holdfast.datastream.connectors.file_system.file_split_source._MOST_OPEN", most)
    files = MemoryFiles()
    for day in range(6):
        write(tmp_path / str(day), str(day), time=86_400 * (day + 1))
    job = Job(files, tmp_path, maxFileAge="1d", latestFirst="true")
    assert job.source.to_epoch_offsets(job.position()) is not None, "nothing was read"
    assert job.read(most=2) == ["5", "4"]
    assert job.source.to_epoch_offsets(job.position()) is None
    again = Job(files, tmp_path, position=job.position(), maxFileAge="1d", latestFirst="true")
    assert again.source.to_epoch_offsets(again.position()) is None
    assert [value for _ in range(4) for value in again.read()] == ["3", "2", "1", "0"]
    assert again.source.to_epoch_offsets(again.position()) is not None


def test_a_file_of_next_year_does_not_make_all_others_too_old(tmp_path: Path) -> None:
    files = MemoryFiles()
    write(tmp_path / "future", "future", time=time.time() + 400 * 86_400)
    write(tmp_path / "ancient", "ancient", time=time.time() - 8 * 86_400)
    job = Job(files, tmp_path)
    assert job.read() == ["ancient", "future"]
    write(tmp_path / "new", "new")
    write(tmp_path / "old", "old", time=time.time() - 8 * 86_400)
    assert job.read() == ["new"]
    write(tmp_path / "newer", "newer")
    assert Job(files, tmp_path, position=job.position()).read() == ["newer"]


def test_paths_have_logs_of_their_own(tmp_path: Path) -> None:
    files = MemoryFiles()
    one, other = tmp_path / "one", tmp_path / "other"
    write(one / "a", "1")
    other.mkdir()
    job = Job(files, one, other)
    assert job.read() == ["1"]
    assert [own["offset"] for own in job.position()["paths"]] == [{"logOffset": 0}, None]
    write(other / "a", "2")
    again = Job(files, one, other, position=job.position())
    assert again.read() == ["2"]
    assert [own["offset"] for own in again.position()["paths"]] == [{"logOffset": 0}, {"logOffset": 0}]


def test_a_backlog_is_taken_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.datastream.connectors.file_system.file_split_source._MOST_OPEN", 3)
    for n in range(8):
        write(tmp_path / str(n), str(n), time=100 + n)
    job = Job(MemoryFiles(), tmp_path)
    assert [len(job.enumerator.discover()) for _ in range(2)] == [3, 0]
    job = Job(MemoryFiles(), tmp_path)
    assert [job.read() for _ in range(4)] == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"], []]


@pytest.mark.parametrize(
    ("option", "value"), [("cleanSource", "delete"), ("cleanSource", "ARCHIVE"), ("recursiveFileLookup", "false")]
)
def test_options_that_only_spark_carries_out_are_refused(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{option}={value} is an option of Spark"):
        Job(MemoryFiles(), tmp_path, **{option: value})


def test_a_glob_of_hadoop_alone_is_refused_and_others_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "day-1" / "a", "1")
    write(tmp_path / "day-2" / "a", "2")
    write(tmp_path / "night" / "a", "3")
    assert sorted(Job(MemoryFiles(), tmp_path / "day-*").read()) == ["1", "2"]
    with pytest.raises(ConfigurationError, match="is a glob that only Spark knows"):
        Job(MemoryFiles(), tmp_path / "{day-1,night}").read()


def test_a_fixed_set_is_bounded_and_its_position_has_the_unread_splits(tmp_path: Path) -> None:
    one = InputFile.of(str(write(tmp_path / "a", "1")))
    two = InputFile.of(str(write(tmp_path / "b", "2")))
    source = FileSplitSource(LINES, (str(tmp_path),), None, {}, [one, two])
    enumerator = source.create_enumerator(None, 2)
    splits = enumerator.discover()
    assert enumerator.is_exhausted() and len(splits) == 2
    position = enumerator.snapshot({splits[1].split_id: splits[1].state})
    assert source.to_epoch_offsets(position) is None
    rest = source.create_enumerator(position, 2).discover()
    assert [split.state[0] for split in rest] == [two.path]


# The log


def logged(number: int, name: str = "") -> list[ListedFile]:
    return [ListedFile(f"/data/{name}{number}", 1000 + number, 1)]


def written(files: MemoryFiles, position: EpochOffset, folder: Path) -> None:
    """Write the log as it is in Spark's directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, handle in position.files.items():
        (folder / name).write_bytes(files.read(handle))


@given(st.lists(st.integers(1, 3), max_size=45), st.integers(0, 45))
@settings(deadline=None, max_examples=60)
def test_a_log_has_all_files_and_few_entries_whenever_it_is_restored(counts: list[int], restart: int) -> None:
    files = MemoryFiles()
    log = FileLog(files, None)
    wanted = []
    for number, count in enumerate(counts):
        if number == restart:
            log = FileLog(files, log.position())
        added = [ListedFile(f"/data/{number}-{n}", number, 1) for n in range(count)]
        log.append(added)
        wanted += [(file.path, file.time) for file in added]
    position = log.position()
    assert [tuple(file) for file in FileLog(files, position).read_files()] == wanted
    assert len(position.files) <= 11
    compact = sorted(int(name.split(".")[0]) for name in position.files if name.endswith(".compact"))
    assert compact == list(range(9, len(counts), 10))[-2:]


def test_the_log_is_read_as_that_of_spark(tmp_path: Path) -> None:
    files = MemoryFiles()
    log = FileLog(files, None)
    for number in range(13):
        log.append(logged(number, "a b%é-"))
    written(files, log.position(), tmp_path)
    assert listed_in_log(tmp_path, 10, 12) == ["/data/a b%é-11", "/data/a b%é-12"]
    assert listed_in_log(tmp_path, 8, 9) == ["/data/a b%é-9"]
    line = json.loads((tmp_path / "12").read_text().splitlines()[1])
    assert line == {"path": "file:///data/a%20b%25é-12", "timestamp": 1012, "batchId": 12}


def test_a_log_of_spark_goes_on_at_its_own_interval() -> None:
    files = MemoryFiles()

    def entry(*numbers: int) -> Any:
        lines = [f'{{"path":"file:/data/{n}","timestamp":{n},"batchId":{n}}}' for n in numbers]
        return files.write("\n".join(["v1", *lines]).encode())

    names = {"2.compact": entry(0, 1, 2), "5.compact": entry(0, 1, 2, 3, 4, 5), "6": entry(6), "splits/6": entry()}
    log = FileLog(files, EpochOffset({"logOffset": 6}, names))
    assert [file.path for file in log.read_files()] == [f"/data/{n}" for n in range(7)]
    for number in range(7, 10):
        log.append(logged(number))
    position = log.position()
    assert sorted(position.files) == ["5.compact", "8.compact", "9"]
    assert [file.path for file in FileLog(files, position).read_files()] == [f"/data/{n}" for n in range(10)]


def test_a_log_with_a_missing_or_damaged_entry_is_refused() -> None:
    files = MemoryFiles()
    log = FileLog(files, None)
    log.append(logged(0))
    log.append(logged(1))
    position = log.position()
    with pytest.raises(CorruptFileError, match="entry 0 of the list of files is missing"):
        FileLog(files, EpochOffset(position.offset, {"1": position.files["1"]}))
    files.contents[1] = b"v1\n{"
    with pytest.raises(CorruptFileError, match="list of files is damaged"):
        FileLog(files, position).read_files()
    with pytest.raises(CorruptFileError, match="is no position of files"):
        FileLog(files, EpochOffset({"next": 1}, {}))


def test_an_object_store_keeps_its_scheme() -> None:
    files = MemoryFiles()
    log = FileLog(files, None, "s3a")
    log.append([ListedFile("s3://bucket/a b", 5, 1)])
    assert json.loads(files.contents[0].decode().splitlines()[1])["path"] == "s3a://bucket/a%20b"
    assert FileLog(files, log.position(), "s3a").read_files()[0].path == "s3://bucket/a b"


def test_files_of_positions_are_in_the_shared_directory_of_the_job(tmp_path: Path) -> None:
    directory = JobDirectory(LocalFileSystem(), str(tmp_path), JobID("0" * 32))
    directory.create()
    files = JobPositionFiles(directory, 3)
    files.epoch = 12
    handle = files.write(b"content")
    assert files.read(handle) == b"content"
    path = Path(directory.absolute(handle["path"]))
    assert path.parent == Path(directory.shared_dir) and path.name.startswith("000003-000000012-")
    path.write_bytes(b"other")
    with pytest.raises(CorruptFileError, match="is damaged"):
        files.read(handle)


def test_an_entry_that_an_old_attempt_writes_late_is_not_in_the_position_of_the_next_one(tmp_path: Path) -> None:
    directory = JobDirectory(LocalFileSystem(), str(tmp_path), JobID("0" * 32))
    directory.create()
    first = JobPositionFiles(directory, 3)
    log = FileLog(first, None)
    log.append([ListedFile("/data/a", 1, 1)])
    begun = log.position()
    second = JobPositionFiles(directory, 4)
    following = FileLog(second, begun)
    following.append([ListedFile("/data/b", 2, 1)])
    position = following.position()
    log.append([ListedFile("/data/late", 3, 1)])  # entry 1 of the old attempt, in the same epoch
    assert [file.path for file in FileLog(second, position).read_files()] == ["/data/a", "/data/b"]
    assert len({handle["path"] for handle in (*position.files.values(), *log.position().files.values())}) == 3
