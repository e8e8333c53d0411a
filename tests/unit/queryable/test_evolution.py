"""Servers answer state that was written under older declarations as the program reads it."""

from decimal import Decimal

import pytest

from holdfast.errors import HoldfastError
from holdfast.queryable import OpaqueValue, at_least
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.testing.state_contract.state_evolution_contract import (
    ANOTHER,
    NEW_AVRO,
    NEW_ROW,
    NEW_VALUES,
    OLD_AVRO,
    OLD_ROW,
    OLD_VALUES,
    After,
    Before,
    PriceSerializer,
)
from holdfast.types.row import Row
from holdfast.types.types import Types
from tests.programs.written_job import WrittenJob


def states(row, dataclass, avro, number):
    found = [
        ValueStateDescriptor("value", row),
        ListStateDescriptor("list", row),
        MapStateDescriptor("map", "string", row),
        ValueStateDescriptor("account", dataclass),
        ListStateDescriptor("orders", avro),
        ValueStateDescriptor("mixed", Types.ROW_NAMED(["n", "p"], [number, Types.PICKLED_BYTE_ARRAY()])),
    ]
    for descriptor in found:
        descriptor.set_queryable(f"q-{descriptor.name}")
    return found


def write_old(s):
    s.value.update(OLD_VALUES[0])
    s.list.add_all(OLD_VALUES)
    s.map.put_all({"x": OLD_VALUES[0], "y": OLD_VALUES[1]})
    s.account.update(Before("ann", 5, ["t"]))
    s.orders.add({"id": 1, "price": 0.5})
    s.mixed.update(Row(n=1, p={"any": "thing"}))


def write_new(s):
    s.list.add(ANOTHER)
    s.map.put("y", ANOTHER)
    s.orders.add({"number": 2, "price": 0.1, "state": "paid"})


def test_old_and_new_rows_are_answered_in_the_new_form(tmp_path, bench):
    job = WrittenJob(tmp_path, states(OLD_ROW, Before, OLD_AVRO, Types.INT()), name="evolving")
    job.checkpoint([(key, write_old) for key in ("a", "b")])
    client = bench.client(bench.server(job))

    def get(name, key="a", **more):
        return client.get_kv_state("evolving", f"q-{name}", key, **more).value

    assert get("value") == OLD_VALUES[0]
    job._descriptors = states(NEW_ROW, After, NEW_AVRO, Types.DOUBLE())
    newest = at_least(job.checkpoint([("a", write_new)]))
    assert client.get_kv_state("evolving", "q-value", "a", consistency=newest).value == NEW_VALUES[0]
    assert get("list") == [*NEW_VALUES, ANOTHER]
    assert get("list", "b") == NEW_VALUES
    assert get("map") == {"x": NEW_VALUES[0], "y": ANOTHER}
    assert get("map", map_key="x") == NEW_VALUES[0]
    # A server knows no class of the program: it answers rows.
    assert get("account") == Row(tags=["t"], cents=5, owner="ann", currency="EUR", notes=["old"])
    assert get("orders") == [{"price": 0.5, "number": 1, "state": "open"}, {"price": 0.1, "number": 2, "state": "paid"}]
    number, opaque = get("mixed")
    assert number == 1.0 and isinstance(opaque, bytes)
    assert client.get_many("evolving", "q-value", ["b", "nobody"]).values == [NEW_VALUES[0], None]


def test_bytes_that_only_the_program_can_rewrite_are_not_answered_wrongly(tmp_path, bench):
    def prices(version):
        price = ValueStateDescriptor("price", PriceSerializer(version))
        price.set_queryable("q-price")
        return [price]

    job = WrittenJob(tmp_path, prices(1), name="prices")
    job.checkpoint([("a", lambda s: s.price.update(Decimal(1)))])
    client = bench.client(bench.server(job))
    assert client.get_kv_state("prices", "q-price", "a").value == OpaqueValue(b"1")
    job._descriptors = prices(2)
    newest = at_least(job.checkpoint([("b", lambda s: s.price.update(Decimal(2)))]))
    with pytest.raises(HoldfastError, match="only the program can turn"):
        client.get_kv_state("prices", "q-price", "a", consistency=newest)


def test_a_subtask_that_never_had_older_values_does_not_hide_those_of_others(tmp_path, bench):
    def count(kind):
        descriptor = ValueStateDescriptor("n", kind)
        descriptor.set_queryable("q-n")
        return [descriptor]

    keys = [f"k{i}" for i in range(8)]
    job = WrittenJob(tmp_path, count("int"), name="widened")
    of_first = [key for key in keys if int(job._codec.hashes([job._codec.dict_key(key)])[0]) >> 63 == 0]
    job.checkpoint([(key, lambda s: s.n.update(1)) for key in of_first])
    job._descriptors = count("bigint")
    others = [key for key in keys if key not in of_first]
    assert of_first and others
    newest = at_least(job.checkpoint([(key, lambda s: s.n.update(2)) for key in others]))
    client = bench.client(bench.server(job))
    found = client.get_many("widened", "q-n", keys, consistency=newest).values
    assert found == [1 if key in of_first else 2 for key in keys]
