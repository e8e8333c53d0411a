"""What a real-time job does while it has nothing to do, and how soon it notices that it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.common import Types
from holdfast.runtime.function.source import SourceReader, SourceSplit, SplitEnumerator, SplitSource
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_real_time_jobs import until

POLLS: list[float] = []
ARRIVED: list[tuple[int, float]] = []
SECOND = threading.Event()
QUIET = "1 h"


def arrive(number: int) -> int:
    ARRIVED.append((number, time.monotonic()))
    return number


class Announced(SplitSource):
    """Elements at times that the reader knows, in one split; a second split is found when the test says so."""

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return _Splits()

    def create_reader(self, task: int) -> SourceReader:
        return _AtTimes()


class _Splits(SplitEnumerator):
    def __init__(self) -> None:
        self.names = ["first", "second"]

    def discover(self) -> Sequence[SourceSplit]:
        if self.names == ["second"] and not SECOND.wait(10):
            return []
        return [SourceSplit(self.names.pop(0), 0)] if self.names else []

    def is_exhausted(self) -> bool:
        return False

    @property
    def discovery_seconds(self) -> float:
        return 0.01

    def snapshot(self, splits: Any) -> Any:
        return {}


class _AtTimes(SourceReader):
    """One element a split, half a second after it was added."""

    def __init__(self) -> None:
        self.due: dict[str, float] = {}

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self.due |= {split.split_id: time.monotonic() + 0.5 for split in splits}

    def poll(self) -> Sequence[int] | None:
        POLLS.append(time.monotonic())
        for name, due in self.due.items():
            if time.monotonic() >= due:
                self.due[name] = float("inf")
                return [len(name)]
        return None

    def snapshot(self) -> dict[str, int]:
        return dict.fromkeys(self.due, 0)

    @property
    def has_splits(self) -> bool:
        return bool(self.due)

    @property
    def seconds_to_next(self) -> float:
        return min(self.due.values()) - time.monotonic()


def running(tmp_path: Path) -> JobClient:
    POLLS.clear()
    ARRIVED.clear()
    SECOND.clear()
    program = RealTimeProgram()
    numbers = program.source("numbers", Announced(), Types.LONG()).map(arrive, Types.LONG()).uid("arrive")
    numbers.for_each(lambda _: None).uid("out")
    return JobClient(program.master(tmp_path, {"execution.checkpointing.interval": QUIET}, source_tasks=1))


def test_a_source_that_knows_when_it_has_elements_is_polled_then(tmp_path: Path) -> None:
    client = running(tmp_path)
    until(lambda: bool(ARRIVED))
    time.sleep(0.5)
    polled = len(POLLS)
    time.sleep(1.5)
    client.stop()
    client.await_termination()
    assert len(POLLS) - polled <= 6, "an idle task was busy"


def test_a_split_is_read_when_it_is_found(tmp_path: Path) -> None:
    client = running(tmp_path)
    until(lambda: bool(ARRIVED))
    time.sleep(0.3)  # the driver waits
    SECOND.set()
    found = time.monotonic()
    until(lambda: len(ARRIVED) == 2)
    client.stop()
    client.await_termination()
    number, at = ARRIVED[1]
    assert number == len("second")
    assert at - found < 0.5 + 0.4, "the driver noticed it when it looked for something else"
