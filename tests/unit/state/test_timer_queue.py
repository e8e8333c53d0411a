"""Timers are found without reading those that have fired, and named services are kept apart."""

import pytest

from holdfast.errors import StateError, StateMigrationError
from holdfast.state import HashMapStateBackend
from holdfast.state.layout.namespace import VoidNamespaceSerializer
from holdfast.state.timer.timer_queue import TimerQueue
from holdfast.testing.state_contract.state_epochs import StateEpochs
from holdfast.testing.state_contract.state_registration_contract import WindowSerializer


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
    alive = sum(len(run.times) for run in queue._stored_runs())
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
        assert len(queue._heap) < 200
        fired = []
        task.backend.timers.fire_processing(1_000_000 + 4_999, fired.append)
        assert fired == list(range(1_000_000, 1_005_000))
        assert task.backend.timers.least_processing_time() == 1_005_000
