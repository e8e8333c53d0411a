"""The operator that runs a `StatefulProcessor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.runtime.function.group import GroupFunction
from holdfast.runtime.function.user_function import KeyedProcessFunction, RuntimeContext
from holdfast.spark.stateful_processor.handle import StatefulProcessorHandle, TimeMode
from holdfast.spark.stateful_processor.row_form import RowForm
from holdfast.spark.stateful_processor.spark_form import of_input
from holdfast.types.information.type_information import TypeInformation

NO_TIME = -1
"""What Spark says of a time that a query does not have."""

_NO_TIMES = TimerValues(NO_TIME, NO_TIME)


class ProcessorFunction(GroupFunction):
    """Calls a `StatefulProcessor` as Spark does: once a key and epoch with all its rows, then for each expired timer.

    Args:
        processor: The user's.
        time_mode: By which time timers fire.
        form: What the processor is given and returns: rows, or frames of pandas.
        columns: Of its rows.
        key_types: Of the columns of the key.
        key_at: Where the columns of the key stand in an element; None if the key is not there in the form of keys.
        event_time: Tells that of a row, which is dropped if it is late; None where no row is late.
        has_initial_state: Whether elements have a row in their first field, or else a row of initial state in their
            second.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        time_mode: TimeMode,
        form: RowForm,
        columns: tuple[str, ...],
        key_types: tuple[TypeInformation, ...],
        key_at: tuple[int, ...] | None,
        event_time: Callable[[Any], int | None] | None,
        has_initial_state: bool,
    ) -> None:
        self._processor = processor
        self._time_mode = time_mode
        self._form = form
        self._columns = columns
        self._key_at = key_at
        self._key_forms = tuple(map(of_input, key_types))
        self._event_time = event_time
        self._has_initial_state = has_initial_state

    def open(self, runtime_context: RuntimeContext) -> None:
        """Let the processor ask for its state."""
        self._handle = StatefulProcessorHandle(runtime_context, self._time_mode)
        self._processor.init(self._handle)
        self._handle.opened()
        self.given_up = self._handle.given_up

    def close(self) -> None:
        """Let the processor tear down what it has set up."""
        self._processor.close()

    def process_group(self, values: Sequence[Any], ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Give the processor the rows of a key that are not late, and the initial state of the key before."""
        self._handle.context = ctx
        first, at = values[0], self._key_at
        key = (
            self._key_of(ctx) if at is None else (first[at[0]],) if len(at) == 1 else tuple([first[one] for one in at])
        )
        times = self._times(ctx)
        rows = values
        if self._has_initial_state:
            for state in self._form.initial([element[1] for element in values if element[1] is not None]):
                self._processor.handleInitialState(key, state, times)
            rows = [element[0] for element in values if element[0] is not None]
        if self._event_time is not None:
            rows = self._in_time(rows, ctx, self._event_time)
        if not rows:
            return ()
        if len(rows[0]) > len(self._columns):
            rows = [row[: len(self._columns)] for row in rows]
        given = self._form.given(rows, self._columns)
        return self._form.emitted(self._processor.handleInputRows(key, given, times))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """Tell the processor of an expired timer."""
        self._handle.context = ctx
        expired = ExpiredTimerInfo(timestamp)
        return self._form.emitted(self._processor.handleExpiredTimer(self._key_of(ctx), self._times(ctx), expired))

    def _key_of(self, ctx: KeyedProcessFunction.Context) -> tuple[Any, ...]:
        key, forms = ctx.get_current_key(), self._key_forms
        parts = key if len(forms) > 1 else (key,)
        return tuple([part if form is None else form(part) for form, part in zip(forms, parts, strict=True)])

    def _times(self, ctx: KeyedProcessFunction.Context) -> TimerValues:
        if self._time_mode == "none":
            return _NO_TIMES
        timers = ctx.timer_service()
        watermark = timers.current_watermark() if self._time_mode == "eventtime" else 0
        return TimerValues(timers.current_processing_time(), 0 if watermark == MIN_WATERMARK else watermark)

    def _in_time(
        self, rows: Sequence[Any], ctx: KeyedProcessFunction.Context, of_row: Callable[[Any], int | None]
    ) -> Sequence[Any]:
        watermark = ctx.timer_service().current_watermark()
        timed = ((row, of_row(row)) for row in rows)
        return [row for row, time in timed if time is None or time > watermark]
