"""Jobs that run by epochs and in real time in turns: both read the same partitions, and continue at each other's
positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.datastream import DataStream
from holdfast.errors import EngineError
from holdfast.kernel.clock import SystemClock
from holdfast.runtime.exchange.stage_message import JobDescriptor
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import (
    BoundedEnumerator,
    EpochOffset,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
    SplitSource,
)
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.source_positions import JobInputs, offset_entry, require_plain
from holdfast.runtime.job.engine import EpochDriver, Outcome
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.epoch_runner import EpochProgram, LocalEngine, LocalInput, run_job
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.local import RESTARTING

ENGINES = ("epochs", "real-time")
INPUT = "rows"
"""Uid of the source."""
_reached: dict[str, dict[str, int]] = {}
"""How far each source was read; tasks are threads here."""
_allowed: dict[str, Sequence[int]] = {}
"""The number of elements that each partition of a source has so far; all of them if it is not here."""


class Partitions(SplitSource):
    """Ordered partitions of an unbounded source, as those of a topic.

    Args:
        name: Name of the source in this process.
        elements: The elements of each partition.
        at_once: Elements that are read at once of a partition.
        fails: Positions at which a task fails once, by partition, and the file by which it knows that it has.
        waits: Whether a task reads of one partition only between two barriers.
    """

    def __init__(
        self,
        name: str,
        elements: Sequence[Sequence[Any]],
        at_once: int = 3,
        fails: Mapping[tuple[int, int], Path] | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self.name, self.at_once, self.fails, self.waits = name, at_once, dict(fails or {}), waits
        self.elements = {str(number): list(partition) for number, partition in enumerate(elements)}

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return BoundedEnumerator(dict.fromkeys(self.elements, 0) if position is None else position["splits"])

    def create_reader(self, task: int) -> SourceReader:
        return _Reader(self)

    def to_epoch_offsets(self, position: Any) -> Sequence[EpochOffset]:
        return [EpochOffset(position["splits"])]

    def from_epoch_offsets(self, offsets: Sequence[EpochOffset]) -> Any:
        return {"splits": offsets[0].offset}

    def read(self, partition: str, begin: int) -> Sequence[Any]:
        """Return the elements from a position on.

        Raises:
            EngineError: A task is to fail here.
        """
        found = self.elements[partition][begin : min(begin + self.at_once, self.present(partition))]
        for at in range(begin, begin + len(found)):
            failed = self.fails.get((int(partition), at))
            if failed is not None and not failed.exists():
                failed.touch()
                raise EngineError(f"element {at} of partition {partition} fails once")
        self.reach(partition, begin + len(found))
        return found

    def reach(self, partition: str, position: int) -> None:
        """Record how far a partition was read."""
        _reached.setdefault(self.name, {})[partition] = position

    def allow(self, *counts: int) -> None:
        """Let each partition have so many elements now, in this process."""
        _allowed[self.name] = counts

    def present(self, partition: str) -> int:
        """Return how many elements a partition has."""
        allowed = _allowed.get(self.name)
        return len(self.elements[partition]) if allowed is None else allowed[int(partition)]

    @property
    def is_read(self) -> bool:
        """Whether all present elements were read since the job was started."""
        reached = _reached.get(self.name, {})
        return all(reached.get(partition, -1) >= self.present(partition) for partition in self.elements)


class _Reader(SequentialReader):
    def __init__(self, source: Partitions) -> None:
        super().__init__()
        self._source = source
        self._has_polled = False

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        super().add_splits(splits)
        for split in splits:
            self._source.reach(split.split_id, split.state)

    def poll(self) -> Any:
        if self.seconds_to_next or (self._has_polled and self._source.waits):
            return None
        found = super().poll()
        self._has_polled = bool(found)
        return found or None

    def snapshot(self) -> Mapping[str, Any]:
        self._has_polled = False
        return super().snapshot()

    def read(self, split_id: str, state: Any) -> tuple[Sequence[Any], Any]:
        del self._open[split_id]  # behind the others, which are read first next time
        found = self._source.read(split_id, state)
        self._open[split_id] = state + len(found)
        return found, state + len(found)

    @property
    def seconds_to_next(self) -> float:
        unread = any(at < self._source.present(partition) for partition, at in self._open.items())
        return 0.0 if unread else 0.02

    @property
    def polled_split(self) -> str:
        return next(reversed(self._open))


class _Epoch(LocalInput):
    def __init__(self, number: int, elements: Sequence[Any], positions: dict[str, Any]) -> None:
        super().__init__(number, {INPUT: elements}, is_last=False)
        self._positions = positions

    def positions(self) -> dict[str, Any]:
        return self._positions


class PartitionsByEpochs(LocalEngine):
    """An epoch runner that reads some elements of each partition in an epoch, and then waits until it is stopped.

    Args:
        source: The partitions.
        source_tasks: Number of tasks that read them.
    """

    def __init__(self, source: Partitions, source_tasks: int) -> None:
        super().__init__([], source_tasks=source_tasks, interceptor=self._fail)
        self._source = source
        self._failure: EngineError | None = None
        self._tasks = 0

    def prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int, rules: InputRules) -> None:
        self.update_plan(job)
        self._batch, self._at = 0, dict.fromkeys(self._source.elements, 0)
        if positions:
            assert "splits" not in positions
            streaming = positions["streaming"]
            self._batch = int(streaming["batch_id"])
            [text] = require_plain(streaming["offsets"][str(self._batch)])
            self._at |= json.loads(text)
        for partition, position in self._at.items():
            self._source.reach(partition, position)

    def drive(self, driver: EpochDriver) -> Outcome:
        while not driver.is_stopping:
            driver.tick_if_due()
            elements = self._next_elements()
            if elements:
                self._batch += 1
                driver.process(_Epoch(self._batch, elements, self._positions()))
            else:
                driver.wait(0.01)
        return Outcome.STOPPED

    def _next_elements(self) -> list[Any]:
        found: list[Any] = []
        for partition, begin in self._at.items():
            try:
                part = self._source.read(partition, begin)
            except EngineError as error:
                self._failure = error
                part = self._source.read(partition, begin)
            found += part
            self._at[partition] = begin + len(part)
        return found

    def _fail(self, stage: int, partition: int) -> None:
        """Fail in each second task while there is a failure to raise."""
        self._tasks += 1
        if self._failure is not None and self._tasks % 2 == 0:
            failure, self._failure = self._failure, None
            raise failure

    def _positions(self) -> dict[str, Any]:
        lines = JobInputs.of(self._plan).lines
        return {
            "static_consumed": True,
            "static": [],
            "streaming": {
                "batch_id": self._batch,
                "offsets": {str(self._batch): offset_entry([self._at])},
                "sources": {},
                "inputs": [line.to_json() for line in lines],
            },
        }


def start(
    engine: str,
    build: Callable[[DataStream], object],
    source: Partitions,
    element_type: Any,
    directory: Path,
    options: Mapping[str, Any] | None = None,
    *,
    name: str = "job",
    clock: SystemClock | None = None,
    parallelism: int = 2,
    source_tasks: int = 2,
) -> JobClient:
    """Start a job over a directory, or continue it, and return its client.

    Args:
        engine: One of `ENGINES`.
        build: Adds the program behind the source.
        source: The source.
        element_type: Type of its elements.
        directory: Checkpoint directory.
        options: Options of the job; a failure restarts it at once.
        name: Name of the job.
        clock: Processing time.
        parallelism: Parallelism of operators.
        source_tasks: Number of tasks that read the source.
    """
    _reached.pop(source.name, None)
    configuration = {**RESTARTING, "execution.checkpointing.interval": "5 ms", **(options or {})}
    if engine == "real-time":
        real_time = RealTimeProgram()
        build(real_time.source(INPUT, source, element_type))
        master = real_time.master(
            directory, configuration, name=name, clock=clock, parallelism=parallelism, source_tasks=source_tasks
        )
        return JobClient(master)
    program = EpochProgram()
    build(program.source(INPUT, element_type))
    graph, runner = program.get_stream_graph(), PartitionsByEpochs(source, source_tasks)
    return JobClient(run_job(graph, directory, runner, configuration, name=name, clock=clock, parallelism=parallelism))


class MovedClock(SystemClock):
    """The clock of this machine, and an hour or more later when a test says so."""

    def __init__(self) -> None:
        self._ahead = 0

    def advance(self, ms: int) -> None:
        """Move the wall clock forward."""
        self._ahead += ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead


class HeldClock(SystemClock):
    """A clock that stands until a test moves it. A sleep takes the time that it says.

    Attributes:
        time: Milliseconds since 1970.
    """

    def __init__(self, time: int | None = None) -> None:
        self.time = super().now_ms() if time is None else time

    def now_ms(self) -> int:
        return self.time

    def monotonic(self) -> float:
        return self.time / 1000
