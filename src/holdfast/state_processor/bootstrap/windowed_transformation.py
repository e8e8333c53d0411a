"""Rows that become the state of windows, by the operator that the job has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import AggregateFunction, ReduceLike
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.window.evictor import Evictor
from holdfast.runtime.window.trigger import Trigger
from holdfast.runtime.window.window_assigner import MergingWindowAssigner, WindowAssigner
from holdfast.runtime.window_operator.batch_aggregate import BatchAggregateFunction
from holdfast.runtime.window_operator.pane_operator import operator_by_columns
from holdfast.runtime.window_operator.window_operator import WINDOW_CONTENTS, WindowEvaluation, WindowOperator
from holdfast.state.declaration.descriptor import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from holdfast.types.information.type_information import PickledTypeInformation, TypeInformation, Types

TimeOf = str | Callable[[Any], int]
"""The event time of a row: a column, of milliseconds or timestamps, or a function of the row."""


@dataclass(frozen=True)
class WindowBootstrap:
    """Which windows rows are put into, and how.

    Attributes:
        assigner: Says which windows a row belongs to.
        trigger: Of the job; None for the default of the assigner.
        evictor: Of the job; with one all elements are kept.
        contents: Makes the descriptor of what a window keeps, of the type of the rows.
        time_of: The event time of a row; None for none.
        aggregates: Of `aggregate_batches`, by name; none where windows go by element.
    """

    assigner: WindowAssigner[Any, Any]
    contents: Callable[[TypeInformation], StateDescriptor[Any]]
    trigger: Trigger[Any, Any] | None = None
    evictor: Evictor[Any, Any] | None = None
    time_of: TimeOf | None = None
    aggregates: Mapping[str, BatchAggregateFunction] = field(default_factory=dict)

    def spec(self, element_type: TypeInformation) -> OperatorSpec:
        """The operator of the job, for rows of a type; nothing is computed of its windows.

        Raises:
            ConfigurationError: Aggregates do not fit the columns or the windows.
        """
        if self.aggregates:
            panes = operator_by_columns(self.assigner, self.aggregates, element_type, None, None)
            return OperatorSpec(panes, "panes", True, element_type, panes.output_type)
        trigger = self.trigger or self.assigner.get_default_trigger(None)
        contents = self.contents(element_type)
        if self.evictor is not None:
            contents = ListStateDescriptor(WINDOW_CONTENTS, Types.TUPLE([element_type, Types.LONG()]))
        operator = WindowOperator(self.assigner, trigger, contents, WindowEvaluation(None), evictor=self.evictor)
        return OperatorSpec(operator, "window", True, element_type, PickledTypeInformation())


class WindowedStateTransformation:
    """Keyed rows in windows: `key_by(...).window(assigner)`. How the job computes them says what windows keep.

    Args:
        window: Which windows.
        made: Makes the transformation of it.
    """

    def __init__(self, window: WindowAssigner[Any, Any], time_of: TimeOf | None, made: Callable[..., Any]) -> None:
        if not isinstance(window, WindowAssigner):
            raise ConfigurationError(
                "Windows are made by an instance of WindowAssigner, for instance "
                f"TumblingEventTimeWindows.of(Time.minutes(1)), not by {window!r}."
            )
        if window.is_event_time() and time_of is None:
            raise ConfigurationError(
                "Windows of event time need the time of each row: call assign_timestamps('column') before key_by()."
            )
        self._window = WindowBootstrap(window, _elements, time_of=time_of)
        self._made = made

    def trigger(self, trigger: Trigger[Any, Any]) -> WindowedStateTransformation:
        """Set the trigger that the job has instead of the assigner's default.

        Raises:
            ConfigurationError: It is none, or does not go with windows that merge.
        """
        if not isinstance(trigger, Trigger):
            raise ConfigurationError(f"trigger() takes an instance of Trigger, not {trigger!r}.")
        if isinstance(self._window.assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise ConfigurationError(f"The windows merge, and {type(trigger).__name__} does not go with that.")
        self._window = replace(self._window, trigger=trigger)
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> WindowedStateTransformation:
        """Set the evictor that the job has; then windows keep all of their elements, whatever is computed of them.

        Raises:
            ConfigurationError: It is none.
        """
        if not isinstance(evictor, Evictor):
            raise ConfigurationError(f"evictor() takes an instance of Evictor, not {evictor!r}.")
        self._window = replace(self._window, evictor=evictor)
        return self

    def reduce(self, reduce_function: ReduceLike) -> Any:
        """Return state of windows that are reduced; what is made of the result is no matter here."""
        return self._with(lambda element_type: ReducingStateDescriptor(WINDOW_CONTENTS, reduce_function, element_type))

    def aggregate(self, aggregate_function: AggregateFunction, accumulator_type: Any = None) -> Any:
        """Return state of windows that are aggregated, with accumulators of the type that the job declares."""
        kind = Types.ROW(accumulator_type) if isinstance(accumulator_type, list) else accumulator_type
        descriptor: AggregatingStateDescriptor[Any, Any, Any] = AggregatingStateDescriptor(
            WINDOW_CONTENTS, aggregate_function, kind
        )
        return self._with(lambda element_type: descriptor)

    def aggregate_batches(self, **aggregates: BatchAggregateFunction) -> Any:
        """Return state of windows that are aggregated by columns, with the names that the job gives them.

        Raises:
            ConfigurationError: There are none, or the job could not have them with a trigger or an evictor.
        """
        if not aggregates or self._window.trigger is not None or self._window.evictor is not None:
            raise ConfigurationError(
                "aggregate_batches() takes aggregates by the names of their columns, for instance n=CountAggregate(), "
                "and goes with the default trigger and without an evictor."
            )
        return self._made(replace(self._window, aggregates=aggregates))

    def apply(self, window_function: Any = None) -> Any:
        """Return state of windows that keep all elements for a function, which is not called."""
        return self._with(_elements)

    def process(self, process_window_function: Any = None) -> Any:
        """Return state of windows that keep all elements for a function, which is not called."""
        return self._with(_elements)

    def _with(self, contents: Callable[[TypeInformation], StateDescriptor[Any]]) -> Any:
        return self._made(replace(self._window, contents=contents))


def _elements(element_type: TypeInformation) -> StateDescriptor[Any]:
    return ListStateDescriptor(WINDOW_CONTENTS, element_type)
