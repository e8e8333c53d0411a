"""What triggers, assigners, evictors and window functions see of the task that they run in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast.errors import ConfigurationError, StateError
from holdfast.runtime.function.user_function import OutputTag, RuntimeContext
from holdfast.runtime.operator.context import ElementContext
from holdfast.runtime.window.evictor import Evictor
from holdfast.runtime.window.trigger import Trigger
from holdfast.runtime.window.window_assigner import WindowAssigner
from holdfast.runtime.window.window_function import ProcessAllWindowFunction, ProcessWindowFunction
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.declaration.api import KeyedStateStore
from holdfast.state.declaration.described_states import DescribedStates
from holdfast.state.timer.timer_service import InternalTimerService
from holdfast.types.serializer import TypeSerializer


class WindowAssignerTaskContext(WindowAssigner.WindowAssignerContext):
    """Time, and state of the current key."""

    def __init__(self, timers: InternalTimerService, runtime_context: RuntimeContext) -> None:
        self._timers = timers
        self._runtime_context = runtime_context

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime_context


class TriggerTaskContext(Trigger.OnMergeContext, Evictor.EvictorContext):
    """Times, and timers and state of a window of the current key.

    Attributes:
        window: The window at hand.
        merged: Those that it was made of, while it is merged.
    """

    def __init__(
        self,
        timers: InternalTimerService,
        runtime_context: RuntimeContext,
        backend: AbstractKeyedStateBackend,
        serializer: TypeSerializer[Any],
    ) -> None:
        self._timers = timers
        self._runtime_context = runtime_context
        self._backend = backend
        self._serializer = serializer
        self.window: Any = None
        self.merged: Sequence[Any] = ()

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_current_watermark(self) -> int:
        return self._timers.watermark

    def get_metric_group(self) -> Any:
        found = getattr(self._runtime_context, "get_metrics_group", None)
        if found is None:
            raise ConfigurationError("There are no metrics of operators: leave get_metric_group() out of the trigger.")
        return found()

    def register_processing_time_timer(self, time: int) -> None:
        self._timers.register_processing_time_timer(self.window, time)

    def register_event_time_timer(self, time: int) -> None:
        self._timers.register_event_time_timer(self.window, time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._timers.delete_processing_time_timer(self.window, time)

    def delete_event_time_timer(self, time: int) -> None:
        self._timers.delete_event_time_timer(self.window, time)

    def get_partitioned_state(self, state_descriptor: Any) -> Any:
        return self._backend.get_partitioned_state(self.window, self._serializer, state_descriptor)

    def merge_partitioned_state(self, state_descriptor: Any) -> None:
        if self.merged:
            self.get_partitioned_state(state_descriptor).merge_namespaces(self.window, self.merged)


class WindowTaskContext(ProcessWindowFunction.Context[Any], ProcessAllWindowFunction.Context[Any]):
    """Window, times, state and side outputs.

    Attributes:
        current: The window at hand.
    """

    def __init__(
        self,
        timers: InternalTimerService,
        runtime_context: RuntimeContext,
        window_state: WindowStateStore,
        element_context: ElementContext,
    ) -> None:
        self._timers = timers
        self._runtime_context = runtime_context
        self._window_state = window_state
        self._element_context = element_context
        self.current: Any = None

    def window(self) -> Any:
        return self.current

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        return self._timers.watermark

    def window_state(self) -> KeyedStateStore:
        self._window_state.window = self.current
        return self._window_state

    def global_state(self) -> KeyedStateStore:
        return self._runtime_context

    def output(self, tag: OutputTag, value: Any) -> None:
        self._element_context.output(tag, value)


class WindowStateStore(DescribedStates):
    """State of a window of the current key.

    Args:
        backend: Has it.
        serializer: Of windows; None for those that merge, which have no state of their own.

    Attributes:
        window: The window.
    """

    def __init__(self, backend: AbstractKeyedStateBackend, serializer: TypeSerializer[Any] | None) -> None:
        self._backend = backend
        self._serializer = serializer
        self.window: Any = None

    def _state(self, descriptor: Any) -> Any:
        if self._serializer is None:
            self._refuse(descriptor)
        return self._backend.get_partitioned_state(self.window, self._serializer, descriptor)

    def _refuse(self, descriptor: Any) -> NoReturn:
        raise StateError(
            f"State {descriptor.name!r} is asked for of a window, and windows that merge have none of their own: use "
            "global_state()."
        )
