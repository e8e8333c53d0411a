"""One job by epochs and in real time in turns, with state of each kind: its output is that of a model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import DataStream, FlatMapFunction, KeyedProcessFunction
from holdfast.datastream.functions import CheckpointedFunction
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.examples import examples
from tests.stories.turns import ENGINES, Partitions, start
from tests.unit.runtime.realtime.test_real_time_jobs import Rows, until

ROW = "key string, at bigint, kind string, n bigint"
OUTPUT = "what string, key string, kind string, n bigint"
PARTITIONS = 3
LAST = ("", 0, "", -1)
"""Ends a partition."""


class InThrees(FlatMapFunction, CheckpointedFunction):
    """Emits elements three at a time, and keeps the others in operator state until a partition ends."""

    def initialize_state(self, context: Any) -> None:
        self.kept = context.get_operator_state_store().get_list_state(ListStateDescriptor("kept", ROW))

    def snapshot_state(self, context: Any) -> None:
        return

    def flat_map(self, value: Any) -> Iterator[Any]:
        if value.key:
            self.kept.add(value)
        kept = list(self.kept.get())
        if len(kept) >= 3 or not value.key:
            self.kept.clear()
            yield from kept


class Everything(KeyedProcessFunction):
    """Numbers the elements of a key, and those of each kind; emits an element once more by a timer of its time."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
        self.kinds = runtime_context.get_map_state(MapStateDescriptor("kinds", "string", "bigint"))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", ROW))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        count, of_kind = (self.count.value() or 0) + 1, (self.kinds.get(value.kind) or 0) + 1
        self.count.update(count)
        self.kinds.put(value.kind, of_kind)
        self.waiting.add(value)
        ctx.timer_service().register_event_time_timer(value.at)
        yield "count", value.key, "", count
        yield "kind", value.key, value.kind, of_kind

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        waiting = list(self.waiting.get())
        self.waiting.update([row for row in waiting if row.at != timestamp])
        yield from (("timer", row.key, row.kind, row.n) for row in waiting if row.at == timestamp)


def program(stream: DataStream, found: Rows) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(20))
    timed = (
        stream.flat_map(InThrees(), ROW)
        .uid("threes")
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row, _: row.at))
        .uid("times")
    )
    everything = timed.key_by("key").process(Everything(), OUTPUT).uid("everything")
    everything.for_each_epoch(found.write).uid("out")


def elements(seed: int, counts: Sequence[int]) -> list[list[tuple[str, int, str, int]]]:
    """Return the elements of each partition; their times mostly grow."""
    rng = random.Random(seed)
    return [
        [(rng.choice("abcde"), 5 * n + rng.randrange(30), rng.choice("xyz"), 1000 * at + n) for n in range(count)]
        for at, count in enumerate(counts)
    ]


def model(rows: Sequence[tuple[str, int, str, int]]) -> list[tuple[str, str, str, int]]:
    keys, kinds = Counter(row[0] for row in rows), Counter((row[0], row[2]) for row in rows)
    counts = [("count", key, "", n) for key, count in keys.items() for n in range(1, count + 1)]
    of_kinds = [("kind", *both, n) for both, count in kinds.items() for n in range(1, count + 1)]
    return sorted([*counts, *of_kinds, *(("timer", key, kind, n) for key, _, kind, n in rows)])


turns = st.lists(
    st.fixed_dictionaries(
        {
            "rows": st.lists(st.integers(0, 12), min_size=PARTITIONS, max_size=PARTITIONS),
            "parallelism": st.integers(1, 3),
            "source_tasks": st.integers(1, 3),
            "has_savepoint": st.booleans(),
        }
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=examples(12) // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    turns=turns,
    first=st.sampled_from(ENGINES),
    seed=st.integers(0, 10**6),
    fails=st.sets(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 30)), max_size=3),
    backend=st.sampled_from(["hashmap", "columnar"]),
)
def test_a_job_in_turns_emits_what_the_model_says(
    tmp_path_factory: Any,
    turns: Sequence[Mapping[str, Any]],
    first: str,
    seed: int,
    fails: set[tuple[int, int]],
    backend: str,
) -> None:
    """After each turn the job continues from its checkpoint, or as another job from a savepoint."""
    place, found = tmp_path_factory.mktemp("turns"), Rows()
    totals = [[*accumulate(counts)] for counts in zip(*(turn["rows"] for turn in turns), strict=True)]
    rows = elements(seed, [counts[-1] for counts in totals])
    failures = {at: place / f"failed-{at[0]}-{at[1]}" for at in fails}
    savepoint: dict[str, str] = {}
    name = "job-0"
    for number, turn in enumerate(turns):
        is_last = number == len(turns) - 1
        known = [part[: counts[number]] for part, counts in zip(rows, totals, strict=True)]
        parts = [[*part, LAST] if is_last else part for part in known]
        source = Partitions(str(place), parts, fails=failures, waits=True)
        client = start(
            ENGINES[(ENGINES.index(first) + number) % 2],
            lambda stream: program(stream, found),
            source,
            ROW,
            place / "jobs",
            {"state.backend.type": backend, **savepoint},
            name=name,
            parallelism=1 if is_last else turn["parallelism"],  # so that no element is kept in the end
            source_tasks=turn["source_tasks"],
        )
        until(lambda source=source: source.is_read)  # type: ignore[misc]
        savepoint = {}
        if is_last:
            until(lambda: sum(row["what"] == "count" for row in found) >= sum(map(len, rows)))
            client.stop_with_savepoint(True, str(place / "savepoints")).result(60)
        elif turn["has_savepoint"]:
            path = client.stop_with_savepoint(False, str(place / "savepoints")).result(60)
            savepoint, name = {"execution.state-recovery.path": path}, f"job-{number + 1}"
        else:
            client.stop()
        client.await_termination()
    assert sorted(tuple(row.values()) for row in found) == model([row for part in rows for row in part])
