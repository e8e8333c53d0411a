"""Watermarks that a program generates itself: punctuated, by the clock, with memory of what was reached before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.common import (
    Duration,
    Watermark,
    WatermarkGenerator,
    WatermarkGeneratorContext,
    WatermarkOutput,
    WatermarkStrategy,
)
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.job.engine import EngineError
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program

MIN = -(2**63)
READING = "sensor string, at bigint, is_mark boolean"
FIRED = "sensor string, at bigint, seen bigint"


class Punctuated(WatermarkGenerator):
    """A reading that says so is a watermark."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        assert event_timestamp == event.at
        if event.is_mark:
            output.emit_watermark(Watermark(event.at))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


class Bounded(WatermarkGenerator):
    """What Flink's documentation writes: as far behind the greatest timestamp as elements may be late."""

    def __init__(self) -> None:
        self.greatest = MIN + 4

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.greatest = max(self.greatest, event_timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(Watermark(self.greatest - 3 - 1))


class BehindTheClock(WatermarkGenerator):
    """So far behind the time of the epoch, whatever comes."""

    def __init__(self, context: WatermarkGeneratorContext) -> None:
        self.now = context.processing_time

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        pass

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.now - 10)


class OneStepAnEpoch(WatermarkGenerator):
    """Goes on from where event time is, and lets nobody wait for a task that has seen nothing."""

    def __init__(self, context: WatermarkGeneratorContext) -> None:
        self.before = max(context.current_watermark, 0)
        self.has_seen = False

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.has_seen = True

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.before + 10)
        if not self.has_seen:
            output.mark_idle()


class Alarm(KeyedProcessFunction):
    """Says when the timer of a reading fires: which watermark there is then."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark()


def fired(place: Path, supplier: Any, epochs: list[list[tuple[str, int, bool]]], **settings: Any) -> list[Any]:
    program = Program()
    strategy = WatermarkStrategy.for_generator(supplier).with_timestamp_assigner(lambda row, before: row.at)
    timed = program.source("readings", READING).assign_timestamps_and_watermarks(strategy)
    alarms = timed.key_by("sensor").process(Alarm(), FIRED).uid("alarms")
    alarms.sink_to(ParquetFileSink(str(place / "out"))).uid("out")
    program.run(place / "checkpoints", [{"readings": batch} for batch in epochs], **settings)
    return ledger.read(place / "out")


def test_a_punctuated_watermark_is_that_of_its_epoch(tmp_path: Path) -> None:
    epochs = [
        [("a", 5, False), ("b", 7, False)],
        [("a", 6, True)],  # of two tasks only one has said something
        [("b", 3, True)],  # event time does not go back
        [("a", 9, True)],
    ]
    first, *then = fired(tmp_path, lambda context: Punctuated(), epochs)
    assert first == ("a", 5, 6)
    assert sorted(then) == [("a", 6, 6), ("a", 9, 9), ("b", 3, 6), ("b", 7, 9)]


def test_a_generator_of_flinks_documentation_waits_for_the_task_that_is_behind(tmp_path: Path) -> None:
    # Each task reads one half of an epoch.
    epochs = [[("a", 20, False), ("b", 10, False)], [("a", 30, False), ("b", 40, False)]]
    assert sorted(fired(tmp_path, lambda context: Bounded(), epochs)) == [("a", 20, 26), ("b", 10, 26)]


def test_a_generator_by_the_clock_has_the_time_of_the_epoch(tmp_path: Path) -> None:
    clock = ManualClock(100)
    epochs = [[("a", 85, False), ("b", 95, False)]]
    assert fired(tmp_path, BehindTheClock, epochs, clock=clock) == [("a", 85, 90)]


def test_a_generator_goes_on_from_the_watermark_that_was_reached_also_after_failures(tmp_path: Path) -> None:
    struck: list[tuple[int, int]] = []

    def fail_once_in_each(stage: int, subtask: int) -> None:
        if (stage, subtask) not in struck:
            struck.append((stage, subtask))
            raise EngineError("this worker is lost")

    epochs = [[("a", at, False)] for at in (5, 15, 25)]
    found = fired(tmp_path, OneStepAnEpoch, epochs, options=RESTARTING, interceptor=fail_once_in_each, amnesia=True)
    assert sorted(found) == [("a", 5, 10), ("a", 15, 20), ("a", 25, 30)]
    assert len(struck) == 4


def test_a_bounded_input_ends_event_time_whatever_a_generator_says(tmp_path: Path) -> None:
    found = fired(tmp_path, lambda context: Punctuated(), [[("a", 5, False)]], is_bounded=True)
    assert found == [("a", 5, 2**63 - 1)]


class Wrong(WatermarkGenerator):
    """Emits what is no watermark."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark("now")  # type: ignore[arg-type]

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


@pytest.mark.parametrize(
    ("supplier", "told"),
    [
        (lambda context: Wrong(), "emit_watermark.. takes a Watermark"),
        (lambda context: None, "made None, no WatermarkGenerator"),
        (lambda: Wrong(), "takes 0 positional arguments"),
    ],
)
def test_an_error_of_a_generator_fails_the_job_and_is_named(tmp_path: Path, supplier: Any, told: str) -> None:
    with pytest.raises(JobExecutionError, match=told):
        fired(tmp_path, supplier, [[("a", 5, False)]])


def test_what_is_no_strategy_is_refused_with_what_to_use() -> None:
    with pytest.raises(ConfigurationError, match="lambda context: MyGenerator"):
        WatermarkStrategy.for_generator(Wrong())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"limit what an epoch reads .* maxOffsetsPerTrigger"):
        WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment("group", Duration.of_seconds(1))
