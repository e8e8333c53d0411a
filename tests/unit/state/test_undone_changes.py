"""What comes and goes between two checkpoints needs no memory and no row, however far apart they are."""

import numpy as np
import pyarrow as pa
import pytest

from holdfast.common import Time
from holdfast.state import ColumnarStateBackend, HashMapStateBackend
from holdfast.state import timers as timer_queues
from holdfast.state.descriptor import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.state.hashmap import backend as keyed_backend
from holdfast.testing.state_contract.state_access_contract import StateEpochs, WindowSerializer

COUNT = ValueStateDescriptor("count", "bigint")
LIST = ListStateDescriptor("list", "string")
MAP = MapStateDescriptor("map", "bigint", "string")
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, "bigint")
WINDOWS = WindowSerializer()


@pytest.fixture(params=[HashMapStateBackend, ColumnarStateBackend], ids=["hashmap", "columnar"])
def epochs(request, tmp_path, monkeypatch):
    monkeypatch.setattr(keyed_backend, "_ELEMENTS_BETWEEN_CHECKS", 1000)
    return StateEpochs(request.param(), str(tmp_path))


def expiring(descriptor):
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
    return descriptor


def write(task, key, number, *, lists=True):
    task.state(key, COUNT).update(number)
    task.state(key, MAP).put(number, key)
    task.state(key, SUM).add(number)
    if lists:
        task.state(key, LIST).add(key)


def clear(task, key, *, lists=True):
    for descriptor in (COUNT, MAP, SUM, LIST) if lists else (COUNT, MAP, SUM):
        task.state(key, descriptor).clear()


def test_keys_that_come_and_go_leave_nothing(epochs):
    # With columnar nothing tells which lists are in runs, so each may be.
    lists = isinstance(epochs.backend, HashMapStateBackend)
    with epochs.epoch() as task:
        write(task, "stays", 1, lists=lists)
        write(task, "goes", 2, lists=lists)
    task = epochs.open()
    clear(task, "goes", lists=lists)
    write(task, "new", 3, lists=lists)
    for number in range(20_000):
        write(task, f"session-{number}", number, lists=lists)
        clear(task, f"session-{number}", lists=lists)
        if number % 100 == 0:
            task.backend.release()
            assert len(task.backend._loaded) < 3000
    run = epochs.succeed(task)
    assert sum(run.rows.values()) < 10, "of the sessions nothing is written"
    epochs.complete()
    with epochs.epoch() as task:
        for key, number in (("stays", 1), ("goes", None), ("new", 3), ("session-7", None)):
            assert task.state(key, COUNT).value() == number
            assert task.state(key, SUM).get() == number
            assert list(task.state(key, LIST).get()) == ([] if number is None or not lists else [key])
            assert dict(task.state(key, MAP).items()) == ({} if number is None else {number: key})


def test_keys_that_are_only_read_leave_nothing(epochs):
    task = epochs.open()
    for number in range(20_000):
        assert task.state(f"unknown-{number}", COUNT).value() is None
        task.backend.release()
    assert len(task.backend._loaded) < 3000
    assert epochs.succeed(task) is None


def test_windows_that_come_and_go_leave_nothing(epochs):
    task = epochs.open()
    for number in range(20_000):
        task.state("key", LIST, number, WINDOWS).add("element")
        if number >= 5:
            task.state("key", LIST, number - 5, WINDOWS).clear()
        task.backend.release()
    assert len(task.backend._loaded.columns["list"].values) < 5000
    assert sum(epochs.succeed(task).rows.values()) == 5
    epochs.complete()
    with epochs.epoch() as task:
        for number in range(19_990, 20_000):
            assert list(task.state("key", LIST, number, WINDOWS).get()) == ["element"] * (number >= 19_995)


@pytest.mark.parametrize("ttl", [False, True], ids=["forever", "expiring"])
def test_entries_of_a_map_that_come_and_go_leave_nothing(epochs, ttl):
    """A buffer of the last elements in a map, which keeps two entries that it had before."""
    buffer = MapStateDescriptor("buffer", "bigint", "string")
    if ttl:
        expiring(buffer)
    with epochs.epoch() as task:
        for number in (-1, -2, -3):
            task.state("key", buffer).put(number, "old")
    task = epochs.open()
    state = task.state("key", buffer)
    state.remove(-3)
    for number in range(20_000):
        state = task.state("key", buffer)
        state.put(number, "element")
        if number >= 5:
            state.remove(number - 5)
        task.backend.release()
    assert max(map(len, task.backend._loaded.columns["buffer"].pending.values())) < 5000
    assert sum(epochs.succeed(task).rows.values()) < 5000
    epochs.complete()
    with epochs.epoch() as task:
        kept = dict.fromkeys((-1, -2), "old") | dict.fromkeys(range(19_995, 20_000), "element")
        assert dict(task.state("key", buffer).items()) == kept


def test_namespaces_of_timers_that_have_fired_leave_nothing(epochs, monkeypatch):
    monkeypatch.setattr(timer_queues, "_NAMES_BETWEEN_CHECKS", 1000)
    task = epochs.open()
    service = task.backend.get_internal_timer_service("windows", WINDOWS)
    fired = []
    task.backend.set_current_key("key")
    service.register_event_time_timer(7, 100_000)
    for number in range(1, 20_001):
        slots = task.prepare(["key"])
        name = pa.array([WINDOWS.serialize(number)], pa.binary()).dictionary_encode()
        service.register_event_time_timers(slots, name, np.array([number], np.int64))
        service.advance_watermark(number - 5, lambda timer: fired.append((timer.timestamp, timer.namespace)))
    assert fired == [(number, number) for number in range(1, 19_996)]
    assert len(service._event._names) < 5000
    service.advance_watermark(100_000, lambda timer: fired.append((timer.timestamp, timer.namespace)))
    assert fired[-6:] == [*((number, number) for number in range(19_996, 20_001)), (100_000, 7)]
