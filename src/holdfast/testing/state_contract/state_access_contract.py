"""The contract of state backends: reading, writing and requesting state of a key."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest

from holdfast.errors import NullKeyError, OutputTypeError, StateError, StateMigrationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange, key_group_of, range_of, subtask_of
from holdfast.state.backend import BACKEND_MEMO_KEY, AbstractKeyedStateBackend, StateBackend
from holdfast.state.descriptor import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.environment import Environment
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion
from holdfast.storage.job_directory import FileName
from holdfast.storage.local import LocalFileSystem
from holdfast.types.key_codec import KeyCodec, key_codec_for
from holdfast.types.row import Row
from holdfast.types.serializer import TypeSerializer
from holdfast.types.type_parser import to_type
from holdfast.types.types import Types


def kinds_of_state(old: Any, new: Any) -> list[tuple[Any, Any, Callable[..., None], Callable[[Any], Any]]]:
    """Return one state of each kind: its former and present descriptor, and functions that write and read it."""
    aggregate = _Collect()
    return [
        (
            ValueStateDescriptor("v", old),
            ValueStateDescriptor("v", new),
            lambda state, values: state.update(values[0]),
            lambda state: [state.value()],
        ),
        (
            ListStateDescriptor("l", old),
            ListStateDescriptor("l", new),
            lambda state, values: state.add_all(values),
            lambda state: list(state.get()),
        ),
        (
            MapStateDescriptor("m", "bigint", old),
            MapStateDescriptor("m", "bigint", new),
            lambda state, values: state.put_all(dict(enumerate(values, start=len(list(state.keys()))))),
            lambda state: [value for _, value in sorted(state.items())],
        ),
        (
            ReducingStateDescriptor("r", lambda _, b: b, old),
            ReducingStateDescriptor("r", lambda _, b: b, new),
            lambda state, values: state.add(values[0]),
            lambda state: [state.get()],
        ),
        (
            AggregatingStateDescriptor("a", aggregate, Types.LIST(to_type(old))),
            AggregatingStateDescriptor("a", aggregate, Types.LIST(to_type(new))),
            lambda state, values: [state.add(value) for value in values] and None,
            lambda state: state.get(),
        ),
        (
            FoldingStateDescriptor("f", [], lambda acc, b: [*acc, b], Types.LIST(to_type(old))),
            FoldingStateDescriptor("f", [], lambda acc, b: [*acc, b], Types.LIST(to_type(new))),
            lambda state, values: [state.add(value) for value in values] and None,
            lambda state: state.get(),
        ),
    ]


class _Collect:
    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        return first + second


# Epochs of a state backend, as a job runs them, without functions and without rows:
#
#     epochs = StateEpochs(backend, directory)
#     with epochs.task() as task:                    # one subtask in one epoch
#         task.state("a", ValueStateDescriptor("count", "bigint")).update(1)
#     epochs.complete()                              # the epoch's runs are part of the version
#
# A task whose block raises has failed, and drops its cache. An epoch that is abandoned instead of completed leaves the
# version as it was, whatever its tasks have cached.

JOB = "0" * 32


class StateTask:
    """One subtask in one epoch.

    Attributes:
        backend: Its keyed state.
    """

    def __init__(self, backend: AbstractKeyedStateBackend) -> None:
        self.backend = backend

    def state(self, key: Any, descriptor: Any, namespace: Any = None, namespace_serializer: Any = None) -> Any:
        """Return the handle of a state, with a key as the current one."""
        self.backend.set_current_key(key)
        return self.backend.get_partitioned_state(namespace, namespace_serializer, descriptor)

    def prepare(self, keys: list[Any]) -> list[Any]:
        """Return the slots of some user keys, loaded in one call."""
        codec = self.backend.key_codec
        dict_keys = [codec.dict_key(key) for key in keys]
        return list(self.backend.prepare(dict_keys, codec.hashes(dict_keys)))


class StateEpochs:
    """The state of one operator from epoch to epoch.

    Args:
        backend: The backend under test.
        directory: Where the runs go.
        key_type: Type of the keys; None for untyped ones.
        max_parallelism: Number of key groups.
        codec: Codec of the keys instead of that of the type.
        configuration: Configuration of the job.
        after: Called after each epoch.
    """

    def __init__(
        self,
        backend: StateBackend,
        directory: str,
        *,
        key_type: Any = "string",
        max_parallelism: int = 8,
        codec: KeyCodec | None = None,
        configuration: Mapping[str, Any] | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.backend = backend
        self.directory = directory
        self.files = LocalFileSystem()
        self.codec = codec or key_codec_for(None if key_type is None else to_type(key_type))
        self.max_parallelism = max_parallelism
        self.parallelism = 1
        self.version = StateVersion()
        self.processing_time = 0
        self.operator = "operator"
        self._configuration = Configuration(dict(configuration or {}))
        self._after = after
        self._epoch = 1
        self._new: list[RunHandle] = []

    def subtask_of(self, key: Any) -> int:
        hash64 = self.codec.hash(self.codec.dict_key(key))
        return subtask_of(key_group_of(hash64, self.max_parallelism), self.max_parallelism, self.parallelism)

    def range_of(self, subtask: int) -> KeyGroupRange:
        return range_of(subtask, self.max_parallelism, self.parallelism)

    def open(self, subtask: int = 0) -> StateTask:
        """Begin a task; end it with `succeed` or `fail`."""
        backend = self.new_backend(subtask)
        backend.open_version(self.version.for_range(self.range_of(subtask)), self.files, self.directory)
        return StateTask(backend)

    def new_backend(self, subtask: int = 0) -> AbstractKeyedStateBackend:
        """Return a backend of a subtask that has opened no version yet."""
        environment = Environment(
            JOB,
            self.operator,
            subtask,
            self.parallelism,
            self.max_parallelism,
            self._configuration,
            self.processing_time,
        )
        return self.backend.create_keyed_state_backend(
            environment, JOB, self.operator, self.codec, self.max_parallelism, self.range_of(subtask)
        )

    def succeed(self, task: StateTask, *, keep: bool = True) -> RunHandle | None:
        """End a task: flush it and acknowledge its run.

        Args:
            task: The task.
            keep: Whether it may keep what it has decoded.
        """
        subtask = task.backend.env.subtask
        run = task.backend.flush(lambda: self.new_path(subtask), 1, self._epoch)
        if run is not None:
            self._new.append(run)
        if keep:
            task.backend.commit_cache()
        else:
            task.backend.drop_cache()
        return run

    def fail(self, task: StateTask, *, after_flush: bool = False) -> None:
        """End a task by a failure, which may come after its run was written."""
        if after_flush:
            subtask = task.backend.env.subtask
            task.backend.flush(lambda: self.new_path(subtask), 1, self._epoch)
        task.backend.drop_cache()

    @contextmanager
    def task(self, subtask: int = 0) -> Iterator[StateTask]:
        """Run one task that succeeds if the block does."""
        task = self.open(subtask)
        try:
            yield task
        except BaseException:
            self.fail(task)
            raise
        self.succeed(task)

    @contextmanager
    def epoch(self, subtask: int = 0) -> Iterator[StateTask]:
        """Run one task, and complete the epoch with it alone."""
        with self.task(subtask) as task:
            yield task
        self.complete()

    def complete(self) -> None:
        """End the epoch: the acknowledged runs become part of the version."""
        self.version = self.version.plus(self._new)
        self.abandon()

    def abandon(self) -> None:
        """End an attempt at the epoch without the runs that its tasks have written."""
        self._new = []
        self._epoch += 1
        self._after()

    def values(self, keys: list[Any], descriptor: Any) -> list[Any]:
        """Return the content of a value state for some keys, read by tasks that change nothing."""
        found = {}
        for subtask in sorted({self.subtask_of(key) for key in keys}):
            with self.task(subtask) as task:
                for key in keys:
                    if self.subtask_of(key) == subtask:
                        found[str(key)] = task.state(key, descriptor).value()
        return [found[str(key)] for key in keys]

    def new_path(self, subtask: int) -> str:
        return "shared/" + FileName.new(1, self._epoch, 0, "operator", subtask).format()


COUNT = ValueStateDescriptor[Any]("count", "bigint")
ANYTHING = ValueStateDescriptor[Any]("anything")
DEFAULTED = ValueStateDescriptor[Any]("defaulted", "array<bigint>", [7])
LIST = ListStateDescriptor[Any]("list", "string")
LISTS = ListStateDescriptor[Any]("lists", "array<bigint>")
MAP = MapStateDescriptor[Any, Any]("map", "string", "bigint")
UNTYPED_MAP = MapStateDescriptor[Any, Any]("untyped-map")
SUM = ReducingStateDescriptor[Any]("sum", lambda a, b: a + b, "bigint")


class Mean(AggregateFunction):
    """An aggregate function whose accumulator is a list that it changes in place."""

    def create_accumulator(self) -> Any:
        return [0, 0]

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


MEAN = AggregatingStateDescriptor[Any, Any, Any]("mean", Mean(), "array<bigint>")
PATH = FoldingStateDescriptor[Any, Any]("path", "start", lambda path, step: f"{path}/{step}", "string")


class Reversed(TypeSerializer[str]):
    """A user-defined serializer, which reverses text."""

    def serialize(self, value: str) -> bytes:
        return value[::-1].encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()[::-1]


# Type, a value, and what is read back where that is not the value itself.
VALUES: list[tuple[Any, Any, Any]] = [
    ("boolean", True, True),
    ("tinyint", -128, -128),
    ("smallint", 32767, 32767),
    ("int", -(2**31), -(2**31)),
    ("bigint", 2**63 - 1, 2**63 - 1),
    ("float", 0.1, 0.10000000149011612),
    ("double", 0.1, 0.1),
    ("double", 3, 3.0),
    ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
    ("string", "tide 🌊", "tide 🌊"),
    ("char(4)", "ab", "ab  "),
    ("binary", b"\x00\xff", b"\x00\xff"),
    ("date", date(1969, 12, 31), date(1969, 12, 31)),
    ("timestamp", datetime(2013, 1, 1, 5), datetime(2013, 1, 1, 5, tzinfo=UTC)),
    ("timestamp_ntz", datetime(2013, 1, 1, 5), datetime(2013, 1, 1, 5)),
    (time, time(1, 2, 3, 4), time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-1, microseconds=5), timedelta(days=-1, microseconds=5)),
    ("array<int>", [1, None, 3], [1, None, 3]),
    ("map<string, array<int>>", {"a": [1], "b": None}, {"a": [1], "b": None}),
    ("a int, b string", Row(a=1, b="x"), Row(a=1, b="x")),
    ("a int, b string", (1, "x"), Row(a=1, b="x")),
    ("a double, b array<string>", {"a": 1, "b": ["x"]}, Row(a=1.0, b=["x"])),
    (tuple[int, str], (1, "x"), (1, "x")),
    (Reversed(), "forth", "forth"),
    (None, {"any": {1, 2}}, {"any": {1, 2}}),
    (None, 5, 5),
    (None, Row(a=1), Row(a=1)),
]


class StateAccessContract:
    """Tests of reading and writing state of a key."""

    # Values.

    def test_an_absent_value_is_none_or_the_default(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            assert task.state("a", COUNT).value() is None
            assert task.state("a", DEFAULTED).value() == [7]

    def test_a_value_is_there_in_its_epoch_and_later(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", COUNT)
            state.update(5)
            assert state.value() == 5
            assert task.state("b", COUNT).value() is None
        with epochs.epoch() as task:
            assert task.state("a", COUNT).value() == 5
            assert task.state("b", COUNT).value() is None

    @pytest.mark.parametrize("clear", ["clear", "update"])
    def test_clearing_and_none_make_a_value_absent(self, epochs: StateEpochs, clear: str) -> None:
        with epochs.epoch() as task:
            task.state("a", DEFAULTED).update([1])
            task.state("b", DEFAULTED).update([2])
        with epochs.epoch() as task:
            state = task.state("a", DEFAULTED)
            arguments = [] if clear == "clear" else [None]
            getattr(state, clear)(*arguments)
            assert state.value() == [7]
            getattr(task.state("never", DEFAULTED), clear)(*arguments)
        with epochs.epoch() as task:
            assert task.state("a", DEFAULTED).value() == [7]
            assert task.state("b", DEFAULTED).value() == [2]

    def test_a_default_is_a_copy_and_is_not_kept(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", DEFAULTED).value().append(8)
            assert task.state("a", DEFAULTED).value() == [7]
        newer = ValueStateDescriptor[Any]("defaulted", "array<bigint>", [1, 2])
        with epochs.epoch() as task:
            assert task.state("a", newer).value() == [1, 2]

    @pytest.mark.parametrize(("type_info", "value", "expected"), VALUES, ids=lambda item: str(item)[:30])
    def test_a_value_reads_the_same_at_once_and_after_a_restart(
        self, epochs: StateEpochs, type_info: Any, value: Any, expected: Any
    ) -> None:
        states: list[tuple[Any, Any, Any]] = [
            (ValueStateDescriptor("v", type_info), lambda s: s.update(value), lambda s: s.value()),
            (ListStateDescriptor("l", type_info), lambda s: s.add(value), lambda s: next(iter(s.get()))),
            (MapStateDescriptor("m", "int", type_info), lambda s: s.put(1, value), lambda s: s.get(1)),
        ]
        for restart in range(2):
            with epochs.epoch() as task:
                for descriptor, write, read in states:
                    state = task.state("a", descriptor)
                    if not restart:
                        write(state)
                    assert read(state) == expected
                    assert type(read(state)) is type(expected)

    @pytest.mark.parametrize("descriptor", [ANYTHING, ValueStateDescriptor("declared", "array<bigint>")])
    def test_nobody_can_change_a_value_from_outside(self, epochs: StateEpochs, descriptor: Any) -> None:
        with epochs.epoch() as task:
            given = [1]
            state = task.state("a", descriptor)
            state.update(given)
            given.append(2)
            state.value().append(3)
            assert state.value() == [1]
        with epochs.epoch() as task:
            task.state("a", descriptor).value().append(4)
        with epochs.epoch() as task:
            assert task.state("a", descriptor).value() == [1]

    @pytest.mark.parametrize(
        ("descriptor", "write"),
        [
            (COUNT, lambda state: state.update("three")),
            (COUNT, lambda state: state.update(2**63)),
            (ValueStateDescriptor("rows", "a int"), lambda state: state.update(Row(b=1))),
            (ValueStateDescriptor("arrays", "array<int>"), lambda state: state.update([1, "x"])),
            (LIST, lambda state: state.add_all(["x", 5])),
            (MAP, lambda state: state.put("entry", "three")),
            (MAP, lambda state: state.put(5, 5)),
            (MapStateDescriptor("m", "tinyint"), lambda state: state.put(1000, 5)),
            (SUM, lambda state: state.add("three")),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused_by_the_names_of_state_and_key(
        self, epochs: StateEpochs, descriptor: Any, write: Any
    ) -> None:
        task = epochs.open()
        task.state("fine", COUNT).update(1)
        with pytest.raises(OutputTypeError) as error:
            write(task.state("the key", descriptor))
            epochs.succeed(task)
        epochs.fail(task)
        assert repr(descriptor.name) in str(error.value)
        assert "'the key'" in str(error.value)
        assert error.value.uid == "operator"

    # Handles.

    def test_a_name_is_one_state_of_one_kind(self, epochs: StateEpochs) -> None:
        with epochs.task() as task:
            assert task.state("a", COUNT) is task.state("b", COUNT)
            with pytest.raises(StateError, match="count"):
                task.state("a", ListStateDescriptor("count", "bigint"))

    def test_without_a_current_key_there_is_no_state(self, epochs: StateEpochs) -> None:
        task = epochs.open()
        state = task.backend.get_state(COUNT)
        for use in (state.value, lambda: state.update(1), state.clear, task.backend.get_current_key):
            with pytest.raises(StateError, match="no current key"):
                use()
        with pytest.raises(NullKeyError):
            task.backend.set_current_key(None)
        epochs.fail(task)

    def test_a_deep_copy_moves_to_another_backend(self, epochs: StateEpochs) -> None:
        """As in a function that was opened once and is copied for each task."""
        template = epochs.new_backend()
        handles: dict[str, Any] = {"count": template.get_state(COUNT), "map": [template.get_map_state(MAP)]}
        for expected in (None, 1, 2):
            with epochs.epoch() as task:
                bound = copy.deepcopy(handles, cast(Any, {BACKEND_MEMO_KEY: task.backend}))
                task.backend.set_current_key("a")
                assert bound["count"].value() == expected
                bound["count"].update((expected or 0) + 1)
                bound["map"][0].put("x", expected)
                assert task.backend.get_state(COUNT) is bound["count"]

    def test_a_handle_cannot_be_pickled(self, epochs: StateEpochs) -> None:
        with epochs.task() as task, pytest.raises(StateError, match=r"open\(\)"):
            pickle.dumps(task.state("a", COUNT))

    def test_a_handle_of_a_task_that_has_ended_is_of_no_use(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", COUNT)
        with pytest.raises(StateError, match="ended"):
            state.value()

    def test_the_current_key_is_what_slots_stand_for(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            keys = ["a", "b", "a", "c", "a"]
            state = task.backend.get_state(COUNT)
            for key, slot in zip(keys, task.prepare(keys), strict=True):
                task.backend.slot = slot
                assert task.backend.get_current_key() == key
                state.update((state.value() or 0) + 1)
        with epochs.epoch() as task:
            assert self._values(task, ["a", "b", "c", "d"]) == [3, 1, 1, None]

    @staticmethod
    def _values(task: StateTask, keys: list[str]) -> list[Any]:
        return [task.state(key, COUNT).value() for key in keys]


class WindowSerializer(TypeSerializer[int]):
    """A serializer of namespaces that are numbers."""

    def serialize(self, value: int) -> bytes:
        return value.to_bytes(8, "big")

    def deserialize(self, data: bytes) -> int:
        return int.from_bytes(data, "big")

    def is_immutable_type(self) -> bool:
        return True


class StateRegistrationContract:
    """Tests of requesting state."""

    # Registration.

    def test_a_state_that_is_not_requested_is_kept(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", LIST).add("x")
            task.state("a", COUNT).update(1)
        for _ in range(3):
            with epochs.epoch() as task:
                task.state("a", COUNT).update(task.state("a", COUNT).value() + 1)
        with epochs.epoch() as task:
            assert list(task.state("a", LIST).get()) == ["x"]
            assert list(task.state("b", LIST).get()) == []
            assert task.state("a", COUNT).value() == 4

    def test_a_state_may_be_requested_late(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", LIST).add("x")
            task.state("b", LIST).add("y")
        with epochs.epoch() as task:
            task.state("a", COUNT).update(1)
            assert list(task.state("a", LIST).get()) == ["x"]
            assert list(task.state("b", LIST).get()) == ["y"]

    @pytest.mark.parametrize(
        "other",
        [
            ListStateDescriptor("count", "bigint"),
            ReducingStateDescriptor("count", lambda a, b: a, "bigint"),
            MapStateDescriptor("count", "string", "bigint"),
            ValueStateDescriptor("count", "string"),
        ],
        ids=repr,
    )
    def test_another_kind_or_type_under_a_name_is_refused(self, epochs: StateEpochs, other: Any) -> None:
        with epochs.epoch() as task:
            task.state("a", COUNT).update(1)
        task = epochs.open()
        with pytest.raises(StateMigrationError, match="count"):
            task.state("a", other)
        epochs.fail(task)
        assert epochs.values(["a"], COUNT) == [1]

    def test_other_keys_are_refused(self, epochs: StateEpochs, state_backend: StateBackend) -> None:
        with epochs.epoch() as task:
            task.state("a", COUNT).update(1)
        changes: list[dict[str, Any]] = [{"key_type": "bigint"}, {"max_parallelism": 16}]
        for change in changes:
            other = StateEpochs(state_backend, epochs.directory, **change)
            other.version = epochs.version
            with pytest.raises(StateMigrationError):
                other.open()

    # Namespaces.

    def test_namespaces_are_kept_apart_and_can_be_merged(self, epochs: StateEpochs) -> None:
        def at(task: Any, descriptor: Any, window: int) -> Any:
            return task.state("a", descriptor, window, WindowSerializer())

        with epochs.epoch() as task:
            for window in (1, 2, 3):
                at(task, LIST, window).add(f"w{window}")
                at(task, SUM, window).add(window)
                at(task, MEAN, window).add(window)
            at(task, LIST, 4)
            assert list(at(task, LIST, 1).get()) == ["w1"]
        with epochs.epoch() as task:
            assert [list(at(task, LIST, window).get()) for window in (1, 2, 3, 4)] == [["w1"], ["w2"], ["w3"], []]
            for descriptor in (LIST, SUM, MEAN):
                state = at(task, descriptor, 9)
                state.merge_namespaces(3, [])
                state.merge_namespaces(3, [7, 8])
                state.merge_namespaces(3, [2, 7, 1])
        with epochs.epoch() as task:
            assert [list(at(task, LIST, window).get()) for window in (1, 2, 3)] == [[], [], ["w3", "w2", "w1"]]
            assert [at(task, SUM, window).get() for window in (1, 2, 3)] == [None, None, 6]
            assert [at(task, MEAN, window).get() for window in (1, 2, 3)] == [None, None, 2]
            task.state("b", SUM, 5, WindowSerializer()).add(1)
            assert sorted(task.backend.get_keys_and_namespaces("sum")) == [("a", 3), ("b", 5)]
            assert list(task.backend.get_keys("sum", 5)) == ["b"]
            with pytest.raises(StateError):
                task.backend.get_partitioned_state(None, WindowSerializer(), SUM)

    def test_state_with_and_without_namespaces_is_not_the_same(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", SUM).add(1)
            with pytest.raises(StateError):
                task.state("a", SUM, 1, WindowSerializer())
        task = epochs.open()
        with pytest.raises(StateMigrationError):
            task.state("a", SUM, 1, WindowSerializer())
        epochs.fail(task)
