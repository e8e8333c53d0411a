"""Output of a checkpoint waits for its sink, and the program has another kind of sink under its uid by now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.datastream import DataStream, ParquetFileSink
from holdfast.datastream.sinks.staged_files import staged_paths
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.kernel import fault
from tests.stories.local import RESTARTING, Program, epochs, run

IGNORE = "execution.state-recovery.ignore-unclaimed-state"
BATCHES = [[("a",), ("b",)], [("c",)], [("d",)]]
AT_ONCE = {"sink.committer.max-pending-checkpoints": "0"}


class Target:
    """Takes rows as one kind of sink or the other."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._taken: list[str] = []

    def of_files(self, stream: DataStream) -> Any:
        return stream.sink_to(ParquetFileSink(str(self._place)))

    def of_frames(self, stream: DataStream) -> Any:
        return stream.for_each_epoch(lambda frame, epoch: self._taken.extend(frame["word"].to_pylist()))

    def of_lines(self, stream: DataStream) -> Any:
        return stream.print()

    def words(self) -> list[str]:
        files = self._place.glob("*.parquet")
        return sorted([*self._taken, *(word for file in files for word in pq.read_table(file)["word"].to_pylist())])


def words(sink: Callable[[DataStream], Any], uid: str) -> Program:
    program = Program()
    sink(program.source("in", "word string").map(lambda row: row, "word string").uid("same")).uid(uid)
    return program


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path / "out")


@pytest.mark.parametrize(
    ("before", "after"),
    [("of_files", "of_frames"), ("of_files", "of_lines"), ("of_frames", "of_files"), ("of_lines", "of_files")],
)
def test_a_sink_of_another_kind_is_rejected_at_once_with_advice(
    tmp_path: Path, target: Target, before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As it was found: ten tries, and then that something had a KeyError: 'file'."""
    old, new = getattr(target, before), getattr(target, after)
    fault.install("before:sink.commit:2=raise")
    with pytest.raises(JobExecutionError):
        run(words(old, "out"), tmp_path / "job", epochs("in", BATCHES), AT_ONCE)
    fault.clear()
    taken = target.words()
    with caplog.at_level(logging.WARNING), pytest.raises(ConfigurationError) as failed:
        run(words(new, "out"), tmp_path / "job", epochs("in", BATCHES), RESTARTING)
    assert "a sink of another kind had this uid" in str(failed.value)
    assert "RESTARTING" not in caplog.text and "restarts" not in caplog.text
    assert target.words() == taken, "nothing was committed"
    # What it says to do: a uid of its own, and -n for the output that waits.
    with caplog.at_level(logging.WARNING):
        run(words(new, "other"), tmp_path / "job", epochs("in", BATCHES), {IGNORE: "true"})
    assert "1 row of 'out'" in caplog.text and "dropped" in caplog.text


@pytest.mark.parametrize("file", ["../../elsewhere.parquet", "/etc/hosts", "", 7, None, ["a"]])
def test_a_committable_of_a_sink_names_its_own_files_alone(file: object) -> None:
    """Who writes a checkpoint could have had any file read that the driver can read."""
    request: Any = SimpleNamespace(uid="out", committable={"file": file, "rows": 1, "bytes": 1})
    context: Any = SimpleNamespace(uid="out", staging_dir="/jobs/a/shared")
    with pytest.raises(ConfigurationError, match="no sink like 'out' can have written"):
        staged_paths(context, [request])
