"""What a merge leaves: no tombstones at the bottom, nothing that has expired, and what nobody asks for any more."""

import pytest

from holdfast.errors import StateMigrationError
from holdfast.state import HashMapStateBackend
from holdfast.state import compaction as rows_module
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.state.version import STATE_CACHE
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from tests.contract.compacting import compact_layers

COUNT = ValueStateDescriptor("count", "bigint")
LIST = ListStateDescriptor("list", "bigint")
MAP = MapStateDescriptor("map", "string", "bigint")


@pytest.fixture
def epochs(tmp_path):
    STATE_CACHE.clear()
    yield StateEpochs(HashMapStateBackend(), str(tmp_path))
    STATE_CACHE.clear()


def expiring(kind, *types, ttl=100, background=True):
    descriptor = kind(kind.__name__, *types)
    builder = StateTtlConfig.new_builder(ttl)
    if not background:
        builder = builder.disable_cleanup_in_background()
    descriptor.enable_time_to_live(builder.build())
    return descriptor


def test_tombstones_go_with_the_oldest_run_and_not_before(epochs):
    with epochs.epoch() as task:
        for key in "abc":
            task.state(key, COUNT).update(1)
            task.state(key, LIST).add(1)
            task.state(key, MAP).put_all({"x": 1, "y": 2})
    for _ in range(2):
        with epochs.epoch() as task:
            task.state("z", COUNT).update(1)
    with epochs.epoch() as task:
        for key in "ab":
            task.state(key, COUNT).clear()
            task.state(key, LIST).clear()
        task.state("a", MAP).clear()
        task.state("b", MAP).remove("x")
    compact_layers(epochs, 1, 4)
    assert epochs.version.runs[1].rows == {"count": 3, "list": 2, "map": 2}
    compact_layers(epochs, 0, 2)
    [run] = epochs.version.runs
    assert run.rows == {"count": 2, "list": 1, "map": 3}


def test_what_is_empty_leaves_an_empty_run(epochs):
    with epochs.epoch() as task:
        task.state("a", COUNT).update(1)
    with epochs.epoch() as task:
        task.state("a", COUNT).clear()
    compact_layers(epochs, 0, 2)
    [run] = epochs.version.runs
    assert run.rows == {}
    assert epochs.values(["a"], COUNT) == [None]


def test_a_time_to_live_longer_than_anybody_lives_drops_nothing(epochs):
    value = expiring(ValueStateDescriptor, "bigint", ttl=2**64)
    for key in "ab":
        with epochs.epoch() as task:
            task.state(key, value).update(1)
    epochs.processing_time = 1_700_000_000_000
    compact_layers(epochs, 0, 2, now=epochs.processing_time)
    assert epochs.values(["a", "b"], value) == [1, 1]


def test_what_has_expired_is_dropped_with_the_oldest_run(epochs):
    value = expiring(ValueStateDescriptor, "bigint")
    several = expiring(ListStateDescriptor, "bigint")
    entries = expiring(MapStateDescriptor, "string", "bigint")
    kept = ValueStateDescriptor("kept", "bigint")
    kept.enable_time_to_live(StateTtlConfig.new_builder(100).disable_cleanup_in_background().build())
    for now in (0, 60):
        epochs.processing_time = now
        with epochs.epoch() as task:
            for key in ["a", "b"] if now == 0 else ["b"]:
                task.state(key, value).update(now)
                task.state(key, kept).update(now)
                task.state(key, several).add(now)
                task.state(key, entries).put(f"at {now}", now)
    compact_layers(epochs, 0, 2, now=120)
    [run] = epochs.version.runs
    assert run.rows == {"ValueStateDescriptor": 1, "ListStateDescriptor": 1, "MapStateDescriptor": 1, "kept": 2}
    STATE_CACHE.clear()
    epochs.processing_time = 120
    with epochs.epoch() as task:
        assert [task.state(key, value).value() for key in "ab"] == [None, 60]
        assert list(task.state("b", several).get()) == [60]
        assert dict(task.state("b", entries).items()) == {"at 60": 60}


@pytest.mark.parametrize(
    ("strategy", "left"),
    [
        ("cleanup_full_snapshot", 1),
        ("cleanup_in_rocksdb_compact_filter", 1),
        ("use_processing_time", 2),
    ],
)
def test_a_strategy_that_is_named_acts_although_the_background_is_off(epochs, strategy, left):
    value = ValueStateDescriptor("v", "bigint")
    builder = StateTtlConfig.new_builder(100).disable_cleanup_in_background()
    value.enable_time_to_live(getattr(builder, strategy)().build())
    for now, key in ((0, "a"), (60, "b")):
        epochs.processing_time = now
        with epochs.epoch() as task:
            task.state(key, value).update(now)
    compact_layers(epochs, 0, 2, now=120)
    [run] = epochs.version.runs
    assert run.rows == {"v": left}


def test_state_without_a_time_to_live_gets_one_and_is_dropped_when_it_has_passed(epochs):
    value = ValueStateDescriptor("v", "int")
    with epochs.epoch() as task:
        for key in "abc":
            task.state(key, value).update(1)
    epochs.processing_time = 1_000
    value = ValueStateDescriptor("v", "bigint")
    value.enable_time_to_live(StateTtlConfig.new_builder(100).build())
    with epochs.epoch() as task:
        task.state("a", value).update(2)
    epochs.processing_time = 1_050
    with epochs.epoch() as task:
        task.state("b", value).update(3)
    compact_layers(epochs, 0, 3, now=1_099)
    assert [run.rows for run in epochs.version.runs] == [{"v": 3}]
    epochs.processing_time = 1_099
    with epochs.epoch() as task:
        task.state("b", value).update(4)
    compact_layers(epochs, 0, 2, now=1_100)
    assert [run.rows for run in epochs.version.runs] == [{"v": 1}]


def test_state_that_nobody_asks_for_is_carried(epochs):
    with epochs.epoch() as task:
        task.state("a", COUNT).update(7)
    for number in range(3):
        with epochs.epoch() as task:
            task.state("b", LIST).add(number)
    compact_layers(epochs, 0, 4)
    assert len(epochs.version.runs) == 1
    STATE_CACHE.clear()
    assert epochs.values(["a"], COUNT) == [7]


def test_a_merge_in_many_parts_is_the_same(epochs, monkeypatch):
    monkeypatch.setattr(rows_module, "_ROWS_AT_ONCE", 7)
    keys = [f"key-{number}" for number in range(300)]
    for epoch in range(4):
        with epochs.epoch() as task:
            for number, key in enumerate(keys):
                if number % (epoch + 1) == 0:
                    task.state(key, COUNT).update(epoch)
                    task.state(key, LIST).add(epoch)
                    task.state(key, MAP).put(str(epoch), epoch)
    compact_layers(epochs, 0, 4)
    STATE_CACHE.clear()
    with epochs.task() as task:
        for number, key in enumerate(keys):
            wrote = [epoch for epoch in range(4) if number % (epoch + 1) == 0]
            assert task.state(key, COUNT).value() == wrote[-1]
            assert list(task.state(key, LIST).get()) == wrote
            assert dict(task.state(key, MAP).items()) == {str(epoch): epoch for epoch in wrote}


@pytest.mark.parametrize(
    "key_type", ["double", "float", "decimal(10,2)", "date", "timestamp_ntz", "boolean", "binary", None]
)
def test_keys_of_every_type_are_told_apart(tmp_path, key_type):
    import datetime
    import decimal

    samples = {
        "double": [0.0, 1.5, float("nan"), float("-inf")],
        "float": [0.5, float("nan")],
        "decimal(10,2)": [decimal.Decimal("1.10"), decimal.Decimal("-2.00")],
        "date": [datetime.date(2020, 1, 1), datetime.date(1960, 1, 1)],
        "timestamp_ntz": [datetime.datetime(2020, 1, 1, 1), datetime.datetime(1950, 1, 1)],
        "boolean": [True, False],
        "binary": [b"", b"\0\xff"],
        None: [None.__class__.__name__, 1, (1, "x"), 2.5],
    }
    keys = samples[key_type]
    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path), key_type=key_type)
    entries = MapStateDescriptor("entries", key_type, "bigint") if key_type else MAP
    for epoch in range(3):
        with epochs.epoch() as task:
            for key in keys[: 1 + epoch] + keys[-1:]:
                task.state(key, COUNT).update(epoch)
                if key_type:
                    task.state(key, entries).put(key, epoch)
    compact_layers(epochs, 0, 3)
    assert epochs.version.runs[0].rows["count"] == len({*map(repr, keys[:3] + keys[-1:])})
    STATE_CACHE.clear()
    with epochs.task() as task:
        for key in keys[:1]:
            assert task.state(key, COUNT).value() == 2
            if key_type:
                assert [value for _, value in task.state(key, entries).items()] == [2]


def test_runs_of_different_types_are_not_merged(epochs):
    with epochs.epoch() as task:
        task.state("a", COUNT).update(7)
    STATE_CACHE.clear()
    first, epochs.version = epochs.version, type(epochs.version)()
    with epochs.epoch() as task:
        task.state("a", ValueStateDescriptor("count", "string")).update("x")
    epochs.version = first.plus(epochs.version.runs)
    with pytest.raises(StateMigrationError, match="bigint cannot become string"):
        compact_layers(epochs, 0, 2)
