"""A job whose REST interface is served while a test looks at it: counts words, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.kernel.watermark import TimestampAssigner
from holdfast.rest.client import RestClient, RestError
from holdfast.runtime.job.engine import EpochDriver, Outcome
from holdfast.runtime.master.job_master import JobMaster
from holdfast.testing.epoch_runner import LocalEngine, LocalInput, run_job

SECONDS = 30.0


class Beginning(TimestampAssigner):
    """Every word is of a long time ago."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return 1_000_000


STAMPED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Beginning())


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, word: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if word == "poison":
            raise ValueError("this word is poison")
        self.count.update(self.count.value() + 1)
        yield word


class GrowingEngine(LocalEngine):
    """Runs an epoch for each batch of words that somebody appends to its inputs, until the job is stopped."""

    def drive(self, driver: EpochDriver) -> Outcome:
        while not driver.is_stopping:
            driver.tick_if_due()
            if self._next < len(self.inputs):
                driver.process(LocalInput(self._next, self.inputs[self._next], False))
                self._next += 1
            else:
                driver.wait(0.02)
        return Outcome.STOPPED


class Running:
    """A job that counts words, in a thread of its own.

    Args:
        root: Its checkpoints are in a directory in this one.
        name: Its name.
        event_time: Whether words have timestamps.
        beside: Called with each epoch by a second sink, `beside`; None for no other sink.
        **options: Options of the job.
    """

    def __init__(
        self,
        root: Path,
        name: str = "words",
        *,
        event_time: bool = False,
        beside: Callable[[Any, int], None] | None = None,
        **options: Any,
    ) -> None:
        env = StreamExecutionEnvironment.get_execution_environment()
        words = env.from_collection([], "string").uid("words")
        stamped = words.assign_timestamps_and_watermarks(STAMPED).uid("stamped") if event_time else words
        counted = stamped.key_by(lambda word: word, "string").process(Count(), output_type="string").uid("count")
        counted.for_each_epoch(lambda rows, epoch: None).uid("sink")
        if beside is not None:
            counted.for_each_epoch(beside).uid("beside")
        self.engine = GrowingEngine([{"words": ["kelp", "rock"]}])
        self.master: JobMaster = run_job(
            env.get_stream_graph(),
            root / "checkpoints",
            self.engine,
            {"restart-strategy.type": "none"} | options,
            name=name,
        )
        self.directory = Path(self.master.job.directory.path)
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        until(lambda: self.master.statistics.create_snapshot().counts.completed >= 1)

    def _run(self) -> None:
        try:
            self.master.run()
        except Exception as error:
            self.failure = error

    @property
    def client(self) -> RestClient:
        return RestClient.find(self.master.job.directory)

    def say(self, *words: str) -> None:
        self.engine.inputs.append({"words": list(words)})

    def end(self) -> None:
        self.master.control.stop()
        self.thread.join(SECONDS)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def holdfast(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(call: Callable[[], Any]) -> RestError:
    with pytest.raises(RestError) as caught:
        call()
    return caught.value
