"""A sink of one's own: lines of JSON in files, exactly once.

What every sink has to do is in `holdfast.datastream.Sink`. In short: the writer stages where nobody looks, and makes it
durable; what it hands back becomes part of the checkpoint; the committer makes it visible after the checkpoint is
complete, perhaps more than once.

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


class JsonLinesSink(Sink):
    """Writes rows as lines of JSON into a directory that all hosts share."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory).absolute()

    def create_writer(self, context: WriterInitContext) -> JsonLinesWriter:
        """One file a subtask and epoch, under a name that no other attempt uses."""
        return JsonLinesWriter(self.directory / ".staged" / context.file_name(".jsonl"))

    def create_committer(self, context: CommitterInitContext) -> JsonLinesCommitter:
        """Moves files into the directory."""
        return JsonLinesCommitter(self.directory)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Removes what failed attempts have staged; the engine knows from the name which those are."""
        swept = 0
        for path in (self.directory / ".staged").glob("*.jsonl"):
            name = FileName.parse(path.name)
            if name is not None and name.owner == context.owner and is_dead(name):
                path.unlink(missing_ok=True)
                swept += 1
        return swept


class JsonLinesWriter(SinkWriter):
    """Stages one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []

    def write(self, element: Row, context: WriterContext) -> None:
        """Takes one row."""
        self.lines.append(json.dumps(element.as_dict()))

    def prepare_commit(self) -> list[Any]:
        """Makes the file durable before the checkpoint names it: its content first, then its name."""
        if not self.lines:
            return []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("x", encoding="utf-8") as file:
            file.write("\n".join(self.lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self.path.parent)
        return [self.path.name]


class JsonLinesCommitter(Committer):
    """Moves staged files to where readers look. Doing it again must change nothing, for ever."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Moves the files of one epoch."""
        for request in requests:
            staged, final = self.directory / ".staged" / request.committable, self.directory / request.committable
            try:
                staged.rename(final)
            except FileNotFoundError as error:
                if final.exists():
                    request.signal_already_committed()
                else:
                    request.signal_failed_with_unknown_reason(error)
        sync_directory(self.directory)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main(output: str, checkpoints: str) -> None:
    """Writes the squares of the first hundred numbers."""
    env = StreamExecutionEnvironment.get_execution_environment({"execution.checkpointing.dir": checkpoints})
    numbers = env.from_collection(range(100), "bigint")
    squares = numbers.map(lambda n: (n, n * n), output_type="n bigint, square bigint")
    squares.sink_to(JsonLinesSink(output)).uid("squares")
    env.execute("squares")


if __name__ == "__main__":
    main(*sys.argv[1:])
