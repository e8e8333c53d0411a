"""What a `StatefulProcessor` is given and returns: rows for `transformWithState`, frames for its form in pandas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from holdfast.errors import OutputTypeError
from holdfast.spark.stateful_processor.spark_form import Convert, of_input, row_class
from holdfast.types.conversion.arrow import batch_to_elements, element_schema, elements_to_batch
from holdfast.types.information.type_information import RowTypeInformation

_new = tuple.__new__


class RowForm(ABC):
    """Between the elements of an operator and what a processor works with."""

    @abstractmethod
    def given(self, rows: Sequence[Any], columns: tuple[str, ...]) -> Iterator[Any]:
        """Return the rows of a key as the processor gets them."""

    @abstractmethod
    def initial(self, rows: Sequence[Any]) -> Iterator[Any]:
        """Return the rows of initial state of a key as the processor gets them, one after the other."""

    @abstractmethod
    def emitted(self, returned: Any) -> Iterable[Any]:
        """Return the elements of what the processor has returned."""


class SparkRows(RowForm):
    """Rows are `pyspark.sql.Row`, in and out.

    Args:
        input_type: Of the rows that come in.
        initial_type: Of the rows of initial state; None if there are none.
    """

    def __init__(self, input_type: RowTypeInformation, initial_type: RowTypeInformation | None) -> None:
        self._structs = _structs(input_type)
        self._initial_structs = [] if initial_type is None else _structs(initial_type)

    def given(self, rows: Sequence[Any], columns: tuple[str, ...]) -> Iterator[Row]:
        if self._structs:
            rows = [_converted(row, self._structs) for row in rows]
        if len(rows) == 1:
            return iter((_new(row_class(columns), rows[0]),))
        return map(_new, repeat(row_class(columns)), rows)

    def initial(self, rows: Sequence[Any]) -> Iterator[Row]:
        return (_new(row_class(type(row)._names), _converted(row, self._initial_structs)) for row in rows)

    def emitted(self, returned: Any) -> Iterable[Any]:
        return () if returned is None else returned


class PandasFrames(RowForm):
    """Rows are frames of pandas, as `transformWithStateInPandas` has them.

    Args:
        input_type: Of the rows that come in.
        initial_type: Of the rows of initial state; None if there are none.
        output_type: Of what the processor returns.
    """

    def __init__(
        self, input_type: RowTypeInformation, initial_type: RowTypeInformation | None, output_type: RowTypeInformation
    ) -> None:
        self._input_type = input_type
        self._initial_type = initial_type
        self._output_type = output_type

    def given(self, rows: Sequence[Any], columns: tuple[str, ...]) -> Iterator[Any]:
        return iter([_frame(rows, self._input_type)])

    def initial(self, rows: Sequence[Any]) -> Iterator[Any]:
        assert self._initial_type is not None
        return iter([_frame(rows, self._initial_type)] if rows else [])

    def emitted(self, returned: Any) -> Iterable[Any]:
        schema = element_schema(self._output_type)
        for frame in () if returned is None else returned:
            if not hasattr(frame, "columns"):
                raise OutputTypeError(
                    "", f"It returned {type(frame).__name__!r}, not frames of pandas.", declared=str(self._output_type)
                )
            if not len(frame):  # as pd.DataFrame() has it, which has no columns either
                continue
            table = pa.RecordBatch.from_pandas(frame, schema=schema, preserve_index=False)
            yield from batch_to_elements(table, self._output_type)


def _structs(row_type: RowTypeInformation) -> list[tuple[int, Convert]]:
    """The columns with structs, and what makes Spark's form of their values."""
    found = ((at, of_input(part)) for at, part in enumerate(row_type.types))
    return [(at, convert) for at, convert in found if convert is not None]


def _converted(row: Sequence[Any], structs: list[tuple[int, Convert]]) -> Sequence[Any]:
    values = list(row)
    for at, convert in structs:
        values[at] = convert(values[at])
    return values


def _frame(rows: Sequence[Any], row_type: RowTypeInformation) -> Any:
    """A frame as Spark makes it: instants are without a time zone, in that of the session."""
    frame = elements_to_batch(list(rows), row_type, "").to_pandas(date_as_object=True, maps_as_pydicts="strict")
    for name, type_ in zip(row_type.names, element_schema(row_type).types, strict=True):
        if pa.types.is_timestamp(type_) and type_.tz is not None:
            frame[name] = frame[name].dt.tz_convert("UTC").dt.tz_localize(None)
    return frame
