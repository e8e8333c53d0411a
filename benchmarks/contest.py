"""Runs several engines against each other: alternating rounds, each engine in a process that stays warm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.workload import Workload, engine_module

SLOW = 5.0  # seconds of an epoch
PATIENCE = 1800.0  # seconds for the epochs of one round; the slowest engine needs some minutes
ROOT = Path(__file__).resolve().parent.parent


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
    """What one engine achieved: seconds an epoch, one value (the mean of its measured epochs) a round."""

    engine: str
    rows: int
    seconds: tuple[float, ...]

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
        }


class EngineProcess:
    """One engine in a process group of its own; its chatter goes to a log file."""

    def __init__(self, name: str, workload: Workload, cache: Path) -> None:
        self.name = name
        self._log = Path(workload.workspace) / "log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        module = engine_module(name)
        python = module.interpreter(cache) if hasattr(module, "interpreter") else sys.executable
        # Functions are pickled by reference, so that Spark's Python workers have to find this package.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.engine_process", name, workload.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=workload.workspace,
                text=True,
                start_new_session=True,
            )

    def run(self, epochs: int) -> list[float]:
        """Blocks until the engine has processed so many epochs; returns the seconds of each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{epochs}\n")
            self._process.stdin.flush()
        watchdog = threading.Timer(PATIENCE, self._kill)
        watchdog.start()
        try:
            answer = self._process.stdout.readline()
        finally:  # also if we are told to end, which would wait for it otherwise
            watchdog.cancel()
        if not answer:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"engine {self.name!r} ended with exit code {self._process.wait()}:\n{text[-4000:]}")
        seconds = json.loads(answer)
        if len(seconds) != epochs:
            raise SystemExit(f"engine {self.name!r} answered {len(seconds)} epochs instead of {epochs}")
        return [float(value) for value in seconds]

    def close(self) -> None:
        """Ends the engine and everything that it has started."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        self._kill()
        self._process.wait()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


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
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the engines are ended too
    with contextlib.ExitStack() as stack:
        directory = tempfile.TemporaryDirectory(prefix="contest-", dir=cache, ignore_cleanup_errors=True)
        workspace = Path(stack.enter_context(directory))
        running = []
        for name in engines:
            own = replace(workload, inputs=str(cache / "inputs"), workspace=str(workspace / name))
            process = EngineProcess(name, own, cache)
            stack.callback(process.close)
            progress(f"{name}: {course.warm_up} warm-up epochs")
            running.append((process, course.for_one_with(process.run(course.warm_up))))
        for number in range(course.rounds):
            for process, own_course in running:
                settling = own_course.settling
                seconds = process.run(settling + own_course.epochs)[settling:]
                measured[process.name].append(statistics.mean(seconds))
                rate = workload.rows / measured[process.name][-1]
                progress(f"round {number + 1} of {course.rounds}: {process.name}: {rate:,.0f} rows/s")
    return [Result(name, workload.rows, tuple(seconds)) for name, seconds in measured.items()]


def progress(text: str) -> None:
    """One line for people, on standard error, because standard output may be for a program."""
    sys.stderr.write(text + "\n")
