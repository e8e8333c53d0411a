"""`Types.SQL_TIMESTAMP` shows a program times without a zone, as PyFlink does, and leaves what is stored as it was."""

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import OutputTypeError
from holdfast.testing import OperatorHarness
from holdfast.types.arrow import batch_to_elements, elements_to_batch
from holdfast.types.key_codec import key_codec_for
from holdfast.types.serializer import snapshot_from_json
from holdfast.types.types import Types

AWARE = datetime(2024, 2, 29, 12, 30, 0, 7, UTC)
NAIVE = AWARE.replace(tzinfo=None)
TOKYO = AWARE.astimezone(timezone(timedelta(hours=9)))
SQL, INSTANT = Types.SQL_TIMESTAMP(), Types.INSTANT()


@pytest.mark.parametrize("given", [NAIVE, AWARE, TOKYO, NAIVE.replace(fold=1)])
def test_a_value_has_no_time_zone_whatever_was_given(given):
    adopted = SQL.adopt(given)
    assert (adopted, adopted.tzinfo, adopted.fold) == (NAIVE, None, 0)
    assert SQL.to_list(SQL.to_array([given, None])) == [NAIVE, None]
    assert SQL.to_array([given]).equals(INSTANT.to_array([given])), "the column is the same"
    serializer = SQL.create_serializer()
    assert serializer.deserialize(serializer.serialize(given)) == NAIVE
    assert serializer.serialize(NAIVE) is not None


def test_times_before_1970_and_at_the_ends_come_back():
    values = [
        datetime(1, 1, 1),
        datetime(1969, 12, 31, 23, 59, 59, 999_999),
        datetime(9999, 12, 31, 23, 59, 59, 999_999),
    ]
    assert SQL.to_list(SQL.to_array(values)) == values
    assert SQL.to_list(SQL.to_array(values).slice(1, 1)) == values[1:2]


def test_it_is_a_timestamp_to_spark_and_to_files():
    assert (SQL.ddl, SQL.to_json(), SQL.arrow_type) == ("timestamp", "timestamp", pa.timestamp("us", tz="UTC"))
    assert pickle.loads(pickle.dumps(SQL)).to_list(SQL.to_array([AWARE])) == [NAIVE]


def test_who_knows_only_what_was_stored_reads_the_instant():
    """As a query does, or Flink's way by the serializer of before: there is one column for both types."""
    before = snapshot_from_json(SQL.create_serializer().snapshot().to_json())
    read = before.restore_serializer().deserialize(SQL.create_serializer().serialize(NAIVE))
    assert read == AWARE and SQL.adopt(read) == NAIVE
    assert SQL.create_serializer().snapshot().resolve_schema_compatibility(before).is_compatible_as_is()


@pytest.mark.parametrize("wrong", ["2024-02-29", 5, AWARE.date()])
def test_what_is_no_time_is_refused(wrong):
    with pytest.raises(OutputTypeError, match="a datetime is needed"):
        SQL.adopt(wrong)


def test_elements_nested_in_each_other_have_none_either():
    nested = Types.ROW_NAMED(["at", "all"], [SQL, Types.LIST(Types.TUPLE([SQL, Types.LONG()]))])
    batch = elements_to_batch([(AWARE, [(TOKYO, 1), (None, 2)])], nested)
    assert [tuple(row) for row in batch_to_elements(batch, nested)] == [(NAIVE, [(NAIVE, 1), (None, 2)])]


def test_keys_have_none_and_stay_where_they_were():
    before, now = key_codec_for(INSTANT), key_codec_for(SQL)
    assert now.to_json() == before.to_json()
    assert now.dict_key(NAIVE) == now.dict_key(AWARE) == before.dict_key(AWARE)
    assert now.hash(now.dict_key(NAIVE)) == before.hash(before.dict_key(AWARE))
    assert now.user_key(now.dict_key(TOKYO)) == NAIVE
    pair = key_codec_for(Types.TUPLE([SQL, Types.STRING()]))
    assert pair.user_key(pair.dict_key((AWARE, "a"))) == (NAIVE, "a")


class Remembers(KeyedProcessFunction):
    """Says what it has of the time before, in each kind of state, and then keeps the time of its key."""

    def __init__(self, kind, *added):
        self.kind, self.added = kind, added

    def open(self, runtime_context):
        names = ["at", *(f"f{n}" for n in range(len(self.added)))]
        row = Types.ROW_NAMED(names, [self.kind, *self.added])
        self.value = runtime_context.get_state(ValueStateDescriptor("value", self.kind))
        self.row = runtime_context.get_state(ValueStateDescriptor("row", row))
        self.times = runtime_context.get_list_state(ListStateDescriptor("times", self.kind))
        self.by_time = runtime_context.get_map_state(MapStateDescriptor("by_time", self.kind, self.kind))

    def process_element(self, element, ctx):
        row = self.row.value()
        yield (
            ctx.get_current_key(),
            self.value.value(),
            row and row.at,
            list(self.times.get()),
            dict(self.by_time.items()),
        )
        self.value.update(AWARE)
        self.row.update((AWARE, *([None] * len(self.added))))
        self.times.add(AWARE)
        self.by_time.put(AWARE, TOKYO)


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
@pytest.mark.parametrize("added", [(), (Types.LONG(),)], ids=["as it was", "with a new field"])
@pytest.mark.parametrize(("old", "new", "expected"), [(INSTANT, SQL, NAIVE), (SQL, INSTANT, AWARE), (SQL, SQL, NAIVE)])
def test_state_that_was_written_is_read_by_either_type(backend, added, old, new, expected):
    with OperatorHarness(Remembers(old), key_by=lambda e: AWARE, key_type=old, backend=backend) as harness:
        harness.process_element(1)
        taken = harness.snapshot(1)
    again = Remembers(new, *added)
    with OperatorHarness.restore([taken], again, key_by=lambda e: AWARE, key_type=new, backend=backend) as harness:
        harness.process_element(2)
        [said] = harness.output
        assert said == (expected, expected, expected, [expected], {expected: expected})
        harness.process_element(3)
        assert harness.output[-1] == (expected, expected, expected, [expected] * 2, {expected: expected})
