"""The part of the contract of state backends that is about timers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.errors import StateError
from holdfast.testing.state_contract.state_access_contract import COUNT
from holdfast.testing.state_contract.state_epochs import StateEpochs, StateTask

MAX = 2**63 - 1


def register(task: StateTask, key: Any, *times: int, processing: bool = False) -> None:
    """Register timers of a key."""
    task.backend.set_current_key(key)
    for time in times:
        if processing:
            task.backend.timers.register_processing_time_timer(time)
        else:
            task.backend.timers.register_event_time_timer(time)


def fire(task: StateTask, through: int, *, processing: bool = False) -> list[tuple[int, Any]]:
    """Fire what is due and return times and keys."""
    fired: list[tuple[int, Any]] = []

    def on_timer(time: int) -> None:
        fired.append((time, task.backend.get_current_key()))

    timers = task.backend.timers
    (timers.fire_processing if processing else timers.advance_watermark)(through, on_timer)
    return fired


class StateTimerContract:
    """Timers."""

    def test_a_timer_fires_once_when_its_time_has_come(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            register(task, "a", 10, 20)
            register(task, "b", 15)
            assert fire(task, 9) == []
            assert fire(task, 15) == [(10, "a"), (15, "b")]
            assert fire(task, 15) == []
        with epochs.epoch() as task:
            assert fire(task, 15) == []
            assert fire(task, 30) == [(20, "a")]
        with epochs.epoch() as task:
            assert fire(task, MAX) == []

    def test_timers_are_a_set(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            register(task, "a", 10, 10)
        with epochs.epoch() as task:
            register(task, "a", 10)
            register(task, "b", 10)
        with epochs.epoch() as task:
            assert sorted(fire(task, 10)) == [(10, "a"), (10, "b")]

    def test_the_two_domains_are_apart(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            register(task, "a", 10)
            register(task, "a", 10, processing=True)
            assert fire(task, 10) == [(10, "a")]
            assert task.backend.timers.least() == {"event": None, "processing": 10}
        with epochs.epoch() as task:
            assert fire(task, 10) == []
            assert fire(task, 10, processing=True) == [(10, "a")]

    def test_a_timer_can_be_taken_back(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            register(task, "a", 10, 20, 30)
            register(task, "b", 20)
            task.backend.set_current_key("a")
            task.backend.timers.delete_event_time_timer(10)
            task.backend.timers.delete_event_time_timer(11)
        with epochs.epoch() as task:
            task.backend.set_current_key("a")
            task.backend.timers.delete_event_time_timer(20)
            task.backend.timers.delete_event_time_timer(30)
            task.backend.timers.register_event_time_timer(30)
        with epochs.epoch() as task:
            assert fire(task, MAX) == [(20, "b"), (30, "a")]

    def test_a_callback_may_register_and_take_back_timers(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            register(task, "a", 10)
            register(task, "b", 12)
            fired = []

            def on_timer(time: int) -> None:
                fired.append((time, task.backend.get_current_key()))
                task.backend.get_state(COUNT).update(time)
                if time == 10:
                    task.backend.timers.register_event_time_timer(11)
                    task.backend.timers.register_event_time_timer(100)
                    task.backend.set_current_key("b")
                    task.backend.timers.delete_event_time_timer(12)
                    task.backend.set_current_key("c")
                    task.backend.timers.register_event_time_timer(13)

            task.backend.timers.advance_watermark(20, on_timer)
            assert fired == [(10, "a"), (11, "a"), (13, "c")]
        with epochs.epoch() as task:
            assert [task.state(key, COUNT).value() for key in "abc"] == [11, None, 13]
            assert fire(task, MAX) == [(100, "a")]

    def test_a_timer_that_sets_itself_again_fires_again_in_event_time_and_the_next_time_in_processing_time(
        self, epochs: StateEpochs
    ) -> None:
        """The clock stands still while timers fire: else it would never end. What is later fires, if it is due."""
        found = {}
        for processing in (False, True):
            fired: list[int] = []

            def on_timer(time: int, fired: list[int] = fired, processing: bool = processing) -> None:
                fired.append(time)
                if len(fired) < 5:
                    register(task, task.backend.get_current_key(), 12, time, 5, processing=processing)

            for _ in range(2):
                with epochs.epoch() as task:
                    if not fired:
                        register(task, "a", 10, processing=processing)
                    timers = task.backend.timers
                    (timers.fire_processing if processing else timers.advance_watermark)(20, on_timer)
                fired.append(-1)
            found[processing] = fired
        assert found == {False: [10, 5, 5, 5, 5, 10, 12, -1, -1], True: [10, 12, -1, 5, 10, 12, -1]}

    def test_a_timer_in_the_past_fires_with_the_next_advance(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            register(task, "a", 10)
            assert fire(task, 50) == [(10, "a")]
            register(task, "a", 10)
            register(task, "b", 20)
        for _ in range(2):
            with epochs.epoch() as task:
                assert fire(task, 5) == []
        with epochs.epoch() as task:
            assert fire(task, 50) == [(10, "a"), (20, "b")]
        with epochs.epoch() as task:
            assert fire(task, 50) == []

    def test_the_least_timer_is_known(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            timers = task.backend.timers
            assert timers.least() == {"event": None, "processing": None}
            register(task, "a", *range(1000, 2000))
            register(task, "a", 7, processing=True)
            assert timers.least() == {"event": 1000, "processing": 7}
        assert epochs.version.runs[-1].least_timers == {"event": 1000, "processing": 7}
        with epochs.epoch() as task:
            timers = task.backend.timers
            task.backend.set_current_key("a")
            for time in range(1000, 1900):
                timers.delete_event_time_timer(time)
            assert timers.least_event_time() == 1900
            register(task, "b", 5)
            assert timers.least_event_time() == 5
            fire(task, 1900)
        assert epochs.version.runs[-1].least_timers == {"event": 1901, "processing": 7}
        with epochs.epoch() as task:
            assert task.backend.timers.least_event_time() == 1901
            fire(task, MAX)
            fire(task, MAX, processing=True)
        with epochs.epoch() as task:
            assert task.backend.timers.least() == {"event": None, "processing": None}

    def test_a_failed_attempt_fires_again(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            register(task, "a", 10)
        for _ in range(2):
            task = epochs.open()
            assert fire(task, 10) == [(10, "a")]
            register(task, "a", 11)
            epochs.fail(task, after_flush=True)
        with epochs.task() as task:
            assert fire(task, 10) == [(10, "a")]
        epochs.abandon()
        with epochs.epoch() as task:
            assert fire(task, 20) == [(10, "a")]

    def test_timers_need_a_key_and_a_time(self, epochs: StateEpochs) -> None:
        task = epochs.open()
        with pytest.raises(StateError, match="no current key"):
            task.backend.timers.register_event_time_timer(1)
        task.backend.set_current_key("a")
        for time in (None, 1.5, True, 2**63):
            with pytest.raises(StateError):
                task.backend.timers.register_event_time_timer(time)  # type: ignore[arg-type]
        epochs.fail(task)

    def test_timers_end_as_in_a_plain_set(self, epochs: StateEpochs) -> None:
        """Random registering, taking back, firing, failing and rescaling against a set of pairs."""
        rng = random.Random(11)
        alive: set[tuple[int, str]] = set()
        keys = [f"k{number}" for number in range(12)]
        now = 0
        for _ in range(40):
            epochs.parallelism = rng.choice([1, 2, 3, 8])
            now += rng.randrange(12)
            watermark = now - rng.choice([0, 0, 30])
            fails = rng.random() < 0.25
            model = set(alive)
            for subtask in range(epochs.parallelism):
                task = epochs.open(subtask)
                mine = [key for key in keys if epochs.subtask_of(key) == subtask]
                for _ in range(rng.randrange(12) if mine else 0):
                    key, time = rng.choice(mine), now + rng.randrange(-5, 25)
                    task.backend.set_current_key(key)
                    if rng.random() < 0.7:
                        task.backend.timers.register_event_time_timer(time)
                        model.add((time, key))
                    else:
                        task.backend.timers.delete_event_time_timer(time)
                        model.discard((time, key))
                due = {pair for pair in model if pair[0] <= watermark and pair[1] in mine}
                fired = fire(task, watermark)
                assert [time for time, _ in fired] == sorted(time for time, _ in due)
                assert sorted(fired) == sorted(due)
                model -= due
                if mine:
                    late = (now - 40, rng.choice(mine))
                    register(task, late[1], late[0])
                    model.add(late)
                least = min((time for time, key in model if key in mine), default=None)
                assert task.backend.timers.least_event_time() == least
                epochs.succeed(task)
            if fails:
                epochs.abandon()
            else:
                epochs.complete()
                alive = model
