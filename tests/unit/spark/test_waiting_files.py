"""Files that wait in a source are those that Spark would list, and has not."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Duration
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.runtime.function.source import SourceStatistics
from holdfast.spark.input import files
from holdfast.spark.input.files import UnreadFileCounter

DAY = 86_400


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SHORTEST", 0.0)
    monkeypatch.setattr(files, "_SHARE", 0)


class Place:
    def __init__(self, root: Path, path: str = "in", **options: Any) -> None:
        self.root = root
        (root / "log").mkdir()
        builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{root}/{path}")
        builder.monitor_continuously(Duration.of_seconds(1))
        for name, value in options.items():
            builder.set_property(name, value)
        self.waiting = UnreadFileCounter(builder.build().splits(), 0, root / "log")

    def put(self, name: str, size: int = 1, age: float = 0) -> Path:
        path = self.root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (1_700_000_000 - age,) * 2)
        return path

    def listed(self, entry: str, batch: int, paths: Iterable[Path]) -> None:
        """What Spark writes into the log of its source."""
        lines = [
            json.dumps({"path": path.as_uri(), "timestamp": int(path.stat().st_mtime * 1000), "batchId": batch})
            for path in paths
        ]
        (self.root / "log" / entry).write_text("\n".join(["v1", *lines]), "utf-8")

    def count(self) -> tuple[int | None, int | None]:
        found = self.waiting.count()
        return found.files, found.bytes


def test_what_was_listed_does_not_wait_and_compacted_entries_say_it_too(tmp_path: Path) -> None:
    place = Place(tmp_path)
    paths = [place.put(f"deep er/{n} %20é.txt", size=n) for n in range(6)]
    assert place.count() == (6, 15)
    place.listed("0", 0, paths[:1])
    place.listed("1", 1, paths[1:2])
    assert place.count() == (4, 14)
    place.listed("2.compact", 2, paths[:3])
    for entry in ("0", "1"):
        (tmp_path / "log" / entry).unlink()
    place.listed("3", 3, paths[3:4])
    assert place.count() == (2, 9)
    later = UnreadFileCounter(place.waiting._source, 0, tmp_path / "log")
    assert later.count() == SourceStatistics(files=2, bytes=9), "a job that goes on"
    paths[0].unlink()
    paths[5].unlink()
    assert place.count() == (1, 4)


def test_what_spark_leaves_out_does_not_wait(tmp_path: Path) -> None:
    place = Place(tmp_path, pathGlobFilter="*.txt")
    for name in ("_hidden.txt", ".hidden.txt", "_folder/a.txt", ".folder/b.txt", "c.csv", "d.txt._COPYING_"):
        place.put(name)
    place.put("day=1/_n=2/e.txt", size=7)
    assert place.count() == (1, 7)


def test_files_that_are_older_than_spark_remembers_never_come(tmp_path: Path) -> None:
    place = Place(tmp_path, maxFileAge="2 d")
    place.put("old.txt", age=3 * DAY)
    place.put("not so old.txt", age=DAY)
    assert place.count() == (2, 2), "before the first epoch all are read"
    place.listed("0", 0, [place.put("new.txt")])
    assert place.count() == (1, 1)


def test_a_file_of_the_future_is_named_once_because_spark_reads_none_that_is_much_older(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)
    place.listed("0", 0, [place.put("an hour ahead.txt", age=1_700_000_000 - time.time() - 3600)])
    assert place.count() == (0, 0)
    assert caplog.messages == []
    place.listed("1", 1, [place.put("a year ahead.txt", age=1_700_000_000 - time.time() - 365 * DAY)])
    place.put("now.txt", age=1_700_000_000 - time.time())
    assert place.count() == (0, 0)
    assert place.count() == (0, 0)
    (message,) = caplog.messages
    assert "a%20year%20ahead.txt is in the future" in message
    assert "maxFileAge" in message


@pytest.mark.parametrize(
    ("path", "counted"), [("in/*.txt", (2, 2)), ("in/a.txt", (1, 1)), ("in/{a,b}.txt", (None,) * 2)]
)
def test_globs_and_files_are_places_too_and_what_only_hadoop_knows_is_not_counted(
    tmp_path: Path, path: str, counted: tuple[int | None, int | None]
) -> None:
    place = Place(tmp_path, path)
    for name in ("a.txt", "b.txt", "c.csv"):
        place.put(name)
    assert place.count() == counted


def test_a_log_that_is_written_just_now_is_read_the_next_time(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = place.put("a.txt")
    (tmp_path / "log" / "0").write_text('v1\n{"path": ')
    assert place.count() == (None, None)
    place.listed("0", 0, [path])
    assert place.count() == (0, 0)
    assert UnreadFileCounter(place.waiting._source, 0, tmp_path / "not yet").count() == SourceStatistics()
