"""`TargetTable`: checks that a table fits the stream, and builds the statements that change it (`TableChange`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.datastream.connectors.database.dialect import Cursor, Dialect, TableName, quoted, quoted_list
from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges
from holdfast.errors import ConfigurationError


@dataclass(frozen=True)
class TableChange:
    """One statement that applies the rows of a temporary table to the table.

    Attributes:
        operation: `insert`, `upsert` or `delete`.
        before: The statement up to the condition that selects rows of the temporary table.
        after: The rest of the statement.
        staged_columns: The columns of the temporary table.
        rows: Returns the rows with all their columns; can be called again.
    """

    operation: str
    before: str
    after: str
    staged_columns: tuple[str, ...]
    rows: Callable[[], Iterable[pa.Table]]

    @property
    def staged(self) -> str:
        """The name of the temporary table."""
        return staged_table(self.operation)

    def statement(self, condition: str = "true") -> str:
        return f"{self.before} {condition}{self.after}"

    def batches(self, dialect: Dialect) -> Iterator[pa.RecordBatch]:
        for table in self.rows():
            yield from dialect.to_ingestible(table.select(list(self.staged_columns))).to_batches()

    def apply(self, cursor: Cursor, dialect: Dialect, schema: pa.Schema) -> None:
        """Apply all rows at once."""
        reader = pa.RecordBatchReader.from_batches(self.staged_schema(dialect, schema), self.batches(dialect))
        cursor.adbc_ingest(self.staged, reader, mode="create", temporary=True)
        cursor.execute(self.statement())
        cursor.execute(f"drop table {self.staged}")

    def staged_schema(self, dialect: Dialect, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the temporary table for the schema of a stream."""
        return dialect.to_ingestible(schema.empty_table().select(list(self.staged_columns))).schema


def staged_table(operation: str) -> str:
    return f"holdfast_{operation}"


class TargetTable:
    """A table of a database, to which a stream is written.

    Args:
        dialect: The kind of database.
        redacted_uri: The address without credentials, for messages.
        name: The name of the table.
        changes: Key and row kind.
    """

    def __init__(self, dialect: Dialect, redacted_uri: str, name: TableName, changes: ChangeColumns) -> None:
        self._dialect = dialect
        self._redacted_uri = redacted_uri
        self._name = name
        self._changes = changes
        self._expressions: tuple[pa.Schema, dict[str, str]] | None = None

    def creation(self, schema: pa.Schema) -> str:
        """Return the statement that creates the table.

        Raises:
            ConfigurationError: The database has no type for a column.
        """
        key, columns = self._changes.key, []
        for name in self._changes.written(schema.names):
            declared = self._dialect.type_of(schema.field(name).type)
            if declared is None:
                raise ConfigurationError(self._no_type(name, schema.field(name).type))
            columns.append(f"{quoted(name)} {declared}{' not null' if name in key else ''}")
        columns += [f"primary key ({quoted_list(key)})"] if key else []
        return f"create table if not exists {self._name.sql} ({', '.join(columns)})"

    def expressions(self, cursor: Cursor, schema: pa.Schema) -> dict[str, str]:
        """Return the SQL expression for each written column, in the order of the stream's columns.

        The table is read for the first schema only.

        Raises:
            ConfigurationError: The table does not fit the stream; the message says why.
        """
        if self._expressions is None or self._expressions[0] != schema:
            self._expressions = (schema, self._read_expressions(cursor, schema))
        return self._expressions[1]

    def _read_expressions(self, cursor: Cursor, schema: pa.Schema) -> dict[str, str]:
        dialect, changes, table = self._dialect, self._changes, str(self._name)
        columns = {column.name: column for column in dialect.columns(cursor, self._name)}
        if not columns:
            raise ConfigurationError(
                f"There is no table {table!r} in {self._redacted_uri!r}: create it, or pass create_table=True."
            )
        written = changes.written(schema.names)
        unknown = [name for name in written if name not in columns]
        required = [name for name, column in columns.items() if column.is_required and name not in written]
        if unknown or required:
            missing = f"has no columns {unknown!r}" if unknown else f"needs values for {required!r}"
            raise ConfigurationError(
                f"The table {table!r} {missing}; the stream has {written!r}, the table {list(columns)!r}. Nothing "
                "was written. Change the table, or map the stream to its columns."
            )
        if changes.key and frozenset(changes.key) not in dialect.unique_keys(cursor, self._name):
            raise ConfigurationError(
                f"The table {table!r} may contain several rows with the same {list(changes.key)!r}, the key of the "
                "sink: create a primary key or a unique index on exactly these columns."
            )
        expressions = {}
        for name in written:
            arrow = schema.field(name).type
            if dialect.type_of(arrow) is None:
                raise ConfigurationError(self._no_type(name, arrow))
            expression = dialect.expression(name, arrow, columns[name].type)
            if expression is None:
                raise ConfigurationError(
                    f"The column {name!r} of the table {table!r} is {columns[name].type!r}, which cannot store the "
                    f"stream's {arrow}. Nothing was written. Change one of them; for {arrow} the sink would create "
                    f"{dialect.type_of(arrow)!r}."
                )
            expressions[name] = expression
        return expressions

    def changes_of(
        self, cursor: Cursor, schema: pa.Schema, parts: Callable[[], Iterable[pa.Table]], epoch_changes: EpochChanges
    ) -> list[TableChange]:
        """Return the changes for the rows of an epoch, in the order in which to apply them.

        Args:
            cursor: A cursor in a transaction.
            schema: The schema of the rows.
            parts: Returns the rows of each subtask; can be called again.
            epoch_changes: Reduces them to one change of each key.

        Raises:
            ConfigurationError: The table does not fit the rows.
        """
        expressions = self.expressions(cursor, schema)
        names, key = tuple(expressions), self._changes.key
        into = f"insert into {self._name.sql} ({quoted_list(names)}) select {', '.join(expressions.values())} from "
        if not key:
            into += f"{staged_table('insert')} where"
            return [TableChange("insert", into, "", names, parts)]
        upserts, deletes = epoch_changes.last_of_each_key(list(parts()))
        updated = [name for name in names if name not in key]
        then = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in updated)
        after = f" on conflict ({quoted_list(key)}) do {f'update set {then}' if updated else 'nothing'}"
        keys = ", ".join(expressions[name] for name in key)
        from_table = (
            f"delete from {self._name.sql} where ({quoted_list(key)}) in (select {keys} from {staged_table('delete')} "
            "where"
        )
        found = [
            TableChange("delete", from_table, ")", key, lambda: [deletes]),
            TableChange("upsert", f"{into}{staged_table('upsert')} where", after, names, lambda: [upserts]),
        ]
        return [change for change, rows in zip(found, (deletes, upserts), strict=True) if rows.num_rows]

    def _no_type(self, name: str, arrow: pa.DataType) -> str:
        return (
            f"{self._dialect.name} has no type for the column {name!r}, which is {arrow}: map it to one or several "
            "columns of simple types, or to a string of JSON."
        )
