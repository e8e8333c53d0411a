"""Every kind of state answers what was written, over the network, as a plain model says."""

import datetime
import math
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable import OpaqueValue, at_least, exactly
from holdfast.queryable.wire.errors import (
    BadRequestError,
    ReadOnlyStateError,
    UnknownKeyOrNamespaceError,
    WrongKeyTypeError,
    WrongStateKindError,
)
from holdfast.state.descriptor import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.types.types import Types
from tests.examples import examples
from tests.programs.written_job import WrittenJob


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return (a[0] + b[0], a[1] + b[1])


def queryable(*descriptors):
    for descriptor in descriptors:
        descriptor.set_queryable(f"q-{descriptor.name}")
    return descriptors


def all_kinds():
    return queryable(
        ValueStateDescriptor("value", "struct<n: bigint, s: string>"),
        ListStateDescriptor("list", "bigint"),
        MapStateDescriptor("map", "string", "double"),
        ReducingStateDescriptor("sum", lambda a, b: a + b, "bigint"),
        AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()])),
        FoldingStateDescriptor("text", "", lambda a, b: a + b, "string"),
        ValueStateDescriptor("pickled"),
    )


def write(n):
    def of(states):
        states.value.update((n, f"x{n}"))
        states.list.add(n)
        states.map.put(f"m{n % 3}", n / 2)
        states.sum.add(n)
        states.mean.add(n)
        states.text.add(str(n))
        states.pickled.update({n})

    return of


@pytest.fixture
def asked(tmp_path, bench):
    job = WrittenJob(tmp_path, all_kinds(), name="kinds")
    for epoch in range(9):
        job.checkpoint([(f"k{i}", write(10 * epoch + i)) for i in range(4)])
    return bench.client(bench.server(job))


def test_every_kind_answers_with_its_value(asked):
    def get(name, **more):
        return asked.get_kv_state("kinds", f"q-{name}", "k1", **more).value

    numbers = [10 * epoch + 1 for epoch in range(9)]
    assert get("value") == (81, "x81")
    assert get("value").s == "x81"
    assert get("list") == numbers
    assert get("map") == {"m0": 81 / 2, "m1": 61 / 2, "m2": 71 / 2}
    assert get("map", map_key="m1") == 61 / 2
    assert get("sum") == sum(numbers)
    assert get("mean") == (sum(numbers), 9)
    assert get("mean", descriptor=AggregatingStateDescriptor("mean", Mean())) == sum(numbers) / 9
    assert get("text") == "".join(map(str, numbers))


def test_a_value_without_a_type_stays_bytes(asked):
    found = asked.get_kv_state("kinds", "q-pickled", "k1").value
    assert isinstance(found, OpaqueValue)
    assert "without a declared type" in repr(found)


def test_an_answer_says_where_it_is_from(asked):
    found = asked.get_kv_state("kinds", "q-sum", "k1")
    [job] = asked.jobs()
    assert found.checkpoint_id == found.origin.epoch == 9
    assert (found.completed_at, found.lineage) == (1_000_009, job["lineage"])
    assert job["states"] == sorted(["q-value", "q-list", "q-map", "q-sum", "q-mean", "q-text", "q-pickled"])


def test_several_keys_come_in_the_order_in_which_they_were_asked_for(asked):
    keys = ["k2", "nobody", "k0", "k2"]
    assert asked.get_many("kinds", "q-value", keys).values == [(82, "x82"), None, (80, "x80"), (82, "x82")]
    assert [v and v[-1] for v in asked.get_many("kinds", "q-list", keys)] == [82, None, 80, 82]
    assert [v and v["m0"] for v in asked.get_many("kinds", "q-map", keys)] == [72 / 2, None, 60 / 2, 72 / 2]
    entries = asked.get_many("kinds", "q-map", keys, map_keys=["m0", "m0", "none", "m1"])
    assert entries.values == [72 / 2, None, None, 82 / 2]
    assert asked.get_many("kinds", "q-sum", keys).as_dict().keys() == {"k0", "k2"}


def test_state_objects_refuse_changes(asked):
    found = asked.get_kv_state("kinds", "q-map", "k1").state
    assert found.get("m0") == 81 / 2
    assert found.contains("m2") and not found.contains("x") and not found.is_empty()
    assert dict(found.items()) == dict(zip(found.keys(), found.values(), strict=True))
    value, many = asked.get_kv_state("kinds", "q-value", "k1").state, asked.get_kv_state("kinds", "q-list", "k1").state
    assert value.value() == (81, "x81")
    assert list(many.get())[:2] == [1, 11]
    total = asked.get_kv_state("kinds", "q-sum", "k1").state
    for change in (
        lambda: found.put("a", 1.0),
        lambda: found.remove("m0"),
        lambda: next(found.iterator()).set_value(1.0),
        found.clear,
        lambda: value.update(None),
        lambda: many.add(1),
        lambda: many.update([]),
        lambda: total.add(1),
        total.clear,
    ):
        with pytest.raises(ReadOnlyStateError, match=r"State is read-only\. No modifications allowed"):
            change()


def test_a_key_without_state_is_an_error_and_never_a_default(asked):
    for name in ("value", "list", "map", "sum", "mean", "text", "pickled"):
        with pytest.raises(UnknownKeyOrNamespaceError, match="No state for the specified key/namespace"):
            asked.get_kv_state("kinds", f"q-{name}", "nobody")
    with pytest.raises(UnknownKeyOrNamespaceError, match="map key 'none'"):
        asked.get_kv_state("kinds", "q-map", "k1", map_key="none")


def test_what_does_not_fit_the_state_is_refused_before_it_is_sent(asked):
    for wrong in (5, b"k1", None, ("k1",), 1.5, "\ud800"):
        with pytest.raises(WrongKeyTypeError, match="Nothing was sent"):
            asked.get_kv_state("kinds", "q-value", wrong)
    with pytest.raises(WrongKeyTypeError, match="keys of type string, not bigint"):
        asked.get_kv_state("kinds", "q-value", "k1", key_type=Types.LONG())
    with pytest.raises(WrongKeyTypeError):
        asked.get_kv_state("kinds", "q-map", "k1", map_key=7)
    with pytest.raises(WrongStateKindError, match="is list state"):
        asked.get_kv_state("kinds", "q-list", "k1", map_key="m1")
    with pytest.raises(WrongStateKindError, match="is list state, not value state"):
        asked.get_kv_state("kinds", "q-list", "k1", descriptor=ValueStateDescriptor("list"))
    with pytest.raises(BadRequestError, match="has no namespaces"):
        asked.get_kv_state("kinds", "q-list", "k1", namespace=b"window")


def test_a_scan_returns_all_rows_of_one_checkpoint(asked):
    rows = asked.scan("kinds", "q-sum").to_table().to_pylist()
    assert sorted(row["key"] for row in rows) == ["k0", "k1", "k2", "k3"]
    maps = asked.scan("kinds", "q-map").to_table().to_pylist()
    assert len(maps) == 12 and maps[0].keys() == {"key", "map_key", "value"}
    with asked.scan("kinds", "q-list") as scan:
        assert scan.origin.checkpoint_id == 9
        assert all(len(value) == 9 for batch in scan for value in batch["value"].to_pylist())


def test_a_scan_filters_on_typed_columns(asked):
    def scan(name, *where):
        return asked.scan("kinds", f"q-{name}", where=where).to_table().to_pylist()

    assert [row["key"] for row in scan("value", ("value.n", ">=", 83))] == ["k3"]
    assert {row["key"] for row in scan("value", ("value.n", ">", 80), ("value.s", "!=", "x82"))} == {"k1", "k3"}
    assert [row["value"] for row in scan("sum", ("key", "==", "k0"))] == [sum(range(0, 90, 10))]
    assert {row["key"] for row in scan("map", ("map_key", "==", "m0"), ("value", "<", 40.0))} == {"k0", "k2", "k3"}
    for wrong in (("value.z", ">", 1), ("nothing", ">", 1), ("value", "like", "x"), ("value.n", ">", "text")):
        with pytest.raises(BadRequestError):
            scan("value", wrong)


def test_a_scan_of_ranges_covers_each_key_once(asked):
    found = []
    for start, end in ((0, 0), (1, 40), (41, 41), (42, 126), (127, 127)):
        found += asked.scan("kinds", "q-sum", key_groups=KeyGroupRange(start, end)).to_table()["key"].to_pylist()
    assert sorted(found) == ["k0", "k1", "k2", "k3"]
    with pytest.raises(BadRequestError, match="128 key groups"):
        asked.scan("kinds", "q-sum", key_groups=KeyGroupRange(0, 128))


def test_state_with_namespaces_is_read_in_one(tmp_path, bench):
    descriptors = queryable(ValueStateDescriptor("value", "bigint"), MapStateDescriptor("map", "string", "bigint"))
    serializer = Types.STRING().create_serializer()
    job = WrittenJob(tmp_path, descriptors, name="spaced", namespace=("morning", serializer))

    def of(n):
        def write(states):
            for name, factor in (("morning", 1), ("evening", 2)):
                states.value.set_current_namespace(name)
                states.map.set_current_namespace(name)
                states.value.update(n * factor)
                states.map.put("a", n * factor)

        return write

    for epoch in range(3):
        job.checkpoint([(f"k{i}", of(i + epoch)) for i in range(5)])
    client = bench.client(bench.server(job))

    def get(name, **more):
        found = client.get_kv_state("spaced", name, "k3", namespace_serializer=serializer, **more)
        return found.value

    assert get("q-value", namespace="morning") == 5
    assert get("q-value", namespace="evening") == 10
    assert get("q-map", namespace="evening") == {"a": 10}
    assert get("q-map", namespace="evening", map_key="a") == 10
    many = client.get_many("spaced", "q-value", ["k1", "k4"], namespace=serializer.serialize("evening"))
    assert many.values == [6, 12]
    with pytest.raises(UnknownKeyOrNamespaceError):
        get("q-value", namespace="noon")
    with pytest.raises(BadRequestError, match="has namespaces: pass one"):
        get("q-value")
    assert len(client.scan("spaced", "q-value").to_table()) == 10


KEYS = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "double": st.floats(),
    "boolean": st.booleans(),
    "binary": st.binary(max_size=5),
    "date": st.dates(),
    "decimal(10,2)": st.decimals(-9999, 9999, places=2),
    "char(3)": st.text("abc", min_size=1, max_size=3),
    "timestamp": st.datetimes(
        datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC)
    ),
    "struct<a: string, b: bigint>": st.tuples(
        st.one_of(st.none(), st.text("ab", max_size=2)), st.one_of(st.none(), st.integers(0, 3))
    ),
    None: st.one_of(st.integers(), st.text("ab"), st.tuples(st.booleans(), st.text("ab")), st.dates()),
}


@pytest.mark.parametrize("kind", KEYS, ids=str)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_type_of_key_finds_its_state(tmp_path_factory, bench, kind, data):
    keys = data.draw(st.lists(KEYS[kind], min_size=1, max_size=12))
    value = ValueStateDescriptor("n", "bigint")
    entries = MapStateDescriptor("m", kind, "bigint")
    job = WrittenJob(tmp_path_factory.mktemp("keys"), queryable(value, entries), kind)
    codec = job._codec
    model = {}
    for number, key in enumerate(keys):
        model[codec.dict_key(key)] = number

        def of(states, number=number, key=key):
            states.n.update(number)
            states.m.put(key, number)

        job.epoch_of([(key, of)])
    job.complete()
    client = bench.client(bench.server(job))

    assert client.get_many("job", "q-n", keys).values == [model[codec.dict_key(key)] for key in keys]
    for key in keys[:3]:
        expected = model[codec.dict_key(key)]
        assert client.get_kv_state("job", "q-n", key).value == expected
        assert client.get_kv_state("job", "q-m", key, map_key=key).value == expected
    assert len(client.scan("job", "q-n").to_table()) == len(model)


def test_retained_checkpoints_are_read_one_by_one(asked, tmp_path):
    for number in (7, 8, 9):
        found = asked.get_many("kinds", "q-sum", ["k0", "k3"], consistency=exactly(number))
        assert found.checkpoint_id == number
        assert found.values == [sum(10 * e + i for e in range(number)) for i in (0, 3)]
        assert asked.scan("kinds", "q-list", consistency=exactly(number)).origin.checkpoint_id == number
    assert asked.get_kv_state("kinds", "q-sum", "k0", consistency=at_least(2)).checkpoint_id == 9


def test_decimals_come_back_as_they_were(tmp_path, bench):
    job = WrittenJob(tmp_path, queryable(ValueStateDescriptor("d", "decimal(20,3)")))
    job.checkpoint([("k", lambda states: states.d.update(Decimal("12.345")))])
    assert bench.client(bench.server(job)).get_kv_state("job", "q-d", "k").value == Decimal("12.345")


def test_a_row_of_many_columns_is_described_and_read(tmp_path, bench):
    """Its description alone is longer than a request may be."""
    names = [f"measurement_{number:04}_of_the_sensor" for number in range(1000)]
    [state] = queryable(ValueStateDescriptor("wide", Types.ROW_NAMED(names, [Types.LONG()] * 1000)))
    job = WrittenJob(tmp_path, [state], name="wide")
    job.checkpoint([("k", lambda states: states.wide.update(tuple(range(1000))))])
    client = bench.client(bench.server(job))
    assert tuple(client.get_kv_state("wide", "q-wide", "k").value) == tuple(range(1000))
    [row] = client.scan("wide", "q-wide", where=[("value." + names[7], "==", 7)]).to_table().to_pylist()
    assert row["value"] == {name: number for number, name in enumerate(names)}


def test_a_deadline_is_a_number_of_seconds(asked):
    for long in (math.inf, 1e300, 10**30):
        assert asked.get_kv_state("kinds", "q-sum", "k0", deadline=long).checkpoint_id == 9
        assert asked.scan("kinds", "q-sum", deadline=long).to_table().num_rows == 4
    for wrong in (math.nan, -1, "5", None, True):
        for ask in (
            lambda wrong=wrong: asked.get_kv_state("kinds", "q-sum", "k0", deadline=wrong),
            lambda wrong=wrong: asked.get_many("kinds", "q-sum", ["k0"], deadline=wrong),
            lambda wrong=wrong: asked.scan("kinds", "q-sum", deadline=wrong),
            lambda wrong=wrong: asked.hold("kinds", "q-sum", 5, deadline=wrong),
        ):
            with pytest.raises(BadRequestError, match="A deadline is a number of seconds"):
                ask()


def test_conditions_compare_with_dates_and_decimals_and_refuse_what_cannot_be_sent(tmp_path, bench):
    [state] = queryable(ValueStateDescriptor("sale", "struct<day: date, price: decimal(8,2)>"))
    job = WrittenJob(tmp_path, [state], name="sales")

    def write(day):
        return lambda states: states.sale.update((datetime.date(2013, 1, day), Decimal(day)))

    job.checkpoint([(f"k{day}", write(day)) for day in range(1, 10)])
    client = bench.client(bench.server(job))

    def keys(*where):
        return sorted(client.scan("sales", "q-sale", where=where).to_table()["key"].to_pylist())

    assert keys(("value.day", ">", datetime.date(2013, 1, 7))) == ["k8", "k9"]
    assert keys(("value.price", "<=", Decimal("2.00")), ("key", "!=", "k1")) == ["k2"]
    for wrong in (math.nan, 2**65, {"a": object()}, object(), b"bytes"):
        with pytest.raises(BadRequestError):
            keys(("value.price", ">", wrong))
    assert client.get_kv_state("sales", "q-sale", "k1").value.price == 1


@pytest.mark.parametrize("kind", ["bigint", None], ids=["declared", "pickled"])
def test_an_entry_of_a_map_with_the_value_none_is_there_and_another_one_is_not(tmp_path, bench, kind):
    import asyncio

    from holdfast.queryable import AsyncQueryableStateClient

    job = WrittenJob(tmp_path, queryable(MapStateDescriptor("m", "string", kind)), name="gaps")

    def write(states):
        for name, value in (("one", 1), ("none", None), ("gone", 3)):
            states.m.put(name, value)

    job.checkpoint([("a", write), ("b", lambda states: states.m.put("one", None))])
    job.checkpoint([("a", lambda states: states.m.remove("gone"))])
    server = bench.server(job)
    client = bench.client(server)
    found = client.get_kv_state("gaps", "q-m", "a", map_key="none")
    assert found.value is None and found.state.value() is None
    for key, entry in (("a", "gone"), ("a", "never"), ("b", "none"), ("nobody", "none")):
        with pytest.raises(UnknownKeyOrNamespaceError, match=f"map key '{entry}'"):
            client.get_kv_state("gaps", "q-m", key, map_key=entry)
    keys, entries = ["b", "a", "a", "nobody", "a"], ["one", "none", "never", "none", "one"]
    many = client.get_many("gaps", "q-m", keys, map_keys=entries)
    assert many.values[:4] == [None] * 4 and many.values[4] is not None
    assert many.there == [True, True, False, False, True]
    assert client.get_many("gaps", "q-m", ["a", "b"]).values[1] == {"one": None}
    assert client.get_many("gaps", "q-m", ["b", "nobody"], map_keys=["one", "one"]).as_dict() == {"b": None}

    async def ask():
        async with AsyncQueryableStateClient(*server.get_server_address()) as asking:
            return (await asking.get_kv_state("gaps", "q-m", "a", map_key="none")).value

    assert asyncio.run(ask()) is None


def test_a_result_that_is_none_is_a_result(tmp_path, bench):
    """That of the function of aggregating state; there is an accumulator."""

    class Largest(Mean):
        def get_result(self, accumulator):
            return None if accumulator[0] < 10 else accumulator[0]

    descriptor = AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))
    job = WrittenJob(tmp_path, queryable(descriptor), name="means")
    job.checkpoint([("a", lambda states: states.mean.add(5)), ("b", lambda states: states.mean.add(50))])
    client = bench.client(bench.server(job))
    asked = AggregatingStateDescriptor("mean", Largest())
    assert [client.get_kv_state("means", "q-mean", key, descriptor=asked).value for key in "ab"] == [None, 50]
    assert client.get_many("means", "q-mean", list("abc"), descriptor=asked).as_dict() == {"a": None, "b": 50}
    with pytest.raises(UnknownKeyOrNamespaceError):
        client.get_kv_state("means", "q-mean", "c", descriptor=asked)


def test_each_key_has_a_map_key_or_none_has(asked):
    for entries in (["m0"], ["m0", "m1", "m2"], []):
        with pytest.raises(BadRequestError, match=r"2 keys.*map keys"):
            asked.get_many("kinds", "q-map", ["k0", "k1"], map_keys=entries)
