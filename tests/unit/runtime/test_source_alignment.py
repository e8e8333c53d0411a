"""Sources that wait for each other, on the epoch runner: its inputs are queues here, planned as `KafkaSource` plans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import ParquetFileSink
from holdfast.datastream.connectors.base import Source
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.stream.stream_factory import aligned_source, elements_of
from holdfast.errors import ConfigurationError, EngineError
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.watermark import WatermarkAlignment
from holdfast.runtime.function.source import EpochGate
from holdfast.runtime.graph.event_time import EventTimeKeeper, WatermarkClock
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.engine import EpochDriver, Outcome
from holdfast.runtime.source_alignment import AlignmentLimits
from holdfast.testing.epoch_runner import LocalEngine, LocalInput
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, run

READING = "source string, at bigint, number bigint"
Queues = Mapping[str, Sequence[int]]
"""The event times that each source has, in the order in which it has them."""


class Queued(Source):
    """A source that can wait; its queue is the engine's."""

    def create_frame(self, session: Any) -> Any:
        raise AssertionError("there is no Spark here")

    def with_gate(self, gate: EpochGate) -> Queued:
        return self


class QueueEngine(LocalEngine):
    """Reads so many elements of each queue an epoch, and ends when no source has anything to read, as Spark does."""

    def __init__(
        self,
        inputs: Any,
        *,
        queues: Queues,
        gates: Mapping[str, EpochGate],
        limit: int,
        plans: list[dict[str, int]],
        **rest: Any,
    ) -> None:
        super().__init__(inputs, **rest)
        self._queues, self._gates, self._limit, self._plans = queues, gates, limit, plans

    def prepare(self, job: Any, positions: Any, token: int, rules: Any) -> None:
        self.update_plan(job)
        self._at = dict(positions["at"]) if positions else dict.fromkeys(self._queues, 0)

    def drive(self, driver: EpochDriver) -> Outcome:
        while not driver.is_stopping:
            ends = {uid: self._planned(uid) for uid in self._queues}
            if ends == self._at:
                return Outcome.EXHAUSTED
            self._plans.append(ends)
            driver.process(_Planned(self._at, ends, self._queues))
            self._at = ends
        return Outcome.STOPPED

    def _planned(self, uid: str) -> int:
        begun, whole = self._at[uid], len(self._queues[uid])
        gate = self._gates.get(uid)
        end = begun if gate is not None and gate.is_closed else min(whole, begun + self._limit)
        if gate is not None:
            gate.set_has_more(end < whole)
        return end


class _Planned(LocalInput):
    def __init__(self, at: Mapping[str, int], ends: Mapping[str, int], queues: Queues) -> None:
        rows = {uid: [(uid, queues[uid][n], n) for n in range(at[uid], ends[uid])] for uid in queues}
        super().__init__(0, rows, False)
        self._ends = dict(ends)

    def positions(self) -> dict[str, Any]:
        return {"at": self._ends}


def monotonous() -> WatermarkStrategy:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)


def waiting(drift: int, interval: int = 0) -> WatermarkStrategy:
    return monotonous().with_watermark_alignment("all", Duration.of_millis(drift), Duration.of_millis(interval))


class Job:
    """A union of sources, and what each epoch has read of them."""

    def __init__(self, place: Path, queues: Queues, limit: int = 2) -> None:
        self.place = place
        self.queues = queues
        self.limit = limit
        self.plans: list[dict[str, int]] = []
        self.gates: dict[str, EpochGate] = {}

    def run(self, strategies: Mapping[str, WatermarkStrategy], options: Any = None, **settings: Any) -> JobStatus:
        program = Program()
        first, *others = [self._stream(program, uid, strategy) for uid, strategy in strategies.items()]
        rows = first.union(*others).key_by("source").map(lambda row: tuple(row), READING).uid("keyed")
        rows.sink_to(ParquetFileSink(self.place / "out")).uid("out")
        settings = {"engine": QueueEngine, "clock": ManualClock(1_000), **settings}
        own = {"queues": self.queues, "gates": self.gates, "limit": self.limit, "plans": self.plans}
        return run(program, self.place / "job", [], options, **own, **settings)

    def _stream(self, program: Program, uid: str, strategy: WatermarkStrategy) -> DataStream:
        source, aligned = aligned_source(Queued(), strategy)
        if aligned is not None and aligned.gate is not None:
            self.gates[uid] = aligned.gate
        return elements_of(source, program.source(uid, READING), strategy, None, aligned=aligned)

    def read(self, uid: str) -> list[int]:
        """Up to where each epoch has read a source."""
        return [plan[uid] for plan in self.plans]

    def require_all_read_once(self) -> None:
        expected = [(uid, at, n) for uid, queue in self.queues.items() for n, at in enumerate(queue)]
        assert sorted(ledger.read(self.place / "out")) == sorted(expected)


def model(queues: Queues, limit: int, drift: int) -> list[dict[str, int]]:
    """Up to where each epoch reads: who is too far ahead of those that have left something waits."""
    at, top, waits = dict.fromkeys(queues, 0), dict[str, int](), set[str]()
    plans: list[dict[str, int]] = []
    while True:
        ends = {uid: at[uid] if uid in waits else min(len(queue), at[uid] + limit) for uid, queue in queues.items()}
        if ends == at:
            return plans
        plans.append(ends)
        for uid, queue in queues.items():
            top |= {uid: max(queue[: ends[uid]])} if ends[uid] else {}
        unread = [top[uid] for uid, queue in queues.items() if ends[uid] < len(queue)]
        waits = {uid for uid in top if unread and top[uid] > min(unread) + drift}
        at = ends


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    queues=st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 60), max_size=12), min_size=1),
    drift=st.sampled_from([0, 5, 30]),
    limit=st.integers(1, 4),
)
def test_a_source_too_far_ahead_waits_and_all_rows_are_read(
    tmp_path_factory: Any, queues: dict[str, list[int]], drift: int, limit: int
) -> None:
    job = Job(tmp_path_factory.mktemp("alignment"), queues, limit)
    job.run(dict.fromkeys(queues, waiting(drift)))
    assert job.plans == model(queues, limit, drift)
    if any(queues.values()):
        job.require_all_read_once()
    assert not any(Path(gate.place).exists() for gate in job.gates.values())


FAR = {"behind": list(range(0, 80, 10)), "ahead": list(range(1_000, 1_080, 10))}


def test_a_source_that_is_ahead_goes_on_when_the_others_have_caught_up_or_have_nothing_to_read(place: Path) -> None:
    job = Job(place, {"behind": FAR["behind"], "ahead": [50, 51, 52, 53, 500, 501], "ended": [1]})
    job.run(dict.fromkeys(job.queues, waiting(10)))
    assert job.read("behind") == [2, 4, 6, 8, 8]
    assert job.read("ahead") == [2, 2, 2, 4, 6]
    job.require_all_read_once()


def test_sources_of_other_groups_and_without_alignment_never_wait(place: Path) -> None:
    job = Job(place, {**FAR, "free": FAR["ahead"], "other": FAR["ahead"]}, limit=4)
    other = monotonous().with_watermark_alignment("other", Duration.of_millis(0))
    job.run({"behind": waiting(100), "ahead": waiting(100), "free": monotonous(), "other": other})
    assert job.plans == [
        {"behind": 4, "ahead": 4, "free": 4, "other": 4},
        {"behind": 8, "ahead": 4, "free": 8, "other": 8},
        {"behind": 8, "ahead": 8, "free": 8, "other": 8},
    ]


def test_all_is_read_once_though_tasks_fail_while_a_source_waits(place: Path) -> None:
    """Each attempt begins with open gates, also where the one before has died with a closed one."""
    struck = iter([n % 9 == 8 for n in range(1_000)])
    waited: list[bool] = []

    def strike(stage: int, partition: int) -> None:
        if next(struck):
            waited.append(job.gates["ahead"].is_closed)
            raise EngineError("struck")

    job = Job(place, FAR, limit=1)
    job.run(dict.fromkeys(FAR, waiting(100)), RESTARTING, interceptor=strike)
    assert True in waited
    job.require_all_read_once()


def test_alignment_may_be_added_and_removed(place: Path) -> None:
    """Names, positions and state are the same with it and without."""

    class Stopping(QueueEngine):
        """Has three epochs."""

        def drive(self, driver: EpochDriver) -> Outcome:
            for _ in range(3):
                ends = {uid: self._planned(uid) for uid in self._queues}
                self._plans.append(ends)
                driver.process(_Planned(self._at, ends, self._queues))
                self._at = ends
            return Outcome.EXHAUSTED

    job = Job(place, FAR, limit=1)
    job.run(dict.fromkeys(FAR, monotonous()), engine=Stopping)
    job.run(dict.fromkeys(FAR, waiting(100)), engine=Stopping)
    job.gates.clear()
    job.run(dict.fromkeys(FAR, monotonous()))
    assert job.read("behind") == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    assert job.read("ahead") == [1, 2, 3, 4, 4, 4, 5, 6, 7, 8]
    job.require_all_read_once()


class Slow(QueueEngine):
    """An epoch takes a second."""

    clock = ManualClock(1_000)

    def execute(self, epoch: Any, epoch_input: Any) -> Any:
        self.clock.advance(1_000)
        return super().execute(epoch, epoch_input)


def test_the_least_watermark_is_updated_once_per_interval(place: Path) -> None:
    queues = {"behind": [0, 60, 70, 80, 90, 95, 96, 97], "ahead": [150, 160, 170, 180]}
    for interval, read in ((0, [1, 1, 2, 3, 4, 4, 4, 4]), (3_000, [1, 1, 1, 1, 2, 3, 4, 4])):
        job = Job(place / str(interval), queues, limit=1)
        job.run(dict.fromkeys(queues, waiting(100, interval)), engine=Slow, clock=Slow.clock)
        assert job.read("ahead") == read


def test_the_least_watermark_is_updated_early_when_all_sources_would_wait(place: Path) -> None:
    """The one that is behind comes to the limit, too, long before it is time to look again."""
    job = Job(place, {"behind": list(range(0, 300, 10)), "ahead": [1_000, 1_001]}, limit=1)
    job.run(dict.fromkeys(job.queues, waiting(100, 3_600_000)))
    assert job.read("ahead") == [1] * 30 + [2]


def test_a_source_that_waits_is_not_idle(place: Path) -> None:
    """Else event time would pass it, when the other one jumps, and what it brings after the wait would be late."""
    queues = {"behind": [0, 1, 2, 3, 4, 5, 90], "ahead": [50, 60]}
    job = Job(place, queues, limit=1)
    patient = waiting(10).with_idleness(Duration.of_millis(2_500))
    idle: list[frozenset[str]] = []

    class Watched(Slow):
        def execute(self, epoch: Any, epoch_input: Any) -> Any:
            idle.append(epoch.event_time.idle)
            return super().execute(epoch, epoch_input)

    job.run({"behind": waiting(10), "ahead": patient}, engine=Watched, clock=Watched.clock)
    assert job.read("ahead") == [1, 1, 1, 1, 1, 1, 1, 2]
    assert set(idle) == {frozenset()}
    job.require_all_read_once()


def test_ticks_and_an_epoch_that_is_run_again_know_that_a_source_waits() -> None:
    clocks, steps = {"ahead": WatermarkClock(0, idleness=100)}, {"ahead": ("ahead",)}
    keeper = EventTimeKeeper()

    def epoch(at: int, observed: Mapping[str, int]) -> frozenset[str]:
        began = keeper.begin(clocks, at, is_over=False)
        keeper.move_on(began, steps, observed, at)
        return began.idle

    assert not epoch(1_000, {"ahead": 5})
    keeper.pause_sources(["ahead"], 1_000)
    assert not epoch(2_000, {}) and not epoch(3_000, {})  # ticks, after which nothing is decided
    again = EventTimeKeeper(json.loads(json.dumps(keeper.to_json())))
    assert not again.begin(clocks, 9_000, is_over=False).idle
    keeper.pause_sources([], 3_000)
    assert not epoch(3_099, {}) and epoch(3_100, {}) == {"ahead"}


def test_sources_that_cannot_wait_are_refused_by_name() -> None:
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "/in")
    refused = [
        (NumberSequenceSource(1, 3), "NumberSequenceSource cannot wait .* in one epoch"),
        (DataGeneratorSource(repr, count=3), "DataGeneratorSource cannot wait .* in one epoch"),
        (DataGeneratorSource(repr, rows_per_second=3), "clock of Spark's rate source"),
        (lines.build(), "FileSource cannot wait .* static set"),
        (
            lines.monitor_continuously(Duration.of_seconds(1)).build(),
            "FileSource cannot wait .* cannot be told to wait",
        ),
    ]
    for source, told in refused:
        with pytest.raises(ConfigurationError, match=told):
            Program().from_source(source, waiting(1), "in")
    with pytest.raises(ConfigurationError, match=r"pauses a source while it is read.*from_dataframe"):
        Program().source("in", READING).assign_timestamps_and_watermarks(waiting(1))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("", Duration.of_seconds(1)), "takes the name of a group"),
        ((7, Duration.of_seconds(1)), "takes the name of a group"),
        (("all", 5), "the allowed watermark drift is a Duration"),
        (("all", Duration.of_millis(-1)), "must be at least 0 ms"),
        (("all", Duration.of_seconds(1), 5), "the update interval is a Duration"),
    ],
)
def test_an_invalid_alignment_is_rejected(arguments: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        monotonous().with_watermark_alignment(*arguments)
    with pytest.raises(ConfigurationError, match="this strategy never has one"):
        WatermarkStrategy.no_watermarks().with_watermark_alignment("all", Duration.of_seconds(1))


ALIGNMENTS = {
    "a": WatermarkAlignment("one", 0, 0),
    "b": WatermarkAlignment("one", 5, 0),
    "c": WatermarkAlignment("one", 30, 0),
    "other": WatermarkAlignment("two", 7, 0),
}
REPORTS = st.fixed_dictionaries(dict.fromkeys(ALIGNMENTS, st.none() | st.integers(-50, 50)))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), REPORTS)))
def test_a_limit_is_the_least_watermark_that_counts_and_the_drift(
    reports: list[tuple[int, dict[str, int | None]]],
) -> None:
    limits = AlignmentLimits(ALIGNMENTS)
    for number, (task, watermarks) in enumerate(reports):
        before = dict(limits.limits)
        has_changed = limits.report(task, watermarks)
        last = dict(reports[: number + 1]).values()
        for uid, alignment in ALIGNMENTS.items():
            members = [other for other, one in ALIGNMENTS.items() if one.group == alignment.group]
            counted = [at for report in last for other in members if (at := report[other]) is not None]
            assert limits.limits.get(uid) == (min(counted) + alignment.drift if counted else None)
        assert has_changed == (before != limits.limits)
        for group in ("one", "two"):
            members = [uid for uid, one in ALIGNMENTS.items() if one.group == group]
            counted = [(uid, at) for report in last for uid in members if (at := report[uid]) is not None]
            assert not counted or any(at <= limits.limits[uid] for uid, at in counted), "all would wait"


def test_sources_that_do_not_count_hold_nobody() -> None:
    limits = AlignmentLimits(ALIGNMENTS)
    assert limits.report(0, {"a": 10, "b": 500, "c": None, "other": 900})
    assert limits.limits == {"a": 10, "b": 15, "c": 40, "other": 907}
    assert not limits.report(1, {"a": 11, "b": None, "c": None, "other": None})
    assert limits.report(0, {"a": None, "b": 500, "c": None, "other": 900}), "it has ended, or is idle"
    assert limits.limits == {"a": 11, "b": 16, "c": 41, "other": 907}
    assert limits.report(1, {"a": None, "b": None, "c": None, "other": None})
    assert limits.report(0, {"a": None, "b": None, "c": None, "other": 900})
    assert limits.limits == {"other": 907}, "nobody is counted, so nobody is limited"
