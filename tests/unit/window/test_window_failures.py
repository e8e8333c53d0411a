"""What goes by element only, through failures and rescalings: own triggers, own assigners, evictors, window state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Time
from holdfast.datastream import ProcessWindowFunction
from holdfast.datastream.state import ReducingStateDescriptor, ValueStateDescriptor
from holdfast.datastream.window import (
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeEvictor,
    TimeWindow,
    TriggerResult,
    TumblingEventTimeWindows,
)
from holdfast.errors import EngineError
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import RESTARTING, epochs, run
from tests.unit.window.stories import RESULT, Reading, job
from tests.unit.window.test_window_forms import Adjacent
from tests.unit.window.test_window_model import BOUND, Total, WithWindow, on_time

MS = Time.milliseconds
TOLD = "sensor string, starts bigint, ends bigint, told string"


class Told(ProcessWindowFunction[Any, Any, str, Any]):
    """Which elements a window has."""

    def process(self, key: str, context: Any, elements: Any) -> Any:
        window = context.window()
        bounds = (window.start, window.end) if isinstance(window, TimeWindow) else (0, 0)
        yield key, *bounds, f"{[one.n for one in elements]}{self.number(context)}"

    def number(self, context: Any) -> str:
        return ""


class Numbered(Told):
    """The same, and which firing of the window it is."""

    def number(self, context: Any) -> str:
        count = context.window_state().get_state(ValueStateDescriptor("fired", "bigint"))
        count.update((count.value() or 0) + 1)
        return f" {count.value()}"

    def clear(self, context: Any) -> None:
        context.window_state().get_state(ValueStateDescriptor("fired", "bigint")).clear()


class EveryThird(EventTimeTrigger[Any, Any]):
    """Early results at every third element, and what came since at the end."""

    count = ReducingStateDescriptor[int]("elements", lambda one, other: one + other, "bigint")

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        count = ctx.get_partitioned_state(self.count)
        count.add(1)
        result = super().on_element(element, timestamp, window, ctx)
        return TriggerResult.FIRE if count.get() % 3 == 0 else result

    def clear(self, window: Any, ctx: Any) -> None:
        super().clear(window, ctx)
        ctx.get_partitioned_state(self.count).clear()

    def on_merge(self, window: Any, ctx: Any) -> None:
        super().on_merge(window, ctx)
        ctx.merge_partitioned_state(self.count)


TEN, SLIDING = TumblingEventTimeWindows.of(MS(10)), SlidingEventTimeWindows.of(MS(20), MS(8), MS(-2))
SESSIONS = EventTimeSessionWindows.with_gap(MS(9))
FORMS: dict[str, Callable[[Any], Any]] = {
    "state of windows": lambda keyed: keyed.window(SLIDING).trigger(EveryThird()).process(Numbered(), TOLD),
    "sessions that fire early": lambda keyed: keyed.window(SESSIONS).trigger(EveryThird()).process(Told(), TOLD),
    "an own assigner": lambda keyed: keyed.window(Adjacent()).process(Told(), TOLD),
    "purged": lambda keyed: keyed.window(TEN).trigger(PurgingTrigger.of(CountTrigger.of(2))).process(Numbered(), TOLD),
    "evicted before": lambda keyed: keyed.window(SLIDING).evictor(CountEvictor.of(2)).process(Numbered(), TOLD),
    "evicted after": lambda keyed: (
        keyed.window(TEN).trigger(EveryThird()).evictor(TimeEvictor.of(MS(3), True)).process(Numbered(), TOLD)
    ),
    "evicted and aggregated": lambda keyed: (
        keyed.window(SESSIONS).evictor(CountEvictor.of(2)).aggregate(Total(), WithWindow(), None, RESULT)
    ),
    "by difference": lambda keyed: (
        keyed.window(GlobalWindows.create())
        .trigger(PurgingTrigger.of(DeltaTrigger.of(2, lambda last, one: abs(one.n - last.n))))
        .process(Numbered(), TOLD)
    ),
    "counted": lambda keyed: keyed.count_window(3, 2).process(Numbered(), TOLD),
}


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=on_time(),
    form=st.sampled_from(sorted(FORMS)),
    fails=st.sets(st.integers(0, 30), max_size=3),
    stops=st.lists(st.integers(0, 6), max_size=2),
    parallelism=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    backend=st.sampled_from(["hashmap", "columnar"]),
)
def test_what_windows_emit_is_the_same_though_tasks_fail_and_other_subtasks_go_on(
    tmp_path_factory: Any,
    batches: list[list[Reading]],
    form: str,
    fails: set[int],
    stops: list[int],
    parallelism: list[int],
    backend: str,
) -> None:
    """As without, with the same epochs. A start begins without a watermark, which the last epoch brings in any case."""
    place = tmp_path_factory.mktemp("windows")
    tasks = itertools.count()

    def strike(stage: int, partition: int) -> None:
        if next(tasks) in fails:
            raise EngineError("struck")

    def program(directory: str) -> Any:
        return job(lambda stream: FORMS[form](stream.key_by("sensor")), BOUND, place / directory)

    inputs = epochs("readings", batches)
    run(program("plain"), place / "plain", inputs, source_tasks=1, is_bounded=True)
    options = {**RESTARTING, "state.backend.type": backend}
    ends = [*sorted(min(stop, len(inputs) - 1) for stop in stops), len(inputs)]
    for end, subtasks in zip(ends, parallelism, strict=False):
        run(
            program("struck"),
            place / "struck",
            inputs[:end],
            options,
            parallelism=subtasks,
            source_tasks=1,
            is_bounded=end == len(inputs),
            interceptor=strike,
        )
    assert sorted(ledger.read(place / "struck" / "out")) == sorted(ledger.read(place / "plain" / "out"))
