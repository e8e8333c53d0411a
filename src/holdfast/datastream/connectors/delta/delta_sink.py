"""Rows into a table of Delta Lake, exactly once and without a JVM.

A table's readers find files by its log, so all rows of an epoch are seen at once. Tasks write the files below
`_holdfast` in the table's directory (`table_directory`); the driver adds all of an epoch in one version, which also
says that the epoch is in there. With a key, rows are staged in the job's own directory and merged into the table by the
driver.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.datastream.connectors.delta import delta_table
from holdfast.datastream.connectors.delta.delta_committer import DeltaCommitter
from holdfast.datastream.connectors.row_changes import ChangeColumns, columns_of
from holdfast.datastream.connectors.table_bucket import table_at
from holdfast.datastream.sinks.partitioned import PartitionedStaging, Values
from holdfast.datastream.sinks.task_owned import sweep_task_owned
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.runtime.function.sink import BatchSinkWriter, Committer, CommitterInitContext, Sink, WriterInitContext
from holdfast.runtime.function.staging import ParquetFormat, ParquetStaging, require_parquet
from holdfast.storage.file_system.path import absolute
from holdfast.storage.file_system.scheme import file_system_for, local_path
from holdfast.storage.job.naming import FileName
from holdfast.types.conversion.arrow import element_schema
from holdfast.types.information.type_information import TypeInformation


class DeltaSink(Sink):
    """Writes a stream into a Delta table, exactly once: it adds rows, or with a key merges the last row of each key.

    Args:
        path: The directory of the table, which the driver and every executor have mounted under the same path; or
            `s3://bucket/directory`, in a store that the `s3.*` options reach.
        key: The columns by which rows are put or deleted. Of several rows of one key in an epoch the last counts, so a
            stream should be keyed by these columns before. Without a key rows are added.
        row_kind: A column of the stream that says what a row does, as Flink's `RowKind`: `+I`, `-U`, `+U`, `-D` or 0 to
            3. It is not written. Needs a key.
        partition_by: The partition columns of a table that is made; of one that is there, they must be the same.
        create_table: Whether a table that is not there is made, with the columns of the stream.
        add_columns: Whether columns that the table has not are added to it when a job starts.
        compression: Of the files that tasks write: `snappy`, `zstd`, `lz4`, `gzip` or `none`.

    Raises:
        ConfigurationError: There is no file system for the path, Delta's client does not find it, or the arguments do
            not go together.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | Sequence[str] = (),
        row_kind: str | None = None,
        partition_by: str | Sequence[str] = (),
        create_table: bool = False,
        add_columns: bool = False,
        compression: str = "snappy",
    ) -> None:
        self.path = absolute(os.fspath(path))
        file_system_for(self.path)
        self.path = local_path(self.path) or self.path
        delta_table.require_path(self.path)
        self.changes = ChangeColumns(columns_of(key), row_kind)
        self.partition_by = columns_of(partition_by)
        self.format = ParquetFormat(compression)
        self._create_table = create_table
        self._add_columns = add_columns
        self._schema: pa.Schema | None = None

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream of undeclared type, and one without the columns that the sink names."""
        require_parquet("DeltaSink", element_type)
        self.changes = self.changes.of_stream("DeltaSink", element_type)
        schema = element_schema(element_type)
        schema = pa.schema([schema.field(name) for name in self.changes.written(schema.names)])
        if self._schema is not None and self._schema != schema:
            raise ConfigurationError(f"{self!r} is used for two streams of different types: make a sink for each.")
        delta_table.check_partitions("DeltaSink", schema, self.partition_by)
        self._schema = schema

    def key_columns(self) -> Sequence[str]:
        """Those of the key."""
        return self.changes.key

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Makes sure that the table is the one it was, and that it fits; makes what may be made."""
        if kept is not None and not (type(kept) is dict and {"path", "identity"} <= kept.keys()):
            raise ConfigurationError(
                f"The checkpoint does not say which table {self!r} wrote into, but {reprlib.repr(kept)}. Start from "
                "another one (-s PATH)."
            )
        if kept is not None and kept["path"] == self.path:
            table = delta_table.require_table(self.path, kept["identity"])
        else:
            table = self._find_or_make()
        delta_table.check_rules(table, self.path, bool(self.changes.key))
        columns = list(table.metadata().partition_columns)
        if self.partition_by and columns != list(self.partition_by):
            raise ConfigurationError(
                f"The Delta table {self.path!r} is partitioned by {columns!r}, not by {list(self.partition_by)!r}."
            )
        if self._schema is not None:
            if not self.changes.key:  # the client divides what it merges
                delta_table.require_partitions(self.path, self._schema, columns)
            self._fit(table, self._schema)
        identity = table.metadata().id
        table_at(self.path).write_identity(identity)
        needed = delta_table.needed_columns(table)
        return {"path": self.path, "identity": identity, "partition_by": columns, "needed": needed}

    def create_writer(self, context: WriterInitContext) -> BatchSinkWriter:
        """Stages files below the table; with a key, one in the job's directory."""
        return _CheckedWriter(self, context)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Commits each epoch as one version of the table."""
        return DeltaCommitter(self.path, self.changes, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files of dead attempts."""
        return sweep_task_owned(context, is_dead) + table_at(self.path).sweep(context, is_dead)

    def stage(self, context: WriterInitContext, values: Values) -> ParquetStaging:
        """A writer of one partition, or of rows that are to be merged."""
        target = context.target
        if self.changes.key:
            name = context.file_name(".parquet")
            committable = {"path": self.path, "identity": target["identity"], "file": name}
            return ParquetStaging(context.staging_dir, name, committable, self.format)
        partition = dict(zip(target["partition_by"], map(delta_table.partition_text, values), strict=True))
        committable = {"identity": target["identity"], "partition": partition}
        return table_at(self.path).staging(context, committable, self.format)

    def _find_or_make(self) -> delta_table.Table:
        table = delta_table.open_table(self.path)
        if table is None:
            if not (self._create_table and self._schema is not None):
                raise ConfigurationError(
                    f"There is no Delta table at {self.path!r}: make it, or give create_table=True."
                )
            table = delta_table.make_table(self.path, self._schema, self.partition_by)
        return table

    def _fit(self, table: delta_table.Table, schema: pa.Schema) -> None:
        missing = delta_table.missing_columns(table, self.path, schema)
        if missing and not self._add_columns:
            raise ConfigurationError(
                f"The Delta table {self.path!r} has no columns {[field.name for field in missing]!r}; it has "
                f"{[field.name for field in table.schema().fields]!r}. Nothing was written. Map the stream to its "
                "columns, or give add_columns=True."
            )
        if missing:
            delta_table.add_columns(table, self.path, missing)

    def __repr__(self) -> str:
        return f"DeltaSink({self.path!r})"


class _CheckedWriter(PartitionedStaging):
    """Refuses what would break the table, while the epoch can still run again."""

    def __init__(self, sink: DeltaSink, context: WriterInitContext) -> None:
        columns = () if sink.changes.key else context.target["partition_by"]
        super().__init__(columns, partial(sink.stage, context))
        self._sink = sink
        self._uid = context.uid
        self._needed: list[str] = context.target["needed"]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Takes a batch of rows that can be written."""
        self._sink.changes.check_rows("DeltaSink", self._uid, batch)
        puts = self._sink.changes.puts(batch)
        for name in self._needed:
            if puts.column(name).null_count:
                raise OutputTypeError(
                    self._uid,
                    f"{self._sink!r} got a row in which {name!r} is null; the table says that it never is.",
                    field=name,
                )
        super().write_batch(batch)
