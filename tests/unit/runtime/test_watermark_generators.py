"""Watermarks that a program generates itself: punctuated, by the clock, with memory of what was reached before."""

from __future__ import annotations

import base64
import pickle
import threading
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.metadata import encode
from holdfast.checkpoint.replay import prepare_replay
from holdfast.common import (
    Watermark,
    WatermarkGenerator,
    WatermarkGeneratorContext,
    WatermarkOutput,
    WatermarkStrategy,
)
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError
from holdfast.kernel.clock import ManualClock
from holdfast.testing.epoch_runner import LocalEngine
from tests.stories import ledger, tidiness
from tests.stories.local import RESTARTING, Program, run

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
        self.context = context

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        pass

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.context.processing_time - 10)


class OneStepAnEpoch(WatermarkGenerator):
    """Goes on from where event time is, and lets nobody wait for a task that has seen nothing."""

    def __init__(self, context: WatermarkGeneratorContext) -> None:
        self.context = context
        self.has_seen = False

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.has_seen = True

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(max(self.context.current_watermark, 0) + 10)
        if not self.has_seen:
            output.mark_idle()
        self.has_seen = False


class AsLateAsEver(WatermarkGenerator):
    """Expects elements to be as late as the latest one of all that it has seen."""

    def __init__(self, context: WatermarkGeneratorContext) -> None:
        self.subtask = context.subtask
        self.greatest, self.delay, self.seen = 0, 0, 0

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.seen += 1
        self.delay = max(self.delay, self.greatest - event_timestamp)
        self.greatest = max(self.greatest, event_timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.greatest - self.delay - 1)


class Alarm(KeyedProcessFunction):
    """Says when the timer of a reading fires: which watermark there is then."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark()


def alarms(place: Path, supplier: Any) -> Program:
    program = Program()
    strategy = WatermarkStrategy.for_generator(supplier).with_timestamp_assigner(lambda row, before: row.at)
    timed = program.source("readings", READING).assign_timestamps_and_watermarks(strategy)
    found = timed.key_by("sensor").process(Alarm(), FIRED).uid("alarms")
    found.sink_to(ParquetFileSink(str(place / "out"))).uid("out")
    return program


def fired(place: Path, supplier: Any, epochs: list[list[tuple[str, int, bool]]], **settings: Any) -> list[Any]:
    program = alarms(place, supplier)
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


LATENESS = [("a", at, False) for at in (10, 30, 23, 40, 35, 90, 60, 120, 118, 150)]


def expected_after(count: int) -> int:
    """The watermark that `AsLateAsEver` comes to with so many elements, whatever was emitted before."""
    times = [at for _, at, _ in LATENESS[:count]]
    delay = max(max(times[:number]) - times[number - 1] for number in range(1, count + 1))
    return max(times) - delay - 1


@given(st.sets(st.integers(1, len(LATENESS) - 1)))
@settings(max_examples=8, deadline=None)
def test_the_state_of_a_generator_lasts_for_any_cut_into_epochs(cuts: set[int]) -> None:
    bounds = [0, *sorted(cuts), len(LATENESS)]
    batches = [LATENESS[start:end] for start, end in pairwise(bounds)]
    options = {"execution.checkpointing.num-retained": len(bounds)}
    with TemporaryDirectory() as place:
        fired(Path(place), AsLateAsEver, batches, source_tasks=1, amnesia=True, options=options)
        checkpoints = tidiness.retained(tidiness.job_directory(Path(place, "checkpoints")))
    recorded = [checkpoint.metadata.extra["event_time"]["reached"] for checkpoint in checkpoints]
    emitted = list(accumulate(map(expected_after, bounds[1:]), max))
    assert [list(reached.values()) for reached in recorded] == [[time] for time in emitted]
    assert expected_after(bounds[-1]) == 119


def test_a_replayed_epoch_begins_with_the_generator_of_that_time(tmp_path: Path) -> None:
    batches, options = [LATENESS[:6], LATENESS[6:7], LATENESS[7:]], {"execution.checkpointing.num-retained": 10}
    fired(tmp_path / "once", AsLateAsEver, batches, source_tasks=1, options=options)
    _, second, third = tidiness.retained(tidiness.job_directory(tmp_path / "once" / "checkpoints"))
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "_metadata").write_bytes(encode(prepare_replay(second).metadata))
    again = {"execution.state-recovery.path": str(tmp_path / "start")}
    fired(tmp_path / "again", AsLateAsEver, batches, source_tasks=1, options=again, name="again")
    [replayed] = tidiness.retained(tidiness.job_directory(tmp_path / "again" / "checkpoints", "again"))
    recorded = [checkpoint.metadata.extra["event_time"] for checkpoint in (third, replayed)]
    assert recorded[0]["reached"] == recorded[1]["reached"] and list(recorded[0]["reached"].values()) == [119]
    assert recorded[0]["generators"] == recorded[1]["generators"]


class Doubtful(LocalEngine):
    """Loses an answer of each epoch once, so that every epoch runs twice."""

    def execute(self, epoch: Any, epoch_input: Any) -> Any:
        barriers = super().execute(epoch, epoch_input)
        return barriers[1:] if epoch.try_number == 0 else barriers


def test_a_repeated_epoch_begins_with_the_generator_before_it(tmp_path: Path) -> None:
    batches = [LATENESS[start : start + 2] for start in range(0, len(LATENESS), 2)]
    once = fired(tmp_path / "once", AsLateAsEver, batches)
    program = alarms(tmp_path / "twice", AsLateAsEver)
    run(program, tmp_path / "job", [{"readings": batch} for batch in batches], engine=Doubtful, amnesia=True)
    assert sorted(ledger.read(tmp_path / "twice" / "out")) == sorted(once) != []


def test_each_subtask_has_a_generator_of_its_own_and_an_attempt_of_the_job_begins_with_new_ones(tmp_path: Path) -> None:
    batches = [[("a", 100, False), ("b", 50, False)], [("a", 110, False), ("b", 45, False)], [("a", 1, False)] * 2]
    held = []
    for read in (1, 2):
        fired(tmp_path, AsLateAsEver, batches[:read])
        recorded = tidiness.retained(tidiness.job_directory(tmp_path / "checkpoints"))[-1].metadata.extra["event_time"]
        [of_tasks] = recorded["generators"].values()
        held.append({task: pickle.loads(base64.b64decode(content)) for task, content in of_tasks.items()})
    assert [{task: (one.subtask, one.greatest) for task, one in each.items()} for each in held] == [
        {"0": (0, 100), "1": (1, 50)},
        {"0": (0, 110), "1": (1, 45)},
    ]
    assert [one.seen for one in held[1].values()] == [1, 1], "the second job did not go on from the first one's"


class Locked(Bounded):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Hoarding(Bounded):
    """Keeps every element."""

    def __init__(self) -> None:
        super().__init__()
        self.all = bytes(70_000)


@pytest.mark.parametrize(("kind", "told"), [(Locked, "cannot pickle '_thread.lock'"), (Hoarding, "at most 65536")])
def test_a_generator_that_cannot_be_pickled_is_reported(tmp_path: Path, kind: Any, told: str) -> None:
    with pytest.raises(JobExecutionError, match=f"(?s)pickling a watermark generator.*{told}"):
        fired(tmp_path, lambda context: kind(), [[("a", 5, False)]])


def test_a_bounded_input_ends_event_time_with_any_generator(tmp_path: Path) -> None:
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
        (lambda context: None, "returned None, which is no WatermarkGenerator"),
        (lambda: Wrong(), "takes 0 positional arguments"),
    ],
)
def test_an_error_of_a_generator_fails_the_job_and_is_named(tmp_path: Path, supplier: Any, told: str) -> None:
    with pytest.raises(JobExecutionError, match=told):
        fired(tmp_path, supplier, [[("a", 5, False)]])


def test_an_invalid_strategy_is_rejected_with_advice() -> None:
    with pytest.raises(ConfigurationError, match="lambda context: MyGenerator"):
        WatermarkStrategy.for_generator(Wrong())  # type: ignore[arg-type]
