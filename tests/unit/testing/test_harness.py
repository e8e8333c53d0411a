"""The harness runs functions as a job does: keyed state, timers, epochs, snapshots, rescaling, lost caches."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Row
from holdfast.datastream import (
    AggregateFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RichMapFunction,
    RuntimeContext,
    TimeDomain,
)
from holdfast.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import ConfigurationError, NullKeyError, OutputTypeError, StateError, UserFunctionError
from holdfast.testing import ManualClock, OperatorHarness
from tests.examples import examples

COUNTED = "word string, n bigint"
PRICES = MapStateDescriptor("prices", "string", "bigint")


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = self.count.value() + 1
        self.count.update(count)
        yield row.word, count


class Session(KeyedProcessFunction):
    """Emits the number of a key's elements once none has come for ten milliseconds."""

    GAP = 10
    LATE = OutputTag("late", "string")

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))
        self.end = runtime_context.get_state(ValueStateDescriptor("end", "bigint"))

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Any:
        timers = ctx.timer_service()
        if row.at is None:
            end, register = timers.current_processing_time() + self.GAP, timers.register_processing_time_timer
        elif row.at <= timers.current_watermark():
            ctx.output(self.LATE, row.word)
            return None
        else:
            end, register = row.at + self.GAP, timers.register_event_time_timer
        self.count.update(self.count.value() + 1)
        self.end.update(end)
        register(end)
        return None

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        if timestamp == self.end.value():
            yield ctx.get_current_key(), self.count.value(), ctx.time_domain().name
            self.count.clear()


class Forgetful(KeyedProcessFunction):
    """Wrong: keeps state in a field."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.seen[row.word] = self.seen.get(row.word, 0) + 1
        yield row.word, self.seen[row.word]


def word(text: Any) -> dict[str, Any]:
    return {"word": text}


def at(text: str, time: int | None = None) -> Row:
    return Row(word=text, at=time)


def counting(**options: Any) -> OperatorHarness:
    return OperatorHarness(Count(), key_by="word", key_type="string", output_type=COUNTED, **options)


def test_each_key_has_its_own_state() -> None:
    with counting() as harness:
        assert harness.process_element(word("kelp")) == [("kelp", 1)]
        harness.process_element(Row(word="rock"))
        harness.process_element(word("kelp"))

        assert harness.output == [("kelp", 1), ("rock", 1), ("kelp", 2)]
        assert harness.output() == harness.output
        assert harness.output[2].n == 2, "emitted values come back as rows of the declared type"


def test_state_goes_on_after_a_snapshot_and_is_restored_from_it() -> None:
    with counting() as harness:
        harness.process_element(word("kelp"))
        snapshot = harness.snapshot(1)
        harness.process_element(word("kelp"))
        assert harness.output[-1].n == 2

    with OperatorHarness.restore(
        pickle.loads(pickle.dumps(snapshot)), Count(), key_by="word", key_type="string", output_type=COUNTED
    ) as restored:
        assert restored.process_element(word("kelp")) == [("kelp", 2)], "what came after the snapshot is not in it"


@pytest.mark.parametrize("amnesia", [False, True])
def test_fields_are_no_state_an_epoch_begins_with_a_fresh_copy(amnesia: bool) -> None:
    with OperatorHarness(Forgetful(), key_by="word", output_type=COUNTED, amnesia=amnesia) as harness:
        harness.process_element(word("kelp"))
        harness.process_element(word("kelp"))
        harness.snapshot(1)
        harness.process_element(word("kelp"))

        assert [row.n for row in harness.output] == [1, 2, 1]


class Opened(KeyedProcessFunction):
    """Emits how often it was opened in this process, and whether it was told of a past."""

    opened = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        type(self).opened += 1
        self.restored = runtime_context.is_restored()

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield type(self).opened, self.restored


@pytest.mark.parametrize(("amnesia", "opened"), [(False, [1, 1, 1]), (True, [1, 2, 3])])
def test_a_function_is_opened_once_a_process_and_with_amnesia_in_every_epoch(amnesia: bool, opened: list[int]) -> None:
    Opened.opened = 0
    with OperatorHarness(
        Opened(), key_by="word", output_type="opened int, restored boolean", amnesia=amnesia
    ) as harness:
        for checkpoint_id in (1, 2, 3):
            harness.process_element(word("kelp"))
            harness.snapshot(checkpoint_id)
        assert [row.opened for row in harness.output] == opened


def test_event_time_timers_fire_when_the_watermark_passes_them() -> None:
    with OperatorHarness(Session(), key_by="word", output_type="word string, n bigint, domain string") as harness:
        harness.process_element(at("kelp", 100), 100)
        harness.process_element(at("kelp", 105), 105)
        assert harness.process_watermark(114) == []
        assert harness.process_watermark(115) == [("kelp", 2, TimeDomain.EVENT_TIME.name)]
        harness.process_element(at("kelp", 90), 90)
        assert harness.side_output(Session.LATE) == ["kelp"]
        assert harness.side_output("late") == ["kelp"]
        assert harness.side_output("nobody") == []


def test_processing_time_timers_fire_when_the_time_is_set_and_survive_a_snapshot() -> None:
    clock = ManualClock(1_000)
    typed = {"key_by": "word", "output_type": "word string, n bigint, domain string"}
    with OperatorHarness(Session(), clock=clock, **typed) as harness:
        harness.process_element(at("kelp"))
        assert harness.set_processing_time(1_009) == []
        snapshot = harness.snapshot(1)
        assert harness.set_processing_time(1_010) == [("kelp", 1, TimeDomain.PROCESSING_TIME.name)]
        assert clock.now_ms() == 1_010

    with OperatorHarness.restore(snapshot, Session(), clock=ManualClock(1_005), **typed) as restored:
        assert restored.set_processing_time(1_010) == [("kelp", 1, TimeDomain.PROCESSING_TIME.name)]


class Kinds(KeyedProcessFunction):
    """Uses state of several kinds and emits what it reads."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.words = runtime_context.get_list_state(ListStateDescriptor("words", "string"))
        self.sums = runtime_context.get_reducing_state(ReducingStateDescriptor("sums", lambda a, b: a + b, "bigint"))
        self.lengths = runtime_context.get_map_state(MapStateDescriptor("lengths", "string", "bigint"))

    def process_element(self, text: str, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.words.add(text)
        self.sums.add(len(text))
        self.lengths.put(text, len(text))
        yield list(self.words.get()), self.sums.get(), dict(self.lengths.items())


def test_a_column_of_rows_is_a_key_by_itself() -> None:
    kind = "struct<pier: string, number: int>"
    told = {"key_by": "berth", "key_type": kind, "output_type": "string"}
    with OperatorHarness(lambda row, ctx: [ctx.get_current_key().pier], **told) as harness:
        assert harness.process_element({"berth": ("east", 1)}) == ["east"]


def test_every_kind_of_state_works_with_a_selector_and_an_untyped_key() -> None:
    with OperatorHarness(Kinds(), key_by=lambda text: text[0], amnesia=True) as harness:
        harness.process_element("kelp")
        harness.snapshot(1)
        harness.process_element("kin")
        harness.process_element("rock")
        assert harness.output == [
            (["kelp"], 4, {"kelp": 4}),
            (["kelp", "kin"], 7, {"kelp": 4, "kin": 3}),
            (["rock"], 4, {"rock": 4}),
        ]


class FirstLetter(KeySelector):
    def get_key(self, value: Any) -> Any:
        return value[0]


class Upper(MapFunction):
    def map(self, value: Any) -> Any:
        return value.upper()


class Numbered(RichMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint", 0))

    def map(self, value: Any) -> Any:
        self.last.update(self.last.value() + 1)
        return f"{value} {self.last.value()}"


class Letters(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        return list(value)


class Long(FilterFunction):
    def filter(self, value: Any) -> bool:
        return len(value) > 3


class Longest(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2, key=len)


class Tagged(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        ctx.output(OutputTag("length", "int"), len(value))
        yield value


@pytest.mark.parametrize(
    ("function", "key_by", "emitted"),
    [
        (Upper(), None, ["KELP", "KIN"]),
        (Numbered(), FirstLetter(), ["kelp 1", "kin 2"]),
        (Letters(), None, ["k", "e", "l", "p", "k", "i", "n"]),
        (Long(), None, ["kelp"]),
        (Longest(), FirstLetter(), ["kelp", "kelp"]),
        (Tagged(), None, ["kelp", "kin"]),
        (lambda value: value[::-1], None, ["plek", "nik"]),
        (lambda value, ctx: [ctx.get_current_key()], FirstLetter(), ["k", "k"]),
    ],
)
def test_every_kind_of_function_runs_in_it(function: Any, key_by: Any, emitted: list[Any]) -> None:
    with OperatorHarness(function, key_by=key_by) as harness:
        for text in ("kelp", "kin"):
            harness.process_element(text)
        assert harness.output == emitted
        if isinstance(function, Tagged):
            assert harness.side_output("length") == [4, 3]


def test_side_outputs_may_be_yielded_with_their_tag_as_in_pyflink() -> None:
    late = OutputTag("late", "string")

    class Parted(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
            ctx.timer_service().register_event_time_timer(5)
            yield value
            yield late, f"{value} was late"

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
            yield late, f"{ctx.get_current_key()} fired"

    with OperatorHarness(Parted(), key_by=lambda value: value, output_type="string") as harness:
        harness.process_element("kelp")
        harness.process_watermark(5)
        assert harness.output == ["kelp"]
        assert harness.side_output(late) == ["kelp was late", "kelp fired"]


def test_a_harness_runs_one_subtask_and_refuses_the_keys_of_others() -> None:
    harnesses = [counting(parallelism=2, subtask=subtask) for subtask in (0, 1)]
    texts = [f"word{n}" for n in range(20)]
    owners = [[harness.owns(word(text)) for harness in harnesses] for text in texts]

    assert all(sum(owned) == 1 for owned in owners)
    for text, owned in zip(texts, owners, strict=True):
        harnesses[owned.index(True)].process_element(word(text))
        with pytest.raises(StateError, match="belongs to subtask"):
            harnesses[owned.index(False)].process_element(word(text))
    for harness in harnesses:
        harness.close()


@settings(max_examples=examples(15), deadline=None)
@given(
    batches=st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=8), min_size=2, max_size=5),
    parallelisms=st.lists(st.integers(1, 4), min_size=2, max_size=5),
)
def test_counts_are_right_at_any_sequence_of_parallelisms(batches: list[list[str]], parallelisms: list[int]) -> None:
    """One epoch a batch, each at another parallelism: the result is that of one dictionary."""
    model: dict[str, int] = {}
    snapshots: list[Any] = []
    for number, texts in enumerate(batches):
        parallelism = parallelisms[number % len(parallelisms)]
        same: dict[str, Any] = {"key_by": "word", "key_type": "string", "output_type": COUNTED}
        after = []
        for subtask in range(parallelism):
            place = {"parallelism": parallelism, "subtask": subtask, "max_parallelism": 8}
            harness = (
                OperatorHarness.restore(snapshots, Count(), **same, **place)
                if snapshots
                else OperatorHarness(Count(), **same, **place)
            )
            with harness:
                mine = [text for text in texts if harness.owns(word(text))]
                for text in mine:
                    model[text] = model.get(text, 0) + 1
                    assert harness.process_element(word(text)) == [(text, model[text])]
                after.append(harness.snapshot(number))
        snapshots = after


class Buffer(RichMapFunction, CheckpointedFunction):
    """Keeps what it maps in a field, and the field in a list."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("buffer", "bigint"))
        self.union = context.get_operator_state_store().get_union_list_state(ListStateDescriptor("ids", "bigint"))
        self.buffer = list(self.state.get()) if context.is_restored() else []
        self.ids = (context.get_restored_checkpoint_id(), list(self.union.get()))

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.buffer)
        self.union.update([context.get_checkpoint_id()])

    def map(self, value: Any) -> Any:
        self.buffer.append(value)
        return list(self.buffer), *self.ids


@pytest.mark.parametrize("amnesia", [False, True])
def test_operator_state_goes_on_and_is_dealt_out_to_other_subtasks(amnesia: bool) -> None:
    snapshots = []
    for subtask in range(2):
        with OperatorHarness(Buffer(), parallelism=2, subtask=subtask, amnesia=amnesia) as harness:
            assert harness.process_element(10 * subtask) == [([10 * subtask], None, [])]
            harness.snapshot(1)
            assert harness.process_element(10 * subtask + 1) == [([10 * subtask, 10 * subtask + 1], 1, [1])]
            snapshots.append(harness.snapshot(2))
    found = []
    for subtask in range(3):
        with OperatorHarness.restore(snapshots, Buffer(), parallelism=3, subtask=subtask, amnesia=amnesia) as harness:
            [(buffer, restored, union)] = harness.process_element(99)
            assert (restored, union) == (2, [2, 2])
            found.append(buffer)
    assert found == [[0, 1, 99], [10, 99], [11, 99]]


class Tariff(BroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(PRICES).put(*value)
        return ()

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield ctx.get_broadcast_state(PRICES).get(value)


def test_a_function_of_two_streams_gets_both() -> None:
    with OperatorHarness(Tariff(), broadcast=[PRICES]) as harness:
        harness.process_broadcast_element(("kelp", 3))
        assert harness.process_element("kelp") == [3]
        taken = harness.snapshot(1)
    with OperatorHarness.restore(taken, Tariff(), parallelism=4, subtask=3, broadcast=[PRICES]) as harness:
        assert harness.process_element("kelp") == [3]


def test_snapshots_of_another_max_parallelism_are_refused() -> None:
    with counting(max_parallelism=16) as harness:
        snapshot = harness.snapshot(1)
    with pytest.raises(StateError, match="fixed for the life of the state"):
        OperatorHarness.restore(snapshot, Count(), key_by="word", max_parallelism=32)
    with pytest.raises(StateError, match="at least one snapshot"):
        OperatorHarness.restore([], Count(), key_by="word")


def test_bad_input_gets_the_errors_of_a_job() -> None:
    with counting() as harness:
        with pytest.raises(NullKeyError):
            harness.process_element(word(None))
        with pytest.raises(UserFunctionError, match=r"'harness'.*'kelp'"):
            OperatorHarness(lambda value, ctx: value.nothing, key_by="word").process_element(word("kelp"))
    with pytest.raises(OutputTypeError, match="harness"):
        OperatorHarness(lambda value: "text", output_type="bigint").process_element(1)
    with pytest.raises(ConfigurationError, match="does not exist"):
        counting(parallelism=2, subtask=2)
    with pytest.raises(ConfigurationError, match="The harness runs function objects"):
        OperatorHarness(7)
    for function in (ProcessWindowFunction, AggregateFunction):
        windowed = type("Mine", (function,), dict.fromkeys(function.__abstractmethods__))()
        with pytest.raises(ConfigurationError, match=r"a Mine belongs to an operator of a stream: .*EpochProgram"):
            OperatorHarness(windowed, key_by="word")


def test_the_harness_needs_neither_spark_nor_a_jvm() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from holdfast.testing import OperatorHarness\n"
        "harness = OperatorHarness(lambda value: value + 1, output_type='bigint')\n"
        "harness.process_element(1); print(harness.output)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[2]\n"


def test_elements_have_the_timestamps_that_they_are_given_with_and_without_keys() -> None:
    class Plain(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value, ctx.timestamp()

    class Keyed(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value, ctx.timestamp()

    for harness in (OperatorHarness(Plain()), OperatorHarness(Keyed(), key_by=lambda value: value)):
        with harness:
            assert harness.process_element("a", timestamp=7) == [("a", 7)]
            assert harness.process_element("b") == [("b", None)]
            assert harness.process_elements(["c", "d"], [8, None]) == [("c", 8), ("d", None)]
