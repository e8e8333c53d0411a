"""Runs several engines against each other: alternating rounds, each engine in a process that stays warm."""

from __future__ import annotations

import contextlib
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.warm_process import WarmProcess
from benchmarks.harness.workload import SETTINGS_VARIABLE, Workload, engine_module, settings_of

SLOW = 5.0  # seconds of an epoch
PATIENCE = 1800.0  # seconds for the epochs of one round; the slowest engine needs some minutes


@dataclass(frozen=True)
class Course:
    """How long a contest is.

    Attributes:
        warm_up: Epochs of every engine before the first round.
        rounds: Rounds in which all engines take turns.
        settling: Epochs at the start of a round that are not measured: the workers of an idle engine are gone, and the
            files that it reads have left the page cache.
        epochs: Measured epochs a round.
    """

    warm_up: int
    rounds: int
    settling: int
    epochs: int

    def for_one_with(self, seconds: Sequence[float]) -> Course:
        """What is enough for an engine that warmed up in these epochs: one and two if they took many seconds."""
        if not seconds or seconds[-1] < SLOW:
            return self
        return replace(self, settling=min(self.settling, 1), epochs=min(self.epochs, 2))


@dataclass(frozen=True)
class Result:
    """What one engine achieved: seconds an epoch, one value (the mean of its measured epochs) a round.

    Attributes:
        engine: Its name, with its settings.
        rows: An epoch's.
        seconds: By round.
        processor_seconds: That all its processes used, by round: the mean of all epochs, those that settle included.
    """

    engine: str
    rows: int
    seconds: tuple[float, ...]
    processor_seconds: tuple[float, ...] = ()

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.median_seconds

    def to_json(self) -> dict[str, object]:
        return {
            "engine": self.engine,
            "rows_per_second": round(self.rows_per_second, 1),
            "milliseconds_per_epoch": round(1000 * self.median_seconds, 1),
            "rounds": [round(self.rows / seconds, 1) for seconds in self.seconds],
            "processor_milliseconds_per_epoch": [round(1000 * seconds) for seconds in self.processor_seconds],
        }


class EngineProcess(WarmProcess):
    """One engine."""

    def __init__(self, name: str, workload: Workload, cache: Path) -> None:
        self.name = name
        module = engine_module(name)
        python = module.interpreter(cache) if hasattr(module, "interpreter") else sys.executable
        command = [python, "-m", "benchmarks.harness.engine_process", name, workload.to_json()]
        super().__init__(
            command, Path(workload.workspace), PATIENCE, {SETTINGS_VARIABLE: json.dumps(settings_of(name))}
        )

    def run(self, epochs: int) -> list[float]:
        """Blocks until the engine has processed so many epochs; returns the seconds of each."""
        answer = self.ask(str(epochs))
        if not answer:
            raise SystemExit(f"engine {self.name!r} has ended:\n{self.last_words()}")
        seconds = json.loads(answer)
        if len(seconds) != epochs:
            raise SystemExit(f"engine {self.name!r} answered {len(seconds)} epochs instead of {epochs}")
        return [float(value) for value in seconds]


def hold(engines: Sequence[str], workload: Workload, course: Course, cache: Path) -> list[Result]:
    """Holds the contest and returns the results in the order of the engines.

    Args:
        engines: Their names.
        workload: The sizes; inputs and workspaces are made below the cache.
        course: How long it is.
        cache: Directory that is kept: generated input and the environments of engines that need one.
    """
    cache.mkdir(parents=True, exist_ok=True)
    measured: dict[str, list[float]] = {name: [] for name in engines}
    processors: dict[str, list[float]] = {name: [] for name in engines}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the engines are ended too
    with contextlib.ExitStack() as stack:
        directory = tempfile.TemporaryDirectory(prefix="contest-", dir=cache, ignore_cleanup_errors=True)
        workspace = Path(stack.enter_context(directory))
        running = []
        for place, name in enumerate(engines):
            own = replace(workload, inputs=str(cache / "inputs"), workspace=str(workspace / str(place)))
            process = EngineProcess(name, own, cache)
            stack.callback(process.close)
            if own.fill:
                progress(f"{name}: filling {own.keys:,} keys")
                process.run(own.fill_epochs)
            progress(f"{name}: {course.warm_up} warm-up epochs")
            running.append((process, course.for_one_with(process.run(course.warm_up))))
        for number in range(course.rounds):
            for process, own_course in running:
                settling, before = own_course.settling, process.processor_seconds()
                seconds = process.run(settling + own_course.epochs)[settling:]
                used = process.processor_seconds() - before
                processors[process.name].append(used / (settling + own_course.epochs))
                measured[process.name].append(statistics.mean(seconds))
                rate = workload.rows / measured[process.name][-1]
                progress(f"round {number + 1} of {course.rounds}: {process.name}: {rate:,.0f} rows/s")
    return [Result(name, workload.rows, tuple(measured[name]), tuple(processors[name])) for name in engines]


def progress(text: str) -> None:
    """One line for people, on standard error, because standard output may be for a program."""
    sys.stderr.write(text + "\n")
