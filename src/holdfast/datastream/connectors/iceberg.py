"""`IcebergSink`: writes rows into tables of Apache Iceberg, exactly once, without a JVM.

Tasks write data files below `_holdfast` in the table's directory (`table_files`). The driver adds all files of an epoch
in one transaction of the catalog, which also records the epoch in a property of the table (`table_committer`). Readers
find files by the table's snapshots. With a key, rows are staged in the job's own directory, and the driver deletes and
appends them in one transaction.
"""

from __future__ import annotations

import os
import re
import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.datastream.connectors.row_changes import ChangeColumns, columns_of
from holdfast.datastream.connectors.table_committer import Record, Table, TableBackend, TableCommitter
from holdfast.datastream.connectors.table_files import DataFile, check_required, table_directory
from holdfast.datastream.sinks.output_files import PartitionedStaging, Values
from holdfast.datastream.sinks.staged_files import sweep_staged_files
from holdfast.errors import ConfigurationError, NotExistError, OutputTypeError, StorageError
from holdfast.kernel.secret import redacted_message, redacted_value
from holdfast.runtime.function.sink import (
    BatchSinkWriter,
    CommitRequest,
    Committer,
    CommitterInitContext,
    ParquetFormat,
    ParquetStaging,
    Sink,
    WriterInitContext,
    require_parquet,
)
from holdfast.storage.file_system import is_absolute, join, local_path
from holdfast.storage.job_directory import FileName
from holdfast.storage.object_store import current_s3_options, endpoint_of
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import element_schema
from holdfast.types.type_information import TypeInformation

LONGEST_IN_STATISTICS: Final = 4096
"""Bytes of a string or binary up to which Arrow writes its minimum and maximum into a Parquet file."""
_NUMBER: Final = re.compile("[0-9]{1,18}")
_RETRIES: Final = "commit.retry.num-retries"
_METRICS: Final = "write.metadata.metrics.column"
_PARTITION: Final = re.compile(r"(?P<transform>day|hour|month|year)\((?P<column>.+)\)|(?P<identity>[^()]+)")
FIELD_ID: Final = b"PARQUET:field_id"
FieldIds = Mapping[str, Any]
"""By field name the id and the ids of nested fields, `[3, {"element": [4, {}]}]`; a JSON value."""


class IcebergSink(Sink):
    """Writes a stream into an Iceberg table, exactly once. Needs `pip install 'holdfast[iceberg]'`.

    Without a key, each row is appended. With a key, the last row of each key in an epoch replaces the row of the table.
    The catalog and its properties stay in the driver; tasks only write files.

    Args:
        catalog: The name of the catalog. A SQL catalog finds tables only under the catalog name that created them.
        table: `namespace.table`. Its directory must be one that the driver and every executor have mounted under the
            same path, or in an object store (`s3://`) that the `s3.*` options reach.
        properties: The properties of the catalog for pyiceberg, such as `{"type": "sql", "uri": ..., "warehouse": ...}`
            or `{"type": "rest", "uri": ...}`. Missing ones come from pyiceberg's own configuration.
        key: The columns that identify a row. The last row of a key in an epoch wins, so key the stream by these columns
            before the sink. No floating-point columns.
        row_kind: A column of the stream with the kind of each row, as in Flink's `RowKind`: `+I`, `-U`, `+U`, `-D` or 0
            to 3. It is not written. Needs a key. Rows with a kind (`Types.CHANGELOG`) need no such column.
        partition_by: The partition fields of a new table: columns, or `year(column)`, `month`, `day` or `hour` of one.
            An existing table must have the same ones.
        create_table: Whether to create a missing table, with the columns of the stream.
        add_columns: Whether columns that only the stream has are added to the table when a job starts.
        compression: The codec of the files that tasks write: `snappy`, `zstd`, `lz4`, `gzip` or `none`.

    Raises:
        ConfigurationError: An argument is malformed.

    Example:
        >>> import tempfile
        >>> from pyiceberg.catalog import load_catalog
        >>> from holdfast.datastream.connectors.iceberg import IcebergSink
        >>> from holdfast.testing import EpochProgram
        >>> place, program = tempfile.mkdtemp(), EpochProgram()
        >>> catalog = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/tables"}
        >>> words = program.source("words", "word string, n bigint")
        >>> sink = IcebergSink("prod", "db.counts", properties=catalog, key="word", create_table=True)
        >>> result = words.sink_to(sink).uid("counts")
        >>> job = program.run(f"{place}/job", [{"words": [("kelp", 1)]}, {"words": [("kelp", 2)]}])
        >>> load_catalog("prod", **catalog).load_table("db.counts").scan().to_arrow().to_pylist()
        [{'word': 'kelp', 'n': 2}]
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
            check_location(warehouse)
        self._catalog_table: CatalogTable | None = CatalogTable(catalog, dict(properties or {}), table)
        self.table = table
        self.changes = ChangeColumns(columns_of(key), row_kind)
        self.partition_by = tuple(map(PartitionField.parse, columns_of(partition_by)))
        self.format = ParquetFormat(compression)
        self._create_table = create_table
        self._add_columns = add_columns
        self._schema: pa.Schema | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The properties of the catalog may contain passwords, which tasks must not get.
        return {**vars(self), "_catalog_table": None}

    def check_input(self, element_type: TypeInformation) -> None:
        """Check that the stream has a declared type, and the columns that the sink names.

        Raises:
            ConfigurationError: It has not, or a type is not allowed there.
        """
        require_parquet("IcebergSink", element_type)
        self.changes = self.changes.for_stream("IcebergSink", element_type)
        schema = element_schema(element_type)
        schema = pa.schema([schema.field(name) for name in self.changes.written(schema.names)])
        schema = in_microseconds(schema)
        for name in self.changes.key:
            if pa.types.is_floating(schema.field(name).type):
                raise ConfigurationError(
                    f"IcebergSink cannot use {name!r} as key, because it is {schema.field(name).type}: use a column of "
                    "strings, integers, decimals, dates or timestamps."
                )
        if self._schema is not None and self._schema != schema:
            raise ConfigurationError(f"{self!r} is used for two streams of different types: make a sink for each.")
        check_partitions("IcebergSink", schema, self.partition_by)
        self._schema = schema

    def key_columns(self) -> Sequence[str]:
        return self.changes.key

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Check that the table is the same as before, and that it fits the stream; create the table or columns. Blocks.

        Raises:
            StorageError: The table is not the one of the checkpoint, or the catalog does not answer.
            ConfigurationError: The table does not exist, or does not fit the stream.
        """
        require_library()
        if kept is not None and not (type(kept) is dict and {"table", "catalog", "identity"} <= kept.keys()):
            raise ConfigurationError(
                f"The checkpoint does not say which table {self!r} wrote into, but {reprlib.repr(kept)}. Start from "
                "another one (-s PATH)."
            )
        target = self._require_catalog_table()
        if kept is not None and (kept["table"], kept["catalog"]) == (target.name, target.shown):
            table = target.require(kept["identity"])
        else:
            table = self._load_or_create(target)
        parts = partitions_of(table)
        if self.partition_by and parts != list(self.partition_by):
            raise ConfigurationError(
                f"The Iceberg table {self.table!r} is partitioned by {list(map(str, parts))!r}, not by "
                f"{list(map(str, self.partition_by))!r}."
            )
        if self.changes.key and any(part.transform != "identity" for part in parts):
            require_library("pyiceberg_core")  # it computes the partitions of the rows that it appends
        if self._schema is not None:
            if not self.changes.key:  # otherwise the library partitions the rows that it appends
                check_partitions(f"The Iceberg table {self.table!r}", self._schema, parts)
            self._add_missing_columns(target, table, self._schema)
        identity, path = str(table.metadata.table_uuid), directory_of(table)
        table_directory(path).write_identity(identity)
        return {
            "table": target.name,
            "catalog": target.shown,
            "identity": identity,
            "path": path,
            "partition_by": list(map(str, parts)),
            "needed": required_columns(table),
            "ids": field_ids(table.schema().fields),
            "schema": table.schema().schema_id,
        }

    def create_writer(self, context: WriterInitContext) -> BatchSinkWriter:
        return _IcebergWriter(self, context)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        backend = _IcebergBackend(self._require_catalog_table(), self.changes.key)
        return TableCommitter(backend, self.changes, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        swept = sweep_staged_files(context, is_dead)
        table = self._require_catalog_table().load()
        below = 0 if table is None else table_directory(directory_of(table)).sweep(context, is_dead)
        return swept + below

    def stage(self, context: WriterInitContext, values: Values) -> ParquetStaging:
        """Return the writer of one partition, or of the rows to upsert and delete."""
        committable = {"identity": context.target["identity"]}
        if self.changes.key:
            name = context.file_name(".parquet")
            committable |= {"path": context.target["path"], "file": name}
            return ParquetStaging(context.staging_dir, name, committable, self.format)
        committable["schema"] = context.target["schema"]
        return table_directory(context.target["path"]).staging(context, committable, self.format)

    def _require_catalog_table(self) -> CatalogTable:
        assert self._catalog_table is not None, "only the driver knows the catalog"
        return self._catalog_table

    def _load_or_create(self, target: CatalogTable) -> Table:
        table = target.load()
        if table is None:
            if not (self._create_table and self._schema is not None):
                raise ConfigurationError(
                    f"There is no Iceberg table {target.name!r} in the catalog {target.shown!r}: create it, or pass "
                    "create_table=True."
                )
            table = target.create(self._schema, self.partition_by)
        return table

    def _add_missing_columns(self, target: CatalogTable, table: Table, schema: pa.Schema) -> None:
        missing = missing_columns(table, schema)
        if missing and not self._add_columns:
            raise ConfigurationError(
                f"The Iceberg table {target.name!r} has no columns {[part.name for part in missing]!r}; it has "
                f"{list(table.schema().column_names)!r}. Nothing was written. Map the stream to its columns, or pass "
                "add_columns=True."
            )
        if missing:
            target.add_columns(table, missing)

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"


class _IcebergWriter(PartitionedStaging):
    """Rejects rows that the table cannot take before they are staged, while the epoch can still run again."""

    def __init__(self, sink: IcebergSink, context: WriterInitContext) -> None:
        parts = () if sink.changes.key else context.target["partition_by"]
        self._parts = list(map(PartitionField.parse, parts))
        super().__init__(list(map(str, self._parts)), partial(sink.stage, context))
        self._sink = sink
        self._uid = context.uid
        self._needed: list[str] = context.target["needed"]
        self._ids: FieldIds = context.target["ids"]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._sink.changes.check_rows("IcebergSink", self._uid, batch)
        batch = batch.cast(in_microseconds(batch.schema))
        check_required(self._sink, self._uid, self._sink.changes.upserts(batch), self._needed)
        for part in self._parts:
            self._check_statistics(batch, part)
        # With a key there may be deletes, which need nothing but the key: all other columns stay nullable.
        nullable = batch.schema if self._sink.changes.key else with_required(batch.schema, self._needed)
        schema = with_ids(nullable, self._ids, but=self._sink.changes.row_kind)
        columns = [column.cast(kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
        super().write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    def _check_statistics(self, batch: pa.RecordBatch, part: PartitionField) -> None:
        """Reject values without minimum and maximum in a file's statistics: the library reads the partition there."""
        column, is_lost = batch.column(part.column), None
        if pa.types.is_floating(column.type):
            is_lost = pc.is_nan(column)
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            is_lost = pc.greater(pc.binary_length(column), LONGEST_IN_STATISTICS)
        if is_lost is not None and pc.any(is_lost).as_py():
            raise OutputTypeError(
                self._uid,
                f"{self._sink!r} got a row whose partition would be lost: {part.column!r} is NaN, or has more than "
                f"{LONGEST_IN_STATISTICS} bytes, which the statistics of a Parquet file do not contain.",
                field=part.column,
            )

    def partitions(self, batch: pa.RecordBatch) -> pa.Table:
        columns = [_transformed(batch.column(part.column), part.transform) for part in self._parts]
        return pa.table(columns, names=self._columns)


def _transformed(column: pa.Array, transform: str) -> pa.Array:
    if transform == "identity":
        return column
    return pc.floor_temporal(column, unit=transform)


class _IcebergBackend(TableBackend):
    """Commits to an Iceberg table. An epoch is recorded in the table property `marker`, its files in another one.

    It is a property of the table and not of a snapshot, because snapshots expire. A catalog compares snapshots and not
    properties, so each epoch makes a snapshot, an empty one if it changes nothing. Otherwise a leader that wakes up
    when another one is several epochs further would set the number back.

    The library retries a failed commit on the newest snapshot without reading the property, so both of two leaders
    would add their files. So its retries are off for these commits.
    """

    sink = "IcebergSink"

    def __init__(self, catalog_table: CatalogTable, key: Sequence[str]) -> None:
        self._catalog_table = catalog_table
        self._key = key

    def load(self) -> Table:
        return self._catalog_table.require(None)

    def load_target(self, path: str, identity: str, epoch: int) -> Table:
        table = self._catalog_table.require(identity)
        if directory_of(table) != path:
            raise ConfigurationError(
                f"The files of epoch {epoch} were staged in {path!r}, but the Iceberg table "
                f"{self._catalog_table.name!r} is in {directory_of(table)!r} now: it was moved. Nothing was committed. "
                "Move it back until the job has committed its staged output."
            )
        return table

    def last_epoch(self, table: Table, marker: str) -> int | None:
        return _recorded_epoch(table, marker)

    def recorded_names(self, table: Table, marker: str) -> list[str] | None:
        epoch, _, names = table.properties.get(_names_property(marker), "").partition(" ")
        return names.split() if epoch == table.properties[marker] else None

    def add_files(
        self, table: Table, record: Record, requests: Sequence[CommitRequest], path: str, files: Sequence[DataFile]
    ) -> None:
        _disable_retries(table)
        _use_staged_schema(table, requests[0].committable.get("schema"))
        _enable_partition_statistics(table)
        base = path if local_path(path) is None else f"file://{path}"
        with table.transaction() as transaction:
            transaction.set_properties(_properties(record))
            # The property alone says what was committed; files that are in the table already would prove nothing.
            transaction.add_files([join(base, file.name) for file in files], check_duplicate_files=False)

    def change_rows(self, table: Table, record: Record, upserts: pa.Table, deletes: pa.Table) -> None:
        """Replace the rows of these keys; data files that contain such a row are rewritten."""
        _disable_retries(table)
        keys = pa.concat_tables([part.select(list(self._key)) for part in (upserts, deletes)])
        upserts, keys = self._with_current_names(table, upserts), self._with_current_names(table, keys)
        upserts = upserts.cast(with_required(upserts.schema, required_columns(table)))
        with table.transaction() as transaction, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Delete operation did not match any records")
            transaction.set_properties(_properties(record))
            if keys.num_rows and table.current_snapshot() is not None:
                transaction.delete(_has_key(keys))
            is_unchanged = transaction.table_metadata.current_snapshot_id == table.metadata.current_snapshot_id
            if upserts.num_rows or is_unchanged:
                transaction.append(upserts)

    def make_durable(self, table: Table, path: str, *, is_new: bool) -> None:
        _make_durable(table)

    def is_conflict(self, error: Exception) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        return isinstance(error, CommitFailedException)

    def failure(self, what: str, error: Exception, path: str | None = None) -> StorageError:
        return self._catalog_table.failure(what, error)

    def _with_current_names(self, table: Table, rows: pa.Table) -> pa.Table:
        """Rename staged columns as the table has, and remove those that it has dropped.

        Raises:
            ConfigurationError: A column of the key is dropped.
        """
        names = current_names(rows.schema, table.schema().fields)
        for name in self._key:
            if names[name] is None:
                raise ConfigurationError(
                    f"The Iceberg table {self._catalog_table.name!r} has dropped the key column {name!r} since rows "
                    "were staged. Nothing was committed. Restore a schema with this column, and the job goes on."
                )
        kept = {name: now for name, now in names.items() if now is not None}
        return rows.select(list(kept)).rename_columns(list(kept.values()))


def _names_property(marker: str) -> str:
    return f"holdfast-files.{marker.removeprefix('holdfast.')}"


def _properties(record: Record) -> dict[str, str]:
    # The epoch is in both, because an older release that goes on with the job sets the first one only.
    return {
        record.marker: str(record.epoch),
        _names_property(record.marker): " ".join([str(record.epoch), *record.names]),
    }


def _disable_retries(table: Table) -> None:
    """Turn off the library's retries on this handle; the catalog gets changes alone, and does not see it."""
    table.metadata.properties[_RETRIES] = "0"


def _use_staged_schema(table: Table, schema: int | None) -> None:
    """Give this handle the schema with which files were staged: the library finds their columns by names.

    Another column may have a name by now. Files and their statistics have field ids, so readers are not confused.
    """
    if schema in table.schemas():
        table.metadata = table.metadata.model_copy(update={"current_schema_id": schema})


def _has_key(keys: pa.Table) -> Any:
    """Return the condition that a row has one of these keys."""
    from pyiceberg.expressions import And, EqualTo, In, Or

    if keys.num_columns == 1:
        return In(term=keys.column_names[0], values=keys.column(0).to_pylist())
    each = [And(*(EqualTo(term=name, value=value) for name, value in key.items())) for key in keys.to_pylist()]
    return each[0] if len(each) == 1 else Or(*each)


def _recorded_epoch(table: Table, name: str) -> int | None:
    text = table.properties.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ConfigurationError(
            f"The property {name!r} of the Iceberg table {name_of(table)!r}, the last epoch that the job has "
            f"committed, is {text!r:.80}, which is not a number. Nothing was committed. Set it to the last epoch that "
            "was committed."
        )
    return int(text)


def _make_durable(table: Table) -> None:
    """Sync the metadata and manifests of the current snapshot to disk: the library does not."""
    if local_path(table.location()) is None:
        return
    snapshot = table.current_snapshot()
    files = [table.metadata_location]
    if snapshot is not None:
        manifests = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
        files += [snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)]
    for file in files:
        path = local_path(file)
        if path is not None:
            with suppress(NotExistError):  # expired since, and cleaned up
                file_system_for(path).make_durable(path)


# The table: load, check, create, add columns.


@dataclass(frozen=True)
class PartitionField:
    """One field of a partition spec.

    Attributes:
        column: The source column.
        transform: `identity`, `year`, `month`, `day` or `hour`.
    """

    column: str
    transform: str = "identity"

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """Parse a column, or a transform of one such as `day(column)`.

        Raises:
            ConfigurationError: It is neither.
        """
        match = _PARTITION.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"A partition of IcebergSink is a column, or year, month, day or hour of one, such as 'day(at)', not "
                f"{text!r}."
            )
        return cls(match["identity"]) if match["identity"] else cls(match["column"], match["transform"])

    def __str__(self) -> str:
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"


@dataclass(frozen=True)
class CatalogTable:
    """A table in a catalog. Only the driver has it, because the properties may contain passwords.

    Attributes:
        catalog: The name of the catalog. A SQL catalog finds tables only under the catalog name that created them.
        properties: The properties of the catalog, for pyiceberg, which adds those of its own configuration.
        name: `namespace.table`.
    """

    catalog: str
    properties: Mapping[str, str] = field(repr=False)
    name: str

    @property
    def shown(self) -> dict[str, str]:
        """The catalog without credentials."""
        properties = self.properties
        known = {key: redacted_value(key, properties[key]) for key in ("type", "uri", "warehouse") if key in properties}
        return {"name": self.catalog, **known}

    def load(self) -> Table | None:
        """Load the newest version of the table; return None if it does not exist. Blocks.

        Raises:
            StorageError: The catalog does not answer.
        """
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog().load_table(self.name)
        except NoSuchTableError:
            return None
        except Exception as error:
            raise self.failure("cannot be read", error) from error

    def require(self, identity: str | None) -> Table:
        """Load the newest version of the table with this identity; None accepts any. Blocks.

        Raises:
            StorageError: It does not exist, or has another identity.
        """
        table = self.load()
        found = None if table is None else str(table.metadata.table_uuid)
        if table is None or (identity is not None and found != identity):
            raise StorageError(
                f"The Iceberg table {self.name!r} in the catalog {self.shown!r} is not the one that the job writes "
                f"into: expected the id {identity!r}, found {'no table' if found is None else repr(found)}. Nothing "
                "was written or committed. Restore the old table, and the job goes on."
            )
        return table

    def create(self, schema: pa.Schema, partition_by: Sequence[PartitionField]) -> Table:
        """Create the table and its namespace, or load what another process has just created. Blocks.

        Raises:
            StorageError: They cannot be created.
            ConfigurationError: Iceberg has no type for a column.
        """
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

        try:
            catalog = self._catalog()
            catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            with (
                catalog.create_table_transaction(self.name, schema) as transaction,
                transaction.update_spec() as spec,
            ):
                for part in partition_by:
                    if part.transform == "identity":
                        spec.add_identity(part.column)
                    else:
                        spec.add_field(part.column, part.transform, f"{part.column}_{part.transform}")
        except TableAlreadyExistsError:
            pass
        except UnsupportedPyArrowTypeException as error:
            raise _unsupported_type(error.field) from error
        except Exception as error:
            if self.load() is None:
                raise self.failure("cannot be created", error) from error
        return self.require(None)

    def add_columns(self, table: Table, fields: Sequence[pa.Field]) -> None:
        """Add columns to the table; they are null in its rows. Blocks.

        Raises:
            StorageError: Another writer changed the table at the same time.
            ConfigurationError: Iceberg has no type for a column.
        """
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

        try:
            with table.update_schema() as update:
                update.union_by_name(pa.schema([field.with_nullable(True) for field in fields]))
        except UnsupportedPyArrowTypeException as error:
            raise _unsupported_type(error.field) from error
        except Exception as error:
            raise self.failure(f"did not get the columns {[field.name for field in fields]!r}", error) from error

    def failure(self, what: str, error: BaseException) -> StorageError:
        """Return the error for a failure of the catalog or of its files."""
        return StorageError(
            f"The Iceberg table {self.name!r} in the catalog {self.shown!r} {what}: {redacted_message(error)}"
        )

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.catalog, **{**_s3_properties(), **self.properties})


def _unsupported_type(column: pa.Field) -> ConfigurationError:
    return ConfigurationError(
        f"Iceberg has no type for the column {column.name!r}, which is {column.type}: map it to another one, such as a "
        "string."
    )


def require_library(module: str = "pyiceberg") -> None:
    """Check that a package of the extra is installed.

    Raises:
        ConfigurationError: It is not.
    """
    try:
        import_module(module)
    except ImportError as error:
        package = module.replace("_", "-")
        raise ConfigurationError(
            f"IcebergSink needs {package}, which is not installed ({error}): pip install 'holdfast[iceberg]'."
        ) from error


def name_of(table: Table) -> str:
    return ".".join(table.name())


def in_microseconds(schema: pa.Schema) -> pa.Schema:
    """Change times of day to microseconds, the precision of Iceberg and Python."""
    return pa.schema([field.with_type(pa.time64("us")) if pa.types.is_time(field.type) else field for field in schema])


def check_location(location: str) -> None:
    """Check that all clients read a location the same way: pyiceberg cuts it at `#` and `?`, and keeps `%20`.

    Raises:
        ConfigurationError: It contains such a character.
    """
    odd = sorted(set(location) & {"#", "?", *("%" if location.startswith("file:") else "")})
    if odd:
        raise ConfigurationError(
            f"The location {location!r} of an Iceberg table or its warehouse contains {' and '.join(odd)}, which "
            "clients of Iceberg interpret in different ways: choose another directory."
        )


def directory_of(table: Table) -> str:
    """Return the directory of a table, a path or a URI.

    Raises:
        ConfigurationError: There is no file system for it, or clients read its location in different ways.
    """
    location = str(table.location())
    check_location(location)
    path = local_path(location) or location
    file_system_for(path)
    return path.rstrip("/")


def _s3_properties() -> dict[str, str]:
    """Translate the `s3.*` options and environment variables into properties of pyiceberg."""
    options = current_s3_options()
    found = {
        "s3.endpoint": endpoint_of(options),
        "s3.access-key-id": options.access_key,
        "s3.secret-access-key": options.secret_key,
        "s3.region": options.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        "s3.force-virtual-addressing": None if options.path_style is None else str(not options.path_style).lower(),
    }
    return {name: value for name, value in found.items() if value is not None}


def partitions_of(table: Table) -> list[PartitionField]:
    """Return the partition fields of a table.

    Raises:
        ConfigurationError: Tasks do not know a transform.
    """
    fields = []
    for part in table.spec().fields:
        column, transform = table.schema().find_column_name(part.source_id), str(part.transform)
        if transform == "void":
            continue
        if transform not in ("identity", "year", "month", "day", "hour") or "." in column:
            raise ConfigurationError(
                f"The Iceberg table {name_of(table)!r} is partitioned by {transform}({column}); IcebergSink writes "
                "into tables that are partitioned by columns, or by year, month, day or hour of one."
            )
        fields.append(PartitionField(column, transform))
    return fields


def check_partitions(what: str, schema: pa.Schema, parts: Sequence[PartitionField]) -> None:
    """Check that a stream can be partitioned by the fields of a sink or table.

    Raises:
        ConfigurationError: A column is missing, or its type cannot be partitioned.
    """
    for part in parts:
        kind = schema.field(part.column).type if part.column in schema.names else None
        is_time = kind is not None and (
            pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and part.transform != "hour")
        )
        if kind is None or pa.types.is_nested(kind) or not (part.transform == "identity" or is_time):
            found = "no column of the stream" if kind is None else str(kind)
            raise ConfigurationError(
                f"{what} is partitioned by {str(part)!r}, and {part.column!r} is {found}: name a column of a simple "
                "type, or year, month, day or hour of a date or timestamp."
            )


def _enable_partition_statistics(table: Table) -> None:
    """Make the library read the statistics of partition columns, whatever the table's own properties say.

    It takes the partition of a file from these statistics. Only this handle changes: the catalog gets changes alone.
    """
    for part in partitions_of(table):
        table.metadata.properties[f"{_METRICS}.{part.column}"] = "truncate(16)"


def missing_columns(table: Table, schema: pa.Schema) -> list[pa.Field]:
    """Return the fields of a stream that the table lacks.

    Raises:
        ConfigurationError: A column that both have does not fit, or the table requires one that the stream lacks.
    """
    there = {part.name: (part.required, part.type) for part in _fields(table)}
    for part in schema:
        if part.name in there and not _fits(part.type, there[part.name][1]):
            raise ConfigurationError(
                f"The column {part.name!r} of the Iceberg table {name_of(table)!r} is {there[part.name][1]}, and that "
                f"of the stream is {part.type}. Nothing was written. Map the stream to the table's type, or write into "
                "another table."
            )
    needed = [name for name, (required, _) in there.items() if required and name not in schema.names]
    if needed:
        raise ConfigurationError(
            f"The Iceberg table {name_of(table)!r} needs values for {needed!r}; the stream has only {schema.names!r}."
        )
    return [part for part in schema if part.name not in there]


def required_columns(table: Table) -> list[str]:
    return [part.name for part in _fields(table) if part.required]


def with_required(schema: pa.Schema, required: Sequence[str]) -> pa.Schema:
    """Mark columns as not nullable: the library rejects rows whose schema allows nulls where the table does not."""
    return pa.schema([field.with_nullable(field.name not in required) for field in schema])


@dataclass(frozen=True)
class _Field:
    name: str
    required: bool
    type: pa.DataType


def _fields(table: Table) -> list[_Field]:
    arrow = table.schema().as_arrow()
    return [_Field(part.name, part.required, arrow.field(part.name).type) for part in table.schema().fields]


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Iceberg reads columns of one type as the other; it has no smaller integers than 32 bits."""
    small = (pa.int8(), pa.int16())
    return _plain(given) == _plain(wanted) or (given in small and wanted == pa.int32())


def _plain(kind: pa.DataType) -> str:
    return str(pa.field("x", kind).type).replace("large_", "").replace("element: ", "item: ")


# Field ids in the files that tasks write. A column can be renamed, and its old name given to a new column. Files
# without ids are read by names, so the new column would show the values of the old one.


def field_ids(fields: Sequence[Any]) -> dict[str, Any]:
    return {field.name: [field.field_id, field_ids(_nested_fields(field.field_type))] for field in fields}


def _nested_fields(kind: Any) -> Sequence[Any]:
    found = getattr(kind, "fields", None) or [
        getattr(kind, name, None) for name in ("element_field", "key_field", "value_field")
    ]
    return [part for part in found if part is not None]


def with_ids(schema: pa.Schema, ids: FieldIds, but: str | None = None) -> pa.Schema:
    """Add the table's field ids to the schema of a stream, except for the column `but`, which is not written."""
    return pa.schema([field if field.name == but else _with_ids(field, ids[field.name]) for field in schema])


def current_names(schema: pa.Schema, parts: Sequence[Any]) -> dict[str, str | None]:
    """Map the column names of staged rows to the table's current names; None for a column that it has dropped.

    Args:
        schema: The schema of the rows. Older versions staged rows without ids; these keep their names.
        parts: The fields of the table's schema.
    """
    names = {part.field_id: part.name for part in parts}
    ids = {field.name: (field.metadata or {}).get(FIELD_ID) for field in schema}
    return {name: name if number is None else names.get(int(number)) for name, number in ids.items()}


def _with_ids(field: pa.Field, known: tuple[int, FieldIds]) -> pa.Field:
    number, parts = known
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_ids(part, parts[part.name]) for part in map(kind.field, range(kind.num_fields))])
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_ids(kind.value_field, parts["element"]))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_ids(kind.key_field, parts["key"]), _with_ids(kind.item_field, parts["value"]))
    return field.with_type(kind).with_metadata({FIELD_ID: str(number).encode()})
