"""Programs on the epoch runner: what a user writes with streams, run in this process without a JVM."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.datastream.environment import StreamExecutionEnvironment
from holdfast.datastream.stream import DataStream
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.engine import EpochDriver, Outcome
from holdfast.runtime.graph import SourceNode, StreamGraph
from holdfast.runtime.job_master import JobMaster
from holdfast.runtime.status import JobStatus
from holdfast.testing.epoch_runner import LocalEngine, run_job
from holdfast.types.convert import to_type

OPTIONS = {
    "restart-strategy.type": "none",
    "execution.checkpointing.cleaner.grace-period": "0 ms",
    "state.compaction.executor": "thread",
}
RESTARTING = {
    **OPTIONS,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "0 ms",
}


class Program(StreamExecutionEnvironment):
    """An environment whose sources are fed by the epoch runner."""

    def __init__(self) -> None:
        super().__init__(Configuration(), None)

    def source(self, uid: str, type_info: Any = None) -> DataStream:
        """A stream of the elements that the epoch runner is given for `uid`."""
        node = SourceNode(name=uid, uid=uid, element_type=to_type(type_info), is_streaming=True)
        return DataStream(self, node)


def master(
    program: Program | StreamGraph,
    directory: Path | str,
    inputs: Sequence[Mapping[str, Sequence[Any]]],
    options: Mapping[str, Any] | None = None,
    *,
    name: str = "job",
    clock: Any = None,
    parallelism: int = 2,
    engine: type[LocalEngine] = LocalEngine,
    **settings: Any,
) -> JobMaster:
    """The master of a job over a directory, ready to run; the remaining settings are those of the epoch runner."""
    graph = program.get_stream_graph() if isinstance(program, Program) else program
    configuration = {**OPTIONS, **(options or {})}
    runner = engine(inputs, **settings)
    return run_job(graph, directory, runner, configuration, name=name, clock=clock, parallelism=parallelism)


def run(
    program: Program | StreamGraph,
    directory: Path | str,
    inputs: Sequence[Mapping[str, Sequence[Any]]],
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> JobStatus:
    """Runs a job over a directory to its end; the settings are those of `master`."""
    return master(program, directory, inputs, options, **settings).run()


def epochs(uid: str, batches: Iterable[Sequence[Any]]) -> list[dict[str, Sequence[Any]]]:
    """Inputs of a job with one source, epoch by epoch."""
    return [{uid: batch} for batch in batches]


class HurriedClock(ManualClock):
    """A clock that jumps to the end of each sleep."""

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        self.advance(round(seconds * 1000))
        return wake is not None and wake.is_set()


class WaitingEngine(LocalEngine):
    """An epoch runner whose inputs pause instead of ending: it stays until it is stopped, and ticks when due."""

    def drive(self, driver: EpochDriver) -> Outcome:
        while super().drive(driver) is not Outcome.STOPPED:
            driver.wait(0.01)
            driver.tick_if_due()
        return Outcome.STOPPED

    def feed(self, *inputs: Mapping[str, Sequence[Any]]) -> None:
        """Gives it more input, one epoch each."""
        self.inputs.extend(inputs)
