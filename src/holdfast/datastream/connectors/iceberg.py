"""`IcebergSink`: rows into tables of Apache Iceberg, exactly once, without a JVM."""

from __future__ import annotations

import os
import re
import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges, columns_of
from holdfast.datastream.connectors.table_files import parse_target, release, table_directory
from holdfast.datastream.sinks.output_files import PartitionedStaging, Values
from holdfast.datastream.sinks.task_owned import staged_rows, sweep_task_owned
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, OutputTypeError, StorageError
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

# The ids by which a table of Iceberg knows its columns, in the files that tasks write.
#
# A column may get another name, and its old name may be given to a new one. A file without ids is read by names: its
# values would be those of the new column.

ID: Final = b"PARQUET:field_id"

Ids = Mapping[str, Any]
"""By the name of each field its id and those of its parts, `[3, {"element": [4, {}]}]`; a JSON value."""


def ids_of(parts: Sequence[Any]) -> dict[str, Any]:
    """The ids of fields of a schema of Iceberg."""
    return {part.name: [part.field_id, ids_of(_parts_of(part.field_type))] for part in parts}


def _parts_of(kind: Any) -> Sequence[Any]:
    found = getattr(kind, "fields", None) or [
        getattr(kind, name, None) for name in ("element_field", "key_field", "value_field")
    ]
    return [part for part in found if part is not None]


def with_ids(schema: pa.Schema, ids: Ids, but: str | None = None) -> pa.Schema:
    """A schema of a stream in which each field says which one of the table it is, but for one that is not written."""
    return pa.schema([field if field.name == but else _with_ids(field, ids[field.name]) for field in schema])


def names_now(schema: pa.Schema, parts: Sequence[Any]) -> dict[str, str | None]:
    """What a table calls the columns of rows that were staged, by the names that they had; None if it has dropped one.

    Args:
        schema: Of the rows. Staged by an older version they say no ids, and keep their names.
        parts: The fields of the table's schema.
    """
    names = {part.field_id: part.name for part in parts}
    ids = {field.name: (field.metadata or {}).get(ID) for field in schema}
    return {name: name if number is None else names.get(int(number)) for name, number in ids.items()}


def _with_ids(field: pa.Field, found: tuple[int, Ids]) -> pa.Field:
    number, parts = found
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_ids(part, parts[part.name]) for part in map(kind.field, range(kind.num_fields))])
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_ids(kind.value_field, parts["element"]))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_ids(kind.key_field, parts["key"]), _with_ids(kind.item_field, parts["value"]))
    return field.with_type(kind).with_metadata({ID: str(number).encode()})


# An Iceberg table as the sink needs it: found in its catalog, checked, made or given columns where that is wanted.

Table = Any
"""A `pyiceberg.table.Table`: one version of a table, from which a commit starts."""

RETRIES: Final = "commit.retry.num-retries"
METRICS: Final = "write.metadata.metrics.column"
_PARTITION: Final = re.compile(r"(?P<transform>day|hour|month|year)\((?P<column>.+)\)|(?P<identity>[^()]+)")


@dataclass(frozen=True)
class PartitionField:
    """One field of a partition spec.

    Attributes:
        column: The column of which it is made.
        transform: `identity`, `year`, `month`, `day` or `hour`.
    """

    column: str
    transform: str = "identity"

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """Reads a column, or `day(column)` and the like.

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
class Place:
    """A table in a catalog; stays in the driver.

    Attributes:
        catalog: The name of the catalog. A catalog of SQL finds tables only under the name by which they were made.
        properties: Of the catalog, for pyiceberg; those in its own configuration are added.
        name: `namespace.table`.
    """

    catalog: str
    properties: Mapping[str, str] = field(repr=False)
    name: str

    @property
    def shown(self) -> dict[str, str]:
        """Which catalog it is, without who one is."""
        properties = self.properties
        known = {key: redacted_value(key, properties[key]) for key in ("type", "uri", "warehouse") if key in properties}
        return {"name": self.catalog, **known}

    def find(self) -> Table | None:
        """The newest version of the table, None if there is none. Blocks.

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
        """The newest version of the table of a certain identity. Blocks.

        Raises:
            StorageError: It is not there, or is another one.
        """
        table = self.find()
        found = None if table is None else str(table.metadata.table_uuid)
        if table is None or (identity is not None and found != identity):
            raise StorageError(
                f"The Iceberg table {self.name!r} in the catalog {self.shown!r} is not the one that the job writes "
                f"into: that one is {identity!r}, and this one is {'not there' if found is None else repr(found)}. "
                "Nothing was written or committed. Bring the old one back, and the job goes on."
            )
        return table

    def make(self, schema: pa.Schema, partition_by: Sequence[PartitionField]) -> Table:
        """Makes the table and its namespace, or finds what somebody else has just made. Blocks.

        Raises:
            StorageError: They cannot be made.
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
            raise _no_type(error.field) from error
        except Exception as error:
            if self.find() is None:
                raise self.failure("cannot be made", error) from error
        return self.require(None)

    def add_columns(self, table: Table, fields: Sequence[pa.Field]) -> None:
        """Gives the table columns, which are null in all rows that it has. Blocks.

        Raises:
            StorageError: Somebody else has changed the table at the same time.
            ConfigurationError: Iceberg has no type for a column.
        """
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

        try:
            with table.update_schema() as update:
                update.union_by_name(pa.schema([field.with_nullable(True) for field in fields]))
        except UnsupportedPyArrowTypeException as error:
            raise _no_type(error.field) from error
        except Exception as error:
            raise self.failure(f"did not get the columns {[field.name for field in fields]!r}", error) from error

    def failure(self, what: str, error: BaseException) -> StorageError:
        """What to raise when the catalog, or its files, did not do what was asked for."""
        return StorageError(
            f"The Iceberg table {self.name!r} in the catalog {self.shown!r} {what}: {redacted_message(error)}"
        )

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.catalog, **{**_store_properties(), **self.properties})


def _no_type(column: pa.Field) -> ConfigurationError:
    return ConfigurationError(
        f"Iceberg has no type for the column {column.name!r}, which is {column.type}: map it to another one, such as a "
        "string."
    )


def require_library() -> None:
    """Makes sure that pyiceberg is there.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"IcebergSink needs pyiceberg, which is not installed ({error}): pip install 'holdfast[iceberg]'."
        ) from error


def name_of(table: Table) -> str:
    """`namespace.table`."""
    return ".".join(table.name())


def in_microseconds(schema: pa.Schema) -> pa.Schema:
    """A schema in which times of day have as many digits as Iceberg and Python have."""
    return pa.schema([field.with_type(pa.time64("us")) if pa.types.is_time(field.type) else field for field in schema])


def require_plain(location: str) -> None:
    """Makes sure that a location means one place: pyiceberg cuts it at `#` and `?`, and leaves `%20` as it is.

    Raises:
        ConfigurationError: It has such a sign in it.
    """
    odd = sorted(set(location) & {"#", "?", *("%" if location.startswith("file:") else "")})
    if odd:
        raise ConfigurationError(
            f"The location {location!r} of an Iceberg table, or of its warehouse, has {' and '.join(odd)} in it, which "
            "clients of Iceberg take for parts of a URI, each in another way: choose another directory."
        )


def directory_of(table: Table) -> str:
    """The directory of a table, on a file system or in an object store that all hosts share.

    Raises:
        ConfigurationError: There is no file system for it, or it may mean several places.
    """
    location = str(table.location())
    require_plain(location)
    path = local_path(location) or location
    file_system_for(path)
    return path.rstrip("/")


def _store_properties() -> dict[str, str]:
    """What the library is told of the object store that `s3.*` options and variables name."""
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
    """By what a table is partitioned.

    Raises:
        ConfigurationError: By something of which tasks do not know how to divide rows.
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
    """Looks whether a stream can be divided by the partition fields of a sink or table.

    Raises:
        ConfigurationError: It has no such column, or one whose values name no partition.
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


def tell_of_partitions(table: Table) -> None:
    """Lets the library look at the statistics of partition columns, whatever the table says what is kept of them.

    It takes the partition of a file from there, and finds none where a property of the table leaves a column out. This
    object alone says so; the catalog is sent changes, and does not see it.
    """
    for part in partitions_of(table):
        table.metadata.properties[f"{METRICS}.{part.column}"] = "truncate(16)"


def missing_columns(table: Table, schema: pa.Schema) -> list[pa.Field]:
    """The fields of a stream that a table has not.

    Raises:
        ConfigurationError: Others do not fit; names them.
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


def needed_columns(table: Table) -> list[str]:
    """The columns that may not be null."""
    return [part.name for part in _fields(table) if part.required]


def never_null(schema: pa.Schema, needed: Sequence[str]) -> pa.Schema:
    """A schema that says of some columns what the table says: the library takes no rows whose schema says less."""
    return pa.schema([field.with_nullable(field.name not in needed) for field in schema])


@dataclass(frozen=True)
class _Field:
    name: str
    required: bool
    type: pa.DataType


def _fields(table: Table) -> list[_Field]:
    arrow = table.schema().as_arrow()
    return [_Field(part.name, part.required, arrow.field(part.name).type) for part in table.schema().fields]


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether files with columns of one type are read as the other; small integers are integers to Iceberg."""
    small = (pa.int8(), pa.int16())
    return _plain(given) == _plain(wanted) or (given in small and wanted == pa.int32())


def _plain(kind: pa.DataType) -> str:
    return str(pa.field("x", kind).type).replace("large_", "").replace("element: ", "item: ")


# The commit of an epoch: one transaction of the catalog, which carries the epoch's number as a property of the table.
#
# ::
#
#     load the table; read its property holdfast.<incarnation>.<sink>
#     (at least the epoch: it was committed; nothing else is done)
#     staged files get their final names; each is looked at: is it there, has it its size?
#     one transaction: set the property, add all files, on the snapshot that was loaded
#     (with a key: set the property, delete the keys of the epoch, append the rows that are put)
#     it failed, because somebody was faster: load again, compare again
#
# A catalog compares snapshots and not properties. So each epoch makes a snapshot, one without files if it changes
# nothing: otherwise who wakes up in it, when others are several epochs further, would set the number back.
#
# The library would retry a commit that failed, on the newest snapshot and without a look at the property: of two
# leaders both would add their files. So its retries are off for these commits. The number is a property of the table
# and not of a snapshot, because snapshots expire.

_NUMBER: Final = re.compile("[0-9]{1,18}")
TRIES: Final = 5
"""Against other writers, before the job pauses between the tries."""


class IcebergCommitter(Committer):
    """Commits epochs into one table.

    Args:
        place: Of the table.
        changes: Key and kind of rows.
        context: Of the job.
    """

    def __init__(self, place: Place, changes: ChangeColumns, context: CommitterInitContext) -> None:
        self._place = place
        self._changes = changes
        self._of_epochs = EpochChanges(context.uid, changes)
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Commits one epoch; if the catalog does not let it, it asks for another try."""
        from pyiceberg.exceptions import CommitFailedException

        path, identity = parse_target("IcebergSink", requests)
        reason: StorageError | None = None
        for _ in range(TRIES):
            table = self._place.require(identity)
            if directory_of(table) != path:
                raise ConfigurationError(
                    f"The files of epoch {requests[0].epoch} were staged in {path!r}, and the Iceberg table "
                    f"{self._place.name!r} is in {directory_of(table)!r} now: it was moved. Nothing was committed. "
                    "Move it back until the job has committed what its checkpoint names."
                )
            try:
                is_new = self._commit_on(table, path, requests)
            except HoldfastError:
                raise
            except Exception as error:
                # Whether it was committed is not known: the table is asked before the next try.
                reason = self._place.failure("was not written", error)
                reason.__cause__ = error
                if not isinstance(error, CommitFailedException):
                    break
                continue
            _make_durable(table if is_new else self._place.require(identity))
            held = release(path, requests)
            if held is not None:
                reason = held  # the next try finds the epoch, and releases it
                break
            if not is_new:
                for request in requests:
                    request.signal_already_committed()
            return
        for request in requests:
            request.retry_later(reason)

    def last_epoch(self, incarnation: str) -> int | None:
        return _epoch(self._place.require(None), self._property(incarnation))

    def _property(self, incarnation: str) -> str:
        return f"holdfast.{incarnation}.{self._context.uid}"

    def _commit_on(self, table: Table, path: str, requests: Sequence[CommitRequest]) -> bool:
        """Commits an epoch unless this version of the table has it; whether it was new."""
        first = requests[0]
        name = self._property(first.incarnation)
        last = _epoch(table, name)
        if last is not None and last >= first.epoch:
            return False
        # Of this object alone; the catalog is sent changes, and does not see it.
        table.metadata.properties[RETRIES] = "0"
        if "staged" not in first.committable:
            self._put_and_delete(table, {name: str(first.epoch)}, requests)
            return True
        _look_as_staged(table, first.committable.get("schema"))
        tell_of_partitions(table)
        base = path if local_path(path) is None else f"file://{path}"
        files = [join(base, file.name) for file in table_directory(path).publish(requests)]
        with table.transaction() as transaction:
            transaction.set_properties({name: str(first.epoch)})
            # That files are in the table already would be no evidence for what was committed.
            transaction.add_files(files, check_duplicate_files=False)
        return True

    def _put_and_delete(self, table: Table, properties: dict[str, str], requests: Sequence[CommitRequest]) -> None:
        """Replaces the rows of all keys of an epoch; files that have such a row are written anew."""
        puts, deletes = self._of_epochs.last_of_each_key(staged_rows(self._context, requests))
        keys = pa.concat_tables([part.select(list(self._changes.key)) for part in (puts, deletes)])
        puts, keys = self._as_named_now(table, puts), self._as_named_now(table, keys)
        puts = puts.cast(never_null(puts.schema, needed_columns(table)))  # of what is deleted only the key is there
        with table.transaction() as transaction, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Delete operation did not match any records")
            transaction.set_properties(properties)
            if keys.num_rows and table.current_snapshot() is not None:
                transaction.delete(_rows_with(keys))
            made_none = transaction.table_metadata.current_snapshot_id == table.metadata.current_snapshot_id
            if puts.num_rows or made_none:
                transaction.append(puts)

    def _as_named_now(self, table: Table, rows: pa.Table) -> pa.Table:
        """Rows with the names that their columns have now; without those that the table has dropped.

        Raises:
            ConfigurationError: One of the key is dropped.
        """
        names = names_now(rows.schema, table.schema().fields)
        for name in self._changes.key:
            if names[name] is None:
                raise ConfigurationError(
                    f"The Iceberg table {self._place.name!r} has lost the column {name!r} since rows were staged that "
                    "are found by it. Nothing was committed. Take the table back to a schema that has it, and the job "
                    "goes on."
                )
        kept = {name: now for name, now in names.items() if now is not None}
        return rows.select(list(kept)).rename_columns(list(kept.values()))


def _look_as_staged(table: Table, schema: int | None) -> None:
    """Gives this object the schema by which files were staged: the library finds their columns by names.

    A name may be that of another column by now. The files have the ids, and so have the statistics that it makes.
    """
    if schema in table.schemas():
        table.metadata = table.metadata.model_copy(update={"current_schema_id": schema})


def _rows_with(keys: pa.Table) -> Any:
    """The condition that a row has one of these keys."""
    from pyiceberg.expressions import And, EqualTo, In, Or

    if keys.num_columns == 1:
        return In(term=keys.column_names[0], values=keys.column(0).to_pylist())
    each = [And(*(EqualTo(term=name, value=value) for name, value in key.items())) for key in keys.to_pylist()]
    return each[0] if len(each) == 1 else Or(*each)


def _epoch(table: Table, name: str) -> int | None:
    text = table.properties.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ConfigurationError(
            f"The property {name!r} of the Iceberg table {name_of(table)!r} says which epochs of the job are in there; "
            f"it is {text!r:.80}, which is no number. Nothing was committed. Set it to the last epoch that was "
            "committed."
        )
    return int(text)


def _make_durable(table: Table) -> None:
    """Makes sure that what a catalog points to outlives the machine: the library does not wait for a disk."""
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


# Rows into a table of Apache Iceberg, exactly once and without a JVM.
#
# A table's readers find files by its snapshots. Tasks write the files below `_holdfast` in the table's directory
# (`table_directory`); the driver adds all of an epoch in one transaction, which also sets a property of the table that
# says that the epoch is in there. With a key, rows are staged in the job's own directory, and the driver puts and
# deletes them in one transaction.

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
            require_plain(warehouse)
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
        self.changes = self.changes.for_stream("IcebergSink", element_type)
        schema = element_schema(element_type)
        schema = pa.schema([schema.field(name) for name in self.changes.written(schema.names)])
        schema = in_microseconds(schema)
        for name in self.changes.key:
            if pa.types.is_floating(schema.field(name).type):
                raise ConfigurationError(
                    f"IcebergSink finds rows by the key {name!r}, which is {schema.field(name).type}: use a column of "
                    "texts, whole numbers, decimals, dates or timestamps."
                )
        if self._schema is not None and self._schema != schema:
            raise ConfigurationError(f"{self!r} is used for two streams of different types: make a sink for each.")
        check_partitions("IcebergSink", schema, self.partition_by)
        self._schema = schema

    def key_columns(self) -> Sequence[str]:
        """Those of the key."""
        return self.changes.key

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Makes sure that the table is the one it was, and that it fits; makes what may be made."""
        require_library()
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
        parts = partitions_of(table)
        if self.partition_by and parts != list(self.partition_by):
            raise ConfigurationError(
                f"The Iceberg table {self.table!r} is partitioned by {list(map(str, parts))!r}, not by "
                f"{list(map(str, self.partition_by))!r}."
            )
        if self._schema is not None:
            if not self.changes.key:  # the library divides what it appends
                check_partitions(f"The Iceberg table {self.table!r}", self._schema, parts)
            self._fit(place, table, self._schema)
        identity, path = str(table.metadata.table_uuid), directory_of(table)
        table_directory(path).write_identity(identity)
        return {
            "table": place.name,
            "catalog": place.shown,
            "identity": identity,
            "path": path,
            "partition_by": list(map(str, parts)),
            "needed": needed_columns(table),
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
        below = 0 if table is None else table_directory(directory_of(table)).sweep(context, is_dead)
        return swept + below

    def stage(self, context: WriterInitContext, values: Values) -> ParquetStaging:
        """A writer of one partition, or of rows that are to be put and deleted."""
        committable = {"identity": context.target["identity"]}
        if self.changes.key:
            name = context.file_name(".parquet")
            committable |= {"path": context.target["path"], "file": name}
            return ParquetStaging(context.staging_dir, name, committable, self.format)
        committable["schema"] = context.target["schema"]
        return table_directory(context.target["path"]).staging(context, committable, self.format)

    def _known_place(self) -> Place:
        assert self._place is not None, "a committer runs in the driver only"
        return self._place

    def _find_or_make(self, place: Place) -> Table:
        table = place.find()
        if table is None:
            if not (self._create_table and self._schema is not None):
                raise ConfigurationError(
                    f"There is no Iceberg table {place.name!r} in the catalog {place.shown!r}: make it, or give "
                    "create_table=True."
                )
            table = place.make(self._schema, self.partition_by)
        return table

    def _fit(self, place: Place, table: Table, schema: pa.Schema) -> None:
        missing = missing_columns(table, schema)
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
        batch = batch.cast(in_microseconds(batch.schema))
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
        told = batch.schema if self._sink.changes.key else never_null(batch.schema, self._needed)
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
