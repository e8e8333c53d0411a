"""Rows into a table of Apache Iceberg, exactly once and without a JVM.

A table's readers find files by its snapshots. Tasks write the files below `_holdfast` in the table's directory
(`table_directory`); the driver adds all of an epoch in one transaction, which also sets a property of the table that
says that the epoch is in there. With a key, rows are staged in the job's own directory, and the driver puts and deletes
them in one transaction.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.datastream.connectors.iceberg import iceberg_table
from holdfast.datastream.connectors.iceberg.field_ids import Ids, ids_of, with_ids
from holdfast.datastream.connectors.iceberg.iceberg_committer import IcebergCommitter
from holdfast.datastream.connectors.iceberg.iceberg_table import PartitionField, Place
from holdfast.datastream.connectors.row_changes import ChangeColumns, columns_of
from holdfast.datastream.connectors.table_bucket import table_at
from holdfast.datastream.sinks.partitioned import PartitionedStaging, Values
from holdfast.datastream.sinks.task_owned import sweep_task_owned
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.runtime.function.sink import BatchSinkWriter, Committer, CommitterInitContext, Sink, WriterInitContext
from holdfast.runtime.function.staging import ParquetFormat, ParquetStaging, require_parquet
from holdfast.storage.file_system.path import is_absolute
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.arrow import element_schema
from holdfast.types.information.type_information import TypeInformation

LONGEST_TOLD: Final = 4096
"""Bytes of a text or binary of which Parquet files tell the least and the greatest; Arrow's own limit."""


class IcebergSink(Sink):
    """Writes a stream into an Iceberg table, exactly once: it adds rows, or with a key puts the last row of each key.

    What the catalog is stays in the driver: tasks only write files.

    Args:
        catalog: The name of the catalog. A catalog of SQL finds tables only under the name by which they were made.
        table: `namespace.table`. It must lie in a directory that the driver and every executor have mounted under the
            same path, or in an object store (`s3://`) that the `s3.*` options reach.
        properties: By which pyiceberg finds the catalog, such as `{"type": "sql", "uri": ..., "warehouse": ...}` or
            `{"type": "rest", "uri": ...}`; what they lack is taken from pyiceberg's own configuration.
        key: The columns by which rows are put or deleted. Of several rows of one key in an epoch the last counts, so a
            stream should be keyed by these columns before. Without a key rows are added.
        row_kind: A column of the stream that says what a row does, as Flink's `RowKind`: `+I`, `-U`, `+U`, `-D` or 0 to
            3. It is not written. Needs a key; rows with a kind (`Types.CHANGELOG`) need no such column.
        partition_by: Of a table that is made: columns, or `year(column)`, `month`, `day` or `hour` of one. Of a table
            that is there, it must be the same.
        create_table: Whether a table that is not there is made, with the columns of the stream.
        add_columns: Whether columns that the table has not are added to it when a job starts.
        compression: Of the files that tasks write: `snappy`, `zstd`, `lz4`, `gzip` or `none`.

    Raises:
        ConfigurationError: The arguments do not go together.
    """

    def __init__(
        self,
        catalog: str,
        table: str,
        *,
        properties: Mapping[str, str] | None = None,
        key: str | Sequence[str] = (),
        row_kind: str | None = None,
        partition_by: str | Sequence[str] = (),
        create_table: bool = False,
        add_columns: bool = False,
        compression: str = "zstd",
    ) -> None:
        if not all(str(table).split(".")) or "." not in table:
            raise ConfigurationError(f"An Iceberg table is named 'namespace.table', not {table!r}.")
        warehouse = str((properties or {}).get("warehouse", ""))
        if is_absolute(warehouse):
            iceberg_table.require_plain(warehouse)
        self._place: Place | None = Place(catalog, dict(properties or {}), table)
        self.table = table
        self.changes = ChangeColumns(columns_of(key), row_kind)
        self.partition_by = tuple(map(PartitionField.parse, columns_of(partition_by)))
        self.format = ParquetFormat(compression)
        self._create_table = create_table
        self._add_columns = add_columns
        self._schema: pa.Schema | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The keys of the catalog have no business in tasks.
        return {**vars(self), "_place": None}

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream of undeclared type, and one without the columns that the sink names."""
        require_parquet("IcebergSink", element_type)
        self.changes = self.changes.of_stream("IcebergSink", element_type)
        schema = element_schema(element_type)
        schema = pa.schema([schema.field(name) for name in self.changes.written(schema.names)])
        schema = iceberg_table.in_microseconds(schema)
        for name in self.changes.key:
            if pa.types.is_floating(schema.field(name).type):
                raise ConfigurationError(
                    f"IcebergSink finds rows by the key {name!r}, which is {schema.field(name).type}: use a column of "
                    "texts, whole numbers, decimals, dates or timestamps."
                )
        if self._schema is not None and self._schema != schema:
            raise ConfigurationError(f"{self!r} is used for two streams of different types: make a sink for each.")
        iceberg_table.check_partitions("IcebergSink", schema, self.partition_by)
        self._schema = schema

    def key_columns(self) -> Sequence[str]:
        """Those of the key."""
        return self.changes.key

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Makes sure that the table is the one it was, and that it fits; makes what may be made."""
        iceberg_table.require_library()
        if kept is not None and not (type(kept) is dict and {"table", "catalog", "identity"} <= kept.keys()):
            raise ConfigurationError(
                f"The checkpoint does not say which table {self!r} wrote into, but {reprlib.repr(kept)}. Start from "
                "another one (-s PATH)."
            )
        place = self._known_place()
        if kept is not None and (kept["table"], kept["catalog"]) == (place.name, place.shown):
            table = place.require(kept["identity"])
        else:
            table = self._find_or_make(place)
        parts = iceberg_table.partitions_of(table)
        if self.partition_by and parts != list(self.partition_by):
            raise ConfigurationError(
                f"The Iceberg table {self.table!r} is partitioned by {list(map(str, parts))!r}, not by "
                f"{list(map(str, self.partition_by))!r}."
            )
        if self._schema is not None:
            if not self.changes.key:  # the library divides what it appends
                iceberg_table.check_partitions(f"The Iceberg table {self.table!r}", self._schema, parts)
            self._fit(place, table, self._schema)
        identity, path = str(table.metadata.table_uuid), iceberg_table.directory_of(table)
        table_at(path).write_identity(identity)
        return {
            "table": place.name,
            "catalog": place.shown,
            "identity": identity,
            "path": path,
            "partition_by": list(map(str, parts)),
            "needed": iceberg_table.needed_columns(table),
            "ids": ids_of(table.schema().fields),
            "schema": table.schema().schema_id,
        }

    def create_writer(self, context: WriterInitContext) -> BatchSinkWriter:
        """Stages files below the table; with a key, one in the job's directory."""
        return _DividingWriter(self, context)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Commits each epoch in one transaction."""
        return IcebergCommitter(self._known_place(), self.changes, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files of dead attempts."""
        swept = sweep_task_owned(context, is_dead)
        table = self._known_place().find()
        below = 0 if table is None else table_at(iceberg_table.directory_of(table)).sweep(context, is_dead)
        return swept + below

    def stage(self, context: WriterInitContext, values: Values) -> ParquetStaging:
        """A writer of one partition, or of rows that are to be put and deleted."""
        committable = {"identity": context.target["identity"]}
        if self.changes.key:
            name = context.file_name(".parquet")
            committable |= {"path": context.target["path"], "file": name}
            return ParquetStaging(context.staging_dir, name, committable, self.format)
        committable["schema"] = context.target["schema"]
        return table_at(context.target["path"]).staging(context, committable, self.format)

    def _known_place(self) -> Place:
        assert self._place is not None, "a committer runs in the driver only"
        return self._place

    def _find_or_make(self, place: Place) -> iceberg_table.Table:
        table = place.find()
        if table is None:
            if not (self._create_table and self._schema is not None):
                raise ConfigurationError(
                    f"There is no Iceberg table {place.name!r} in the catalog {place.shown!r}: make it, or give "
                    "create_table=True."
                )
            table = place.make(self._schema, self.partition_by)
        return table

    def _fit(self, place: Place, table: iceberg_table.Table, schema: pa.Schema) -> None:
        missing = iceberg_table.missing_columns(table, schema)
        if missing and not self._add_columns:
            raise ConfigurationError(
                f"The Iceberg table {place.name!r} has no columns {[part.name for part in missing]!r}; it has "
                f"{list(table.schema().column_names)!r}. Nothing was written. Map the stream to its columns, or give "
                "add_columns=True."
            )
        if missing:
            place.add_columns(table, missing)

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"


class _DividingWriter(PartitionedStaging):
    """Divides rows by partitions; refuses what the table does not take, while the epoch can still run again."""

    def __init__(self, sink: IcebergSink, context: WriterInitContext) -> None:
        parts = () if sink.changes.key else context.target["partition_by"]
        self._parts = list(map(PartitionField.parse, parts))
        super().__init__(list(map(str, self._parts)), partial(sink.stage, context))
        self._sink = sink
        self._uid = context.uid
        self._needed: list[str] = context.target["needed"]
        self._ids: Ids = context.target["ids"]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Takes a batch of rows that can be written."""
        self._sink.changes.check_rows("IcebergSink", self._uid, batch)
        batch = batch.cast(iceberg_table.in_microseconds(batch.schema))
        puts = self._sink.changes.puts(batch)
        for name in self._needed:
            if puts.column(name).null_count:
                raise OutputTypeError(
                    self._uid,
                    f"{self._sink!r} got a row in which {name!r} is null; the table says that it never is.",
                    field=name,
                )
        for part in self._parts:
            self._require_told(batch, part)
        # Of rows that are deleted only the key need be there.
        told = batch.schema if self._sink.changes.key else iceberg_table.never_null(batch.schema, self._needed)
        schema = with_ids(told, self._ids, but=self._sink.changes.row_kind)
        columns = [column.cast(kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
        super().write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    def _require_told(self, batch: pa.RecordBatch, part: PartitionField) -> None:
        """Refuses a value that the statistics of a file do not tell: the library takes that of its partition there."""
        column, is_lost = batch.column(part.column), None
        if pa.types.is_floating(column.type):
            is_lost = pc.is_nan(column)
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            is_lost = pc.greater(pc.binary_length(column), LONGEST_TOLD)
        if is_lost is not None and pc.any(is_lost).as_py():
            raise OutputTypeError(
                self._uid,
                f"{self._sink!r} got a row whose partition would be lost: {part.column!r} is NaN, or has more than "
                f"{LONGEST_TOLD} bytes, which the statistics of a file do not tell.",
                field=part.column,
            )

    def partitions(self, batch: pa.RecordBatch) -> pa.Table:
        """The values of the partition fields of each row."""
        columns = [_transformed(batch.column(part.column), part.transform) for part in self._parts]
        return pa.table(columns, names=self._columns)


def _transformed(column: pa.Array, transform: str) -> pa.Array:
    if transform == "identity":
        return column
    return pc.floor_temporal(column, unit=transform)
