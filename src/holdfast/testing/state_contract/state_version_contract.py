"""The contract of state backends: versions, failures, branches, rescaling, keys, files, timers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import CorruptFileError, StateError
from holdfast.state.backend import StateBackend
from holdfast.state.run_file import forget_runs
from holdfast.state.version import STATE_CACHE
from holdfast.testing.state_contract.state_access_contract import (
    COUNT,
    LIST,
    MAP,
    MEAN,
    SUM,
    StateEpochs,
    StateTask,
    WindowSerializer,
)
from holdfast.types.key_codec import AtomicKeyCodec
from holdfast.types.types import Types

KEYS = [f"key-{number}" for number in range(40)]


class CollidingKeyCodec(AtomicKeyCodec):
    """A codec that gives many string keys the same hash."""

    def __init__(self) -> None:
        super().__init__(Types.STRING())
        self.hash = lambda dict_key, seed=0: (len(dict_key) % 3) << 62  # type: ignore[method-assign]


def _add_one(state: Any) -> None:
    state.add(1)


class StateVersionContract:
    """Tests of versions of state."""

    def _count(self, epochs: StateEpochs, keys: list[str]) -> None:
        """Count keys in one epoch, by one task for each subtask."""
        for subtask in range(epochs.parallelism):
            mine = [key for key in keys if epochs.subtask_of(key) == subtask]
            with epochs.task(subtask) as task:
                state = task.backend.get_state(COUNT)
                for slot in task.prepare(mine):
                    task.backend.slot = slot
                    state.update((state.value() or 0) + 1)

    def _counts(self, epochs: StateEpochs, keys: list[str]) -> list[int | None]:
        found: list[int | None] = epochs.values(keys, COUNT)
        return found

    # Failures.

    def test_an_epoch_without_changes_writes_nothing(self, epochs: StateEpochs) -> None:
        task = epochs.open()
        assert task.state("a", COUNT).value() is None
        assert epochs.succeed(task) is None

    def test_a_key_that_comes_and_goes_in_one_epoch_leaves_nothing(self, epochs: StateEpochs) -> None:
        task = epochs.open()
        task.state("a", COUNT).update(1)
        task.state("a", COUNT).clear()
        task.state("a", LIST).add("x")
        task.state("a", LIST).clear()
        task.state("a", MAP).put("x", 1)
        task.state("a", MAP).remove("x")
        assert epochs.succeed(task) is None

    @pytest.mark.parametrize("after_flush", [False, True])
    def test_a_failed_attempt_leaves_nothing(self, epochs: StateEpochs, after_flush: bool) -> None:
        with epochs.epoch() as task:
            task.state("a", COUNT).update(1)
            task.state("a", LIST).add("x")
            task.state("a", MAP).put("x", 1)
        task = epochs.open()
        task.state("a", COUNT).update(100)
        task.state("a", LIST).add("wrong")
        task.state("a", MAP).put("wrong", 1)
        task.state("new", COUNT).update(100)
        epochs.fail(task, after_flush=after_flush)
        with epochs.epoch() as task:
            assert task.state("a", COUNT).value() == 1
            assert list(task.state("a", LIST).get()) == ["x"]
            assert dict(task.state("a", MAP).items()) == {"x": 1}
            assert task.state("new", COUNT).value() is None

    def test_an_epoch_that_fails_after_its_tasks_succeeded_leaves_nothing(self, epochs: StateEpochs) -> None:
        """Another subtask died: what this one has kept is ahead of the version that the epoch starts from again."""
        self._count(epochs, KEYS)
        epochs.complete()
        for _ in range(2):
            with epochs.task() as task:
                task.state(KEYS[0], COUNT).update(100)
                task.state(KEYS[1], COUNT).clear()
                task.state("new", COUNT).update(100)
                task.state(KEYS[0], LIST).add("wrong")
            epochs.abandon()
        self._count(epochs, KEYS[1:3])
        epochs.complete()
        with epochs.epoch() as task:
            assert list(task.state(KEYS[0], LIST).get()) == []
        assert self._counts(epochs, [*KEYS[:4], "new"]) == [1, 2, 2, 1, None]

    def test_state_follows_an_epoch_of_another_process(self, epochs: StateEpochs, state_backend: StateBackend) -> None:
        """This process kept what it knows; another one ran two epochs, then it is this one's turn again."""
        self._count(epochs, KEYS)
        with epochs.task() as task:
            task.state(KEYS[5], LIST).add("first")
            task.state(KEYS[5], MAP).put_all({"x": 1, "y": 1})
        epochs.complete()
        for number in range(2):
            task = epochs.open()
            task.state(KEYS[0], COUNT).update(50 + number)
            task.state(KEYS[1], COUNT).clear()
            task.state(KEYS[5], LIST).add(f"later {number}")
            task.state(KEYS[5], MAP).put("y", number)
            task.state(KEYS[5], MAP).remove("x")
            task.state(f"new {number}", COUNT).update(7)
            epochs.succeed(task, keep=False)
            epochs.complete()
        with epochs.epoch() as task:
            values = [task.state(key, COUNT).value() for key in [*KEYS[:3], "new 0", "new 1"]]
            assert values == [51, None, 1, 7, 7]
            assert list(task.state(KEYS[5], LIST).get()) == ["first", "later 0", "later 1"]
            assert dict(task.state(KEYS[5], MAP).items()) == {"y": 1}

    def test_an_older_version_can_be_gone_on_from(self, epochs: StateEpochs) -> None:
        versions = [epochs.version]
        for _ in range(4):
            self._count(epochs, KEYS[:5])
            epochs.complete()
            versions.append(epochs.version)
        for back_to in (3, 1, 4, 0, 2):
            epochs.version = versions[back_to]
            self._count(epochs, KEYS[:1])
            epochs.complete()
            expected = [back_to + 1, back_to or None, None]
            assert self._counts(epochs, [KEYS[0], KEYS[1], KEYS[20]]) == expected

    # Rescaling.

    def test_rescaling_only_chooses_other_ranges(self, epochs: StateEpochs) -> None:
        expected = dict.fromkeys(KEYS, 0)
        for parallelism in (1, 3, 2, 8, 5, 1):
            epochs.parallelism = parallelism
            self._count(epochs, KEYS)
            epochs.complete()
            expected = {key: count + 1 for key, count in expected.items()}
            assert self._counts(epochs, KEYS) == list(expected.values())

    def test_a_subtask_sees_only_its_key_groups(self, epochs: StateEpochs) -> None:
        self._count(epochs, KEYS)
        epochs.complete()
        epochs.parallelism = 4
        found: list[str] = []
        for subtask in range(4):
            task = epochs.open(subtask)
            task.backend.get_state(COUNT)
            mine = list(task.backend.get_keys("count"))
            assert {epochs.subtask_of(key) for key in mine} <= {subtask}
            found += mine
            epochs.fail(task)
        assert sorted(found) == sorted(KEYS)

    # Keys.

    def test_different_keys_of_one_hash_are_kept_apart(self, state_backend: StateBackend, tmp_path: Path) -> None:
        epochs = StateEpochs(state_backend, str(tmp_path), codec=CollidingKeyCodec())
        keys = [f"{number}{'x' * (number % 4)}" for number in range(30)]
        for number in range(3):
            with epochs.epoch() as task:
                for key in keys[number:]:
                    state = task.state(key, COUNT)
                    state.update((state.value() or 0) + 1)
                    task.state(key, LIST).add(f"{key}-{number}")
                    task.state(key, MAP).put(f"{key}-{number}", number)
                    task.state(key, SUM, number % 2, WindowSerializer()).add(1)
                if number == 1:
                    task.state(keys[7], COUNT).clear()
                    task.state(keys[7], MAP).clear()
        with epochs.epoch() as task:
            for position, key in enumerate(keys):
                rounds = min(position, 2) + 1
                assert task.state(key, COUNT).value() == (1 if key == keys[7] else rounds)
                assert list(task.state(key, LIST).get()) == [f"{key}-{number}" for number in range(rounds)]
                if key != keys[7]:
                    assert dict(task.state(key, MAP).items()) == {f"{key}-{n}": n for n in range(rounds)}
                assert task.state(key, SUM, 0, WindowSerializer()).get() == (rounds + 1) // 2
            assert task.state("9x", COUNT).value() == (3 if "9x" in keys else None)
            assert task.state("never", COUNT).value() is None

    @pytest.mark.parametrize(
        ("key_type", "keys", "twin"),
        [
            ("bigint", [0, -1, 2**63 - 1], 0),
            ("double", [0.0, float("inf"), float("nan")], -0.0),
            ("binary", [b"", b"\x00"], b""),
            ("a string, b int", [("x", 1), ("x", None)], ("x", 1)),
            (None, [1, True, "1", (1, None)], 1),
        ],
    )
    def test_keys_of_all_types_find_their_state(
        self, state_backend: StateBackend, tmp_path: Path, key_type: Any, keys: list[Any], twin: Any
    ) -> None:
        epochs = StateEpochs(state_backend, str(tmp_path), key_type=key_type)
        with epochs.epoch() as task:
            for number, key in enumerate(keys):
                task.state(key, COUNT).update(number)
        with epochs.epoch() as task:
            assert [task.state(key, COUNT).value() for key in keys] == list(range(len(keys)))
            assert task.state(twin, COUNT).value() == 0

    def test_all_keys_can_be_visited(self, epochs: StateEpochs) -> None:
        self._count(epochs, KEYS)
        epochs.complete()
        with epochs.epoch() as task:
            task.state(KEYS[0], COUNT).clear()
            task.state("another", COUNT).update(5)
            seen = []

            def visit(key: str, state: Any) -> None:
                seen.append((key, state.value()))
                state.clear() if key == KEYS[1] else state.update(state.value() * 10)

            task.backend.apply_to_all_keys(COUNT, visit)
            assert sorted(seen) == sorted([*((key, 1) for key in KEYS[1:]), ("another", 5)])
        assert self._counts(epochs, [*KEYS[:3], "another"]) == [None, None, 10, 50]

    def test_nothing_is_left_when_everything_was_cleared(self, epochs: StateEpochs) -> None:
        descriptors = [COUNT, LIST, MAP, SUM, MEAN]
        writes: dict[Any, Callable[[Any], None]] = {
            COUNT: lambda state: state.update(1),
            MAP: lambda state: state.put("x", 1),
            LIST: lambda state: state.add("x"),
        }
        for clearing in (False, True):
            with epochs.epoch() as task:
                for key in KEYS:
                    for descriptor in descriptors:
                        state = task.state(key, descriptor)
                        if clearing:
                            state.clear()
                        else:
                            writes.get(descriptor, _add_one)(state)
                assert task.backend.num_key_value_state_entries() == (0 if clearing else 5 * len(KEYS))
        task = epochs.open()
        for descriptor in descriptors:
            task.state(KEYS[0], descriptor)
            assert list(task.backend.get_keys(descriptor.name)) == []
        epochs.fail(task)

    # Files.

    def test_runs_can_be_read_by_anybody(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("b", COUNT).update(2)
            task.state("a", COUNT).update(1)
            task.state("a", LIST).add_all(["x", "y"])
            task.state("a", MAP).put_all({"k2": 2, "k1": None})
        run = epochs.version.runs[0]
        data = Path(epochs.directory, run.path).read_bytes()
        footer = json.loads(data[run.footer_offset : data.rindex(b"}") + 1])
        tables = {}
        for entry in footer["segments"]:
            segment = pa.py_buffer(data[entry["offset"] : entry["offset"] + entry["length"]])
            tables[entry["name"]] = pa.ipc.open_file(segment).read_all()
        counts = dict(zip(tables["count"]["key"].to_pylist(), tables["count"]["value"].to_pylist(), strict=True))
        assert counts == {"a": 1, "b": 2}
        assert tables["count"]["value"].type == pa.int64()
        hashes = tables["count"]["hash"].to_pylist()
        assert hashes == sorted(epochs.codec.hash(key) for key in "ab")
        assert tables["list"].select(["key", "op", "value"]).to_pylist() == [{"key": "a", "op": 0, "value": ["x", "y"]}]
        entries = tables["map"].select(["map_key", "op", "value"]).to_pylist()
        assert entries == [{"map_key": "k1", "op": 0, "value": None}, {"map_key": "k2", "op": 0, "value": 2}]

    def test_appends_are_written_as_what_was_added(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", LIST).add_all(["x"] * 1000)
        with epochs.epoch() as task:
            task.state("a", LIST).add("y")
        with epochs.epoch() as task:
            assert len(list(task.state("a", LIST).get())) == 1001
        assert epochs.version.runs[1].size < epochs.version.runs[0].size

    def test_a_damaged_run_is_refused_by_name(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", COUNT).update(1)
        path = Path(epochs.directory, epochs.version.runs[0].path)
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
        forget_runs()
        STATE_CACHE.clear()
        with pytest.raises(CorruptFileError) as error:
            epochs.values(["a"], COUNT)
        assert error.value.path == str(path)


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
    """Fire due timers and return their times and keys."""
    fired: list[tuple[int, Any]] = []

    def on_timer(time: int) -> None:
        fired.append((time, task.backend.get_current_key()))

    timers = task.backend.timers
    (timers.fire_processing if processing else timers.advance_watermark)(through, on_timer)
    return fired


class StateTimerContract:
    """Tests of timers."""

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

    def test_a_timer_can_be_deleted(self, epochs: StateEpochs) -> None:
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

    def test_a_callback_may_register_and_delete_timers(self, epochs: StateEpochs) -> None:
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
