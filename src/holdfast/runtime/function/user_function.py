"""Functions of streams, in PyFlink's spelling: the abstract classes that users subclass, and their contexts.

A function object is pickled in the driver, opened once per worker process and job attempt, and copied for every task::

    __init__ (driver) --pickle--> open(runtime_context) --copy per task--> process_element(...)* --> close()

Fields of `self` are therefore a cache and never state: a value that an element leaves in them may be lost in the next
epoch, or be there twice. Keep state in the handles that `open` gets from its runtime context.

Wherever a function object with a single method is accepted, a plain Python callable is accepted, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.metric import MetricGroup
from holdfast.state.api import (
    BroadcastState,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedStateStore,
    ReadOnlyBroadcastState,
)
from holdfast.state.descriptor import AggregateFunction, FoldFunction, ReduceFunction
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

__all__ = [
    "AggregateFunction",
    "CheckpointListener",
    "CheckpointedFunction",
    "FilterFunction",
    "FlatMapFunction",
    "FoldFunction",
    "Function",
    "KeySelector",
    "KeyedProcessFunction",
    "MapFunction",
    "OutputTag",
    "Partitioner",
    "ProcessFunction",
    "ReduceFunction",
    "RichFilterFunction",
    "RichFlatMapFunction",
    "RichFunction",
    "RichMapFunction",
    "RichReduceFunction",
    "RuntimeContext",
    "TimeDomain",
    "TimerService",
]
ReduceLike = ReduceFunction | Callable[[Any, Any], Any]


class RuntimeContext(KeyedStateStore):
    """The context of a function in `open`: facts about the subtask, its keyed state and its metrics.

    >>> from holdfast.datastream.state import ValueStateDescriptor
    >>> from holdfast.testing import OperatorHarness
    >>> class Count(RichMapFunction):
    ...     def open(self, runtime_context):
    ...         self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
    ...
    ...     def map(self, value):
    ...         self.count.update((self.count.value() or 0) + 1)
    ...         return value, self.count.value()
    >>> harness = OperatorHarness(Count(), key_by=lambda word: word, key_type="string")
    >>> [harness.process_element(word) for word in ("kelp", "cod", "kelp")]
    [[('kelp', 1)], [('cod', 1)], [('kelp', 2)]]
    >>> harness.close()
    """

    @abstractmethod
    def get_job_id(self) -> str:
        """Return the id of the job, 32 hexadecimal digits."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Return the name of the operator, as set by `name()` or derived."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Return the index of this subtask, from 0."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Return the parallelism of the operator in this epoch."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the number of key groups, which limits the parallelism."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """Return the number of restarts of the job before this attempt."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str | None = None) -> str | None:
        """Return a job parameter, set by the option `pipeline.global-job-parameters.<key>`.

        Args:
            key: Name of the parameter.
            default_value: Returned if the parameter is not set.
        """

    @abstractmethod
    def is_restored(self) -> bool:
        """Return whether the job attempt was restored from a checkpoint."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Return the group in which the function registers its metrics, in `open`.

        Raises:
            ConfigurationError: The function is a key selector or a partitioner, which have no metrics.
        """

    def get_task_name_with_subtasks(self) -> str:
        """Return the name with the subtask, counted from 1: `name (3/8)`."""
        subtask = self.get_index_of_this_subtask() + 1
        return f"{self.get_task_name()} ({subtask}/{self.get_number_of_parallel_subtasks()})"


class Function:
    """The base class of all functions. Both methods are optional."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare the function, for instance open a connection or ask for state handles.

        Runs once per worker process and job attempt, not once an epoch. May block.

        Args:
            runtime_context: The subtask, its state and its metrics.
        """

    def close(self) -> None:
        """Release what `open` acquired, when the worker process drops the function.

        Does not run in a process that is killed.
        """


def functions_of(function: Any) -> Iterator[Any]:
    """Yield a function, and the functions of the program that it calls, as those of windows and joins do."""
    yield function
    for called in getattr(function, "program_functions", ()):
        yield from functions_of(called)


class RichFunction(Function):
    """A function with `open` and `close`. Every function may have them; this name is PyFlink's."""


class MapFunction(Function, ABC):
    """Replaces each element with one element.

    >>> from holdfast.testing import OperatorHarness
    >>> class Double(MapFunction):
    ...     def map(self, value):
    ...         return 2 * value
    >>> harness = OperatorHarness(Double())
    >>> harness.process_element(21)
    [42]
    >>> harness.close()
    """

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Return the element that replaces `value`."""


class RichMapFunction(MapFunction, RichFunction):
    """A map function with `open` and `close`, and with state on a keyed stream; see `RuntimeContext`."""


class FlatMapFunction(Function, ABC):
    """Replaces each element with any number of elements.

    >>> from holdfast.testing import OperatorHarness
    >>> class Words(FlatMapFunction):
    ...     def flat_map(self, value):
    ...         yield from value.split()
    >>> harness = OperatorHarness(Words())
    >>> harness.process_element("kelp and cod")
    ['kelp', 'and', 'cod']
    >>> harness.close()
    """

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """Yield, or return an iterable of, the elements that replace `value`; None means none."""


class RichFlatMapFunction(FlatMapFunction, RichFunction):
    """A flat-map function with `open` and `close`; on a keyed stream it may have state."""


class FilterFunction(Function, ABC):
    """Decides for each element whether it stays in the stream.

    >>> from holdfast.testing import OperatorHarness
    >>> class Even(FilterFunction):
    ...     def filter(self, value):
    ...         return value % 2 == 0
    >>> harness = OperatorHarness(Even())
    >>> [harness.process_element(number) for number in range(4)]
    [[0], [], [2], []]
    >>> harness.close()
    """

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Return whether `value` stays in the stream."""


class RichFilterFunction(FilterFunction, RichFunction):
    """A filter function with `open` and `close`; on a keyed stream it may have state."""


class RichReduceFunction(ReduceFunction, RichFunction):
    """A reduce function with `open` and `close`."""


def open_owner(method: Callable[..., Any], runtime_context: RuntimeContext) -> None:
    """Open the function object that a method belongs to; do nothing for a plain callable."""
    owner = getattr(method, "__self__", None)
    if isinstance(owner, Function):
        owner.open(runtime_context)


def close_owner(method: Callable[..., Any]) -> None:
    """Close the function object that a method belongs to; do nothing for a plain callable."""
    owner = getattr(method, "__self__", None)
    if isinstance(owner, Function):
        owner.close()


class KeySelector(Function, ABC):
    """Computes the key of an element in Python.

    Columns named in `key_by` are faster: Spark computes their hash. A key selector has no state and no metrics, and
    `open` must not change the keys that it returns.

    >>> from holdfast.testing import OperatorHarness
    >>> class FirstLetter(KeySelector):
    ...     def get_key(self, value):
    ...         return value[0]
    >>> class WithKey(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         yield ctx.get_current_key(), value
    >>> harness = OperatorHarness(WithKey(), key_by=FirstLetter(), key_type="string")
    >>> harness.process_element("kelp")
    [('k', 'kelp')]
    >>> harness.close()
    """

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the key of an element, always the same for equal elements."""


class Partitioner(Function, ABC):
    """Chooses the subtask of an element by its key, for `DataStream.partition_custom`.

    >>> class Modulo(Partitioner):
    ...     def partition(self, key, num_partitions):
    ...         return key % num_partitions
    >>> Modulo().partition(7, 4)
    3
    """

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Return the index of the subtask.

        Args:
            key: The key of the element.
            num_partitions: Number of subtasks; the result is from 0 to less than this.
        """


class OutputTag:
    """The name of a side output and the type of its elements.

    Tags of the same name are equal. A function emits to a side output with `ctx.output(tag, value)`, or, as in PyFlink,
    with `yield tag, value`.

    Args:
        tag_id: The name, not empty.
        type_info: Type of the elements: type information, DDL, a Spark or Arrow type. Without it elements are pickled.

    Raises:
        ConfigurationError: The name is empty.

    >>> OutputTag("late", "string")
    OutputTag('late', 'string')
    """

    def __init__(self, tag_id: str, type_info: Any = None) -> None:
        if not tag_id:
            raise ConfigurationError("An OutputTag needs a name that is not empty.")
        self.tag_id = tag_id
        self.type_info: TypeInformation = to_type(type_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and self.tag_id == other.tag_id

    def __hash__(self) -> int:
        return hash(("OutputTag", self.tag_id))

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r}, {self.type_info.ddl!r})"


class TimeDomain(Enum):
    """The clock of a timer."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


class TimerService(ABC):
    """The current times, and the timers of the current key. All times are milliseconds since 1970-01-01 UTC.

    The processing time is that of the epoch: it is constant within an epoch, and the same when an epoch runs again. In
    a real-time job it is the time when the task took the elements that it processes.

    >>> from holdfast.testing import OperatorHarness
    >>> class Later(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1_000)
    ...
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    >>> harness = OperatorHarness(Later(), key_by=lambda word: word, key_type="string")
    >>> harness.process_element("kelp", 500)
    []
    >>> harness.process_watermark(2_000)
    [('kelp', 1500)]
    >>> harness.close()
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the processing time: of the epoch, or in real time the current one."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the event-time watermark; the smallest 64-bit number before there is one."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer: `on_timer` is called when the processing time reaches `timestamp`.

        A second registration of the same time has no effect.

        Raises:
            ConfigurationError: The stream is not keyed.
        """

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer: `on_timer` is called when the watermark reaches `timestamp`.

        A second registration of the same time has no effect.

        Raises:
            ConfigurationError: The stream is not keyed.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the processing-time timer of exactly this timestamp; no effect if there is none.

        Raises:
            ConfigurationError: The stream is not keyed.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the event-time timer of exactly this timestamp; no effect if there is none.

        Raises:
            ConfigurationError: The stream is not keyed.
        """


class ProcessFunction(Function, ABC):
    """Processes each element with its context, and emits any number of elements, also to side outputs.

    >>> from holdfast.testing import OperatorHarness
    >>> ODD = OutputTag("odd", "bigint")
    >>> class Split(ProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         if value % 2:
    ...             ctx.output(ODD, value)
    ...         else:
    ...             yield value
    >>> harness = OperatorHarness(Split())
    >>> [harness.process_element(number) for number in range(4)]
    [[0], [], [2], []]
    >>> harness.side_output(ODD)
    [1, 3]
    >>> harness.close()
    """

    class Context(ABC):
        """The context of an element; valid during the call only."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the event time of the element in milliseconds since 1970, None if it has none."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the times; timers need a keyed stream."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Emit `value` to a side output."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Yield, or return an iterable of, the output for `value`; None stands for none."""


class KeyedProcessFunction(Function, ABC):
    """Processes each element of a keyed stream, with state and timers for each key.

    >>> from holdfast.testing import OperatorHarness
    >>> class Alarm(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 100)
    ...
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    >>> harness = OperatorHarness(Alarm(), key_by=lambda word: word, key_type="string")
    >>> harness.process_element("kelp", timestamp=5)
    []
    >>> harness.process_watermark(104)
    []
    >>> harness.process_watermark(105)
    [('kelp', 105)]
    >>> harness.close()
    """

    class Context(ABC):
        """The context of an element; valid during the call only."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the element or timer."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the event time of the element, or the time of the timer, in milliseconds since 1970; or None."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the times, and the timers of the current key."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Emit `value` to a side output."""

    class OnTimerContext(Context):
        """The context of a timer that fires; valid during the call only."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return the clock of the timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Yield, or return an iterable of, the output for `value`; None stands for none."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Yield the output for a timer of the current key; timers fire at the end of an epoch, in order of time.

        Args:
            timestamp: The time of the timer, in milliseconds since 1970.
            ctx: The key, the clock of the timer, timers and side outputs.
        """
        return None


class CheckpointedFunction(ABC):
    """A function with operator state; a mix-in for any function.

    >>> from holdfast.datastream.state import ListStateDescriptor
    >>> from holdfast.testing import OperatorHarness
    >>> class Numbered(MapFunction, CheckpointedFunction):
    ...     def initialize_state(self, context):
    ...         store = context.get_operator_state_store()
    ...         self.state = store.get_list_state(ListStateDescriptor("count", "bigint"))
    ...         self.count = sum(self.state.get())
    ...
    ...     def map(self, value):
    ...         self.count += 1
    ...         return self.count, value
    ...
    ...     def snapshot_state(self, context):
    ...         self.state.update([self.count])
    >>> harness = OperatorHarness(Numbered())
    >>> harness.process_element("kelp")
    [(1, 'kelp')]
    >>> restored = OperatorHarness.restore([harness.snapshot(1)], Numbered())
    >>> restored.process_element("cod")
    [(2, 'cod')]
    >>> restored.close(), harness.close()
    (None, None)
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the state handles. Runs after `open`, on the fresh copy of each task.

        Args:
            context: The state stores of the subtask, and whether it was restored.
        """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Write what is in fields of `self` into state. Runs at the end of each epoch, before state is written.

        Args:
            context: The id of the next checkpoint, and streams of raw state.
        """


class CheckpointListener(ABC):
    """A function that is notified of checkpoints; a mix-in for any function.

    Notifications come in the task of a later epoch, on the fresh copy of that task, and at most once: one is lost with
    the process, and one may stand for several checkpoints.

    >>> class Acknowledging(RichMapFunction, CheckpointListener):
    ...     def map(self, value):
    ...         return value
    ...
    ...     def notify_checkpoint_complete(self, checkpoint_id):
    ...         print(f"checkpoint {checkpoint_id} is complete")
    >>> Acknowledging().notify_checkpoint_complete(3)
    checkpoint 3 is complete
    """

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called after a checkpoint is complete, and with it all earlier ones."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027 - few have something to do
        """Called after a checkpoint failed; a later one may have what it would have had."""


MapLike = MapFunction | Callable[[Any], Any]
FlatMapLike = FlatMapFunction | Callable[[Any], Iterable[Any] | None]
FilterLike = FilterFunction | Callable[[Any], bool]
ProcessLike = ProcessFunction | KeyedProcessFunction | Callable[[Any, Any], Iterable[Any] | None]
KeySelectorLike = KeySelector | Callable[[Any], Any]


# Functions of two connected streams have one instance, and so one state, for both.


class CoMapFunction(Function, ABC):
    """Replaces each element of two connected streams with one element; None means none, as in PyFlink.

    >>> class Labelled(CoMapFunction):
    ...     def map1(self, value):
    ...         return "left", value
    ...
    ...     def map2(self, value):
    ...         return "right", value
    >>> Labelled().map2(7)
    ('right', 7)
    """

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """Return the element that replaces an element of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """Return the element that replaces an element of the second stream."""


class RichCoMapFunction(CoMapFunction, RichFunction):
    """A co-map function with `open` and `close`; on keyed streams it may have state."""


class CoFlatMapFunction(Function, ABC):
    """Replaces each element of two connected streams with any number of elements.

    >>> class Words(CoFlatMapFunction):
    ...     def flat_map1(self, value):
    ...         yield from value.split()
    ...
    ...     def flat_map2(self, value):
    ...         yield value
    >>> list(Words().flat_map1("kelp and cod"))
    ['kelp', 'and', 'cod']
    """

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """Yield the elements that replace an element of the first stream."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """Yield the elements that replace an element of the second stream."""


class RichCoFlatMapFunction(CoFlatMapFunction, RichFunction):
    """A co-flat-map function with `open` and `close`; on keyed streams it may have state."""


class CoProcessFunction(Function, ABC):
    """Processes each element of two connected streams with its context; emits any number of elements.

    See `KeyedCoProcessFunction` for an example.

    >>> class Labelled(CoProcessFunction):
    ...     def process_element1(self, value, ctx):
    ...         yield "left", value
    ...
    ...     def process_element2(self, value, ctx):
    ...         yield "right", value
    >>> list(Labelled().process_element2(7, None))
    [('right', 7)]
    """

    Context = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Yield the output for an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Yield the output for an element of the second stream."""


class KeyedCoProcessFunction(Function, ABC):
    """Processes each element of two connected keyed streams, with state and timers of a key that both share.

    The order of elements of different streams is undefined: an element that needs the other side waits in state.

    >>> from holdfast.datastream.state import ValueStateDescriptor
    >>> class Enrich(KeyedCoProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.name = runtime_context.get_state(ValueStateDescriptor("name", "string"))
    ...
    ...     def process_element1(self, value, ctx):
    ...         yield self.name.value(), value
    ...
    ...     def process_element2(self, value, ctx):
    ...         self.name.update(value)
    """

    Context = KeyedProcessFunction.Context
    OnTimerContext = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Yield the output for an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Yield the output for an element of the second stream."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Yield the output for a timer of the current key; timers fire at the end of an epoch, in order of time.

        Args:
            timestamp: The time of the timer, in milliseconds since 1970.
            ctx: The key, the clock of the timer, timers and side outputs.
        """
        return None


class ProcessJoinFunction(Function, ABC):
    """Processes each pair of elements of an interval join; its output has the later of their two timestamps.

    >>> class Pair(ProcessJoinFunction):
    ...     def process_element(self, left, right, ctx):
    ...         yield left, right
    >>> list(Pair().process_element("order", "payment", None))
    [('order', 'payment')]
    """

    class Context(ABC):
        """The context of a pair; valid during the call only. Times are milliseconds since 1970."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Return the event time of the element of the first stream."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Return the event time of the element of the second stream."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """Return the event time of the pair, the later of the two."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Emit `value` to a side output."""

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any] | None:
        """Yield the output for a pair."""


class JoinFunction(Function, ABC):
    """Makes one element of each pair of elements of a key and a window.

    >>> class Pair(JoinFunction):
    ...     def join(self, first, second):
    ...         return first, second
    >>> Pair().join("order", "payment")
    ('order', 'payment')
    """

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """Return the output for a pair."""


class CoGroupFunction(Function, ABC):
    """Processes all elements of a key and a window, separately for each stream; one of the two may have none.

    >>> class Counts(CoGroupFunction):
    ...     def co_group(self, first, second):
    ...         yield len(first), len(second)
    >>> list(Counts().co_group(["a", "b"], []))
    [(2, 0)]
    """

    @abstractmethod
    def co_group(self, first: list[Any], second: list[Any]) -> Iterable[Any] | None:
        """Yield the output for a key and a window."""


class _BaseContext(ABC):
    @abstractmethod
    def timestamp(self) -> int | None:
        """Return the event time of the element in milliseconds since 1970, None if it has none."""

    @abstractmethod
    def output(self, tag: OutputTag, value: Any) -> None:
        """Emit `value` to a side output."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the processing time in milliseconds since 1970: of the epoch, or in real time the current one."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the event-time watermark; the smallest 64-bit number before there is one."""


class BaseBroadcastProcessFunction(Function):
    """The base class of broadcast process functions, with their contexts."""

    class Context(_BaseContext):
        """The context of a broadcast element; valid during the call only."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: Any) -> BroadcastState[Any, Any]:
            """Return broadcast state, writable.

            Args:
                state_descriptor: A descriptor that was passed to `broadcast()`; it is found by its name.

            Raises:
                ConfigurationError: The state was not passed to `broadcast()`.
            """

    class ReadOnlyContext(_BaseContext):
        """The context of an element of the other stream; valid during the call only."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: Any) -> ReadOnlyBroadcastState[Any, Any]:
            """Return broadcast state, read-only; see `Context.get_broadcast_state`."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, ABC):
    """Processes a stream without keys, and a broadcast stream, for instance of rules.

    Every subtask gets every broadcast element, in an epoch before all others, and puts it into broadcast state, which
    is therefore the same on all subtasks; the other stream only reads it.

    >>> from holdfast.datastream.state import MapStateDescriptor
    >>> LIMITS = MapStateDescriptor("limits", "string", "bigint")
    >>> class Check(BroadcastProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         word, number = value
    ...         if number > (ctx.get_broadcast_state(LIMITS).get(word) or 0):
    ...             yield value
    ...
    ...     def process_broadcast_element(self, value, ctx):
    ...         ctx.get_broadcast_state(LIMITS).put(*value)
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: BaseBroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any] | None:
        """Yield the output for an element of the stream that is not broadcast."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: BaseBroadcastProcessFunction.Context) -> Iterable[Any] | None:
        """Yield the output for a broadcast element.

        Runs on each subtask, and must change broadcast state in the same way on all of them.
        """


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, ABC):
    """Processes a keyed stream, with state and timers for each key, and a broadcast stream.

    See `BroadcastProcessFunction` for an example.

    >>> from holdfast.datastream.state import MapStateDescriptor
    >>> from holdfast.testing import OperatorHarness
    >>> LIMITS = MapStateDescriptor("limits", "string", "bigint")
    >>> class Check(KeyedBroadcastProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         if value > (ctx.get_broadcast_state(LIMITS).get(ctx.get_current_key()) or 0):
    ...             yield ctx.get_current_key(), value
    ...
    ...     def process_broadcast_element(self, value, ctx):
    ...         ctx.get_broadcast_state(LIMITS).put(*value)
    >>> harness = OperatorHarness(Check(), key_by=lambda n: "kelp", key_type="string", broadcast=[LIMITS])
    >>> harness.process_broadcast_element(("kelp", 5))
    []
    >>> harness.process_element(4), harness.process_element(7)
    ([], [('kelp', 7)])
    >>> harness.close()
    """

    class Context(BaseBroadcastProcessFunction.Context):
        """The context of a broadcast element, which has no key."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: Any, function: Callable[[Any, Any], None]) -> None:
            """Call a function for each key of this subtask that has a value in a keyed state. Reads all of its keys.

            Args:
                state_descriptor: The keyed state.
                function: Called as `function(key, state)`.
            """

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """The context of an element of the keyed stream."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the element."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the times, and the timers of the current key."""

    class OnTimerContext(ReadOnlyContext):
        """The context of a timer that fires."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return the clock of the timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any] | None:
        """Yield the output for an element of the keyed stream."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterable[Any] | None:
        """Yield the output for a broadcast element.

        Runs on each subtask, and must change broadcast state in the same way on all of them.
        """

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Yield the output for a timer of the current key; timers fire at the end of an epoch, in order of time.

        Args:
            timestamp: The time of the timer, in milliseconds since 1970.
            ctx: The key, the clock of the timer, timers and side outputs.
        """
        return None


class GroupFunction(RichFunction):
    """A function of all elements of a key in an epoch, with state and timers for the key.

    Attributes:
        dropped_states: Names of former states that are deleted.
    """

    dropped_states: tuple[str, ...] = ()

    @abstractmethod
    def process_group(self, values: Sequence[Any], ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Process the elements of the current key.

        Args:
            values: All elements, at least one, in the order of their arrival. The timers of the epoch fire afterwards.
            ctx: As for `KeyedProcessFunction.process_element`; there is no timestamp.

        Returns:
            The output, any number of elements.
        """

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Yield the output for a timer of the current key; timers fire at the end of an epoch, in order of time.

        Args:
            timestamp: The time of the timer, in milliseconds since 1970.
            ctx: The key, the clock of the timer, timers and side outputs.
        """
        return ()
