"""The contract of sinks finds the bugs of sinks that look correct."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.function.sink import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    Sink,
    SinkWriter,
    WriterContext,
    WriterInitContext,
)
from holdfast.storage.job_directory import FileName
from holdfast.testing import SinkBackend, SinkContract
from holdfast.testing.sink_contract import INCARNATION, SinkJob


class Lines(SinkBackend):
    """A file of lines, and how far it is, in another file; each bug is a way to keep the two."""

    steps = 12

    def __init__(self, path: Path, bug: str) -> None:
        self.path = path
        self.bug = bug
        path.mkdir()

    def new_sink(self) -> Sink:
        return LinesSink(self.path, self.bug)

    def rows(self) -> list[tuple[str, int]]:
        file = self.path / "lines"
        lines = file.read_text("utf-8").split() if file.exists() else []
        return [(word, int(n)) for word, n in (line.split(",") for line in lines)]

    @contextmanager
    def away(self) -> Iterator[None]:
        yield


class LinesSink(Sink):
    def __init__(self, path: Path, bug: str) -> None:
        self.path = path
        self.bug = bug

    def create_writer(self, context: WriterInitContext) -> SinkWriter:
        return LinesWriter(self)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return LinesCommitter(self)

    def append(self, lines: Sequence[str]) -> None:
        with (self.path / "lines").open("a", encoding="utf-8") as file:
            for line in lines:
                file.write(f"{line}\n")
                file.flush()

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        return 0


class LinesWriter(SinkWriter):
    def __init__(self, sink: LinesSink) -> None:
        self.sink = sink
        self.lines: list[str] = []

    def write(self, element: Any, context: WriterContext) -> None:
        self.lines.append(f"{element.word},{element.n}")

    def prepare_commit(self) -> list[Any]:
        if self.sink.bug == "shows what it stages":
            self.sink.append(self.lines)
            return []
        if self.sink.bug == "hands out what is no JSON":
            return [tuple(self.lines)]
        return [self.lines] if self.lines else []


class LinesCommitter(Committer):
    def __init__(self, sink: LinesSink) -> None:
        self.sink = sink

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            mark = self.sink.path / f"{request.incarnation}-{request.epoch}-{request.subtask}"
            if self.sink.bug == "forgets the incarnation":
                mark = self.sink.path / f"{request.epoch}-{request.subtask}"
            if mark.exists() and self.sink.bug != "commits again what is committed":
                request.signal_already_committed()
                continue
            if self.sink.bug == "marks before it writes":
                mark.touch()
            self.sink.append(request.committable)
            mark.touch()


class TestContract(SinkContract):
    """Its tests are called below, and not collected."""

    __test__ = False


FOUND_BY = {
    "shows what it stages": "test_nothing_is_seen_before_the_commit_and_everything_after_it",
    "hands out what is no JSON": "test_nothing_is_seen_before_the_commit_and_everything_after_it",
    "commits again what is committed": "test_a_commit_that_is_repeated_long_after_shows_nothing_twice",
    "marks before it writes": "test_a_process_that_is_killed_in_a_commit_leaves_work_that_the_next_one_finishes",
    "writes before it marks": "test_a_process_that_is_killed_in_a_commit_leaves_work_that_the_next_one_finishes",
    "writes, then marks, awake": ("test_a_process_that_resumes_a_commit_after_another_has_committed_changes_nothing"),
}


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_sink_with_a_bug_does_not_pass(tmp_path: Path, bug: str) -> None:
    backend = Lines(tmp_path / "out", bug)
    (tmp_path / "staging").mkdir()
    with pytest.raises(AssertionError):
        getattr(TestContract(), FOUND_BY[bug])(SinkJob(backend, tmp_path / "staging", INCARNATION), backend)


def test_a_sink_that_forgets_the_incarnation_does_not_pass(tmp_path: Path) -> None:
    backend = Lines(tmp_path / "out", "forgets the incarnation")
    (tmp_path / "staging").mkdir()
    with pytest.raises(AssertionError):
        TestContract().test_jobs_with_one_target_do_not_disturb_each_other(
            SinkJob(backend, tmp_path / "staging", INCARNATION), backend, tmp_path
        )
