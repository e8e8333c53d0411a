"""The table for rows that a database refuses: they get there in the transaction that records their epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from holdfast.datastream.connectors.database.bisection import RefusedRow
from holdfast.datastream.connectors.database.dialect import Cursor, Dialect, TableName, quoted_list
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.secret import shown_error, without_credentials
from holdfast.types.encoder import finite, json_text

_COLUMNS: Final = {
    "incarnation": "varchar(255) not null",
    "sink": "varchar(255) not null",
    "epoch": "bigint not null",
    "number": "bigint not null",
    "target": "varchar(255) not null",
    "operation": "varchar(10) not null",
    "row": "text not null",
    "reason": "text not null",
}
_LONGEST_REASON: Final = 1000


class RefusedTable:
    """A table for rows that others refuse.

    Args:
        dialect: The kind of database.
        name: The table.
    """

    def __init__(self, dialect: Dialect, name: TableName) -> None:
        self._dialect = dialect
        self._name = name

    def prepare(self, cursor: Cursor) -> None:
        """Makes it if it is not there.

        Raises:
            ConfigurationError: There is another table of its name.
        """
        found = {column.name for column in self._dialect.columns(cursor, self._name)}
        if found and not found >= _COLUMNS.keys():
            raise ConfigurationError(
                f"The table {str(self._name)!r} has the columns {sorted(found)!r}, and one for refused rows has "
                f"{list(_COLUMNS)!r}: give refused_table= another name, or rename that table."
            )
        if not found:
            self._dialect.lock_for_creation(cursor, str(self._name))
            columns = ", ".join(f"{quoted_list([name])} {kind}" for name, kind in _COLUMNS.items())
            cursor.execute(
                f"create table if not exists {self._name.sql} ({columns}, primary key (incarnation, sink, epoch, "
                "number))"
            )

    def put(self, cursor: Cursor, key: tuple[str, str, int], target: TableName, rows: Sequence[RefusedRow]) -> None:
        """Puts rows of an epoch aside.

        Args:
            cursor: In the transaction of the epoch.
            key: Incarnation, sink and epoch.
            target: The table that refuses them.
            rows: At least one.

        Raises:
            StorageError: It cannot be reached.
            ConfigurationError: It refuses them too.
        """
        values = [
            (*key, number, str(target), row.operation, as_json(row.row), row.reason[:_LONGEST_REASON])
            for number, row in enumerate(rows, start=1)
        ]
        try:
            cursor.executemany(
                f"insert into {self._name.sql} ({quoted_list(list(_COLUMNS))}) values "
                f"({self._dialect.marks(len(_COLUMNS))})",
                values,
            )
        except Exception as error:
            kind = ConfigurationError if self._dialect.is_refusal(error) else StorageError
            raise kind(
                f"{len(rows)} rows of epoch {key[2]} that the table {str(target)!r} refuses cannot be put aside into "
                f"{str(self._name)!r}: {shown_error(error)} Nothing of the epoch was committed. Make that table "
                "writable for the sink, and start the job again."
            ) from error


def as_json(row: dict[str, Any]) -> str:
    """A row in characters that every database stores."""
    return json.dumps(json.loads(json_text(finite(row, str))))


def shown_row(row: dict[str, Any]) -> str:
    """A row as messages have it: not all of it if it is long, and without passwords in addresses."""
    return f"{without_credentials(repr(row)):.300}"
