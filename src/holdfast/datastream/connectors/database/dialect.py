"""What databases do not have in common: how one connects, what types are called, where tables are described."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.secret import shown_error

Cursor = Any
Connection = Any


@dataclass(frozen=True)
class TableName:
    """A table, with its schema if it has one.

    Attributes:
        parts: Schema and name, or the name alone.
    """

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Reads `table` or `schema.table`.

        Raises:
            ConfigurationError: It is neither.
        """
        parts = tuple(str(text).split("."))
        if len(parts) > 2 or not all(parts) or "\0" in text:
            raise ConfigurationError(f"A table is named 'table' or 'schema.table', not {text!r}.")
        return cls(parts)

    @property
    def name(self) -> str:
        """The name without the schema."""
        return self.parts[-1]

    @property
    def schema(self) -> str | None:
        """The schema, None if the database chooses it."""
        return self.parts[0] if len(self.parts) == 2 else None

    @property
    def sql(self) -> str:
        """As it stands in a statement."""
        return ".".join(map(quoted, self.parts))

    def beside(self, suffix: str) -> TableName:
        """A table of the same schema whose name ends so."""
        return TableName((*self.parts[:-1], self.name + suffix))

    def sibling(self, name: str) -> TableName:
        """A table of the same schema."""
        return TableName((*self.parts[:-1], *TableName.parse(name).parts[-1:]))

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: Its name.
        type: Its type, as the database calls it.
        is_needed: Whether a row must have a value for it: it is not null, and has no default.
        is_never_null: Whether it refuses nulls.
        longest: Characters that a text in it may have; None for any number.
    """

    name: str
    type: str
    is_needed: bool
    is_never_null: bool = False
    longest: int | None = None


class Dialect(ABC):
    """One kind of database.

    Attributes:
        name: What it is called.
    """

    name: str

    @abstractmethod
    def connect(self, uri: str, options: Mapping[str, str], lock_timeout: float, may_make: bool) -> Connection:
        """A connection on which statements are one transaction until `commit` or `rollback`. Blocks.

        Args:
            uri: Of the database.
            options: For the driver.
            lock_timeout: Seconds after which a statement that waits for a lock fails.
            may_make: Whether a database that is not there may be made.
        """

    @abstractmethod
    def mark(self, position: int) -> str:
        """What stands for a parameter in a statement; positions are from 1."""

    @abstractmethod
    def columns(self, cursor: Cursor, table: TableName) -> list[TableColumn]:
        """The columns of a table; none if it is not there."""

    @abstractmethod
    def unique_keys(self, cursor: Cursor, table: TableName) -> list[frozenset[str]]:
        """The sets of columns by which rows of a table are unique."""

    @abstractmethod
    def type_of(self, arrow: pa.DataType) -> str | None:
        """The type of a column that is made for values of an Arrow type; None if there is none."""

    @abstractmethod
    def expression(self, column: str, arrow: pa.DataType, declared: str) -> str | None:
        """What a value of an Arrow type is in a column of a type of the table; None if it does not go in there."""

    @abstractmethod
    def ingestible(self, rows: pa.Table) -> pa.Table:
        """The same rows with the types that the driver takes."""

    @abstractmethod
    def lock_for_creation(self, cursor: Cursor, name: str) -> None:
        """Lets one process after the other make tables, until the transaction ends."""

    @abstractmethod
    def is_refusal(self, error: Exception) -> bool:
        """Whether an error says that the database will never take this."""

    @abstractmethod
    def refuses_rows(self, error: Exception) -> bool:
        """Whether an error, of those that are refusals, is about values of rows."""

    def reason(self, error: Exception) -> str:
        """What the database has said, without the statement."""
        return shown_error(error)

    def begin_with_savepoints(self, connection: Connection) -> None:  # noqa: B027 - a connection may have them
        """Begins a transaction in which a statement that fails can be taken back, and is told of at once."""

    def commit_with_savepoints(self, connection: Connection) -> None:
        """Commits a transaction that `begin_with_savepoints` has begun."""
        connection.commit()

    def check_batch(self, batch: pa.RecordBatch) -> str | None:
        """Why the database would refuse a batch whose types it takes; None if it would not."""
        return None

    def marks(self, count: int) -> str:
        """Parameters, with commas between them."""
        return ", ".join(self.mark(position) for position in range(1, count + 1))


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


def quoted_list(names: Sequence[str]) -> str:
    """Names as they stand in a statement, with commas between them."""
    return ", ".join(map(quoted, names))


def require_driver(error: ImportError) -> HoldfastError:
    """What to say when the driver is not installed."""
    return ConfigurationError(
        f"DatabaseSink needs ADBC, which is not installed ({error}): pip install 'holdfast[database]'."
    )
