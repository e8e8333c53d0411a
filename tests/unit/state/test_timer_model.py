"""Timers by element and as arrays, mixed at will, end as in a plain set: over failures, restores and rescalings."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import StateError
from holdfast.state import ColumnarStateBackend, HashMapStateBackend
from holdfast.state import timers as timer_queues
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.version import STATE_CACHE
from holdfast.testing.state_contract.state_access_contract import StateEpochs, StateTask, WindowSerializer
from holdfast.testing.state_contract.state_version_contract import CollidingKeyCodec

MAX = 2**63 - 1
WINDOWS = WindowSerializer()
Timer = tuple[int, str, int]
"""Time, key and window."""

keys = st.sampled_from(["a", "b", "cx"])
timers = st.tuples(st.integers(0, 7), keys, st.integers(1, 2))
many = st.lists(timers, min_size=1, max_size=8)
kinds = st.sampled_from(["element", "arrays"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("register"), kinds, many),
        st.tuples(st.just("register"), kinds, many),
        st.tuples(st.just("delete"), kinds, many),
        st.tuples(st.just("fire"), st.sampled_from(["element", "looking", "arrays"]), st.integers(-1, 9)),
        st.tuples(st.just("look"), keys, st.integers(1, 2)),
        st.tuples(st.just("end"), st.sampled_from(["complete", "complete", "fail", "abandon"]), st.integers(1, 3)),
    ),
    min_size=8,
    max_size=30,
)


def namespaces(windows: list[int]) -> pa.DictionaryArray:
    return pa.array([WINDOWS.serialize(window) for window in windows], pa.binary()).dictionary_encode()


def follow(timer: Timer) -> tuple[list[Timer], list[Timer]]:
    """What a timer that fires registers and deletes."""
    time, key, window = timer
    return [(time + 1, key, window)] * (time % 3 == 0), [(time + 2, key, window)] * (time % 4 == 1)


def of_pair(several: set[Timer], key: str, window: int) -> list[int]:
    return sorted(time for time, *of in several if of == [key, window])


class Subtask:
    """One task, its timers, and what a plain set has of them."""

    def __init__(self, task: StateTask, alive: set[Timer]) -> None:
        self.task = task
        self.alive = alive
        self.service = task.backend.get_internal_timer_service("windows", WINDOWS)

    def change(self, what: str, kind: str, several: list[Timer]) -> None:
        self.alive = self.alive | set(several) if what == "register" else self.alive - set(several)
        self._tell(what, kind, several)
        self._look_at_bound()
        if what == "delete" and kind == "arrays":
            self._look_at_least()

    def _tell(self, what: str, kind: str, several: list[Timer]) -> None:
        if kind == "arrays":
            tell = getattr(self.service, f"{what}_event_time_timers")
            times, names, windows = (list(part) for part in zip(*several, strict=True)) if several else ([], [], [])
            tell(self.task.prepare(names), namespaces(windows), np.array(times, np.int64))
            return
        tell = getattr(self.service, f"{what}_event_time_timer")
        for time, key, window in several:
            self.task.backend.set_current_key(key)
            tell(window, time)

    def fire(self, kind: str, through: int) -> None:
        if kind == "arrays":
            self._fire_arrays(through)
        else:
            self._fire_by_element(through, looks_at=3 if kind == "looking" else 0)

    def _fire_by_element(self, through: int, looks_at: int) -> None:
        """Fire, and look at what there is after every so many timers."""
        expected, fired, left = [], [], set(self.alive)
        while due := [timer for timer in self.alive if timer[0] <= through]:
            first = min(due)
            expected.append(first)
            set_, gone = follow(first)
            self.alive = (self.alive - {first} | set(set_)) - set(gone)

        def on_timer(timer: Any) -> None:
            fired.append((timer.timestamp, timer.key, timer.namespace))
            set_, gone = follow(fired[-1])
            self._tell("register", "element", set_)
            self._tell("delete", "arrays" if len(fired) % 2 else "element", gone)
            left.remove(fired[-1])
            left.update(set_)
            left.difference_update(gone)
            if looks_at and len(fired) % looks_at == 1:
                assert self.service.event_time_timers(timer.namespace) == of_pair(left, timer.key, timer.namespace)
                assert self.service.least_event_time() == min((time for time, _, _ in left), default=None)

        self.service.advance_watermark(through, on_timer)
        assert [time for time, _, _ in fired] == [time for time, _, _ in expected]
        assert sorted(fired) == expected

    def _fire_arrays(self, through: int) -> None:
        while True:
            due = self.service.take_due_event_time(through)
            expected = sorted(timer for timer in self.alive if timer[0] <= through)
            assert due.namespaces is not None
            fired = []
            for slot, name, time in zip(
                due.slots.tolist(), due.namespaces.to_pylist(), due.times.tolist(), strict=True
            ):
                self.task.backend.slot = slot
                fired.append((time, self.task.backend.get_current_key(), WINDOWS.deserialize(name)))
            assert sorted(fired) == expected
            assert due.times.tolist() == [time for time, _, _ in expected]
            if not fired:
                return
            self.alive -= set(fired)
            for what, at in (("register", 0), ("delete", 1)):
                self.change(what, "arrays", [timer for one in fired for timer in follow(one)[at]])

    def look(self, key: str, window: int) -> None:
        self.task.backend.set_current_key(key)
        assert self.service.event_time_timers(window) == of_pair(self.alive, key, window)
        self._look_at_least()

    def _look_at_bound(self) -> None:
        bound = self.task.backend._services["windows"]._event.bound()
        assert all(bound is not None and bound <= time for time, _, _ in self.alive)

    def _look_at_least(self) -> None:
        assert self.service.least_event_time() == min((time for time, _, _ in self.alive), default=None)


@pytest.mark.parametrize("parts", [1, 32], ids=["merged at once", "merged at the end"])
@pytest.mark.parametrize("backend", [HashMapStateBackend(), ColumnarStateBackend()], ids=["hashmap", "columnar"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_timers_by_element_and_as_arrays_end_as_in_a_plain_set(backend, parts, steps):
    STATE_CACHE.clear()
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.multiple(timer_queues, _MOST_PARTS=parts, _NAMES_BETWEEN_CHECKS=parts),
    ):
        epochs = StateEpochs(backend, directory, codec=CollidingKeyCodec(), max_parallelism=6)
        alive: set[Timer] = set()
        tasks: dict[int, Subtask] = {}

        def owned(subtask: int, several: set[Timer]) -> set[Timer]:
            return {timer for timer in several if epochs.subtask_of(timer[1]) == subtask}

        def task_of(subtask: int) -> Subtask:
            if subtask not in tasks:
                tasks[subtask] = Subtask(epochs.open(subtask), owned(subtask, alive))
            return tasks[subtask]

        for what, kind, about in [*steps, ("end", "complete", 1), ("fire", "arrays", 14), ("end", "complete", 2)]:
            if what in ("register", "delete"):
                shares = defaultdict(list)
                for timer in about:
                    shares[epochs.subtask_of(timer[1])].append(timer)
                for subtask, several in shares.items():
                    task_of(subtask).change(what, kind, several)
            elif what == "look":
                task_of(epochs.subtask_of(kind)).look(kind, about)
            elif what == "fire":
                for subtask in range(epochs.parallelism):
                    task_of(subtask).fire(kind, about)
            else:
                after = {subtask: task.alive for subtask, task in tasks.items()}
                for task in tasks.values():
                    epochs.fail(task.task, after_flush=True) if kind == "fail" else epochs.succeed(task.task)
                if kind == "complete":
                    epochs.complete()
                    kept = [owned(subtask, alive) for subtask in range(epochs.parallelism) if subtask not in tasks]
                    alive = set().union(*after.values(), *kept)
                else:
                    epochs.abandon()
                tasks.clear()
                epochs.parallelism = about
        assert all(time > 14 for time, _, _ in alive)


@pytest.fixture(params=[HashMapStateBackend, ColumnarStateBackend], ids=["hashmap", "columnar"])
def epochs(request, tmp_path):
    return StateEpochs(request.param(), str(tmp_path), key_type="bigint", max_parallelism=128)


def test_what_is_registered_as_arrays_is_one_timer_however_often_it_comes(epochs):
    with epochs.epoch() as task:
        slots = np.array(task.prepare(list(range(5_000))))
        timers = task.backend.timers
        for _ in range(2):
            timers.register_event_time_timers(np.tile(slots, 2), np.tile(1_000 + slots, 2))
        task.backend.set_current_key(7)
        timers.register_event_time_timer(1_007)
        assert timers.event_time_timers() == [1_007]
    run = epochs.version.runs[-1]
    assert run.rows == {"_timer_state/event_user-timers": 5_000}
    with epochs.epoch() as task:
        due = task.backend.timers.take_due_event_time(MAX)
        assert due.times.tolist() == list(range(1_000, 6_000))
        assert due.namespaces is None


def test_what_has_fired_leaves_no_row_and_does_not_come_back(epochs):
    """The run says through which time all timers have fired, also where it has nothing else to say."""
    with epochs.epoch() as task:
        slots = np.array(task.prepare(list(range(100))))
        task.backend.timers.register_processing_time_timers(slots, 10 + slots)
    with epochs.epoch() as task:
        assert len(task.backend.timers.take_due_processing_time(59).times) == 50
    assert epochs.version.runs[-1].rows == {"_timer_state/processing_user-timers": 0}
    for _ in range(2):
        with epochs.epoch() as task:
            assert task.backend.timers.take_due_processing_time(59).times.tolist() == []
    assert len(epochs.version.runs) == 2, "an epoch in which nothing fires writes nothing"
    with epochs.epoch() as task:
        assert len(task.backend.timers.take_due_processing_time(MAX).times) == 50


@pytest.mark.parametrize("is_set_again", [False, True])
def test_what_was_deleted_before_its_time_came_does_not_come_back_from_its_run(epochs, is_set_again):
    """Also if somebody asked for the least timer between: then the columns of the epoch are all that tells of it."""
    with epochs.epoch() as task:
        slots = np.array(task.prepare([1, 2]))
        task.backend.timers.register_event_time_timers(slots, np.array([5, 6]))
    with epochs.epoch() as task:
        timers, of_one = task.backend.timers, (np.array(task.prepare([1])), np.array([5]))
        timers.delete_event_time_timers(*of_one)
        assert timers.least_event_time() == 6
        if is_set_again:
            timers.register_event_time_timers(*of_one)
        assert timers.take_due_event_time(5).times.tolist() == [5] * is_set_again
    with epochs.epoch() as task:
        assert task.backend.timers.take_due_event_time(MAX).times.tolist() == [6]


def test_a_callback_that_raises_loses_no_timer_of_the_repeat(epochs):
    with epochs.epoch() as task:
        slots = np.array(task.prepare([1, 2, 3]))
        task.backend.timers.register_event_time_timers(slots, np.array([1, 2, 3]))

    def fail(time: int) -> None:
        raise ValueError(time)

    for _ in range(2):
        task = epochs.open()
        with pytest.raises(ValueError, match="1"):
            task.backend.timers.advance_watermark(5, fail)
        epochs.fail(task)
    with epochs.epoch() as task:
        fired = []
        task.backend.timers.advance_watermark(5, fired.append)
        assert fired == [1, 2, 3]


def test_arrays_of_timers_need_whole_times_and_a_key_for_each(epochs):
    task = epochs.open()
    slots, timers = task.prepare([1, 2]), task.backend.timers
    for times in ([1.0, 2.0], [True, False], [1, None], [1, -(2**63)], np.array([1, 2], np.uint64)):
        with pytest.raises(StateError, match="64-bit integers of milliseconds"):
            timers.register_event_time_timers(slots, times)
    for times in ([1], np.empty(0, np.int64)):
        with pytest.raises(StateError, match=f"2 keys cannot have {len(times)} timers"):
            timers.register_event_time_timers(slots, times)
    timers.register_event_time_timers([], [])
    assert timers.least_event_time() is None
    epochs.fail(task)


def test_a_backend_of_ones_own_need_not_know_its_keys_as_a_column(epochs):
    task = epochs.open()
    slots = np.array(task.prepare([7, 8, 7]))
    task.backend.slot = slots[1]
    stored, hashes = task.backend.keys_of(slots)
    found, found_hashes = AbstractKeyedStateBackend.keys_of(task.backend, slots)
    assert found.equals(stored) and stored.to_pylist() == [7, 8, 7]
    assert found_hashes.tolist() == hashes.tolist()
    assert task.backend.get_current_key() == 8, "the current key stays what it was"
    epochs.fail(task)
