"""What a `StatefulProcessor` is given and returns: rows for `transformWithState`, frames for its form in pandas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from holdfast.errors import OutputTypeError
from holdfast.types.conversion.arrow import batch_to_elements, element_schema, elements_to_batch
from holdfast.types.information.type_information import RowTypeInformation

_new = tuple.__new__


class RowForm(ABC):
    """Between the elements of an operator and what a processor works with."""

    @abstractmethod
    def given(self, rows: Sequence[Any], columns: tuple[str, ...]) -> Iterator[Any]:
        """Return the rows of a key as the processor gets them."""

    @abstractmethod
    def initial(self, row: Any) -> Any:
        """Return a row of initial state as the processor gets it."""

    @abstractmethod
    def emitted(self, returned: Any) -> Iterable[Any]:
        """Return the elements of what the processor has returned."""


class SparkRows(RowForm):
    """Rows are `pyspark.sql.Row`, in and out."""

    def given(self, rows: Sequence[Any], columns: tuple[str, ...]) -> Iterator[Row]:
        if len(rows) == 1:
            return iter((_new(row_class(columns), rows[0]),))
        return map(_new, repeat(row_class(columns)), rows)

    def initial(self, row: Any) -> Row:
        return _new(row_class(type(row)._names), row)

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

    def initial(self, row: Any) -> Any:
        assert self._initial_type is not None
        return _frame([row], self._initial_type)

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


def _frame(rows: Sequence[Any], row_type: RowTypeInformation) -> Any:
    """A frame as Spark makes it: instants are without a time zone, in that of the session."""
    frame = elements_to_batch(list(rows), row_type, "").to_pandas(date_as_object=True)
    for name, type_ in zip(row_type.names, element_schema(row_type).types, strict=True):
        if pa.types.is_timestamp(type_) and type_.tz is not None:
            frame[name] = frame[name].dt.tz_convert("UTC").dt.tz_localize(None)
    return frame


@cache
def row_class(columns: tuple[str, ...]) -> type[Row]:
    """The class of Spark's rows with these columns: as `Row` in all, but a field is found without a search."""
    fields: dict[str, Any] = {
        name: _tuplegetter(at, f"Field {name}.") for at, name in enumerate(columns) if not hasattr(Row, name)
    }
    return type("Row", (Row,), {**fields, "__fields__": list(columns), "__module__": Row.__module__})
