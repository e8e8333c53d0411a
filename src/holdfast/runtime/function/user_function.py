"""What users subclass: the abstract functions of a stream, in PyFlink's spelling.

A function object is pickled in the driver, opened once per worker process and job attempt, and copied for every task::

    __init__ (driver) --pickle--> open(runtime_context) --copy per task--> process_element(...)* --> close()

Fields of `self` are therefore a cache and never state: what an element leaves in them may be gone at the next epoch, or
be there once more than expected. State lives in the handles that `open` gets from its runtime context.

Wherever a function object with a single method is taken, a plain Python callable is taken too.
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


class RuntimeContext(KeyedStateStore):
    """What a function is told in `open`: who it is, and where its keyed state is."""

    @abstractmethod
    def get_job_id(self) -> str:
        """The job, 32 hexadecimal digits."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Name of the operator, as set by `name()` or derived."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Number of this subtask, from 0."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Parallelism of the operator in this epoch."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Number of key groups, the upper bound of the parallelism."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """How often this subtask's epoch was tried before."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str | None = None) -> str | None:
        """A job parameter, set by the option `pipeline.global-job-parameters.<key>`."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Whether the operator has a past: a checkpoint that it was restored from."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """The group in which the function makes metrics of its own, in `open`."""

    def get_task_name_with_subtasks(self) -> str:
        """Name with the subtask, counted from 1: `name (3/8)`."""
        subtask = self.get_index_of_this_subtask() + 1
        return f"{self.get_task_name()} ({subtask}/{self.get_number_of_parallel_subtasks()})"


class Function:
    """The root of all functions. Both methods may be left out."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepares the function; runs once per worker process and job attempt, and not once an epoch."""

    def close(self) -> None:
        """Releases what `open` took when the worker process lets the function go; a killed process does not."""


def functions_of(function: Any) -> Iterator[Any]:
    """Returns a function, and those of the program that it calls, as that of a window or of a join does."""
    yield function
    for called in getattr(function, "program_functions", ()):
        yield from functions_of(called)


class RichFunction(Function):
    """A function that uses `open` and `close`; every function may, this is the name for those that say so."""


class MapFunction(Function, ABC):
    """One element in, one element out."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Returns the element that takes the place of `value`."""


class RichMapFunction(MapFunction, RichFunction):
    """A map function with `open` and `close`; on a keyed stream it may have state."""


class FlatMapFunction(Function, ABC):
    """One element in, any number out."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """Yields (or returns an iterable of) the elements that take the place of `value`; None stands for none."""


class RichFlatMapFunction(FlatMapFunction, RichFunction):
    """A flat-map function with `open` and `close`; on a keyed stream it may have state."""


class FilterFunction(Function, ABC):
    """Decides for each element whether it stays."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether `value` stays in the stream."""


class RichFilterFunction(FilterFunction, RichFunction):
    """A filter function with `open` and `close`; on a keyed stream it may have state."""


class RichReduceFunction(ReduceFunction, RichFunction):
    """A reduce function with `open` and `close`."""


def open_owner(method: Callable[..., Any], runtime_context: RuntimeContext) -> None:
    """Opens the function object that a method belongs to; a plain callable has none."""
    owner = getattr(method, "__self__", None)
    if isinstance(owner, Function):
        owner.open(runtime_context)


def close_owner(method: Callable[..., Any]) -> None:
    """Closes the function object that a method belongs to; a plain callable has none."""
    owner = getattr(method, "__self__", None)
    if isinstance(owner, Function):
        owner.close()


class KeySelector(Function, ABC):
    """Computes the key of an element in Python; columns named in `key_by` are faster: Spark computes their hash.

    It has no state and no metrics: what it does in `open` must not change the keys.
    """

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Returns the key: the same for the same element, always."""


class Partitioner(Function, ABC):
    """Chooses the subtask that gets an element, by its key."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Returns the number of the subtask, from 0 to less than `num_partitions`."""


class OutputTag:
    """Names a side output and the type of its elements.

    Two tags of one name are the same tag. A function sends to it by `ctx.output(tag, value)`, or as in PyFlink by
    `yield tag, value`.

    Args:
        tag_id: The name, not empty.
        type_info: Type of the elements: type information, DDL, a Spark or Arrow type. Without it elements are pickled.

    Raises:
        ConfigurationError: The name is empty.
    """

    def __init__(self, tag_id: str, type_info: Any = None) -> None:
        if not tag_id:
            raise ConfigurationError("an OutputTag needs a name that is not empty")
        self.tag_id = tag_id
        self.type_info: TypeInformation = to_type(type_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and self.tag_id == other.tag_id

    def __hash__(self) -> int:
        return hash(("OutputTag", self.tag_id))

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r}, {self.type_info.ddl!r})"


class TimeDomain(Enum):
    """Which clock a timer follows."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


class TimerService(ABC):
    """Time, and timers of the current key. All times are milliseconds since 1970-01-01 UTC.

    The processing time is that of the epoch: it stands still within one, and is the same when an epoch runs again.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """The epoch's processing time."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The event-time watermark; the smallest 64-bit number before there is one."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Asks for `on_timer` when the processing time reaches `timestamp`; again is no change."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Asks for `on_timer` when the watermark reaches `timestamp`; again is no change."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Takes back a processing-time timer of exactly this timestamp; no such timer is no error."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Takes back an event-time timer of exactly this timestamp; no such timer is no error."""


class ProcessFunction(Function, ABC):
    """Sees each element with its context and emits any number of elements, also to side outputs."""

    class Context(ABC):
        """What is known beside the element; valid during the call only."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Event time of the element in milliseconds; None if the stream has none."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time; registering a timer needs a keyed stream."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Sends `value` to a side output."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for `value`."""


class KeyedProcessFunction(Function, ABC):
    """A process function on a keyed stream: with state and timers for each key."""

    class Context(ABC):
        """What is known beside the element; valid during the call only."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The key of the element."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Event time of the element, or of the timer, in milliseconds; None if the stream has none."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time, and the timers of the current key."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Sends `value` to a side output."""

    class OnTimerContext(Context):
        """The context of a timer that fires."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which clock fired the timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for `value`."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Yields what is to be emitted when a timer of the current key fires; timers fire at the end of an epoch."""
        return None


class CheckpointedFunction(ABC):
    """A function that is asked to set up its state, and told before each snapshot; mix it into any function."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Asks for state handles; runs after `open`, on the fresh copy of each task."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Puts what is still in fields of `self` into state; runs at the end of each epoch, before state is written."""


class CheckpointListener(ABC):
    """A function that is told what became of checkpoints; mix it into any function.

    It is told in the task of a later epoch, on the fresh copy of that task, and at best once: a notification is lost
    with the process, and one may stand for several checkpoints.
    """

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is complete, and with it all that were prepared before it."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027 - few have something to do
        """A checkpoint failed; what was prepared for it may still be part of a later one."""


MapLike = MapFunction | Callable[[Any], Any]
FlatMapLike = FlatMapFunction | Callable[[Any], Iterable[Any] | None]
FilterLike = FilterFunction | Callable[[Any], bool]
ReduceLike = ReduceFunction | Callable[[Any, Any], Any]
ProcessLike = ProcessFunction | KeyedProcessFunction | Callable[[Any, Any], Iterable[Any] | None]
KeySelectorLike = KeySelector | Callable[[Any], Any]


# Functions of two connected streams: one method for the elements of each, one instance, and so one state, for both.
#
# In which order the elements of the two come is not said, within an epoch or else; what must not depend on it is put
# into state and waits there for the other side.


class CoMapFunction(Function, ABC):
    """One element in, from either stream, and one out; None is none, as in PyFlink."""

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """Returns what takes the place of an element of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """Returns what takes the place of an element of the second stream."""


class RichCoMapFunction(CoMapFunction, RichFunction):
    """A co-map function with `open` and `close`; on keyed streams it may have state."""


class CoFlatMapFunction(Function, ABC):
    """One element in, from either stream, and any number out."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """Yields what takes the place of an element of the first stream."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """Yields what takes the place of an element of the second stream."""


class RichCoFlatMapFunction(CoFlatMapFunction, RichFunction):
    """A co-flat-map function with `open` and `close`; on keyed streams it may have state."""


class CoProcessFunction(Function, ABC):
    """Sees each element of both streams with its context, and emits any number of elements, also to side outputs."""

    Context = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the second stream."""


class KeyedCoProcessFunction(Function, ABC):
    """A process function of two keyed streams: state and timers of a key are those of both."""

    Context = KeyedProcessFunction.Context
    OnTimerContext = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the second stream."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Yields what is to be emitted when a timer of the current key fires; timers fire at the end of an epoch."""
        return None


class ProcessJoinFunction(Function, ABC):
    """Sees each pair of elements that an interval join finds; what it emits has the later of their two times."""

    class Context(ABC):
        """What is known beside the pair; valid during the call only. Times are milliseconds since 1970."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Event time of the element of the first stream."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Event time of the element of the second stream."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """Event time of the pair: the later of the two."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Sends `value` to a side output."""

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for a pair."""


class JoinFunction(Function, ABC):
    """Makes one element of each pair of elements of a key and a window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """Returns what is to be emitted for a pair."""


class CoGroupFunction(Function, ABC):
    """Sees all elements of a key and a window, those of each stream by themselves; one of the two may have none."""

    @abstractmethod
    def co_group(self, first: list[Any], second: list[Any]) -> Iterable[Any] | None:
        """Yields what is to be emitted for a key and a window."""


# Functions of two streams of which one is broadcast: rules for the elements of the other, say.
#
# Every subtask gets every broadcast element, in an epoch before all others, and puts it into broadcast state, which is
# therefore the same everywhere; the side of the other stream only reads it.


class _BaseContext(ABC):
    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds; None if the stream has none."""

    @abstractmethod
    def output(self, tag: OutputTag, value: Any) -> None:
        """Sends `value` to a side output."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The epoch's processing time in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The event-time watermark; the smallest 64-bit number before there is one."""


class BaseBroadcastProcessFunction(Function):
    """What both kinds have in common: their contexts."""

    class Context(_BaseContext):
        """What is known beside a broadcast element; valid during the call only."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: Any) -> BroadcastState[Any, Any]:
            """The state that was declared in `broadcast()`, to be changed."""

    class ReadOnlyContext(_BaseContext):
        """What is known beside an element of the other stream; valid during the call only."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: Any) -> ReadOnlyBroadcastState[Any, Any]:
            """The state that was declared in `broadcast()`, to be read."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, ABC):
    """For a stream without keys."""

    @abstractmethod
    def process_element(self, value: Any, ctx: BaseBroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the stream that is not broadcast."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: BaseBroadcastProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for a broadcast element, on each subtask; must do the same on all of them."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, ABC):
    """For a keyed stream: with state and timers for each key on its side."""

    class Context(BaseBroadcastProcessFunction.Context):
        """The context of a broadcast element, which has no key."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: Any, function: Callable[[Any, Any], None]) -> None:
            """Calls `function(key, state)` for each key of this subtask that has something in a keyed state."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """The context of an element of the keyed stream."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The key of the element."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time, and the timers of the current key."""

    class OnTimerContext(ReadOnlyContext):
        """The context of a timer that fires."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which clock fired the timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the keyed stream."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for a broadcast element, on each subtask; must do the same on all of them."""

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Yields what is to be emitted when a timer of the current key fires; timers fire at the end of an epoch."""
        return None


# Functions that get all elements that a key has in an epoch at once.


class GroupFunction(RichFunction):
    """A function of all elements of a key in an epoch; it has state and timers for the key.

    Attributes:
        given_up: Names of states that it had once and that are to be deleted.
    """

    given_up: tuple[str, ...] = ()

    @abstractmethod
    def process_group(self, values: Sequence[Any], ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Process the elements of the current key.

        Args:
            values: All of them, at least one, in the order in which they came. The timers of the epoch fire afterwards.
            ctx: As for `KeyedProcessFunction.process_element`; there is no timestamp.

        Returns:
            What to emit, any number.
        """

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Called when a timer of the current key fires; returns what to emit."""
        return ()
