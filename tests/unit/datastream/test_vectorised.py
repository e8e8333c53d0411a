"""Whole batches: functions that see columns, and reductions that emit what a loop over rows would."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.datastream.sinks import ParquetFileSink
from holdfast.errors import ConfigurationError, OutputTypeError, StateError, UserFunctionError
from holdfast.runtime.function.user_function import KeyedProcessFunction, RichFilterFunction
from holdfast.runtime.operator import OperatorSubtask, SubtaskInfo
from holdfast.runtime.operator.batch_function import BatchFunction, BatchSubtask, Groups
from holdfast.runtime.operator.operator_instance import OperatorInstance
from holdfast.state import ColumnarStateBackend, HashMapStateBackend
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.state.version import STATE_CACHE
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from holdfast.types.arrow import batch_to_elements, elements_to_batch
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import lazy_keys
from holdfast.types.opaque import OpaqueTypeInformation
from holdfast.types.type_parser import parse_type
from holdfast.types.types import Types
from tests.contract.plain_state_backend import PlainStateBackendFactory
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import Program, run
from tests.unit.types.type_strategies import ATOMIC, TYPES

EVENT = "k string, v bigint, x double, s string"
LISTS = "k string, v bigint, s string, items array<int>"
BACKENDS = [HashMapStateBackend, ColumnarStateBackend, lambda: PlainStateBackendFactory().create_from_config(None)]

UpdateType = StateTtlConfig.UpdateType


def keyed(schema=EVENT):
    return Program().source("events", schema).key_by("k")


def spec_of(stream):
    return stream._node.operator


class Rows:
    """The row form: a loop over rows with value state, written once for each reduction."""

    def __init__(self, column, step, emit):
        self.column, self.step, self.emit = column, step, emit

    def function(self):
        rows = self

        class Form(KeyedProcessFunction):
            def open(self, runtime_context):
                self.state = runtime_context.get_state(ValueStateDescriptor("state", None))

            def process_element(self, value, ctx):
                before = self.state.value()
                after = rows.step(before, value[rows.column])
                if after is not None:
                    self.state.update(after)
                yield from rows.emit(value, before, after)

        return Form()


def replaced(position, of=lambda state: state):
    return lambda row, before, after: [(*row[:position], of(after), *row[position + 1 :])]


def added(of=lambda state: state):
    return lambda row, before, after: [(*row, of(after))]


def ranked(n, ascending):
    def step(best, value):
        if value is None:
            return best
        better = sorted([*(best or []), (value, len(best or []))], key=lambda b: b[0], reverse=not ascending)
        return [(v, i) for i, (v, _) in enumerate(better[:n])]

    def emit(row, before, after):
        if row[1] is None:
            return []
        kept = [v for v, _ in before or []]
        rank = 1 + sum(v <= row[1] if ascending else v >= row[1] for v in kept)
        return [(*row, rank)] if rank <= n else []

    return Rows(1, step, emit)


def choose(better):
    return lambda kept, value: kept if value is None else value if kept is None or better(value, kept) else kept


def total(kept, value):
    return kept if value is None else value if kept is None else kept + value


def mean(kept, value):
    amount, count = kept or (0.0, 0)
    return (amount, count) if value is None else (amount + value, count + 1)


FORMS = {
    "count": (lambda s: s.count(), Rows(1, lambda n, _: (n or 0) + 1, added())),
    "sum of ints": (lambda s: s.sum("v"), Rows(1, total, replaced(1))),
    "sum of floats": (lambda s: s.sum(2), Rows(2, total, replaced(2))),
    "mean": (lambda s: s.mean("x"), Rows(2, mean, added(lambda m: m[0] / m[1] if m[1] else None))),
    "min": (lambda s: s.min("v"), Rows(1, choose(lambda a, b: a < b), replaced(1))),
    "max of strings": (lambda s: s.max("s"), Rows(3, choose(lambda a, b: a > b), replaced(3))),
    "min of floats": (lambda s: s.min("x"), Rows(2, choose(lambda a, b: a < b), replaced(2))),
    "first": (lambda s: s.first("s"), Rows(3, choose(lambda a, b: False), replaced(3))),
    "last": (lambda s: s.last("v"), Rows(1, choose(lambda a, b: True), replaced(1))),
    "deduplicate": (
        lambda s: s.deduplicate(),
        Rows(1, lambda seen, _: True, lambda row, before, after: [] if before else [row]),
    ),
    "top three": (lambda s: s.top_n(3, "v"), ranked(3, ascending=False)),
    "two least": (lambda s: s.top_n(2, "v", ascending=True), ranked(2, ascending=True)),
}


class Driven:
    """One operator on one subtask, epoch by epoch."""

    def __init__(self, spec, backend, directory, **settings):
        STATE_CACHE.clear()
        self.spec = spec
        self.epochs = StateEpochs(backend, directory, max_parallelism=128, **settings)
        self.info = SubtaskInfo("op", max_parallelism=128)
        self.opened = OperatorInstance(spec, self.info, self.epochs.new_backend())

    def epoch(self, batches, now=0):
        task = self.epochs.open()
        kind = BatchSubtask if self.spec.shape == "batches" else OperatorSubtask
        subtask = kind(self.opened, self.info, task.backend)
        subtask.set_times(now, 0)
        out = []
        for rows in batches:
            batch = rows if isinstance(rows, pa.RecordBatch) else elements_to_batch(rows, self.spec.input_type)
            keys = lazy_keys(self.epochs.codec, [batch.column(0)])
            hashes = self.epochs.codec.hashes(keys)
            if self.spec.shape == "batches":
                result, _ = subtask.process_batch(batch, keys, hashes)
                out.extend(map(tuple, batch_to_elements(result, self.spec.output_type)))
            else:
                elements = batch_to_elements(batch, self.spec.input_type)
                out.extend(map(tuple, subtask.process(elements, keys, hashes)))
        self.epochs.succeed(task)
        self.epochs.complete()
        return out


keys = st.sampled_from("abcde")
rows = st.tuples(
    keys,
    st.none() | st.integers(-5, 5) | st.integers(-(2**55), 2**55),
    st.none() | st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.1, 1e300, -1e300, float("inf")]),
    st.none() | st.text("ab", max_size=3),
)
histories = st.lists(st.lists(st.lists(rows, max_size=12), max_size=3), min_size=1, max_size=4)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(history=histories, backend=st.sampled_from(BACKENDS))
def test_a_reduction_emits_what_a_loop_over_rows_emits(name, history, backend):
    build, form = FORMS[name]
    spec = spec_of(build(keyed()))
    by_rows = spec_of(keyed().process(form.function()))
    with tempfile.TemporaryDirectory() as directory:
        batched = Driven(spec, backend(), f"{directory}/batches")
        emitted = [batched.epoch(epoch) for epoch in history]
        looped = Driven(by_rows, HashMapStateBackend(), f"{directory}/rows")
        # The other cut: all rows of the epoch in one go, row by row.
        expected = [looped.epoch([[row] for batch in epoch for row in batch]) for epoch in history]
    assert [list(map(repr, epoch)) for epoch in emitted] == [list(map(repr, epoch)) for epoch in expected]


class FirstRows(RichFilterFunction):
    """The row form of `deduplicate(ttl=...)`."""

    def __init__(self, ttl):
        self.ttl = ttl

    def open(self, runtime_context):
        seen = ValueStateDescriptor("seen", parse_type("boolean"))
        seen.enable_time_to_live(self.ttl)
        self.seen = runtime_context.get_state(seen)

    def filter(self, value):
        if self.seen.value():
            return False
        self.seen.update(True)
        return True


@st.composite
def times_to_live(draw):
    builder = StateTtlConfig.new_builder(draw(st.sampled_from([1, 5, 10])))
    builder.set_update_type(draw(st.sampled_from([UpdateType.OnCreateAndWrite, UpdateType.OnReadAndWrite])))
    builder.set_state_visibility(draw(st.sampled_from(list(StateTtlConfig.StateVisibility))))
    return draw(
        st.sampled_from([builder, builder.cleanup_incrementally(1, True), builder.disable_cleanup_in_background()])
    )


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    history=histories, pauses=st.lists(st.integers(0, 12), min_size=4, max_size=4), ttl=times_to_live(), data=st.data()
)
def test_rows_are_deduplicated_for_a_time_as_a_loop_over_rows_does(history, pauses, ttl, data):
    ttl, backend = ttl.build(), data.draw(st.sampled_from(BACKENDS[:2]))
    times = np.cumsum(pauses).tolist()
    with tempfile.TemporaryDirectory() as directory:
        batched = Driven(spec_of(keyed().deduplicate(ttl)), backend(), f"{directory}/batches")
        assert batched.spec.shape == "batches"
        emitted = [batched.epoch(epoch, now) for epoch, now in zip(history, times, strict=False)]
        looped = Driven(spec_of(keyed().filter(FirstRows(ttl))), backend(), f"{directory}/rows")
        expected = [looped.epoch(epoch, now) for epoch, now in zip(history, times, strict=False)]
    assert [list(map(repr, epoch)) for epoch in emitted] == [list(map(repr, epoch)) for epoch in expected]


def test_state_with_a_time_to_live_is_read_and_written_as_columns(tmp_path):
    last = ValueStateDescriptor("last", "bigint")
    last.enable_time_to_live(StateTtlConfig.new_builder(10).build())

    def difference(batch, state):
        before = state.get(batch["k"])
        state.put(batch["k"], batch["v"])
        return batch.set_column(1, "v", pc.subtract(batch["v"], before))

    stream = keyed("k string, v bigint").process_batches(difference, "k string, v bigint", state=last)
    driven = Driven(spec_of(stream), HashMapStateBackend(), str(tmp_path))
    assert driven.epoch([[("a", 3), ("b", 1)]], 0) == [("a", None), ("b", None)]
    assert driven.epoch([[("a", 5)]], 9) == [("a", 2)]
    assert sorted(driven.epoch([[("a", 6), ("b", 7)]], 10)) == [("a", 1), ("b", None)], "b has expired"


def spark_order(value):
    """Sorts NaN after all other numbers."""
    return (value != value, 0.0 if value != value else value)


def best_of(better, values):
    """The model of min and max: the first of the best values; NaN is greater than all numbers."""
    best = None
    for value in values:
        if value is not None and (best is None or better(spark_order(value), spark_order(best))):
            best = value
        yield best


def first_of(values):
    return ([*filter(lambda value: value is not None, values[: at + 1])] for at in range(len(values)))


CHOICES = {
    "min": lambda values: best_of(lambda value, best: value < best, values),
    "max": lambda values: best_of(lambda value, best: value > best, values),
    "first": lambda values: (found[0] if found else None for found in first_of(values)),
    "last": lambda values: (found[-1] if found else None for found in first_of(values)),
}


@pytest.mark.parametrize("choice", CHOICES)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), backend=st.sampled_from(BACKENDS))
def test_values_of_every_type_are_chosen_among(choice, data, backend):
    nested = TYPES.filter(lambda drawn: not isinstance(drawn[0], OpaqueTypeInformation))
    kind, values = data.draw(st.sampled_from(ATOMIC) if choice in ("min", "max") else nested)
    if str(kind) == "double":
        values = values | st.just(float("nan"))
    history = data.draw(st.lists(st.lists(st.none() | values, max_size=5), min_size=2, max_size=3))
    stream = keyed(RowTypeInformation(["k", "v"], [Types.STRING(), kind]))
    with tempfile.TemporaryDirectory() as directory:
        driven = Driven(spec_of(getattr(stream, choice)("v")), backend(), directory)
        found = [row[1] for epoch in history for row in driven.epoch([[("a", value) for value in epoch]])]
    # As batches give them back: without `fold`, for instance.
    values = [value for epoch in history for value in kind.to_list(kind.to_array(epoch))]
    assert list(map(repr, found)) == list(map(repr, CHOICES[choice](values)))


@pytest.mark.parametrize(
    ("ascending", "expected"),
    [
        (False, [(1.0, 1), (math.nan, 1), (2.0, 2), (math.nan, 2)]),
        (True, [(1.0, 1), (math.nan, 2), (2.0, 2), (0.5, 1)]),
    ],
)
def test_what_is_not_a_number_ranks_before_all_numbers(tmp_path, ascending, expected):
    stream = keyed("k string, v double").top_n(2, "v", ascending=ascending)
    driven = Driven(spec_of(stream), HashMapStateBackend(), str(tmp_path))
    emitted = [row for value in (1.0, None, math.nan, 2.0, 0.5, math.nan) for row in driven.epoch([[("a", value)]])]
    assert list(map(repr, emitted)) == [repr(("a", *row)) for row in expected]


def test_a_hot_key_is_reduced_like_any_other(tmp_path):
    numbers = np.random.default_rng(1).normal(size=5000)
    spec = spec_of(keyed("k string, v double").sum("v"))
    driven = Driven(spec, HashMapStateBackend(), str(tmp_path))
    emitted = driven.epoch([[("hot" if i % 10 else f"k{i}", float(n)) for i, n in enumerate(numbers)]])
    running = 0.0
    for i, (key, value) in enumerate(emitted):
        if key == "hot":
            running += numbers[i]
            assert value == running


def test_the_mean_of_whole_numbers_that_no_double_has_exactly(tmp_path):
    driven = Driven(spec_of(keyed("k string, v bigint").mean("v")), HashMapStateBackend(), str(tmp_path))
    nanoseconds = 1_700_000_000_000_000_001
    emitted = driven.epoch([[("a", nanoseconds), ("a", nanoseconds + 2)]])
    assert emitted == [("a", nanoseconds, 1.7e18), ("a", nanoseconds + 2, 1.7e18)]


def test_a_sum_that_does_not_fit_is_refused(tmp_path):
    spec = spec_of(keyed("k string, v bigint").sum("v"))
    with pytest.raises(OutputTypeError, match="64 bits"):
        Driven(spec, HashMapStateBackend(), str(tmp_path)).epoch([[("a", 2**62), ("a", 2**62)]])
    spec = spec_of(keyed("k string, v tinyint").sum("v"))
    with pytest.raises(OutputTypeError, match="does not fit"):
        Driven(spec, HashMapStateBackend(), str(tmp_path)).epoch([[("a", 100), ("a", 100)]])


def test_decimals_are_summed_exactly(tmp_path):
    from decimal import Decimal

    spec = spec_of(keyed("k string, v decimal(10,2)").sum("v"))
    driven = Driven(spec, HashMapStateBackend(), str(tmp_path))
    assert driven.epoch([[("a", Decimal("0.10")), ("a", None), ("a", Decimal("0.20"))]])[-1] == ("a", Decimal("0.30"))
    assert driven.epoch([[("a", Decimal("99999999.00"))]]) == [("a", Decimal("99999999.30"))]
    with pytest.raises(OutputTypeError):
        driven.epoch([[("a", Decimal("1.00"))]])

    wide = Driven(spec_of(keyed("k string, v decimal(38,10)").sum("v")), HashMapStateBackend(), str(tmp_path / "wide"))
    long = Decimal("12345678901234567890.0000000001")
    assert wide.epoch([[("a", long), ("a", Decimal("0.0000000002"))]])[0] == ("a", long), "all 38 digits, and not 28"
    assert wide.epoch([[("a", long)]]) == [("a", Decimal("24691357802469135780.0000000004"))]


# Functions of batches.


def test_state_is_read_and_written_as_columns(tmp_path):
    def latest(batch, state):
        before = state.get(batch.column("k"))
        state.put(batch.column("k"), batch.column("v"))
        return pa.table({"k": batch.column("k"), "before": before})

    stream = keyed().process_batches(latest, "k string, before bigint", state=ValueStateDescriptor("v", "bigint"))
    for number, backend in enumerate(BACKENDS):
        driven = Driven(spec_of(stream), backend(), str(tmp_path / str(number)))
        first = [("a", 1, None, None), ("b", 2, None, None), ("a", 3, None, None)]
        assert driven.epoch([first]) == [("a", None), ("b", None), ("a", None)]
        assert driven.epoch([[("b", None, None, None), ("a", 4, None, None)]]) == [("b", 2), ("a", 3)]
        assert driven.epoch([[("a", 0, None, None), ("b", 0, None, None)]]) == [("a", 4), ("b", None)]


def test_what_rows_have_written_batches_read_and_the_other_way_round(tmp_path):
    class Count(KeyedProcessFunction):
        def open(self, runtime_context):
            self.n = runtime_context.get_state(ValueStateDescriptor("n", "bigint"))

        def process_element(self, value, ctx):
            self.n.update((self.n.value() or 0) + 1)
            yield (value.k, self.n.value())

    def count(batch, state):
        grouped = pa.table({"k": batch.column("k")}).group_by("k").aggregate([("k", "count")])
        total = pc.add(pc.fill_null(state.get(grouped["k"]), 0), grouped["k_count"])
        state.put(grouped["k"], total)
        return pa.table({"k": grouped["k"], "n": total})

    row_form = spec_of(keyed().process(Count(), "k string, n bigint"))
    batch_form = spec_of(
        keyed().process_batches(count, "k string, n bigint", state=ValueStateDescriptor("n", "bigint"))
    )
    driven = Driven(row_form, HashMapStateBackend(), str(tmp_path))
    events = [(key, 0, 0.0, "") for key in "aab"]
    assert driven.epoch([events]) == [("a", 1), ("a", 2), ("b", 1)]
    driven.spec, driven.opened = batch_form, OperatorInstance(batch_form, driven.info, driven.epochs.new_backend())
    assert sorted(driven.epoch([events])) == [("a", 4), ("b", 2)]
    driven.spec, driven.opened = row_form, OperatorInstance(row_form, driven.info, driven.epochs.new_backend())
    assert driven.epoch([events]) == [("a", 5), ("a", 6), ("b", 3)]


class Both(BatchFunction):
    def open(self, runtime_context):
        self.least = runtime_context.get_state(ValueStateDescriptor("least", "bigint"))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", "bigint", "bigint"))
        self.opened = True

    def process_batch(self, batch, ctx):
        state = ctx.columns(self.least)
        state.clear(pa.array(["gone"]))
        state.put(pa.array(["x", "y"]), [1, 2])
        assert state.get(pa.array(["y", "gone", "x"])).to_pylist() == [2, None, 1]
        yield batch
        yield pa.Table.from_batches([batch.slice(0, 1)])


def test_a_batch_function_is_opened_and_may_ask_for_any_key_of_its_subtask(tmp_path):
    driven = Driven(spec_of(keyed().process_batches(Both())), HashMapStateBackend(), str(tmp_path))
    event = ("a", 1, 2.0, "s")
    assert driven.epoch([[event, event]]) == [event, event, event]


class Picking(BatchFunction):
    def process_batch(self, batch, ctx):
        rows = [2, 0, 3]
        for slots in ([ctx.slots[row] for row in rows], ctx.slots_at(np.array(rows))):
            assert Groups(slots).order.tolist() == [0, 1, 2]
            assert Groups(slots).starts.tolist() == [0, 2], "two rows of one key, and one of another"
        assert [*ctx.slots[:1], *ctx.slots[1:]] == list(ctx.slots)
        assert len({*ctx.slots}) == 2
        return batch


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_one_key_are_told_also_among_those_that_were_picked(tmp_path, backend):
    driven = Driven(spec_of(keyed().process_batches(Picking())), backend(), str(tmp_path))
    events = [(key, 1, 2.0, "s") for key in "abab"]
    assert driven.epoch([events]) == events


def failing(function, **arguments):
    stream = keyed().process_batches(function, **arguments)
    with tempfile.TemporaryDirectory() as directory:
        Driven(spec_of(stream), HashMapStateBackend(), directory).epoch([[("a", 1, 2.0, "s")]])


def test_mistakes_of_a_batch_function_are_told():
    count = ValueStateDescriptor("n", "bigint")
    with pytest.raises(UserFunctionError, match="KeyError"):
        failing(lambda batch, state: batch.column("nope"))
    with pytest.raises(OutputTypeError, match="returned the columns"):
        failing(lambda batch, state: batch.select(["k"]))
    with pytest.raises(OutputTypeError, match="not record batches"):
        failing(lambda batch, state: [1])
    with pytest.raises(OutputTypeError, match="another type"):
        failing(lambda batch, state: pa.table({"k": ["x"]}), output_type="k bigint")
    with pytest.raises(StateError, match="2 values were given for 1 keys"):
        failing(lambda batch, state: state.put(batch.column("k"), [1, 2]), state=count)
    with pytest.raises(OutputTypeError, match="cannot be written"):
        failing(lambda batch, state: state.put(batch.column("k"), ["x"]), state=count)
    with pytest.raises(ConfigurationError, match="no declared type"):
        failing(lambda batch, state: None, state=ValueStateDescriptor("n", None))


def test_keys_of_other_subtasks_are_refused(tmp_path):
    def foreign(batch, state):
        state.get(pa.array([f"key-{i}" for i in range(50)]))

    stream = keyed().process_batches(lambda batch, state: foreign(batch, state["n"]), state={"n": "bigint"})
    driven = Driven(spec_of(stream), HashMapStateBackend(), str(tmp_path))
    driven.epochs.parallelism = 4
    with pytest.raises(StateError, match="belongs to another subtask"):
        driven.epoch([[("a", 1, 2.0, "s")]])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda s: s.sum("nope"), "no column 'nope'"),
        (lambda s: s.sum(9), "no column 9"),
        (lambda s: s.sum("s"), "no number"),
        (lambda s: s.count("v"), "already"),
        (lambda s: s.min("items"), "not compared"),
        (lambda s: s.top_n(1, "items"), "not compared"),
        (lambda s: s.top_n(0, "v"), "at least one row"),
        (lambda s: s.process_batches(Both), "not <class"),
        (lambda s: s.process_batches(lambda batch: batch), "(batch, state)"),
        (lambda s: s.process_batches(lambda batch, state: None, "bigint"), "emits columns"),
        (lambda s: s.process_batches(lambda batch, state: None, state=["n"]), "ValueStateDescriptors"),
    ],
)
def test_mistakes_are_told_where_they_are_written(build, says):
    with pytest.raises(ConfigurationError) as error:
        build(keyed(LISTS))
    assert says in str(error.value)


def test_plain_numbers_are_summed_up_by_a_selector_as_in_pyflink():
    stream = Program().source("events", parse_type("bigint")).key_by(lambda n: n % 2).sum()
    assert stream.get_type() == parse_type("bigint")


def test_a_whole_program_with_batches(place_for_job):
    program = Program()
    events = program.source("events", "k string, v bigint")
    stream = events.key_by("k").sum("v").uid("sums")
    stream = stream.key_by(lambda row: row.v % 2, key_type="bigint").count().uid("counts")
    stream.sink_to(ParquetFileSink(str(place_for_job / "out"))).uid("out")
    inputs = [{"events": [(f"k{i % 7}", i) for i in range(50)]} for _ in range(10)]
    run(program, place_for_job / "job", inputs)
    sums, counts, model = {}, {}, []
    for epoch in inputs:
        for key, value in epoch["events"]:
            sums[key] = sums.get(key, 0) + value
            parity = sums[key] % 2
            counts[parity] = counts.get(parity, 0) + 1
            model.append((key, sums[key]))
    found = ledger.read(place_for_job / "out")
    assert sorted(row[:2] for row in found) == sorted(model)
    for parity in (0, 1):
        numbers = sorted(row[2] for row in found if row[1] % 2 == parity)
        assert numbers == list(range(1, counts.get(parity, 0) + 1))


class Late(KeyedProcessFunction):
    """Emits a row again when its timer fires."""

    def open(self, runtime_context):
        self.kept = runtime_context.get_list_state(ListStateDescriptor("kept", "bigint"))

    def process_element(self, value, ctx):
        self.kept.add(value.v)
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1)
        yield value

    def on_timer(self, timestamp, ctx):
        yield from [(ctx.get_current_key(), value) for value in self.kept.get()]
        self.kept.clear()


def test_batches_come_in_the_asked_order_to_each_of_several_subtasks_also_from_timers(place_for_job):
    program = Program()
    events = program.source("events", "k string, v bigint")
    late = events.key_by("k").process(Late(), "k string, v bigint").uid("late")
    late.key_by("k", order_by="v").last("v").uid("last").sink_to(ParquetFileSink(str(place_for_job / "last"))).uid("a")
    events.key_by("k", order_by="v").count("n").uid("n").sink_to(ParquetFileSink(str(place_for_job / "n"))).uid("b")
    inputs = [{"events": [(f"k{i % 5}", (i * 37) % 100 + 100 * epoch) for i in range(40)]} for epoch in range(4)]
    run(program, place_for_job / "job", inputs, parallelism=3)

    of_key = [sorted(v for epoch in inputs for k, v in epoch["events"] if k == f"k{key}") for key in range(5)]
    # In the order of v within an epoch, and epochs of ascending v: the n-th row of a key has its n-th value.
    numbered = {(f"k{key}", value, n) for key, values in enumerate(of_key) for n, value in enumerate(values, start=1)}
    assert set(ledger.read(place_for_job / "n")) == numbered
    found = sorted(ledger.read(place_for_job / "last"))
    assert set(found) == {(k, v) for k, v, _ in numbered}
    assert len(found) > len(numbered)


@pytest.fixture
def place_for_job(tmp_path: Path):
    return tmp_path
