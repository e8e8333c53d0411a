"""What a user function sees of the task that it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.runtime.function.metric import MetricGroup, TaskMetrics
from holdfast.runtime.function.user_function import (
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    TimeDomain,
    TimerService,
)
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.declaration.described_states import DescribedStates
from holdfast.types.changed_row import CHANGES, settled

BACKEND = "holdfast.backend"
CONTEXT = "holdfast.context"
"""Keys of a deep copy's memo under which handles and contexts find the task they are re-bound to."""


@dataclass(frozen=True)
class SubtaskInfo:
    """Facts about one subtask of one operator in one epoch; times are milliseconds since 1970.

    Attributes:
        is_restored: Whether the job attempt began with a checkpoint.
        has_past: Whether there is state of an epoch before.
        checkpoint_id: Id that the next checkpoint is expected to get.
        restored_checkpoint_id: The newest checkpoint that was complete when the epoch began.
        completed_checkpoint_id: The same, if it has completed since the epoch before.
        aborted_checkpoint_ids: Checkpoints that failed since then.
    """

    uid: str
    name: str = ""
    job_id: str = ""
    subtask: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    epoch: int = 1
    attempt_number: int = 0
    processing_time: int = 0
    watermark: int = MIN_WATERMARK
    is_restored: bool = False
    has_past: bool = False
    checkpoint_id: int = 1
    restored_checkpoint_id: int | None = None
    completed_checkpoint_id: int | None = None
    aborted_checkpoint_ids: tuple[int, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)


class SubtaskContext(DescribedStates, RuntimeContext):
    """The runtime context given to `open`; copies of a function get the one of their own task."""

    def __init__(self, info: SubtaskInfo, backend: AbstractKeyedStateBackend | None) -> None:
        self._info = info
        self._backend = backend
        self.metrics = TaskMetrics()

    def __deepcopy__(self, memo: dict[Any, Any]) -> SubtaskContext:
        bound = memo.get(CONTEXT, self)
        assert isinstance(bound, SubtaskContext)
        return bound

    def get_task_name(self) -> str:
        return self._info.name

    def get_index_of_this_subtask(self) -> int:
        return self._info.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        return self._info.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._info.max_parallelism

    def get_attempt_number(self) -> int:
        return self._info.attempt_number

    def get_job_parameter(self, key: str, default_value: str | None = None) -> str | None:
        return self._info.parameters.get(key, default_value)

    def get_job_id(self) -> str:
        return self._info.job_id

    def is_restored(self) -> bool:
        return self._info.is_restored

    def get_metrics_group(self) -> MetricGroup:
        return MetricGroup(self.metrics)

    def _state(self, descriptor: Any) -> Any:
        if self._backend is None:
            raise ConfigurationError(
                f"operator {self._info.uid!r} asked for keyed state {descriptor.get_name()!r}, but its stream is not "
                "keyed: call key_by() before it"
            )
        return self._backend.get_partitioned_state(None, None, descriptor)


class ElementContext(KeyedProcessFunction.OnTimerContext, ProcessFunction.Context):
    """The context of `process_element` and `on_timer`; one object a task, its fields move with the element."""

    def __init__(self, info: SubtaskInfo, backend: AbstractKeyedStateBackend | None) -> None:
        self._info = info
        self._backend = backend
        self._timers: SubtaskTimerService = (
            UnkeyedTimerService(info) if backend is None else KeyedTimerService(info, backend)
        )
        self.side_outputs: dict[str, list[Any]] = {}
        self.side_stamps: dict[str, list[int | None]] | None = None
        self.element_timestamp: int | None = None
        self.domain: Any = None

    def timestamp(self) -> int | None:
        return self.element_timestamp

    def get_current_key(self) -> Any:
        if self._backend is None:
            raise ConfigurationError(
                f"operator {self._info.uid!r} asked for the current key, but its stream is not keyed: call key_by() "
                "before it"
            )
        return self._backend.get_current_key()

    def timer_service(self) -> TimerService:
        return self._timers

    def watermark_has_reached(self, watermark: int) -> None:
        """Lets the function see this watermark from now on."""
        self._timers.watermark = watermark

    def time_domain(self) -> Any:
        return self.domain

    def output(self, tag: OutputTag, value: Any) -> None:
        self.side_outputs.setdefault(tag.tag_id, []).append(settled(value) if CHANGES else value)
        if self.side_stamps is not None:
            time = None if self.domain is TimeDomain.PROCESSING_TIME else self.element_timestamp
            self.side_stamps.setdefault(tag.tag_id, []).append(time)


class SubtaskTimerService(TimerService):
    """The times of a task. The processing time is that of the epoch and stands still within it."""

    def __init__(self, info: SubtaskInfo) -> None:
        self._info = info
        self.watermark = info.watermark

    def current_processing_time(self) -> int:
        return self._info.processing_time

    def current_watermark(self) -> int:
        return self.watermark


class KeyedTimerService(SubtaskTimerService):
    """The times of a task, and timers of the current key."""

    def __init__(self, info: SubtaskInfo, backend: AbstractKeyedStateBackend) -> None:
        super().__init__(info)
        self._backend = backend

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._backend.timers.register_processing_time_timer(timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        self._backend.timers.register_event_time_timer(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._backend.timers.delete_processing_time_timer(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._backend.timers.delete_event_time_timer(timestamp)

    def processing_time_timers(self) -> list[int]:
        """The processing-time timers of the current key, in order."""
        return self._backend.timers.processing_time_timers()

    def event_time_timers(self) -> list[int]:
        """The event-time timers of the current key, in order."""
        return self._backend.timers.event_time_timers()


class UnkeyedTimerService(SubtaskTimerService):
    """The times of a task without keys, as in Flink: a timer belongs to a key, so there are none."""

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._refuse("set a timer")

    def register_event_time_timer(self, timestamp: int) -> None:
        self._refuse("set a timer")

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._refuse("deleted a timer")

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._refuse("deleted a timer")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"operator {self._info.uid!r} {what}, but its stream is not keyed: call key_by() before it. Without keys "
            "there are only the current times"
        )
