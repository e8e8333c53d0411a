"""Timers: fired by ticks without input, by the end of time, after restarts and by other subtasks; or deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, OutputTag
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.function.user_function import TimeDomain
from holdfast.runtime.job.control import JobStatus, SnapshotRequest
from holdfast.runtime.job.engine import EpochDriver, Outcome
from holdfast.state.descriptor import ListStateDescriptor, ValueStateDescriptor
from holdfast.state.version import STATE_CACHE
from holdfast.testing.epoch_runner import LocalEngine, LocalInput
from tests.stories import journal, tidiness
from tests.stories.functions import Numbering
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, master, run

PAIR = "key string, n bigint"
START = 1_000_000
ALARM = OutputTag("alarm", "key string, at bigint")


class ScriptedEngine(LocalEngine):
    """Plays a script: input of an epoch, or milliseconds that pass."""

    def __init__(self, script: Sequence[Mapping[str, Any] | int], hands: ManualClock, **settings: Any) -> None:
        super().__init__([step for step in script if not isinstance(step, int)], **settings)
        self.script, self.clock = script, hands

    def drive(self, driver: EpochDriver) -> Outcome:
        driver.tick_if_due()
        number = 0
        for step in self.script:
            if isinstance(step, int):
                if number >= self._next:
                    self.clock.advance(step)
                    driver.tick_if_due()
                continue
            number += 1
            if number > self._next:
                driver.process(LocalInput(number - 1, step, is_last=False))
                self._next = number
        return Outcome.EXHAUSTED


class Waiting(KeyedProcessFunction):
    """Sums up what comes until nothing has come for 5 seconds; then emits the sum and forgets it."""

    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", "bigint"))
        self.due = runtime_context.get_state(ValueStateDescriptor("due", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        if self.due.value() is not None:
            timers.delete_processing_time_timer(self.due.value())
        self.due.update(timers.current_processing_time() + 5000)
        timers.register_processing_time_timer(self.due.value())
        self.sum.update((self.sum.value() or 0) + value.n)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.time_domain() is TimeDomain.PROCESSING_TIME
        assert ctx.timestamp() == timestamp == self.due.value()
        assert ctx.timer_service().current_processing_time() >= timestamp
        ctx.output(ALARM, (ctx.get_current_key(), timestamp))
        yield ctx.get_current_key(), self.sum.value()
        self.sum.clear()
        self.due.clear()


def sessions(place: Path) -> Program:
    program = Program()
    summed = program.source("in", PAIR).key_by("key").process(Waiting(), PAIR).uid("sessions")
    summed.sink_to(Journal(place / "out")).uid("out")
    summed.get_side_output(ALARM).sink_to(Journal(place / "alarms")).uid("alarms")
    counted = summed.key_by(lambda pair: pair.key, "string").process(Numbering(), None).uid("sessions-a-key")
    counted.sink_to(Journal(place / "numbers")).uid("numbers")
    return program


def play(place: Path, script: Sequence[Any], clock: ManualClock, options: Any = None, **settings: Any) -> Any:
    running = master(
        sessions(place), place / "job", script, options, clock=clock, engine=ScriptedEngine, hands=clock, **settings
    )
    assert running.run() is JobStatus.SUSPENDED
    return running


def scripted(*steps: Any) -> list[Any]:
    return [step if isinstance(step, int) else {"in": step} for step in steps]


def test_a_timer_fires_in_an_epoch_without_input_and_not_a_millisecond_early(place: Path) -> None:
    clock = ManualClock(START)
    running = play(place, scripted([("a", 1), ("b", 2), ("a", 3)], 4999, 1, 100_000), clock)
    assert [(record.epoch, record.rows) for record in running.progress.recent] == [(1, 3), (2, 0)]
    assert sorted(map(tuple, journal.read(place / "out"))) == [("a", 4), ("b", 2)]
    assert {page[:6] for page in journal.pages(place / "out")} == {"000002"}


def test_a_timer_that_is_deleted_does_not_fire(place: Path) -> None:
    clock = ManualClock(START)
    running = play(place, scripted([("a", 1)], 3000, [("a", 2)], 4000, [("a", 3)], 4999, 1), clock)
    assert journal.as_tuples(journal.read(place / "out")) == [("a", 6)]
    assert [record.rows for record in running.progress.recent] == [1, 1, 1, 0]


def test_a_due_timer_fires_at_the_end_of_an_epoch_with_input_too(place: Path) -> None:
    clock = ManualClock(START)

    def work_for_6_seconds(stage: int, partition: int) -> None:
        if partition == 0 and stage == 1:
            clock.advance(6000)

    running = play(place, scripted([("a", 1)], [("b", 1)], [("c", 1)]), clock, interceptor=work_for_6_seconds)
    # Processing time is fixed when an epoch is planned: what became due meanwhile fires in the next one.
    assert [record.rows for record in running.progress.recent] == [1, 1, 1]
    fired = {int(page[:6]): list(map(tuple, rows)) for page, rows in journal.pages(place / "out").items()}
    assert fired == {2: [("a", 1)], 3: [("b", 1)]}


def test_output_of_timers_reaches_sinks_side_outputs_and_keyed_operators(place: Path) -> None:
    clock = ManualClock(START)
    play(place, scripted([("a", 1), ("b", 2)], 6000, [("a", 5)], 6000, [("a", 7)], 6000), clock)
    assert journal.as_tuples(journal.read(place / "out")) == [("a", 1), ("a", 5), ("a", 7), ("b", 2)]
    numbers = sorted((pair.key, pair.n, number) for pair, number in journal.read(place / "numbers"))
    assert numbers == [("a", 1, 1), ("a", 5, 2), ("a", 7, 3), ("b", 2, 1)]
    times = sorted((row.key, row.at) for row in journal.read(place / "alarms"))
    # The processing time moves on by 1 ms at least from epoch to epoch.
    assert times == [("a", START + 5000), ("a", START + 11_001), ("a", START + 17_001), ("b", START + 5000)]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_timers_survive_restart_and_rescaling_and_fire_without_any_input(place: Path, parallelism: int) -> None:
    clock = ManualClock(START)
    keys = [f"key-{i}" for i in range(20)]
    script = scripted([(key, i) for i, key in enumerate(keys)], 1000, [(key, 100) for key in keys[:7]])
    play(place, script, clock, parallelism=3)
    assert journal.read(place / "out") == []
    STATE_CACHE.clear()
    clock.advance(4000)
    running = play(place, script, clock, parallelism=parallelism)
    assert [record.rows for record in running.progress.recent] == [0], "one tick, as soon as it runs"
    assert journal.as_tuples(journal.read(place / "out")) == sorted((key, i) for i, key in enumerate(keys) if i > 6)
    clock.advance(1000)
    play(place, script, clock, parallelism=4)
    expected = sorted((key, i + 100 * (i < 7)) for i, key in enumerate(keys))
    assert journal.as_tuples(journal.read(place / "out")) == expected
    clock.advance(10**9)
    running = play(place, script, clock, parallelism=2)
    assert len(running.progress.recent) <= 1, "nothing is due any more: at most one look at timers that have gone"
    assert journal.as_tuples(journal.read(place / "out")) == expected
    tidiness.inspect(place / "job")


def test_timers_fire_once_despite_failures(place: Path) -> None:
    points = ("run.write", "metadata.write", "pointer.write", "sink.commit", "notify")
    for point in points:
        for moment in ("before", "after", "lost"):
            clock, here = ManualClock(START), place / f"{point}-{moment}"
            fault.install(f"{moment}:{point}:2=raise,{moment}:{point}:5=raise")
            play(here, scripted([("a", 1), ("b", 2)], 6000, [("a", 5)], 6000), clock, RESTARTING)
            fault.clear()
            assert journal.as_tuples(journal.read(here / "out")) == [("a", 1), ("a", 5), ("b", 2)]
            numbers = sorted((pair.key, pair.n, number) for pair, number in journal.read(here / "numbers"))
            assert numbers == [("a", 1, 1), ("a", 5, 2), ("b", 2, 1)]


class Countdown(KeyedProcessFunction):
    """Registers three timers at once, and in each one that fires the next one, down to none."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        now = ctx.timer_service().current_processing_time()
        for _ in range(2):
            ctx.timer_service().register_processing_time_timer(now + 10 * value.n)
        yield "start", now

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "fired", timestamp
        if timestamp < START + 100:
            ctx.timer_service().register_processing_time_timer(timestamp + 30)


def test_a_timer_may_register_the_next_one_which_fires_in_the_same_epoch_if_it_is_due(place: Path) -> None:
    clock = ManualClock(START)
    program = Program()
    program.source("in", PAIR).key_by("key").process(Countdown(), PAIR).uid("countdown").sink_to(Journal(place / "out"))
    running = master(
        program, place / "job", scripted([("a", 1)], 10, 65, 10**6), clock=clock, engine=ScriptedEngine, hands=clock
    )
    running.run()
    pages = [[n - START for word, n in page if word == "fired"] for page in journal.pages(place / "out").values()]
    assert [page for page in pages if page] == [[10], [40, 70], [100]]


class Restless(KeyedProcessFunction):
    """Asks, whenever it is called, to be called at once."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.process_element(None, ctx)
        yield ctx.get_current_key(), timestamp


def test_a_timer_that_is_set_again_for_the_current_time_lets_the_epoch_end_and_fires_in_the_next(place: Path) -> None:
    """In Flink the clock moves on while timers fire, so others get their turn and checkpoints pass."""
    clock = ManualClock(START)
    program = Program()
    program.source("in", PAIR).key_by("key").process(Restless(), PAIR).uid("restless").sink_to(Journal(place / "out"))
    script = scripted([("a", 1), ("b", 1)], 10, 10, [("b", 1)])
    running = master(program, place / "job", script, clock=clock, engine=ScriptedEngine, hands=clock)
    assert running.run() is JobStatus.SUSPENDED
    fired = {int(page[:6]): sorted(rows) for page, rows in journal.pages(place / "out").items()}
    # What was set for the time of the epoch before comes first, then what that sets for the time of this one.
    times = {1: [0], 2: [0, 10], 3: [10, 20], 4: [20, 21]}
    assert fired == {epoch: [(key, START + at) for key in "ab" for at in ats] for epoch, ats in times.items()}
    assert len({record.checkpoint_id for record in running.progress.recent}) == 4


def test_timers_without_a_callback_fire_without_effect(place: Path) -> None:
    def register(pair: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(START + 10)
        yield pair

    clock = ManualClock(START)
    program = Program()
    program.source("in", PAIR).key_by("key").process(register, PAIR).uid("deaf").sink_to(Journal(place / "out"))
    script = scripted([("a", 1)], 10, 10, 10, 10)
    running = master(program, place / "job", script, clock=clock, engine=ScriptedEngine, hands=clock)
    running.run()
    assert len(running.progress.recent) == 2, "they are gone after one tick"


# Event time.


class Closing(KeyedProcessFunction):
    """Collects values by hour, and emits each hour when event time has passed its end."""

    def open(self, runtime_context: Any) -> None:
        self.values = runtime_context.get_list_state(ListStateDescriptor("values", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.values.add(value.n)
        service = ctx.timer_service()
        assert service.current_watermark() == -(2**63)
        for n in (value.n, value.n, value.n + 1000):
            service.register_event_time_timer(n)
        if value.n % 2:
            service.delete_event_time_timer(value.n + 1000)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        assert ctx.timer_service().current_watermark() == 2**63 - 1
        yield ctx.get_current_key(), timestamp
        if timestamp >= 1000 and list(self.values.get()):
            self.values.clear()
            yield ctx.get_current_key(), -1


EVENTS = [[("a", 3), ("b", 8), ("a", 2)], [("a", 1), ("b", 4)]]


def closing(place: Path) -> Program:
    program = Program()
    closed = program.source("in", PAIR).key_by("key").process(Closing(), PAIR).uid("closing")
    closed.sink_to(Journal(place / "out")).uid("out")
    closed.key_by("key").process(Numbering()).uid("second").sink_to(Journal(place / "second")).uid("second-out")
    return program


FIRED = {"a": [1, 2, 3, 1002, -1], "b": [4, 8, 1004, -1, 1008]}


def judge(place: Path) -> None:
    for key, times in FIRED.items():
        assert [n for k, n in journal.read(place / "out") if k == key] == times
        numbered = [(pair.n, number) for pair, number in journal.read(place / "second") if pair.key == key]
        assert numbered == [(n, at) for at, n in enumerate(times, start=1)]


def test_event_time_timers_fire_in_order_at_the_end_of_a_bounded_input(place: Path) -> None:
    inputs = [{"in": batch} for batch in EVENTS]
    assert run(closing(place), place / "job", inputs, is_bounded=True) is JobStatus.FINISHED
    judge(place)
    tidiness.inspect(place / "job")


def test_they_wait_while_the_input_may_go_on_and_fire_after_restart_and_rescaling(place: Path) -> None:
    inputs = [{"in": batch} for batch in EVENTS]
    assert run(closing(place), place / "job", inputs[:1], parallelism=3) is JobStatus.SUSPENDED
    assert journal.read(place / "out") == []
    STATE_CACHE.clear()
    assert run(closing(place), place / "job", inputs, is_bounded=True, parallelism=2) is JobStatus.FINISHED
    judge(place)


class Late(KeyedProcessFunction):
    """Tells of each element whether it is late, and when event time has passed it by."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value.n)
        if value.n <= ctx.timer_service().current_watermark():
            yield "late", value.n

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "passed", timestamp


def telling(place: Path) -> Program:
    program = Program()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair, _: pair.n)
    timed = program.source("in", PAIR).assign_timestamps_and_watermarks(strategy).uid("timed")
    timed.key_by("key").process(Late(), PAIR).uid("late").sink_to(Journal(place / "out")).uid("out")
    return program


def drained(place: Path, target: Path) -> Any:
    """What became of a wish to drain and stop, made while the second of four inputs was processed."""
    job = master(telling(place), place / "job", [{"in": [("a", n)]} for n in (10, 20, 30, 40)])
    asked: list[Any] = []

    def ask(stage: int, partition: int) -> None:
        if not asked and job.progress.recent:
            asked.append(job.control.request(SnapshotRequest(True, str(target), stop=True, drain=True)))

    job.job.engine._interceptor = ask  # type: ignore[attr-defined]
    assert job.run() is JobStatus.SUSPENDED
    return asked[0]


def test_a_drain_whose_savepoint_cannot_be_written_is_refused_before_any_timer_fires(place: Path) -> None:
    (place / "file").write_text("no directory")
    assert "file" in str(drained(place, place / "file").exception(0))
    told = {page[:6]: journal.as_tuples(rows) for page, rows in journal.pages(place / "out").items()}
    assert told == {"000002": [("passed", 10)], "000004": [("passed", 20)], "000005": [("passed", 30)]}


def test_event_time_continues_after_a_drain_with_a_failed_savepoint(place: Path) -> None:
    fault.install("before:metadata.write:4=raise")  # three checkpoints, then the savepoint
    error = drained(place, place / "savepoints").exception(0)
    assert "timers have fired" in error.__notes__[0]
    told = journal.as_tuples(journal.read(place / "out"))
    assert not [row for row in told if row[0] == "late"], "what came afterwards was not late"
    assert ("passed", 30) in told and ("passed", 40) not in told


def test_a_drain_ends_event_time_and_a_mere_stop_does_not(place: Path) -> None:
    inputs = [{"in": batch} for batch in EVENTS]
    for drain in (False, True):
        running = master(closing(place), place / "job", inputs)
        asked: list[Any] = []

        def ask(stage: int, partition: int, job: Any = running, asked: Any = asked, drain: bool = drain) -> None:
            if not asked:
                request = SnapshotRequest(is_savepoint=True, directory=str(place / "s"), stop=True, drain=drain)
                asked.append(job.control.request(request))

        running.job.engine._interceptor = ask  # type: ignore[attr-defined]
        assert running.run() is JobStatus.SUSPENDED
        assert asked[0].result(0)
        if not drain:
            assert journal.read(place / "out") == []
    judge(place)


class SetBack(ScriptedEngine):
    """Sets the clock back by an hour before it plays the script."""

    def drive(self, driver: EpochDriver) -> Outcome:
        driver.process(LocalInput(0, {"in": [("a", 1)]}, is_last=False))
        self.clock.set(self.clock.now_ms() - 3_600_000)
        driver.tick_if_due()
        self.clock.advance(6000)  # time goes on at nine tenths of its pace
        driver.tick_if_due()
        return Outcome.EXHAUSTED


def test_timers_fire_although_the_clock_was_set_back_and_a_warning_is_logged(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(10_000_000)
    running = master(sessions(place), place / "job", [], None, clock=clock, engine=SetBack, hands=clock)
    assert running.run() is JobStatus.SUSPENDED
    assert list(map(tuple, journal.read(place / "out"))) == [("a", 1)]
    assert "behind the processing time of the job" in caplog.text


def test_timers_fire_on_a_host_whose_clock_is_behind(place: Path) -> None:
    clock = ManualClock(10_000_000)
    play(place, scripted([("a", 1)]), clock)
    clock.set(10_000_000 - 3_600_000)
    play(place, scripted([("a", 1)], 6000), clock)
    assert list(map(tuple, journal.read(place / "out"))) == [("a", 1)]
