"""What columns of a table take of the values whose types they take, so that a task can tell before it stages a row.

The driver asks the database, and the answer goes to the tasks as JSON. Keys and checks that rows must meet together are
seen by the database alone, when it has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.datastream.connectors.database.dialect import TableColumn

_INTEGERS: Final = {"int2": 16, "int4": 32}
"""Types of Postgres that take whole numbers of other columns if they are small enough, and their bits."""


@dataclass(frozen=True)
class ColumnLimit:
    """What a column refuses.

    Attributes:
        name: Of the column.
        is_never_null: Whether it refuses nulls.
        longest: Characters that a text may have.
        bits: Of a whole number, with its sign.
    """

    name: str
    is_never_null: bool = False
    longest: int | None = None
    bits: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As tasks get it."""
        return asdict(self)

    def refused(self, column: pa.Array) -> tuple[int, str] | None:
        """The first value that the column refuses, and why; None if it takes all."""
        if self.is_never_null and column.null_count:
            return _first(column.is_null()), f"{self.name!r} is null, and the table says that it never is"
        if self.bits is not None and pa.types.is_integer(column.type) and column.type.bit_width > self.bits:
            greatest = 2 ** (self.bits - 1) - 1
            is_out = pc.or_(pc.greater(column, greatest), pc.less(column, -greatest - 1))
            if pc.any(is_out).as_py():
                row = _first(is_out)
                return row, f"{self.name!r} is {column[row]}, and the column of the table has {self.bits} bits"
        if self.longest is not None and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            lengths = pc.utf8_length(pc.utf8_rtrim(column, characters=" "))  # spaces at the end are cut off
            is_out = pc.greater(lengths, self.longest)
            if pc.any(is_out).as_py():
                row = _first(is_out)
                return row, f"{self.name!r} has {lengths[row]} characters, and the column takes {self.longest}"
        return None


def limits_of(columns: Iterable[TableColumn], names: Sequence[str]) -> list[ColumnLimit]:
    """The limits of those columns that have any, of those that are written."""
    found = [
        ColumnLimit(column.name, column.is_never_null, column.longest, _INTEGERS.get(column.type))
        for column in columns
        if column.name in names
    ]
    return [limit for limit in found if limit != ColumnLimit(limit.name)]


def why_refused(batch: pa.RecordBatch, limits: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a table would refuse a batch, with the first row that it would; None if it would not.

    Args:
        batch: Of rows that are to be put.
        limits: `ColumnLimit.to_json` of each column that has one.
    """
    for said in limits:
        limit = ColumnLimit(**said)
        refused = limit.refused(batch.column(limit.name)) if limit.name in batch.schema.names else None
        if refused is not None:
            row, reason = refused
            return f"{reason}: {batch.slice(row, 1).to_pylist()[0]!r:.300}"
    return None


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())
