"""An operator of windows of one size that aggregates by columns, as a program defined it; `pane_subtask` runs it.

Windows that overlap share *panes*: the stretches of time between any two of their starts and ends. A row is aggregated
once, into its pane; a window is what its panes have together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import Function, OutputTag
from holdfast.runtime.graph.stream_graph import KeySpec
from holdfast.runtime.operator.vectorised.groups import Groups
from holdfast.runtime.window.time_window_assigner import FIXED_WINDOWS, EventTimeSessionWindows
from holdfast.runtime.window.window import TimeWindow
from holdfast.runtime.window.window_assigner import WindowAssigner
from holdfast.runtime.window_operator.batch_aggregate import BatchAggregateFunction, CountAggregate
from holdfast.state.declaration.descriptor import ValueStateDescriptor
from holdfast.types.conversion.ddl import parse_type
from holdfast.types.information.type_information import ChangelogTypeInformation, RowTypeInformation, TypeInformation

Numbers = npt.NDArray[np.int64]
START, END = "window_start", "window_end"
_FAR = 2**62


@dataclass(frozen=True)
class Panes:
    """The panes and windows of a size and slide; both are numbered by their order in time.

    Attributes:
        size: Of a window in milliseconds.
        slide: Milliseconds from the start of a window to that of the next.
        offset: Where window 0 and pane 0 start.
    """

    size: int
    slide: int
    offset: int

    @cached_property
    def length(self) -> int:
        """Milliseconds of a pane."""
        return math.gcd(self.size, self.slide)

    @cached_property
    def of_window(self) -> int:
        """How many panes a window has."""
        return self.size // self.length

    @cached_property
    def of_slide(self) -> int:
        """How many panes are between the starts of two windows."""
        return self.slide // self.length

    @cached_property
    def windows_of_pane(self) -> int:
        """How many windows have a pane at most."""
        return -(-self.of_window // self.of_slide)

    def pane_of(self, times: Numbers) -> Numbers:
        """Return the pane of each time."""
        return (times - self.offset) // self.length

    def last_window(self, panes: Numbers) -> Numbers:
        """Return the last window that has started with each pane; it may be over already."""
        return panes // self.of_slide

    def has(self, windows: Numbers, panes: Numbers) -> npt.NDArray[np.bool_]:
        """Whether each window has a pane, if it has started with it."""
        return windows * self.of_slide + self.of_window > panes

    def ends(self, windows: Numbers) -> Numbers:
        """Return the last millisecond of each window."""
        return windows * self.slide + (self.offset + self.size - 1)

    def next_window(self, panes: Numbers, limit: int) -> Numbers:
        """Return the first window that has each pane and ends after a time, in milliseconds.

        It is after the last window of the pane if all are over.
        """
        first = (panes - self.of_window) // self.of_slide + 1
        after = (limit - self.offset - self.size + 1) // self.slide + 1
        return np.maximum(first, min(max(after, -_FAR), _FAR))

    def pane_number(self, pane: TimeWindow) -> int:
        """Return the number of a pane."""
        return (pane.start - self.offset) // self.length

    def pane(self, number: int) -> TimeWindow:
        """Return a pane."""
        start = number * self.length + self.offset
        return TimeWindow(start, start + self.length)


class PaneOperator(Function):
    """Aggregates of the rows of each key and window.

    Args:
        panes: The windows.
        is_event_time: Whether they end by event time.
        aggregates: By the names of their columns.
        input_type: Of the rows.
        keys: Names and types of the columns of the key; none for a stream without keys.
        is_sessions: Whether the size is that of the gap which ends a session.
        late_data_tag: Where rows go whose windows are all over; None drops them.

    Raises:
        ConfigurationError: An aggregate does not fit, or two columns have one name.

    Attributes:
        output_type: The columns of the key, `window_start`, `window_end`, and those of the aggregates.
    """

    def __init__(
        self,
        panes: Panes,
        aggregates: Mapping[str, BatchAggregateFunction],
        input_type: RowTypeInformation,
        keys: Mapping[str, TypeInformation],
        *,
        is_event_time: bool,
        is_sessions: bool = False,
        late_data_tag: OutputTag | None = None,
    ) -> None:
        self.panes = panes
        self.is_sessions = is_sessions
        self.is_event_time = is_event_time
        self.input_type = input_type
        self.keys = dict(keys)
        self.late_data_tag = late_data_tag
        self._aggregates = [CountAggregate(), *aggregates.values()]
        self._types = [list(one.accumulator_types(input_type)) for one in self._aggregates]
        names = [*keys, START, END, *aggregates]
        if len(set(names)) < len(names):
            raise ConfigurationError(
                f"The columns of what comes of windows need different names, not {names!r}: rename the aggregates, or "
                "the columns of the key before key_by()."
            )
        times = [parse_type("bigint")] * 2
        results = [one.result_type(input_type) for one in aggregates.values()]
        self.output_type = RowTypeInformation(names, [*keys.values(), *times, *results])

    @property
    def program_functions(self) -> tuple[Any, ...]:
        """The functions of the program that it calls."""
        return tuple(self._aggregates)

    @property
    def kept_as(self) -> dict[str, Any]:
        """What a checkpoint says of its open windows: all that decides what a pane is, and when it goes."""
        time = "event" if self.is_event_time else "processing"
        if self.is_sessions:  # those that are open have their own ends, so the gap may be another
            return {"form": "columns", "windows": "sessions", "time": time}
        return {"form": "columns", "windows": "fixed", "time": time, **asdict(self.panes)}

    @property
    def descriptors(self) -> list[ValueStateDescriptor[object]]:
        """The states of a pane: the number of its rows, which says whether there are any, and the accumulators."""
        given = self.output_type.names[len(self.keys) + 2 :]
        # A program's own aggregate of that name has the same state if it counts rows too, which it must not otherwise.
        is_taken = "rows" in given and type(self._aggregates[1 + given.index("rows")]) is not CountAggregate
        names = ["" if is_taken else "rows", *given]
        return [
            ValueStateDescriptor(f"pane-{name}-{part}", of_part)
            for name, types in zip(names, self._types, strict=True)
            for part, of_part in enumerate(types)
        ]

    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Numbers) -> list[pa.Array]:
        """Return the accumulators of a batch, all columns of all aggregates."""
        made = [one.accumulate(batch, groups, arrival) for one in self._aggregates]
        return [column for columns in made for column in columns]

    def merge(self, columns: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Return one accumulator for each group."""
        made = [one.merge(part, groups) for one, part in zip(self._aggregates, self._parts(columns), strict=True)]
        return [column for columns_ in made for column in columns_]

    def results(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the results of accumulators, without that of the number of rows."""
        parts = self._parts(columns)
        return [one.result(part) for one, part in zip(self._aggregates[1:], parts[1:], strict=True)]

    def _parts(self, columns: Sequence[pa.Array]) -> list[Sequence[pa.Array]]:
        parts, start = [], 0
        for types in self._types:
            parts.append(columns[start : start + len(types)])
            start += len(types)
        return parts


def operator_by_columns(
    assigner: WindowAssigner[Any, Any],
    aggregates: Mapping[str, Any],
    element_type: TypeInformation,
    key: KeySpec | None,
    late_data_tag: OutputTag | None,
) -> PaneOperator:
    """Make the operator of what a program asked for.

    Args:
        assigner: Of the windows.
        aggregates: By name.
        element_type: Of the stream.
        key: How the stream is keyed; None if it is not.
        late_data_tag: Where late rows go.

    Raises:
        ConfigurationError: It does not go by columns; the message says what does.
    """
    where = "aggregate_batches()"
    wrong = [one for one in aggregates.values() if not isinstance(one, BatchAggregateFunction)]
    if wrong or not aggregates:
        raise ConfigurationError(
            f"{where} takes aggregates by the names of their columns, for instance n=CountAggregate(), not "
            f"{wrong[0] if wrong else 'none'!r}."
        )
    is_sessions = type(assigner) is EventTimeSessionWindows
    if type(assigner) not in FIXED_WINDOWS and not is_sessions:
        raise ConfigurationError(
            f"{where} is for windows of one size and for sessions of event time with one gap, and not for "
            f"{assigner!r}: use aggregate(), which goes by element."
        )
    if not isinstance(element_type, RowTypeInformation):
        raise ConfigurationError(
            f"{where} works on columns, and the elements are {element_type.ddl!r}: declare output_type='name type, "
            "...' at the operator before."
        )
    if isinstance(element_type, ChangelogTypeInformation):
        raise ConfigurationError(f"{where} would count a row that takes another one back as one more: use aggregate().")
    keys: dict[str, TypeInformation] = {}
    if key is not None and key.columns:
        types = dict(zip(element_type.names, element_type.types, strict=True))
        keys = {name: types[name] for name in key.columns}
    elif key is not None:
        if key.key_type is None:
            raise ConfigurationError(
                f"{where} emits the key as a column, and its type is not known: key by columns, or give key_type to "
                "key_by()."
            )
        keys = {"key": key.key_type}
    fixed = (assigner.gap, assigner.gap, 0) if isinstance(assigner, EventTimeSessionWindows) else _fixed(assigner)
    return PaneOperator(
        Panes(*fixed),
        aggregates,
        element_type,
        keys,
        is_event_time=assigner.is_event_time(),
        is_sessions=is_sessions,
        late_data_tag=late_data_tag,
    )


def _fixed(assigner: Any) -> tuple[int, int, int]:
    fixed: tuple[int, int, int] | None = assigner.fixed()
    assert fixed is not None
    return fixed
