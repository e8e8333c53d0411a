"""A harness that runs one subtask of one operator without Spark and without a JVM.

It runs the same operator, state backend and run files as a job. From `open` to `snapshot` is one epoch, and so is the
time between two calls of `set_processing_time`. In each epoch the function is a fresh copy of the opened instance, as
in a job. With `amnesia=True` it is also rebuilt from its pickled form and opened again, as on a new worker: a function
whose results then differ keeps state where it is lost.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.datastream.stream.operation import declared_type, operator_spec
from holdfast.errors import ConfigurationError, NullKeyError, StateError
from holdfast.kernel.clock import Clock, ManualClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange, key_group_of, range_of, subtask_of
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.runtime.function.sink import owner_of
from holdfast.runtime.function.user_function import (
    BaseBroadcastProcessFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeySelector,
    OutputTag,
)
from holdfast.runtime.graph.stream_graph import OperatorSpec, Shape
from holdfast.runtime.operator import OpenedSelector, OperatorInstance, OperatorSubtask, SubtaskInfo
from holdfast.runtime.window_operator.window_operator import WindowOperator
from holdfast.runtime.window_operator.window_subtask import subtask_class
from holdfast.state.backend import AbstractKeyedStateBackend, StateBackend, load_state_backend
from holdfast.state.descriptor import AggregateFunction, MapStateDescriptor
from holdfast.state.environment import Environment
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.operator_state import RoundRobinOperatorStateRepartitioner
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import FileName
from holdfast.storage.local import LocalFileSystem
from holdfast.types.arrow import batch_to_elements, elements_to_batch, timestamp_column
from holdfast.types.key_codec import key_codec_for
from holdfast.types.program_classes import pickle_program, unpickle_program
from holdfast.types.row import Row, current_value
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

_SHAPES: tuple[tuple[str, Shape], ...] = (
    ("process_element", "process"),
    ("map", "map"),
    ("flat_map", "flat_map"),
    ("filter", "filter"),
    ("reduce", "reduce"),
)


def shape_of(function: Any) -> Shape:
    """Return how a stream would call a function: by its method; a callable of two arguments is a process function.

    Raises:
        ConfigurationError: It is none of the functions that a stream takes.
    """
    for method, shape in _SHAPES:
        if callable(getattr(function, method, None)):
            return shape
    if callable(function) and not isinstance(function, type):
        return "process" if len(inspect.signature(function).parameters) == 2 else "map"
    if isinstance(function, Function | AggregateFunction):
        raise ConfigurationError(
            f"The harness runs functions of single elements, but a {type(function).__name__} belongs to an operator of "
            "a stream: run the stream with holdfast.testing.EpochProgram, which runs whole programs in the same way."
        )
    raise ConfigurationError(f"The harness runs function objects and callables, not {function!r}.")


def spec_of(
    function: Any, output_type: Any, broadcast: Iterable[MapStateDescriptor[Any, Any]], *, keyed: bool
) -> OperatorSpec:
    """Return the specification of an operator of elements without a declared type, with side outputs.

    Raises:
        ConfigurationError: The function or the type does not fit.
    """
    undeclared = declared_type(None, "harness")
    if isinstance(function, WindowOperator):
        emitted = declared_type(output_type, "harness")
        return OperatorSpec(function, "window", keyed, undeclared, emitted, side_outputs=True)
    if not isinstance(function, BaseBroadcastProcessFunction):
        spec = operator_spec(shape_of(function), function, undeclared, output_type, keyed=keyed)
        return replace(spec, side_outputs=True)
    if keyed != isinstance(function, KeyedBroadcastProcessFunction):
        raise ConfigurationError("A KeyedBroadcastProcessFunction needs key_by, a BroadcastProcessFunction has none.")
    emitted = declared_type(output_type, "harness")
    return OperatorSpec(function, "process", keyed, undeclared, emitted, side_outputs=True, broadcast=tuple(broadcast))


def copy_element(value: Any) -> Any:
    """Return an element as a function gets it: a row is copied, as if it came from another step."""
    plain = current_value(value)
    return plain.make(plain) if plain is value and isinstance(plain, Row) else plain


class ElementKeys:
    """The keys of elements, as `DataStream.key_by` takes them.

    Args:
        key_by: A column, several columns, or a selector.
        key_type: Type of the key; None for untyped Python keys.
    """

    def __init__(self, key_by: Any, key_type: Any) -> None:
        self._columns: tuple[str, ...] = ()
        if isinstance(key_by, str):
            self._columns = (key_by,)
        elif isinstance(key_by, KeySelector):
            self._opened = OpenedSelector(key_by.get_key, SubtaskInfo(uid="harness"))
        elif callable(key_by):
            self._opened = OpenedSelector(key_by, SubtaskInfo(uid="harness"))
        else:
            self._columns = tuple(key_by)
        if not self._columns:
            self._select = self._opened.bind(SubtaskInfo(uid="harness"))
        names = self._columns if len(self._columns) > 1 else ()  # a column of rows is a key by itself
        self.codec = key_codec_for(None if key_type is None else to_type(key_type), names)

    def close(self) -> None:
        if not self._columns:
            self._opened.close()

    def element(self, value: Any) -> Any:
        """Return the element as a function sees it: with column keys a dictionary becomes a row."""
        return Row(**value) if self._columns and isinstance(value, Mapping) else value

    def of(self, elements: Sequence[Any]) -> tuple[list[Any], npt.NDArray[np.uint64]]:
        """Canonical keys and hashes of elements.

        Raises:
            NullKeyError: A key is None.
        """
        keys = []
        for row, element in enumerate(elements):
            key = self._key(element)
            if key is None:
                raise NullKeyError(row=row)
            keys.append(self.codec.dict_key(key))
        return keys, self.codec.hashes(keys)

    def _key(self, element: Any) -> Any:
        if not self._columns:
            return self._select(element)
        parts = tuple(element[column] for column in self._columns)
        return parts[0] if len(parts) == 1 else parts


@dataclass(frozen=True)
class HarnessSnapshot:
    """The state of one subtask, to restore into harnesses of any parallelism. It can be pickled.

    >>> with OperatorHarness(lambda word, ctx: [word], key_by=lambda word: word, key_type="string") as harness:
    ...     snapshot = harness.snapshot(7)
    >>> snapshot.checkpoint_id, snapshot.max_parallelism
    (7, 128)

    Attributes:
        checkpoint_id: The id given to `OperatorHarness.snapshot`.
        epoch: The epoch that ended with it.
        max_parallelism: Number of key groups, fixed for the life of the state.
        runs: The state version, oldest first.
        files: Content of the run files by path.
        operator_state: Operator state of the subtask, with its elements; None if it has none.
    """

    checkpoint_id: int
    epoch: int
    max_parallelism: int
    runs: tuple[RunHandle, ...]
    files: Mapping[str, bytes] = field(repr=False)
    operator_state: OperatorSnapshot | None = None


class Emitted(list[Any]):
    """The elements emitted so far; a list that may be called like a method."""

    def __call__(self) -> list[Any]:
        return list(self)


UID: Final = "harness"
_JOB: Final = JobID.from_name("holdfast.testing.OperatorHarness")
_TOKEN: Final = 1


class OperatorHarness:
    """Runs one subtask of an operator: pass it elements and times, and read what it emits.

    >>> from holdfast.datastream import KeyedProcessFunction
    >>> from holdfast.datastream.state import ValueStateDescriptor
    >>> class Counter(KeyedProcessFunction):
    ...     def open(self, context):
    ...         self.count = context.get_state(ValueStateDescriptor("count", "bigint", 0))
    ...
    ...     def process_element(self, word, ctx):
    ...         self.count.update(self.count.value() + 1)
    ...         yield word, self.count.value()
    >>> with OperatorHarness(Counter(), key_by=lambda word: word, key_type="string") as harness:
    ...     _ = harness.process_element("kelp")
    ...     snapshot = harness.snapshot(checkpoint_id=1)
    ...     harness.process_element("kelp")
    [('kelp', 2)]
    >>> with OperatorHarness.restore(snapshot, Counter(), key_by=lambda word: word, key_type="string") as restored:
    ...     restored.process_element("kelp")
    [('kelp', 2)]

    Args:
        function: Any function object or callable that a stream takes, those of connected streams included.
        key_by: Column names or a selector, as in `DataStream.key_by`; None for a stream without keys.
        key_type: Type of the key. Without it keys are untyped Python values.
        output_type: Type of the output, which is checked; emitted values are returned as a consumer would read them.
            Without it they are pickled.
        backend: Name or class path of a state backend, or a backend.
        parallelism: Number of subtasks of the operator.
        max_parallelism: Number of key groups.
        subtask: Number of this subtask, from 0.
        clock: Gives the processing time of the first epoch; default: a `ManualClock` at 0.
        amnesia: Whether the function is rebuilt from its pickled form and opened again after each epoch.
        broadcast: The broadcast states of a function of two streams, as given to `DataStream.broadcast`.

    Raises:
        ConfigurationError: The function, the key or the type does not fit, or there is no such subtask.
    """

    def __init__(  # noqa: PLR0913 - settings of a test, by name
        self,
        function: Any,
        *,
        key_by: Any = None,
        key_type: Any = None,
        output_type: Any = None,
        backend: str | StateBackend = "hashmap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        subtask: int = 0,
        clock: Clock | None = None,
        amnesia: bool = False,
        broadcast: Iterable[MapStateDescriptor[Any, Any]] = (),
    ) -> None:
        if not 0 <= subtask < parallelism <= max_parallelism:
            raise ConfigurationError(
                f"subtask {subtask} of parallelism {parallelism} with max parallelism {max_parallelism} does not exist."
            )
        self._keys = None if key_by is None else ElementKeys(key_by, key_type)
        self._spec = spec_of(function, output_type, broadcast, keyed=self._keys is not None)
        self._pickled = pickle_program(self._spec)
        self._state_backend = (
            backend
            if isinstance(backend, StateBackend)
            else load_state_backend(Configuration({"state.backend.type": backend}))
        )
        self._parallelism, self._max_parallelism, self._subtask = parallelism, max_parallelism, subtask
        self._range = range_of(subtask, max_parallelism, parallelism)
        self._clock = clock or ManualClock()
        self._amnesia = amnesia
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-harness-")
        self._files = LocalFileSystem()
        self._version = StateVersion()
        self._epoch = 0
        self._watermark = MIN_WATERMARK
        self._latest = MIN_WATERMARK
        self._is_restored = False
        self._operator_state: OperatorSnapshot | None = None
        self._restored_id: int | None = None
        self._instance: OperatorInstance | None = None
        self._operator: OperatorSubtask | None = None
        self._backend: AbstractKeyedStateBackend | None = None
        self._output = Emitted()
        self._side_outputs: dict[str, Emitted] = {}

    @classmethod
    def restore(
        cls, snapshots: HarnessSnapshot | Iterable[HarnessSnapshot], function: Any, **same: Any
    ) -> OperatorHarness:
        """Return a harness that starts from the snapshots of all subtasks of an operator.

        Args:
            snapshots: One snapshot of each former subtask.
            function: The function, perhaps a newer version.
            **same: As for the constructor; `parallelism` and `subtask` may differ from before.

        Returns:
            The harness; it opens on first use.

        Raises:
            StateError: The max parallelism differs, or a snapshot is missing.
        """
        taken = [snapshots] if isinstance(snapshots, HarnessSnapshot) else list(snapshots)
        if not taken:
            raise StateError("restore() needs at least one snapshot.")
        found = {snapshot.max_parallelism for snapshot in taken}
        wanted = same.setdefault("max_parallelism", taken[0].max_parallelism)
        if found != {wanted}:
            raise StateError(
                f"The snapshots were taken with max parallelism {sorted(found)!r}, which is fixed for the life of the "
                f"state, and the harness has {wanted}."
            )
        harness = cls(function, **same)
        harness._take(taken)
        return harness

    @property
    def output(self) -> Emitted:
        """The elements emitted to the main output so far."""
        return self._output

    def side_output(self, tag: OutputTag | str) -> Emitted:
        """Return the elements emitted to a side output so far.

        Args:
            tag: The output tag, or its id.
        """
        name = tag.tag_id if isinstance(tag, OutputTag) else tag
        return self._side_outputs.setdefault(name, Emitted())

    def open(self) -> None:
        """Open the function and begin the first epoch. Optional: the first other call does it."""
        if self._operator is None:
            self._begin_epoch(self._clock.now_ms())

    def process_element(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process one element.

        Args:
            value: The element; with column keys it may be a dictionary, which becomes a row.
            timestamp: Its event time in milliseconds.

        Returns:
            The elements emitted for it.

        Raises:
            UserFunctionError: The function raised.
            StateError: The key belongs to another subtask.
        """
        return self.process_elements([value], None if timestamp is None else [timestamp])

    def process_elements(self, values: Sequence[Any], timestamps: Sequence[int | None] | None = None) -> list[Any]:
        """Process a batch of elements.

        Args:
            values: The elements.
            timestamps: The event time of each in milliseconds, None for one without; None for none at all.

        Returns:
            The elements emitted for the batch.

        Raises:
            UserFunctionError, StateError: As for `process_element`.
        """
        operator = self._running()
        values = list(map(copy_element, values))
        if timestamps is not None:
            self._latest = max([self._latest, *(time for time in timestamps if time is not None)])
        timestamps = None if timestamps is None else timestamp_column(timestamps)
        if self._keys is None:
            return self._emit(operator.process(values, timestamps=timestamps))
        elements = [self._keys.element(value) for value in values]
        dict_keys, hashes = self._keys.of(elements)
        for value, hashed in zip(values, hashes.tolist(), strict=True):
            group = key_group_of(hashed, self._max_parallelism)
            if not self._range.contains(group):
                owner = subtask_of(group, self._max_parallelism, self._parallelism)
                raise StateError(
                    f"{value!r} belongs to subtask {owner} of {self._parallelism}, not to {self._subtask}."
                )
        return self._emit(operator.process(elements, dict_keys, hashes, timestamps))

    def process_broadcast_element(self, value: Any) -> list[Any]:
        """Process one element of the broadcast stream and return the elements emitted for it.

        Raises:
            UserFunctionError: The function raised.
        """
        return self._emit(self._running().process_broadcast([copy_element(value)]))

    def owns(self, value: Any) -> bool:
        """Return whether the key of an element belongs to this subtask."""
        if self._keys is None:
            return True
        _, hashes = self._keys.of([self._keys.element(value)])
        return bool(self._range.contains(key_group_of(int(hashes[0]), self._max_parallelism)))

    def process_watermark(self, watermark: int) -> list[Any]:
        """Advance event time and return the elements that due timers emitted.

        Args:
            watermark: Milliseconds since 1970.

        Raises:
            UserFunctionError: The function raised.
        """
        operator = self._running()
        self._watermark = watermark
        if self._backend is not None:
            self._backend.latest_event_time = self._latest
        return self._emit(operator.advance_watermark(watermark))

    def set_processing_time(self, now: int) -> list[Any]:
        """End the epoch, begin one at a processing time, and return the elements that due timers emitted.

        Args:
            now: Milliseconds since 1970.

        Raises:
            UserFunctionError: The function raised.
        """
        if self._operator is not None:
            self._end_epoch()
        if isinstance(self._clock, ManualClock):
            self._clock.set(now)
        self._begin_epoch(now)
        return self._emit(self._running().fire_processing_time(now))

    def snapshot(self, checkpoint_id: int) -> HarnessSnapshot:
        """End the epoch, return its state, and begin the next epoch at the same processing time.

        Args:
            checkpoint_id: Id of the checkpoint, as the function sees it.
        """
        now = self._running().info.processing_time
        self._end_epoch(checkpoint_id)
        self._restored_id = checkpoint_id
        snapshot = HarnessSnapshot(
            checkpoint_id,
            self._epoch,
            self._max_parallelism,
            self._version.runs,
            {run.path: self._files.read(self._place(run.path)) for run in self._version.runs},
            self._operator_state,
        )
        self._begin_epoch(now)
        return snapshot

    def close(self) -> None:
        """Close the function and delete its files; emitted elements can still be read."""
        if self._keys is not None:
            self._keys.close()
        if self._backend is not None:
            self._backend.drop_cache()
        if self._instance is not None:
            self._instance.close()
        self._instance = self._operator = self._backend = None
        self._directory.cleanup()

    def __enter__(self) -> OperatorHarness:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> OperatorSubtask:
        self.open()
        assert self._operator is not None
        return self._operator

    def _begin_epoch(self, now: int) -> None:
        self._epoch += 1
        info = SubtaskInfo(
            uid=UID,
            name=UID,
            job_id=str(_JOB),
            subtask=self._subtask,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            epoch=self._epoch,
            processing_time=now,
            watermark=self._watermark,
            is_restored=self._is_restored,
            has_past=self._is_restored,
            checkpoint_id=(self._restored_id or 0) + 1,
            restored_checkpoint_id=self._restored_id,
        )
        if self._instance is None:
            template = self._new_backend(info, KeyGroupRange(0, 0))
            spec, _ = unpickle_program(self._pickled)
            self._instance = OperatorInstance(spec, info, template)
        self._backend = self._new_backend(info, self._range)
        if self._backend is not None:
            self._backend.open_version(self._version, self._files, self._directory.name)
        state = None
        if self._spec.has_operator_state or self._operator_state is not None:
            state = self._state_backend.create_operator_state_backend(self._environment(info), UID)
            state.restore(self._operator_state or OperatorSnapshot({}))
        self._operator = subtask_class(self._spec, has_timestamps=True)(self._instance, info, self._backend, state)

    def _end_epoch(self, checkpoint_id: int | None = None) -> None:
        operator, self._operator = self._operator, None
        if operator is not None and operator.operator_state is not None:
            operator.snapshot_state(checkpoint_id)
            self._operator_state = operator.operator_state.snapshot()
        if self._backend is not None:
            self._version = self._version.plus(self._backend.flush(self._new_path, _TOKEN, self._epoch))
            self._backend.commit_cache()
        if self._amnesia and self._instance is not None:
            self._instance.close()
            self._instance = None
        self._is_restored = True

    def _new_backend(self, info: SubtaskInfo, key_groups: KeyGroupRange) -> AbstractKeyedStateBackend | None:
        if self._keys is None:
            return None
        return self._state_backend.create_keyed_state_backend(
            self._environment(info), str(_JOB), UID, self._keys.codec, info.max_parallelism, key_groups, None
        )

    def _environment(self, info: SubtaskInfo) -> Environment:
        return Environment(
            job_id=info.job_id,
            operator=UID,
            subtask=info.subtask,
            parallelism=info.parallelism,
            max_parallelism=info.max_parallelism,
            processing_time=info.processing_time,
        )

    def _emit(self, elements: list[Any]) -> list[Any]:
        emitted = _as_read(elements, self._spec.output_type)
        self._output.extend(emitted)
        if self._operator is not None:
            for name, values in self._operator.take_side_outputs().items():
                self.side_output(name).extend(values)
        return emitted

    def _take(self, snapshots: Sequence[HarnessSnapshot]) -> None:
        runs: dict[str, RunHandle] = {}
        for snapshot in snapshots:
            for run in snapshot.runs:
                if run.path not in runs:
                    runs[run.path] = run
                    self._files.write_atomic(self._place(run.path), snapshot.files[run.path])
        ordered = sorted(runs.values(), key=lambda run: run.epoch)
        self._version = StateVersion(tuple(ordered)).for_range(self._range)
        parts = [snapshot.operator_state for snapshot in snapshots]
        dealt_out = RoundRobinOperatorStateRepartitioner().repartition_state(parts, len(parts), self._parallelism)
        self._operator_state = dealt_out[self._subtask]
        self._epoch = max(snapshot.epoch for snapshot in snapshots)
        self._restored_id = max(snapshot.checkpoint_id for snapshot in snapshots)
        self._is_restored = True

    def _new_path(self) -> str:
        return FileName.new(_TOKEN, self._epoch, 0, owner_of(UID), self._subtask).format()

    def _place(self, path: str) -> str:
        return join(self._directory.name, path)


def _as_read(elements: list[Any], element_type: TypeInformation) -> list[Any]:
    if not elements:
        return []
    return batch_to_elements(elements_to_batch(elements, element_type, UID), element_type)
