"""A sink of one's own: lines of JSON in files, exactly once.

What every sink has to do is in `holdfast.datastream.Sink`. In short: the writer stages where nobody looks, and makes it
durable; what it hands back becomes part of the checkpoint; the committer makes it visible after the checkpoint is
complete, perhaps more than once. `holdfast.testing.SinkContract` tries whether a sink keeps to that, with
processes that are killed at lines all over a commit; `tests/contract/test_sinks.py` runs it over this one.

    python examples/own_sink.py OUTPUT CHECKPOINTS
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.common import Row
from holdfast.datastream import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    FileName,
    Sink,
    SinkWriter,
    StreamExecutionEnvironment,
    WriterContext,
    WriterInitContext,
)
from holdfast.errors import StorageError


class JsonLinesSink(Sink):
    """Writes rows as lines of JSON into a directory that all hosts share, and that is there already."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory).absolute()

    def prepare(self, context: CommitterInitContext, kept: Any) -> None:
        """Refuses to start without the directory."""
        require(self.directory)

    def create_writer(self, context: WriterInitContext) -> JsonLinesWriter:
        """One file a subtask and epoch, under a name that no other attempt uses."""
        return JsonLinesWriter(self.directory, f"{folder(context.incarnation, context.owner)}/{context.file_name('')}")

    def create_committer(self, context: CommitterInitContext) -> JsonLinesCommitter:
        """Moves files into the directory."""
        return JsonLinesCommitter(self.directory)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Removes what failed attempts of this job have staged; the engine knows from the name which those are."""
        swept = 0
        for incarnation in context.incarnations:
            for path in (self.directory / folder(incarnation, context.owner)).glob("*"):
                name = FileName.parse(path.name)
                if name is not None and is_dead(name):
                    path.unlink(missing_ok=True)
                    swept += 1
        return swept


class JsonLinesWriter(SinkWriter):
    """Stages one file."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.lines: list[str] = []

    def write(self, element: Row, context: WriterContext) -> None:
        """Takes one row."""
        self.lines.append(json.dumps(element.as_dict()))

    def prepare_commit(self) -> list[Any]:
        """Makes the file durable before the checkpoint names it: its content first, then its name."""
        if not self.lines:
            return []
        require(self.directory)
        path = self.directory / self.name
        for parent in (path.parent.parent, path.parent):  # never the directory itself: it may not be mounted
            parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write("\n".join(self.lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for parent in (path.parent, path.parent.parent, self.directory):
            sync_directory(parent)
        return [self.name]


class JsonLinesCommitter(Committer):
    """Moves staged files to where readers look. Doing it again must change nothing, for ever."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Moves the files of one epoch."""
        for request in requests:
            staged = self.directory / request.committable
            final = self.directory / f"{staged.name}.jsonl"
            try:
                staged.rename(final)
            except FileNotFoundError as error:
                if final.exists():
                    request.signal_already_committed()
                else:
                    request.signal_failed_with_unknown_reason(error)
        sync_directory(self.directory)


def require(directory: Path) -> None:
    """A job waits for a directory that is away; what else a writer raises is a bug, and three of them end the job."""
    if not directory.is_dir():
        raise StorageError(f"{directory} is not there: make it, or mount it")


def folder(incarnation: str, owner: str) -> str:
    """Where a job stages: jobs whose sinks have the same uid must not sweep each other's files."""
    return f".staged/{incarnation}-{owner}"


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main(output: str, checkpoints: str) -> None:
    """Writes the squares of the first hundred numbers."""
    Path(output).mkdir(parents=True, exist_ok=True)
    env = StreamExecutionEnvironment.get_execution_environment({"execution.checkpointing.dir": checkpoints})
    numbers = env.from_collection(range(100), "bigint")
    squares = numbers.map(lambda n: (n, n * n), output_type="n bigint, square bigint")
    squares.sink_to(JsonLinesSink(output)).uid("squares")
    env.execute("squares")


if __name__ == "__main__":
    main(*sys.argv[1:])
