"""Formats of files that a `FileSource` reads, in columns.

A file is read in splits, which are ranges of its bytes. Each format has a rule by which everything in a file belongs to
exactly one range, however the file is cut: the line that begins in it, the part of a row group whose middle lies in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.datastream.formats.input_file import InputFile
from holdfast.errors import ConfigurationError
from holdfast.runtime.job.engine import InputError
from holdfast.types.conversion.convert import to_row_type
from holdfast.types.information.type_information import RowTypeInformation, TypeInformation

ROWS: Final = 64 * 1024
"""Of a batch that is read at once."""
_FIRST_DAY: Final = date.min.toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal() - date(1970, 1, 1).toordinal()


class InputFormat(ABC):
    """A format of files. It is pickled into tasks."""

    name: str
    """As messages say it."""

    @abstractmethod
    def element_type(self) -> TypeInformation:
        """Type of the elements."""

    @abstractmethod
    def can_split(self, path: str) -> bool:
        """Whether a file of this name can be read from the middle on."""

    @abstractmethod
    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """The elements that belong to a range of bytes, in batches whose columns are those of the elements. Blocks.

        Raises:
            InputError: The file has other columns than were declared.
        """


class BulkFormat(InputFormat):
    """A format that has rows in batches: `FileSource.for_bulk_file_format` takes it."""


class RowFormat(InputFormat):
    """What formats of rows with declared columns have in common.

    Args:
        row_type: The columns to read, by their names in the files: type information, DDL, or an Arrow schema. Files may
            have others beside them.

    Raises:
        ConfigurationError: It is no type of rows.
    """

    def __init__(self, row_type: Any) -> None:
        found = to_row_type(row_type)
        if not found.names:
            raise ConfigurationError(f"{type(self).__name__} needs the columns to read.")
        self._row_type = found

    def element_type(self) -> RowTypeInformation:
        """The rows that were declared."""
        return self._row_type

    def can_split(self, path: str) -> bool:
        """Always."""
        return True

    @property
    def schema(self) -> pa.Schema:
        """The declared columns."""
        return self._row_type.arrow_schema

    def require_columns(self, found: pa.Schema, path: str) -> None:
        """Makes sure that a file has the declared columns.

        Raises:
            InputError: One is missing, or has values that do not fit the declared type.
        """
        for field in self.schema:
            positions = found.get_all_field_indices(field.name)
            if len(positions) != 1:
                there = ", ".join(found.names)
                problem = f"has no column {field.name!r}" if not positions else f"has {field.name!r} twice"
                raise InputError(
                    f"the file {path!r} {problem}, which the {self.name} format of this input declares as "
                    f"{field.type}; it has {there}. Give files of another schema an input of their own"
                )
            given = found.field(positions[0]).type
            if not _fits(given, field.type):
                raise InputError(
                    f"the file {path!r} has the column {field.name!r} of type {given}, but the {self.name} format of "
                    f"this input declares {field.type}. Give files of another schema an input of their own"
                )

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The declared columns of a batch, in their types.

        Raises:
            ValueError: Their offsets lead nowhere, or bytes are no text; to look at them later might end the process.
        """
        return self._typed(self._sound(batch))

    def conform_in_parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The same of a batch that may have any number of rows, in batches of a usual size.

        Raises:
            ValueError: As `conform`.
        """
        columns = self._sound(batch)  # as a whole: of lists, each slice has the children of all
        for at in range(0, batch.num_rows, ROWS):
            yield self._typed([column.slice(at, ROWS) for column in columns])

    def _sound(self, batch: pa.RecordBatch) -> list[pa.Array]:
        columns = [batch.column(batch.schema.get_field_index(field.name)) for field in self.schema]
        for column in columns:
            column.validate(full=True)
        return columns

    def _typed(self, columns: list[pa.Array]) -> pa.RecordBatch:
        typed = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(typed, schema=self.schema)


def require_calendar(column: pa.Array) -> None:
    """Makes sure that the dates and timestamps of a column, or in it, are in the years that Python has.

    Raises:
        ValueError: One is not.
    """
    if pa.types.is_struct(column.type) or pa.types.is_list(column.type):
        for part in column.flatten() if pa.types.is_struct(column.type) else [column.flatten()]:
            require_calendar(part)
    elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        days = pc.min_max(column.cast(pa.date32(), safe=False).cast(pa.int32())).as_py()
        if days["min"] is not None and not (days["min"] >= _FIRST_DAY and days["max"] <= _LAST_DAY):
            raise ValueError("a date is in none of the years 1 to 9999")


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a type is one of another type."""
    if given.equals(wanted):
        return True
    if pa.types.is_dictionary(given):
        return _fits(given.value_type, wanted)
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return bool(given.bit_width + pa.types.is_unsigned_integer(given) <= wanted.bit_width)
    if pa.types.is_floating(given) and pa.types.is_floating(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if pa.types.is_time(given) and pa.types.is_time(wanted):
        return True
    if pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        return bool(given.scale == wanted.scale and given.precision <= wanted.precision)
    if pa.types.is_nested(given) and pa.types.is_nested(wanted):
        return _nested_fits(given, wanted)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    contents = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(any(is_one(given) for is_one in kind) and kind[0](wanted) for kind in (texts, contents))


def _nested_fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        named = [field.name for field in given] == [field.name for field in wanted]
        return named and all(_fits(one.type, other.type) for one, other in zip(given, wanted, strict=True))
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _fits(given.key_type, wanted.key_type) and _fits(given.item_type, wanted.item_type)
    lists = (pa.types.is_list, pa.types.is_large_list)
    return (
        any(is_one(given) for is_one in lists)
        and pa.types.is_list(wanted)
        and _fits(given.value_type, wanted.value_type)
    )
