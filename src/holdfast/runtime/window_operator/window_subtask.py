"""One subtask of a window operator for one epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.function.metric import LATE_DROPPED
from holdfast.runtime.function.user_function import OutputTag
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.operator import GroupedSubtask, OperatorSubtask, SubtaskContext, TimestampedSubtask
from holdfast.runtime.operator.batch_function import BatchSubtask
from holdfast.runtime.window_operator.pane_operator import PaneSubtask, SessionSubtask
from holdfast.runtime.window_operator.window_operator import WindowTask
from holdfast.types.arrow import Timestamps, iterate_timestamps, timestamp_column
from holdfast.types.row import CHANGES, collect_emitted, originals


class WindowSubtask(OperatorSubtask):
    """Passes the elements of one epoch to a window operator.

    The output of a window has the last millisecond of the window as its timestamp, as in Flink, so that windows can
    follow windows; late elements keep their own.

    Args:
        *arguments: Those of `OperatorSubtask`.
        has_timestamps: Whether the stream has event times.
    """

    def __init__(self, *arguments: Any, has_timestamps: bool = True) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._has_timestamps = has_timestamps
        self._timestamps: list[int] = []
        self._side_timestamps: dict[str, list[int]] = {}
        self._out: list[Any] = []
        runtime_context = SubtaskContext(self.info, self.backend)
        runtime_context.metrics = self.metrics
        self._task = WindowTask(self.function, runtime_context, self.backend, self.context, self, self.info.watermark)

    def process(
        self,
        elements: Sequence[Any],
        dict_keys: Sequence[Any] | None = None,
        hashes: Any = None,
        timestamps: Timestamps | None = None,
    ) -> list[Any]:
        backend, process = self.backend, self._task.process_element
        assert backend is not None
        try:
            backend.release()
            slots = backend.prepare(dict_keys, hashes)  # type: ignore[arg-type]
            for element, slot, timestamp in zip(elements, slots, iterate_timestamps(timestamps), strict=False):
                backend.slot = slot
                process(element, timestamp)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing an element") from error
        return self._taken()

    def advance_watermark(self, watermark: int) -> list[Any]:
        self.context.set_watermark(watermark)
        on_timer = partial(self._task.on_timer, event_time=True)
        return self._fired(lambda: self._task.timers.advance_watermark(watermark, on_timer))

    def fire_processing_time(self, now: int) -> list[Any]:
        on_timer = partial(self._task.on_timer, event_time=False)
        return self._fired(lambda: self._task.timers.fire_processing(now, on_timer))

    def _fired(self, run: Callable[[], None]) -> list[Any]:
        try:
            run()
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "firing a timer") from error
        return self._taken()

    def _taken(self) -> list[Any]:
        taken, self._out = self._out, []
        return originals(taken) if CHANGES else taken

    # Driven by the task of windows.

    def emit(self, emitted: Iterable[Any], timestamp: int) -> None:
        """Receive the output of a window function."""
        before = len(self._out)
        gathered = collect_emitted(emitted)
        self._out += self._without_tagged(gathered) if self._spec.side_outputs else gathered
        if self._has_timestamps:
            self._timestamps += [timestamp] * (len(self._out) - before)
            self._note_side(timestamp)

    def emit_late(self, tag: OutputTag, element: Any, timestamp: int) -> None:
        """Receive a late element for a side output."""
        self.context.output(tag, element)
        if self._has_timestamps:
            self._note_side(timestamp)

    def drop_late(self) -> None:
        self.metrics.count(LATE_DROPPED)

    def take_timestamps(self) -> Timestamps | None:
        taken, self._timestamps = self._timestamps, []
        return timestamp_column(taken) if self._has_timestamps else None

    def take_side_timestamps(self) -> dict[str, Timestamps]:
        taken, self._side_timestamps = self._side_timestamps, {}
        return {tag: timestamp_column(times) for tag, times in taken.items()}

    def _note_side(self, timestamp: int) -> None:
        for tag, values in self.side_outputs.items():
            timestamps = self._side_timestamps.setdefault(tag, [])
            timestamps += [timestamp] * (len(values) - len(timestamps))


def subtask_class(spec: OperatorSpec, *, has_timestamps: bool) -> Callable[..., OperatorSubtask]:
    """Return the class that runs an operator in a task; it takes the arguments of `OperatorSubtask`.

    Args:
        spec: The operator.
        has_timestamps: Whether its elements have event times.
    """
    if spec.shape == "window":
        return partial(WindowSubtask, has_timestamps=has_timestamps)
    if spec.shape == "panes":
        return SessionSubtask if spec.function.is_sessions else PaneSubtask
    if spec.shape == "batches":
        return BatchSubtask
    if spec.shape == "groups":
        return GroupedSubtask
    return TimestampedSubtask if has_timestamps else OperatorSubtask
