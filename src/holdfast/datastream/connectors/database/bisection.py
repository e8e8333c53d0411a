"""Finds the rows of an epoch that a database refuses, by halves, and writes the others.

All of it is in the transaction of the epoch, and each try behind a savepoint: of n rows k that are refused are found by
about k log n tries. The rows lie in temporary tables with their positions, so a try is one statement on the server.

A constraint may look at other rows: an address that is unique may be given back by a later row of the epoch. So what
was refused is tried again, row by row, behind all others, for as long as another one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.connectors.database.dialect import Cursor, Dialect
from holdfast.datastream.connectors.database.table_change import TableChange

_POSITION: Final = "holdfast_position"
_SAVEPOINT: Final = "holdfast_try"


@dataclass(frozen=True)
class RefusedRow:
    """A row, and why it is not in the table.

    Attributes:
        operation: What was to be done with it: `insert`, `upsert` or `delete`.
        row: Its values by column.
        reason: What the database has said.
    """

    operation: str
    row: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class _Place:
    change: TableChange
    position: int
    reason: str
    is_staged: bool


class Bisection:
    """Writes one epoch.

    Args:
        cursor: In the transaction of the epoch, which has savepoints.
        dialect: The kind of database.
        most: Refused rows; with one more it gives up.
    """

    def __init__(self, cursor: Cursor, dialect: Dialect, most: int) -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._most = most
        self._refused: list[_Place] = []

    @property
    def has_given_up(self) -> bool:
        """Whether more rows are refused than may be; the transaction is to be rolled back then."""
        return len(self._refused) > self._most

    def write(self, changes: Sequence[TableChange], schema: pa.Schema) -> list[RefusedRow]:
        """Changes the table by all rows that it takes; returns the others, as far as it has come."""
        rows = [self._stage(change, schema) for change in changes]
        for change, number in zip(changes, rows, strict=True):
            self._apply(change, number)
        before = 0 if self.has_given_up else len(self._refused) + 1
        while 0 < len(self._refused) < before:
            before = len(self._refused)
            self._refused = [place for place in self._refused if not place.is_staged or self._fails(place)]
        return [row for change in changes for row in self._rows(change)]

    def _stage(self, change: TableChange, schema: pa.Schema) -> int:
        """Puts rows into the temporary table, with their positions; returns how many there were."""
        columns = change.staged_schema(self._dialect, schema).append(pa.field(_POSITION, pa.int64()))
        self._cursor.adbc_ingest(change.staged, columns.empty_table(), mode="create", temporary=True)
        first = 0
        for batch in change.batches(self._dialect):
            positions = pa.array(range(first, first + batch.num_rows), pa.int64())
            self._ingest(change, pa.Table.from_batches([batch]).append_column(_POSITION, positions), first)
            first += batch.num_rows
        self._cursor.execute(f"create index {change.staged}_position on {change.staged} ({_POSITION})")
        return first

    def _ingest(self, change: TableChange, rows: pa.Table, first: int) -> None:
        def append(part: range) -> None:
            taken = rows.slice(part.start - first, len(part))
            self._cursor.adbc_ingest(change.staged, taken, mode="append", temporary=True)

        self._by_halves(change, range(first, first + rows.num_rows), append, is_staged=False)

    def _apply(self, change: TableChange, rows: int) -> None:
        def execute(part: range) -> None:
            condition = f"{_POSITION} >= {part.start} and {_POSITION} < {part.stop}"
            self._cursor.execute(change.statement(condition))

        self._by_halves(change, range(rows), execute, is_staged=True)

    def _by_halves(
        self, change: TableChange, positions: range, write: Callable[[range], None], *, is_staged: bool
    ) -> None:
        """Writes the rows at these positions, in their order."""
        parts = [positions]
        while parts and not self.has_given_up:
            part = parts.pop()
            reason = self._try(partial(write, part)) if part else None
            if reason is not None and len(part) == 1:
                self._refused.append(_Place(change, part.start, reason, is_staged))
            elif reason is not None:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]

    def _fails(self, place: _Place) -> bool:
        statement = place.change.statement(f"{_POSITION} = {place.position}")
        return self._try(partial(self._cursor.execute, statement)) is not None

    def _try(self, work: Callable[[], object]) -> str | None:
        """Does some work, unless the database refuses a row of it: then nothing of it; returns the reason."""
        self._cursor.execute(f"savepoint {_SAVEPOINT}")
        reason = None
        try:
            work()
        except Exception as error:
            if not self._dialect.refuses_rows(error):
                raise
            reason = self._dialect.reason(error)
            self._cursor.execute(f"rollback to savepoint {_SAVEPOINT}")
        self._cursor.execute(f"release savepoint {_SAVEPOINT}")
        return reason

    def _rows(self, change: TableChange) -> Iterator[RefusedRow]:
        reasons = {place.position: place.reason for place in self._refused if place.change is change}
        first = 0
        for table in change.rows() if reasons else ():
            for position in sorted(place for place in reasons if first <= place < first + table.num_rows):
                row = table.slice(position - first, 1)
                values = {name: _value(row[name][0]) for name in row.column_names}
                yield RefusedRow(change.operation, values, reasons[position])
            first += table.num_rows


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):  # Arrow has dates that Python has not
        return str(scalar.value)
