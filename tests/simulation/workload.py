"""The job that is simulated, its input, what a plain dict makes of it, and tasks that do its work without Arrow.

Payments are numbered and summed up by account, then counted by the parity of their total. Functions are not
deterministic: each attempt of a task puts a mark of its own on what it emits and keeps it in its state, so that an
epoch whose rows are of one attempt and whose state is of another is seen in the output.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.datastream.sinks import ParquetFileSink
from holdfast.runtime.function.sink import BatchSinkWriter, ParquetStaging, WriterInitContext
from holdfast.runtime.graph.stream_graph import SinkNode, StreamGraph
from holdfast.storage.file_system import join
from holdfast.storage.scheme import file_system_for
from tests.stories import ledger

ROOT, SAVEPOINTS = "/jobs", "/savepoints"
LEDGER, PARITY = "ledger", "parity"
OUTPUTS = {"out": "/out", "copy": "/copy"}
"""Where the sinks of the job write the same rows, by uid; in half of the histories it has the first one only."""
ACCOUNTS = 3
Payment = tuple[int, str, int]
Row = list[Any]


class LightSink(ParquetFileSink):
    """The sink of Parquet files, with its real identity, ledger, commits and sweep, whose files hold JSON."""

    def create_writer(self, context: WriterInitContext) -> LightStaging:  # type: ignore[override]
        return LightStaging(self._stage(context, ""))


class LightStaging(BatchSinkWriter):
    """Stages rows as the real writer does."""

    def __init__(self, real: ParquetStaging) -> None:
        self._real = real

    def write_batch(self, batch: Any) -> None:
        raise AssertionError("rows are staged at once")

    def stage(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Writes the rows into the file that the real writer would write; returns the committables."""
        if not rows:
            return []
        if self._real._check is not None:
            self._real._check()
        data = json.dumps(rows).encode()
        with file_system_for(self._real._path).open_output(self._real._path) as file:
            file.write(data)
        return [{**self._real._committable, "rows": len(rows), "bytes": len(data)}]


def graph(parallelism: int, sinks: int) -> StreamGraph:
    """The job."""
    made = with_sinks(ledger.graph(OUTPUTS["out"], two_stages=True, parallelism=parallelism), sinks)
    for sink in made.sinks:
        sink.sink = LightSink(OUTPUTS[sink.uid])
    return made


def with_sinks(made: StreamGraph, sinks: int) -> StreamGraph:
    """A job with so many sinks, of which it has one."""
    [first] = made.sinks
    others = [
        SinkNode(inputs=first.inputs, name=uid, uid=uid, element_type=first.element_type, sink=ParquetFileSink(root))
        for uid, root in list(OUTPUTS.items())[1:sinks]
    ]
    return StreamGraph([first, *others])


def payments(epochs: int) -> list[list[Payment]]:
    """The input, the same for every seed; some epochs are empty."""
    rng = random.Random(7)
    found: list[list[Payment]] = []
    number = 0
    for _ in range(epochs):
        rows = rng.choice((0, 1, 2, 3))
        found.append([(number + i, f"account-{rng.randrange(ACCOUNTS)}", rng.randrange(1, 50)) for i in range(rows)])
        number += rows
    return found


def group_of(key: str, max_parallelism: int) -> int:
    """The key group of a key."""
    return zlib.crc32(key.encode()) % max_parallelism


def number_payments(state: dict[str, Row], rows: Sequence[Payment], mark: str) -> list[Row]:
    """The first keyed operator: payment, account, number, total, mark before, mark."""
    out: list[Row] = []
    for payment, account, amount in sorted(rows):
        seq, total, before = state.get(account, [0, 0, ""])
        state[account] = [seq + 1, total + amount, mark]
        out.append([payment, account, seq + 1, total + amount, before, mark])
    return out


def count_parities(state: dict[str, Row], rows: Sequence[Row], mark: str) -> list[Row]:
    """The second keyed operator adds: number of its parity, mark before, mark."""
    out: list[Row] = []
    for row in sorted(rows):
        parity = parity_of(row)
        seq, before = state.get(parity, [0, ""])
        state[parity] = [seq + 1, mark]
        out.append([*row, seq + 1, before, mark])
    return out


def parity_of(row: Row) -> str:
    """The key of the second operator."""
    return f"parity {row[3] % 2}"


class Model:
    """What a plain dict makes of the input.

    Attributes:
        rows: What each payment becomes, without marks: payment -> account, number, total, number of its parity.
        states: After each number of epochs, by operator: the state of each key without its mark.
    """

    def __init__(self, inputs: Sequence[Sequence[Payment]]) -> None:
        self.inputs = inputs
        self.rows: dict[int, tuple[Any, ...]] = {}
        self.epoch_of: dict[int, Any] = {}
        accounts: dict[str, Row] = {}
        parities: dict[str, Row] = {}
        self.states: Any = [{LEDGER: {}, PARITY: {}}]
        for number, epoch in enumerate(inputs):
            for row in count_parities(parities, number_payments(accounts, epoch, "m"), "m"):
                self.rows[row[0]] = plain(row)
                self.epoch_of[row[0]] = number
            self.states.append(
                {
                    LEDGER: {key: value[:2] for key, value in accounts.items()},
                    PARITY: {key: value[:1] for key, value in parities.items()},
                }
            )

    @property
    def end(self) -> Any:
        """The position of a checkpoint that has taken all input."""
        return len(self.inputs)

    def position_of(self, document: CheckpointMetadata) -> Any:
        """How many epochs of input a checkpoint has taken."""
        positions = document.source_positions
        return int(positions["next"]) if positions else 0


def plain(row: Row) -> tuple[Any, ...]:
    """A row without marks."""
    return (row[1], row[2], row[3], row[6])


def broken_chain(rows: Sequence[Row]) -> str | None:
    """Where the marks of an output do not follow each other; None if they do. The rows are those of all its epochs."""
    for key, number, before, mark in ((1, 2, 4, 5), (None, 6, 7, 8)):
        last: dict[Any, tuple[int, str]] = {}
        of_key = (lambda row: parity_of(row)) if key is None else (lambda row, key=key: row[key])
        for row in sorted(rows, key=lambda row: (of_key(row), row[number])):
            seq, expected = last.get(of_key(row), (0, ""))
            if row[number] != seq + 1 or row[before] != expected:
                return f"row {row} follows number {seq} with mark {expected!r}"
            last[of_key(row)] = row[number], row[mark]
    return None


def run_path(job_root: str, path: str) -> str:
    """Where a run is."""
    return join(job_root, path)
