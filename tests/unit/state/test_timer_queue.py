"""Timers are found without reading those that have fired, and named services are kept apart."""

import numpy as np
import pytest

from holdfast.errors import CorruptFileError, StateError, StateMigrationError
from holdfast.state import HashMapStateBackend, timers
from holdfast.state.layout import VoidNamespaceSerializer
from holdfast.state.timers import TimerQueue
from holdfast.testing.state_contract.state_access_contract import StateEpochs, WindowSerializer


@pytest.fixture
def epochs(tmp_path):
    return StateEpochs(HashMapStateBackend(), str(tmp_path))


def windows(task, name="windows"):
    return task.backend.get_internal_timer_service(name, WindowSerializer())


def test_timers_that_have_fired_are_not_read_again(epochs):
    """A job that sets a timer for every key in every epoch must not look at all of them for ever."""
    for number in range(10):
        with epochs.epoch() as task:
            for key in "abc":
                task.backend.set_current_key(key)
                task.backend.timers.register_event_time_timer(number * 10 + 5)
            task.backend.timers.advance_watermark(number * 10, lambda time: None)
    task = epochs.open()
    queue: TimerQueue = task.backend._services["user-timers"]._event
    alive = sum(map(len, queue._stored_runs()))
    assert alive <= 6
    assert len(queue) == 3
    epochs.fail(task)


def test_timers_of_windows_come_back_with_their_window(epochs):
    with epochs.epoch() as task:
        for key in "ab":
            task.backend.set_current_key(key)
            windows(task).register_event_time_timer(7, 100)
            windows(task).register_event_time_timer(8, 100)
            windows(task).register_processing_time_timer(7, 50)
        windows(task).delete_event_time_timer(8, 100)
        task.backend.timers.register_event_time_timer(100)
    with epochs.epoch() as task:
        fired = []
        windows(task).advance_watermark(100, fired.append)
        assert sorted((timer.key, timer.namespace) for timer in fired) == [("a", 7), ("a", 8), ("b", 7)]
        assert windows(task).num_processing_time_timers() == 2
        assert windows(task).current_watermark() == 100
        assert windows(task).least_processing_time() == 50


def test_services_are_kept_apart_by_name_and_namespace(epochs):
    with epochs.epoch() as task:
        task.backend.set_current_key("a")
        windows(task).register_event_time_timer(7, 100)
        assert windows(task, "others").num_event_time_timers() == 0
        assert windows(task) is windows(task)
        with pytest.raises(StateError, match="windows"):
            task.backend.get_internal_timer_service("windows", VoidNamespaceSerializer())
    task = epochs.open()
    with pytest.raises(StateMigrationError):
        task.backend.get_internal_timer_service("windows", VoidNamespaceSerializer())
    epochs.fail(task)


def test_many_timers_are_read_in_pieces(epochs):
    with epochs.epoch() as task:
        task.backend.set_current_key("a")
        for time in range(10_000):
            task.backend.timers.register_processing_time_timer(1_000_000 + time)
    with epochs.epoch() as task:
        assert task.backend.timers.least_processing_time() == 1_000_000
        queue = task.backend._services["user-timers"]._processing
        assert loaded(queue) < 200
        fired = []
        task.backend.timers.fire_processing(1_000_000 + 4_999, fired.append)
        assert fired == list(range(1_000_000, 1_005_000))
        assert task.backend.timers.least_processing_time() == 1_005_000


def test_the_cost_of_a_round_does_not_grow_with_the_rounds_before_it(epochs):
    """In real time, timers are set and looked for in each round, of which there are a million between two barriers."""
    task = epochs.open()
    slots, services = np.array(task.prepare(list("abcdefghij"))), task.backend.timers
    session = np.zeros(10, np.int64)
    for now in range(1_000):
        services.register_processing_time_timers(slots, np.full(10, 10_000))  # the same ten, as a window does
        if now:
            services.delete_event_time_timers(slots, session)
        session = 5_000 + now + slots  # later and later, as a session does
        services.register_event_time_timers(slots, session)
        assert not len(services.take_due_event_time(now).times)
        assert not len(services.take_due_processing_time(now).times)
        assert task.backend.processing_time_bound() == 10_000
    queue = task.backend._services["user-timers"]._processing
    assert len(queue._columns) <= 33 and sum(map(len, queue._columns)) < 400
    assert len(event_queue(task)._columns) <= 40
    assert services.take_due_processing_time(10_000).times.tolist() == [10_000] * 10
    assert services.take_due_event_time(10_000).times.tolist() == (5_999 + np.arange(10)).tolist()
    assert task.backend.processing_time_bound() is None
    epochs.fail(task)


def event_queue(task) -> TimerQueue:
    return task.backend._services["user-timers"]._event


def loaded(queue: TimerQueue) -> int:
    return sum(map(len, queue._from_runs))


@pytest.mark.parametrize("groups", [8, 32768])
def test_an_epoch_in_which_nothing_is_due_loads_next_to_nothing(tmp_path, groups):
    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path), max_parallelism=groups)
    for first in (0, 1):
        with epochs.epoch() as task:
            for number in range(first, 4_000, 2):
                task.backend.set_current_key(f"key-{number}")
                task.backend.timers.register_event_time_timer(1_000 + number)
    with epochs.epoch() as task:
        task.backend.timers.advance_watermark(999, lambda time: pytest.fail(f"{time} fired"))
        assert task.backend.timers.least_event_time() == 1_000
        assert loaded(event_queue(task)) < 600
    with epochs.epoch() as task:
        fired = []
        task.backend.timers.advance_watermark(2_999, fired.append)
        assert fired == list(range(1_000, 3_000))
        assert task.backend.timers.least_event_time() == 3_000
        assert len(event_queue(task)) == 2_000


def test_the_least_timer_is_found_behind_thousands_that_were_deleted(epochs):
    with epochs.epoch() as task:
        for number in range(6_000):
            task.backend.set_current_key(f"key-{number % 50}")
            task.backend.timers.register_event_time_timer(number)
    with epochs.epoch() as task:
        for number in range(5_000):
            task.backend.set_current_key(f"key-{number % 50}")
            task.backend.timers.delete_event_time_timer(number)
    with epochs.epoch() as task:
        assert task.backend.timers.least_event_time() == 5_000


def test_the_least_of_timers_that_are_all_of_one_time_is_known_without_loading_them(epochs):
    """As where windows of many keys end together; what is deleted is no reason to take another for deleted."""
    with epochs.epoch() as task:
        for number in range(2_000):
            task.backend.set_current_key(f"key-{number}")
            task.backend.timers.register_event_time_timer(1_000)
    with epochs.epoch() as task:
        assert task.backend.timers.least_event_time() == 1_000
        assert loaded(event_queue(task)) == 0
    with epochs.epoch() as task:
        for number in range(1_999):
            task.backend.set_current_key(f"key-{number}")
            task.backend.timers.delete_event_time_timer(1_000)
        assert task.backend.timers.least_event_time() == 1_000
    with epochs.epoch() as task:
        assert task.backend.timers.least_event_time() == 1_000
        task.backend.set_current_key("key-1999")
        task.backend.timers.delete_event_time_timer(1_000)
        assert task.backend.timers.least_event_time() is None
    with epochs.epoch() as task:
        assert task.backend.timers.least_event_time() is None


def test_a_key_lists_its_timers_without_a_look_at_those_of_others(epochs):
    with epochs.epoch() as task:
        for number in range(3_000):
            task.backend.set_current_key(f"key-{number % 30}")
            task.backend.timers.register_event_time_timer(number)
    with epochs.epoch() as task:
        task.backend.set_current_key("key-7")
        task.backend.timers.delete_event_time_timer(37)
        task.backend.timers.register_event_time_timer(9_999)
    with epochs.epoch() as task:
        task.backend.set_current_key("key-7")
        task.backend.timers.register_event_time_timer(8_888)
        task.backend.timers.delete_event_time_timer(67)
        expected = [number for number in range(7, 3_000, 30) if number not in (37, 67)] + [8_888, 9_999]
        assert task.backend.timers.event_time_timers() == expected
        assert loaded(event_queue(task)) == 0
        task.backend.timers.advance_watermark(1_500, lambda time: None)
        task.backend.set_current_key("key-7")
        assert task.backend.timers.event_time_timers() == [time for time in expected if time > 1_500]


def test_a_run_whose_timers_are_out_of_order_is_refused_by_its_name(epochs, monkeypatch):
    """Those out of place would not be found."""
    monkeypatch.setattr(timers.np, "lexsort", lambda columns: np.arange(len(columns[0])))
    with epochs.epoch() as task:
        task.backend.set_current_key("a")
        for time in (20, 10):
            task.backend.timers.register_event_time_timer(time)
    monkeypatch.undo()
    task = epochs.open()
    with pytest.raises(CorruptFileError, match=r"event_user-timers.*not sorted by time"):
        task.backend.timers.least_event_time()
    epochs.fail(task)
