"""`SourceCoordinator` and `SourceReaders` together: whatever fails, every element is read exactly once."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import ConfigurationError, RestoreError
from holdfast.runtime.function.bounded_sources import CollectionSource, NumberSource, RateReader, RateSource
from holdfast.runtime.function.source import EpochOffset, SourceReader, SourceSplit, SplitEnumerator, SplitSource
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import EpochJob, JobPlan, SourcePlan
from holdfast.runtime.graph.source_positions import JobInputs, require_positions
from holdfast.runtime.graph.stream_graph import FrameTransformNode, Node, SourceNode
from holdfast.runtime.realtime.source_coordinator import (
    SourceCoordinator,
    is_written_by_engine,
    refuse_unsupported_inputs,
    split_sources,
)
from holdfast.runtime.realtime.source_readers import SourceReaders
from holdfast.types.arrow import batch_to_elements
from holdfast.types.types import Types

NO_RULES = InputRules()


def at_once(discover: Callable[[], Sequence[SourceSplit]]) -> Future[Sequence[SourceSplit]]:
    """Discover splits in this thread."""
    future: Future[Sequence[SourceSplit]] = Future()
    try:
        future.set_result(discover())
    except Exception as error:
        future.set_exception(error)
    return future


def source_node(uid: str, **fields: Any) -> SourceNode:
    return SourceNode(**{"name": uid, "uid": uid, "element_type": Types.LONG(), "reads": f"the {uid}", **fields})


def plan_of(*nodes: Node) -> JobPlan:
    sources = tuple(SourcePlan(node.identity, node, node.element_type) for node in nodes)
    return JobPlan((EpochJob(0, sources, ()),), ())


def numbers_of(found: tuple[str, Any] | None) -> list[Any]:
    return [] if found is None else batch_to_elements(found[1], Types.LONG())


class Growing(SplitSource):
    """A source of topics that grow: each partition has so many numbers, and new partitions are found later."""

    def __init__(self, partitions: dict[str, int], keeps_offsets: bool = True) -> None:
        self.partitions = partitions
        self.keeps_offsets = keeps_offsets

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return GrowingEnumerator(self.partitions, dict(position or {}))

    def create_reader(self, task: int) -> SourceReader:
        return GrowingReader(self.partitions)

    def to_epoch_offsets(self, position: Any) -> Sequence[EpochOffset] | None:
        return [EpochOffset(position)] if self.keeps_offsets else None

    def from_epoch_offsets(self, offsets: Sequence[EpochOffset]) -> Any:
        return offsets[0].offset if self.keeps_offsets else None


class GrowingEnumerator(SplitEnumerator):
    def __init__(self, partitions: Mapping[str, int], begun: dict[str, int]) -> None:
        self._partitions = partitions
        self._begun = begun
        self._known: set[str] = set()

    def discover(self) -> Sequence[SourceSplit]:
        names = [name for name in {**self._begun, **self._partitions} if name not in self._known]
        self._known.update(names)
        return [SourceSplit(name, self._begun.get(name, 0)) for name in names]

    def is_exhausted(self) -> bool:
        return False

    def snapshot(self, splits: Mapping[str, Any]) -> Any:
        return dict(splits)


class GrowingReader(SourceReader):
    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions
        self._next: dict[str, int] = {}

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._next.update((split.split_id, split.state) for split in splits)

    def poll(self) -> Sequence[Any] | None:
        for name, following in self._next.items():
            if following < self._partitions[name]:
                self._next[name] = min(following + 3, self._partitions[name])
                return [1_000_000 * int(name) + n for n in range(following, self._next[name])]
        return None

    def snapshot(self) -> Mapping[str, Any]:
        return dict(self._next)

    @property
    def has_splits(self) -> bool:
        return bool(self._next)


class Sources(RuleBasedStateMachine):
    """A job of three sources. Tasks poll, barriers are taken and accepted or not, groups and drivers fail.

    Beside each barrier the model keeps what was read before it. After a failure the job has read what it had at the
    barrier that was restored.
    """

    COLLECTION = range(-20, 0)
    NUMBERS = range(2_000_000_000, 2_000_000_040)

    @initialize(tasks=st.integers(1, 4))
    def begin(self, tasks: int) -> None:
        self.patched = patch.object(SourceReader, "at_once", 7)
        self.patched.start()
        self.partitions = {"0": 5, "1": 0}
        self.plan = plan_of(
            source_node("collection", collection=list(self.COLLECTION)),
            source_node("numbers", split_source=NumberSource(self.NUMBERS[0], self.NUMBERS[-1])),
            source_node("topic", split_source=Growing(self.partitions), is_streaming=True),
        )
        self.now = 0.0
        self.read: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()
        self.completed: tuple[Any, Counter[int]] = (None, Counter())
        self._start(None, tasks)

    def _start(self, positions: Any, tasks: int) -> None:
        self.tasks = tasks
        self.coordinator = SourceCoordinator(
            self.plan, positions, tasks, NO_RULES, clock=lambda: self.now, discover=at_once
        )
        self._start_tasks()

    def _start_tasks(self) -> None:
        sources = split_sources(self.plan)
        self.readers = [SourceReaders(self.plan.sources, sources, n) for n in range(self.tasks)]
        self.waiting: list[tuple[int, dict[str, list[SourceSplit]]]] = []
        self.barrier = 0
        self.pending: dict[int, tuple[list[Any], Counter[int]]] = {}

    @rule(seconds=st.floats(0, 2))
    def assign(self, seconds: float) -> None:
        self.now += seconds
        assigned = self.coordinator.assignments()
        self.waiting += assigned.items()

    @precondition(lambda self: self.waiting)
    @rule()
    def deliver(self) -> None:
        task, splits = self.waiting.pop(0)
        self.readers[task].add(splits)

    @rule(task=st.integers(0, 3), polls=st.integers(1, 6))
    def poll(self, task: int, polls: int) -> None:
        for _ in range(polls):
            self.read.update(numbers_of(self.readers[task % self.tasks].poll()))

    @rule(name=st.sampled_from(["0", "1", "2", "3"]), count=st.integers(0, 20))
    def grow(self, name: str, count: int) -> None:
        self.partitions[name] = self.partitions.get(name, 0) + count

    @rule()
    def take_barrier(self) -> None:
        self.barrier += 1
        snapshots = [json.loads(json.dumps(one.snapshot(self.barrier))) for one in self.readers]
        self.pending[self.barrier] = snapshots, self.read.copy()

    @precondition(lambda self: self.pending)
    @rule(completes=st.booleans(), skipped=st.integers(0, 2))
    def accept(self, completes: bool, skipped: int) -> None:
        for number in list(self.pending)[:-1][:skipped]:
            del self.pending[number]  # it was aborted
        number = min(self.pending)
        snapshots, self.accepted = self.pending.pop(number)
        self.coordinator.acknowledge(snapshots)
        for one in self.readers:
            one.barrier_accepted(number)
        if completes:
            self.completed = json.loads(json.dumps(self.coordinator.positions())), self.accepted.copy()

    @rule()
    def group_fails(self) -> None:
        self.read = self.accepted.copy()
        self.coordinator.restart()
        self._start_tasks()

    @rule(tasks=st.integers(1, 4))
    def driver_fails(self, tasks: int) -> None:
        positions, self.accepted = self.completed[0], self.completed[1].copy()
        self.read = self.accepted.copy()
        if positions is not None:
            require_positions(positions)
        self._start(positions, tasks)

    @invariant()
    def nothing_twice(self) -> None:
        assert not self.read or max(self.read.values()) == 1

    @invariant()
    def nothing_missing_once_exhausted(self) -> None:
        assert not self.coordinator.is_exhausted, "a topic does not end"
        if self.coordinator.positions()["static_consumed"]:
            assert all(self.accepted[n] == 1 for n in (*self.COLLECTION, *self.NUMBERS))

    def teardown(self) -> None:
        if not hasattr(self, "plan"):
            return
        try:
            self._read_to_the_end()
        finally:
            self.patched.stop()

    def _read_to_the_end(self) -> None:
        self.now += 2
        # The first takes what a discovery has found that had begun before, the second begins one, the third takes it.
        for _ in range(3):
            self.assign(2.0)
        while self.waiting:
            self.deliver()
        for one in self.readers:
            while (found := one.poll()) is not None:
                self.read.update(numbers_of(found))
        topic = {1_000_000 * int(name) + n for name, count in self.partitions.items() for n in range(count)}
        assert set(self.read) == {*self.COLLECTION, *self.NUMBERS, *topic}
        self.nothing_twice()


TestSources = Sources.TestCase
TestSources.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def coordinator_of(plan: JobPlan, positions: Any = None, tasks: int = 2, **options: Any) -> SourceCoordinator:
    return SourceCoordinator(plan, positions, tasks, options.pop("rules", NO_RULES), discover=at_once, **options)


def run(plan: JobPlan, coordinator: SourceCoordinator, polls: int = 1000, tasks: int = 2) -> list[Any]:
    """Read with new tasks, take a barrier and acknowledge it; return what was read."""
    readers = [SourceReaders(plan.sources, split_sources(plan), n) for n in range(tasks)]
    for task, splits in coordinator.assignments().items():
        readers[task].add(splits)
    found = [n for one in readers for _ in range(polls) for n in numbers_of(one.poll())]
    coordinator.acknowledge([one.snapshot(1) for one in readers])
    return found


def test_a_finished_job_is_exhausted_and_its_inputs_are_static() -> None:
    plan = plan_of(source_node("numbers", split_source=NumberSource(1, 10)), source_node("few", collection=[-1, -2]))
    coordinator = coordinator_of(plan)
    assert not coordinator.is_exhausted
    assert sorted(run(plan, coordinator)) == [-2, -1, *range(1, 11)]
    assert coordinator.is_exhausted and coordinator.fully_assigned == coordinator.uids
    positions = coordinator.positions()
    assert positions["static_consumed"] and [leaf["uid"] for leaf in positions["static"]] == ["numbers", "few"]
    assert "streaming" not in positions and "splits" not in positions
    again = coordinator_of(plan, positions)
    assert again.assignments() == {} and again.is_exhausted
    assert again.positions() == positions


def test_an_input_of_which_nothing_was_read_has_no_position() -> None:
    plan = plan_of(source_node("numbers", split_source=NumberSource(1, 10)))
    coordinator = coordinator_of(plan)
    assert run(plan, coordinator, polls=0) == []
    assert coordinator.positions() == {"static_consumed": False, "static": []}


@pytest.mark.parametrize("values", [(0, 0), (-(2**63), -(2**63) + 5), (2**63 - 7, 2**63 - 2), (-3, 4)])
def test_all_numbers_come_also_at_the_ends_of_64_bits(values: tuple[int, int]) -> None:
    plan = plan_of(source_node("numbers", split_source=NumberSource(*values)))
    assert sorted(run(plan, coordinator_of(plan, tasks=3), tasks=3)) == list(range(values[0], values[1] + 1))


def test_an_empty_collection_is_read_to_its_end() -> None:
    plan = plan_of(source_node("few", collection=[]))
    coordinator = coordinator_of(plan)
    assert run(plan, coordinator) == []
    assert coordinator.is_exhausted


def test_a_collection_comes_in_its_order() -> None:
    elements = [(7919 * n) % 20_011 for n in range(20_011)]
    plan = plan_of(source_node("many", collection=elements))
    assert run(plan, coordinator_of(plan)) == elements


def test_a_stream_with_offsets_has_the_form_of_epochs() -> None:
    topic = Growing({"0": 5})
    plan = plan_of(source_node("topic", split_source=topic, is_streaming=True))
    coordinator = coordinator_of(plan)
    run(plan, coordinator)
    streaming = coordinator.positions()["streaming"]
    assert streaming["batch_id"] == 1
    assert [json.loads(text.split("\n")[2]) for text in (streaming["offsets"]["0"], streaming["offsets"]["1"])] == [
        {"0": 0},
        {"0": 5},
    ]
    leaf = {"uid": "topic", "ordinal": 0, "reads": "the topic", "schema": "bigint", "elements": "", "source": 0}
    assert streaming["inputs"] == [leaf]
    topic.partitions["0"] = 8
    again = coordinator_of(plan, coordinator.positions())
    assert run(plan, again) == [5, 6, 7]
    assert again.positions()["streaming"]["batch_id"] == 2


def test_a_position_of_epochs_that_a_source_cannot_read_is_refused() -> None:
    plan = plan_of(source_node("topic", split_source=Growing({"0": 5}), is_streaming=True))
    positions = coordinator_of(plan).positions()
    own = plan_of(source_node("topic", split_source=Growing({"0": 5}, keeps_offsets=False), is_streaming=True))
    with pytest.raises(RestoreError, match=r"cannot continue input 'topic'.*by epochs"):
        coordinator_of(own, positions)


def test_positions_without_uids_are_refused() -> None:
    plan = plan_of(source_node("topic", split_source=Growing({"0": 5}), is_streaming=True))
    positions = coordinator_of(plan).positions()
    del positions["streaming"]["inputs"]
    with pytest.raises(RestoreError, match="before inputs had uids"):
        coordinator_of(plan, positions)


def test_an_input_that_is_gone_or_reads_something_else_is_refused_or_dropped_as_by_epochs() -> None:
    def topic(**fields: Any) -> JobPlan:
        return plan_of(source_node("topic", split_source=Growing({"0": 5}), is_streaming=True, **fields))

    positions = coordinator_of(topic()).positions()
    with pytest.raises(RestoreError, match="input 'topic' reads something else"):
        coordinator_of(topic(reads="another topic"), positions)
    coordinator_of(topic(reads="another topic"), positions, rules=InputRules(keep=frozenset({"topic"})))
    with pytest.raises(RestoreError, match="reads something else"):
        coordinator_of(plan_of(source_node("topic", collection=[1])), positions)
    other = plan_of(source_node("other", collection=[1]))
    with pytest.raises(RestoreError, match="inputs that this job does not have"):
        coordinator_of(other, positions)
    assert coordinator_of(other, positions, rules=InputRules(allow_missing=True)).assignments()
    with pytest.raises(ConfigurationError, match="no input has that uid"):
        coordinator_of(other, None, rules=InputRules(keep=frozenset({"topic"})))


def test_two_frames_of_one_input_keep_a_position_each() -> None:
    node = source_node("numbers", collection=list(range(10_000)))
    sources = tuple(SourcePlan(uid, node, node.element_type) for uid in ("numbers", "doubled"))
    plan = JobPlan((EpochJob(0, sources, ()),), ())
    coordinator = coordinator_of(plan, tasks=1)
    readers = SourceReaders(plan.sources, split_sources(plan), 0)
    readers.add(coordinator.assignments()[0])
    assert [found and (found[0], found[1].num_rows) for found in (readers.poll(), readers.poll(), readers.poll())] == [
        ("numbers", 4096),
        ("doubled", 4096),
        ("numbers", 4096),
    ]
    coordinator.acknowledge([readers.snapshot(1)])
    (entry,) = coordinator.positions()["splits"]
    assert entry["positions"] == {
        "numbers": {"splits": {"elements": 8192}},
        "doubled": {"splits": {"elements": 4096}},
    }
    again = SourceReaders(plan.sources, split_sources(plan), 0)
    again.add(coordinator_of(plan, coordinator.positions(), tasks=1).assignments()[0])
    rest = Counter[str]()
    while (found := again.poll()) is not None:
        rest[found[0]] += found[1].num_rows
    assert rest == {"numbers": 10_000 - 8192, "doubled": 10_000 - 4096}


def test_splits_go_to_the_task_with_the_fewest_of_their_source() -> None:
    topic = Growing({str(n): 1 for n in range(7)})
    plan = plan_of(
        source_node("topic", split_source=topic, is_streaming=True),
        source_node("few", collection=[1]),
        source_node("others", collection=[1]),
    )
    assigned = coordinator_of(plan, tasks=3).assignments()
    assert {task: len(splits["topic"]) for task, splits in assigned.items()} == {0: 3, 1: 2, 2: 2}
    assert [task for task, splits in assigned.items() if "few" in splits] == [1]
    assert [task for task, splits in assigned.items() if "others" in splits] == [2]


def test_an_error_of_discovery_comes_with_the_assignments() -> None:
    class Failing(GrowingEnumerator):
        def discover(self) -> Sequence[SourceSplit]:
            if self._known:
                raise ConfigurationError("the topic is gone")
            return super().discover()

    class Source(Growing):
        def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
            return Failing(self.partitions, {})

    now = [0.0]
    plan = plan_of(source_node("topic", split_source=Source({"0": 1}), is_streaming=True))
    coordinator = coordinator_of(plan, clock=lambda: now[0])
    coordinator.assignments()
    now[0] = 1.0
    coordinator.assignments()  # begins to discover
    with pytest.raises(ConfigurationError, match="the topic is gone"):
        coordinator.assignments()


def test_splits_are_looked_for_at_a_fixed_rate_however_long_it_takes() -> None:
    begun: list[Future[Sequence[SourceSplit]]] = []

    def later(discover: Callable[[], Sequence[SourceSplit]]) -> Future[Sequence[SourceSplit]]:
        begun.append(Future())
        return begun[-1]

    now = [0.0]
    plan = plan_of(source_node("topic", split_source=Growing({"0": 1}), is_streaming=True))
    coordinator = SourceCoordinator(plan, None, 1, NO_RULES, clock=lambda: now[0], discover=later)

    def look_at(seconds: float) -> int:
        now[0] = seconds
        coordinator.assignments()
        return len(begun)

    assert look_at(1.0) == 1
    begun[0].set_result([SourceSplit("1", 0)])
    assert coordinator.seconds_to_discovery() == 0, "a split was found"
    assert look_at(1.25) == 1
    assert coordinator.seconds_to_discovery() == 0.75
    assert look_at(2.0) == 2
    assert look_at(9.0) == 2, "one search at a time"
    assert coordinator.seconds_to_discovery() == math.inf, "its end wakes the caller"
    begun[1].set_result([])
    assert look_at(9.0) == 3
    assert look_at(9.5) == 3, "what was missed is not made up for"


def test_a_split_that_is_returned_twice_is_refused() -> None:
    class Careless(GrowingEnumerator):
        def discover(self) -> Sequence[SourceSplit]:
            return [SourceSplit("0", 0), SourceSplit("0", 0)]

    class Source(Growing):
        def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
            return Careless(self.partitions, {})

    with pytest.raises(ConfigurationError, match="the split '0' twice"):
        coordinator_of(plan_of(source_node("topic", split_source=Source({}), is_streaming=True)))


def test_a_state_of_a_split_that_was_never_assigned_is_an_error() -> None:
    coordinator = coordinator_of(plan_of(source_node("few", collection=[1])))
    with pytest.raises(ValueError, match="'elsewhere'"):
        coordinator.acknowledge([{"few": {"elsewhere": 3}}])


def test_unsupported_inputs_are_refused_by_name() -> None:
    streaming = source_node("clicks", is_streaming=True, reads="rate", split_source=None)
    with pytest.raises(ConfigurationError, match=r"input 'clicks' reads rate.*KafkaSource or FileSource"):
        refuse_unsupported_inputs(plan_of(streaming))
    topic = source_node("topic", is_streaming=True, split_source=Growing({}))
    refuse_unsupported_inputs(plan_of(topic, source_node("few", collection=[1]), source_node("frame", frame=object())))

    def doubled(node: Node) -> FrameTransformNode:
        return FrameTransformNode(
            inputs=(node,), name="doubled", uid="doubled", element_type=Types.LONG(), function=lambda frame: frame
        )

    with pytest.raises(ConfigurationError, match=r"transform\(\) 'doubled' of input 'doubled'"):
        refuse_unsupported_inputs(plan_of(doubled(topic)))
    refuse_unsupported_inputs(plan_of(doubled(source_node("few", collection=[1]))))


def test_static_frames_are_written_by_the_engine() -> None:
    few, frame = source_node("few", collection=[1]), source_node("frame", frame=object())
    numbers = source_node("numbers", split_source=NumberSource(1, 2))
    transformed = FrameTransformNode(
        inputs=(few,), name="t", uid="t", element_type=Types.LONG(), function=lambda frame: frame
    )
    plan = plan_of(few, frame, numbers, transformed)
    assert [source.uid for source in plan.sources if is_written_by_engine(source)] == ["frame", "t"]
    written = {"frame": CollectionSource([5]), "t": CollectionSource([6])}
    assert sorted(run_written(plan, written)) == [1, 1, 2, 5, 6]


def run_written(plan: JobPlan, written: Mapping[str, SplitSource]) -> list[Any]:
    coordinator = coordinator_of(plan, tasks=1, written=written)
    readers = SourceReaders(plan.sources, split_sources(plan, written), 0)
    readers.add(coordinator.assignments()[0])
    found = []
    while (polled := readers.poll()) is not None:
        found += numbers_of(polled)
    coordinator.acknowledge([readers.snapshot(1)])
    assert coordinator.is_exhausted
    return found


def test_a_paused_source_is_not_read() -> None:
    plan = plan_of(source_node("few", collection=[1]), source_node("others", collection=[2]))
    readers = SourceReaders(plan.sources, split_sources(plan), 0)
    readers.add(coordinator_of(plan, tasks=1).assignments()[0])
    readers.paused = {"few"}
    assert numbers_of(readers.poll()) == [2]
    assert readers.poll() is None
    assert readers.has_splits and readers.has_splits_of("few") and not readers.has_splits_of("others")
    assert readers.seconds_to_next() == math.inf, "nothing but the paused source has elements, so the task may sleep"
    readers.paused = set()
    assert readers.seconds_to_next() is None
    assert numbers_of(readers.poll()) == [1]
    assert not readers.has_splits


class _InPieces(SourceReader):
    """Fetches two lists at once."""

    def __init__(self) -> None:
        self.fetched: list[list[int]] = []
        self.fetches = 3

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        pass

    def poll(self) -> Sequence[int] | None:
        if not self.fetched and self.fetches:
            self.fetches -= 1
            self.fetched = [[1], [2]]
        return self.fetched.pop(0) if self.fetched else None

    def snapshot(self) -> Mapping[str, Any]:
        return {}

    @property
    def has_splits(self) -> bool:
        return True

    @property
    def has_fetched(self) -> bool:
        return bool(self.fetched)


def test_all_sources_have_a_turn_and_all_that_was_fetched_is_read_before_the_task_waits() -> None:
    class InPieces(NumberSource):
        def create_reader(self, task: int) -> SourceReader:
            return _InPieces()

    sources = {uid: InPieces(1, 2) for uid in ("a", "b")}
    plan = plan_of(*(source_node(uid, split_source=source) for uid, source in sources.items()))
    readers = SourceReaders(plan.sources, sources, 0)
    readers.add({uid: [SourceSplit("0", None)] for uid in sources})
    reads = []
    for _ in range(3):
        reads.append([readers.poll()])
        while readers.has_more():
            reads[-1].append(readers.poll())
    assert [[(uid, numbers_of((uid, batch))) for uid, batch in read] for read in reads] == [
        [("a", [1]), ("b", [1]), ("a", [2]), ("b", [2])]
    ] * 3
    assert readers.poll() is None
    assert not readers.has_more()


def test_a_source_that_comes_later_is_read_as_slowly_as_the_others() -> None:
    plan = plan_of(*(source_node(uid, collection=list(range(1000))) for uid in ("early", "late")))
    readers = SourceReaders(plan.sources, split_sources(plan), 0, at_once=32)
    splits = coordinator_of(plan, tasks=1).assignments()[0]
    readers.add({"early": splits["early"]})
    first = readers.poll()
    readers.limit(16)
    readers.add({"late": splits["late"]})
    polled = [first, readers.poll(), readers.poll()]
    assert [found and (found[0], found[1].num_rows) for found in polled] == [("early", 32), ("early", 16), ("late", 16)]


@given(
    rate=st.integers(1, 100_000), steps=st.lists(st.floats(0, 0.5), min_size=1, max_size=20), tasks=st.integers(1, 4)
)
@settings(deadline=None)
def test_a_rate_is_held_by_all_tasks_together(rate: int, steps: list[float], tasks: int) -> None:
    now = [0.0]
    source = RateSource(rate)
    readers = [RateReader(rate, lambda: now[0]) for _ in range(tasks)]
    for reader, split in zip(readers, source.create_enumerator(None, tasks).discover(), strict=True):
        reader.add_splits([split])
    found: list[int] = []
    for step in steps:
        now[0] += step
        for reader in readers:
            while (batch := reader.poll()) is not None:
                found += batch_to_elements(batch, Types.LONG())
            assert 0 <= reader.seconds_to_next <= tasks / rate + 1e-6
    assert sorted(found) == list(range(len(found)))
    assert abs(len(found) - (now[0] * rate + 1)) <= 1


def test_inputs_of_a_plan_are_known_by_what_they_read() -> None:
    plan = plan_of(
        source_node("topic", is_streaming=True, elements="records of bigint"), source_node("few", collection=[1])
    )
    inputs = JobInputs.of(plan)
    assert [str(leaf) for leaf in inputs.all_leaves()] == [
        "a stream of the topic, read as records of bigint",
        "the few with the columns bigint",
    ]


def test_the_end_of_a_split_is_reported_until_a_barrier_is_accepted() -> None:
    plan = plan_of(source_node("few", collection=[1]))
    coordinator = coordinator_of(plan, tasks=1)
    readers = SourceReaders(plan.sources, split_sources(plan), 0)
    readers.add(coordinator.assignments()[0])
    readers.poll()
    assert readers.snapshot(1) == {"few": {"elements": None}}  # this barrier is aborted
    coordinator.acknowledge([readers.snapshot(2)])
    assert coordinator.is_exhausted
    coordinator.acknowledge([readers.snapshot(3)])  # the task does not know yet that the second was accepted
    readers.barrier_accepted(2)
    assert readers.snapshot(4) == {"few": {}}
    coordinator.restart()
    assert coordinator.assignments() == {}
