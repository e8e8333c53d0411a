"""What users subclass: the abstract functions of a stream, in PyFlink's spelling.

A function object is pickled in the driver, opened once per worker process and job attempt, and copied for every task::

    __init__ (driver) --pickle--> open(runtime_context) --copy per task--> process_element(...)* --> close()

Fields of `self` are therefore a cache and never state: what an element leaves in them may be gone at the next epoch, or
be there once more than expected. State lives in the handles that `open` gets from its runtime context.

Wherever a function object with a single method is taken, a plain Python callable is taken too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.metric import MetricGroup
from holdfast.state.declaration.api import FunctionInitializationContext, FunctionSnapshotContext, KeyedStateStore
from holdfast.state.declaration.function import AggregateFunction, FoldFunction, ReduceFunction
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import TypeInformation

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
