"""`DeltaSink`: rows into tables of Delta Lake, exactly once, without a JVM."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges, columns_of
from holdfast.datastream.connectors.table_files import release, table_at, target_of
from holdfast.datastream.sinks.output_files import PartitionedStaging, Values
from holdfast.datastream.sinks.task_owned import staged_rows, sweep_task_owned
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, OutputTypeError, StorageError
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import shown_error
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
from holdfast.storage.file_system import absolute, join, local_path
from holdfast.storage.job_directory import FileName
from holdfast.storage.object_store import asked_endpoint, current_s3_options
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import element_schema
from holdfast.types.type_information import TypeInformation

# A Delta table as the sink needs it: found, checked, and made or given columns where that is asked for.
#
# What a table demands of its writers is its protocol. The sink adds files that tasks have written, so it refuses tables
# whose rules such files might break: constraints, generated columns, other names in files than in the schema.

Table = Any
"""A `deltalake.DeltaTable`: one version of a table, from which a commit starts."""

_HARMLESS: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
    }
)
"""Features that ask nothing of files that are added, once it is seen that the table does not use those that would."""

_FORGETS: Final = "delta.setTransactionRetentionDuration"
_CHECKPOINTS: Final = {"delta.checkpointInterval": "10"}
"""Of tables that are made in object stores: every commit reads the log since its last checkpoint, several times. The
client's own default is 100 versions, Spark's is 10."""
_PARTITIONS: Final = ("string", "long", "integer", "short", "byte", "boolean", "date")

_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|[][\\^|\x00-\x1f\x7f]")


def require_path(path: str) -> None:
    """Makes sure that the client finds the directory that a local path names.

    Raises:
        ConfigurationError: It would look into another one, or end with a panic.
    """
    found = None if local_path(path) is None else _MISREAD.search(path)
    if found is not None:
        raise ConfigurationError(
            f"The client of Delta tables (deltalake) does not find the directory {path!r}, because there is "
            f"{found.group()!r} in it: give the table a directory without."
        )


def deltalake() -> Any:
    """The client library.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        import deltalake
    except ImportError as error:
        raise ConfigurationError(
            f"DeltaSink needs deltalake, which is not installed ({error}): pip install 'holdfast[delta]'."
        ) from error
    return deltalake


def open_table(path: str) -> Table | None:
    """The newest version of a table, None if there is none. Blocks.

    Raises:
        StorageError: It cannot be read.
    """
    library = deltalake()
    try:
        # Not `is_deltatable`, which lets no other thread run while it asks a store.
        return library.DeltaTable(path, storage_options=_storage_options(path))
    except library.exceptions.TableNotFoundError:
        return None
    except Exception as error:
        raise StorageError(f"The Delta table {path!r} cannot be read: {shown_error(error)}") from error


def _storage_options(path: str) -> dict[str, str] | None:
    """What the client is told of an object store; None for a directory."""
    if local_path(path) is not None:
        return None
    options, bucket = current_s3_options(), path.removeprefix("s3://").partition("/")[0]
    endpoint = asked_endpoint(bucket, options)
    # A version is a file that nobody else has made. A variable may say otherwise, so this says it last.
    found = {"aws_conditional_put": "etag", "max_retries": str(options.max_retries)}
    if endpoint is not None:
        found |= {"aws_endpoint_url": endpoint, "aws_allow_http": str(endpoint.startswith("http://")).lower()}
    if options.path_style is not None:
        found["aws_virtual_hosted_style_request"] = str(not options.path_style).lower()
    keys = {
        "aws_access_key_id": options.access_key,
        "aws_secret_access_key": options.secret_key,
        "aws_region": options.region,
    }
    return found | {name: value for name, value in keys.items() if value is not None}


def _cause(path: str) -> str:
    return "the directory is not mounted" if local_path(path) is not None else "somebody has removed it"


def require_table(path: str, identity: str | None) -> Table:
    """The newest version of a table of a certain identity. Blocks.

    Raises:
        StorageError: It is not there, or is another one.
    """
    table = open_table(path)
    if table is None:
        raise StorageError(
            f"There is no Delta table at {path!r}: probably {_cause(path)}. Nothing was committed; bring it back, and "
            "the job goes on."
        )
    found = table.metadata().id
    if identity is not None and found != identity:
        raise StorageError(
            f"The Delta table at {path!r} is not the one that the job writes into: that one is {identity!r}, and this "
            f"one {found!r}. Nothing was written or committed. Bring the old one back, or start the job with -s, once "
            "its output is committed, and another uid of the sink."
        )
    return table


def make_table(path: str, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
    """Makes a table, or finds the one that somebody else has just made. Blocks.

    Raises:
        StorageError: It cannot be made.
    """
    library = deltalake()
    try:
        library.DeltaTable.create(
            path,
            library.Schema(fields_of(schema)),
            mode="ignore",
            partition_by=list(partition_by),
            configuration=None if local_path(path) is not None else _CHECKPOINTS,
            storage_options=_storage_options(path),
        )
    except Exception as error:
        if open_table(path) is None:
            raise StorageError(f"The Delta table {path!r} cannot be made: {shown_error(error)}") from error
    return require_table(path, None)


def check_rules(table: Table, path: str, is_merged: bool) -> None:
    """Looks whether a table takes files that tasks have written.

    Raises:
        ConfigurationError: It does not; names the rule.
    """
    properties: Mapping[str, str] = table.metadata().configuration
    if _FORGETS in properties:
        raise ConfigurationError(
            f"The Delta table {path!r} has the property {_FORGETS!r} = {properties[_FORGETS]!r}: it forgets which "
            "epochs were committed, and a job that is started after that would write its rows again. Take the property "
            "away (ALTER TABLE ... UNSET TBLPROPERTIES), or write into another table."
        )
    rules = [name for name in properties if name.startswith("delta.constraints.")]
    if properties.get("delta.columnMapping.mode", "none") != "none":
        rules.append("delta.columnMapping.mode")
    if is_merged and properties.get("delta.appendOnly", "false").lower() == "true":
        rules.append("delta.appendOnly")
    for field in table.schema().fields:
        rules += [f"{name} of {field.name!r}" for name in field.metadata if name in _RULES_OF_COLUMNS]
    rules += sorted(set(table.protocol().writer_features or ()) - _HARMLESS)
    if rules:
        raise ConfigurationError(
            f"The Delta table {path!r} has rules that DeltaSink cannot keep: {', '.join(rules)}. Write into a table "
            "without them."
        )


_RULES_OF_COLUMNS: Final = frozenset(
    {"delta.generationExpression", "delta.invariants", "delta.identity.start", "delta.columnMapping.physicalName"}
)


def fields_of(schema: pa.Schema) -> list[Any]:
    """The columns of a stream as a table has them.

    Raises:
        ConfigurationError: Delta has no type for one, or two names are one to it.
    """
    library, fields = deltalake(), []
    for field in schema:
        try:
            fields += library.Schema.from_arrow(pa.schema([field])).fields
        except Exception as error:  # the client has no class for this
            raise ConfigurationError(
                f"Delta has no type for the column {field.name!r}, which is {field.type}: map it to another one, such "
                "as a string."
            ) from error
    _require_names(schema.names, "The stream")
    return fields


def _require_names(names: Sequence[str], what: str) -> None:
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise ConfigurationError(
                f"{what} would have the columns {other!r} and {name!r}, which are one to Delta: names differ in more "
                "than upper and lower case. Map the stream to other names."
            )


def missing_columns(table: Table, path: str, schema: pa.Schema) -> list[Any]:
    """The fields of a stream that a table has not.

    Raises:
        ConfigurationError: Others do not fit; names them.
    """
    wanted = fields_of(schema)
    there = {field.name: field for field in table.schema().fields}
    _require_names([*there, *(field.name for field in wanted if field.name not in there)], f"The Delta table {path!r}")
    for field in wanted:
        if field.name in there and there[field.name].type != field.type:
            raise ConfigurationError(
                f"The column {field.name!r} of the Delta table {path!r} is {_text(there[field.name].type)}, and that "
                f"of the stream is {_text(field.type)}. Nothing was written. Map the stream to the table's type, or "
                "write into another table."
            )
    needed = [name for name, field in there.items() if not field.nullable and name not in schema.names]
    if needed:
        raise ConfigurationError(
            f"The Delta table {path!r} needs values for {needed!r}; the stream has only {schema.names!r}."
        )
    return [field for field in wanted if field.name not in there]


def needed_columns(table: Table) -> list[str]:
    """The columns that may not be null."""
    return [field.name for field in table.schema().fields if not field.nullable]


def require_partitions(path: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Makes sure that a stream has the partition columns of a table, whose values can be written as text.

    Raises:
        ConfigurationError: It has not.
    """
    for name in columns:
        kind = schema.field(name).type if name in schema.names else None
        if kind is None or pa.types.is_binary(kind):
            raise ConfigurationError(
                f"The Delta table {path!r} is partitioned by {name!r}, which is "
                f"{'no column of the stream' if kind is None else kind}: map the stream to a column that names a "
                "partition, or write into another table."
            )


def check_partitions(sink: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Looks whether a stream can be divided by some columns.

    Raises:
        ConfigurationError: It has no such column, or one whose values name no partition.
    """
    types = {field.name: _text(field.type) for field in fields_of(schema)}
    for name in partition_by:
        if types.get(name) not in _PARTITIONS:
            raise ConfigurationError(
                f"{sink} is partitioned by {name!r}, which is {types.get(name, 'no column of the stream')}: partitions "
                f"are columns of the types {', '.join(_PARTITIONS)}."
            )


def partition_text(value: Any) -> str | None:
    """A value of a partition column as the log of a table has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _text(kind: Any) -> str:
    name = str(getattr(kind, "type", kind))
    return str(kind.to_json()) if name in ("array", "map", "struct") else name


def add_columns(table: Table, path: str, fields: Sequence[Any]) -> None:
    """Gives a table columns, which are null in all rows that it has. Blocks.

    Raises:
        StorageError: Somebody else has changed the table at the same time.
    """
    library = deltalake()
    try:
        table.alter.add_columns([library.Field(field.name, field.type, nullable=True) for field in fields])
    except Exception as error:
        raise StorageError(
            f"The Delta table {path!r} did not get the columns {[field.name for field in fields]!r}: "
            f"{shown_error(error)}"
        ) from error


# The commit of an epoch: one version of the table, which carries the epoch's number.
#
# ::
#
#     open the table; read its transaction version of this incarnation and sink ON THIS HANDLE
#     (at least the epoch: it was committed; nothing else is done)
#     staged files get their final names; each is looked at: is it there, has it its size?
#     one commit of that handle: add all files, set the transaction version to the epoch
#     it failed, because somebody was faster: open again, compare again
#
# A handle that is opened after the look would take the epoch a second time, so look and commit belong to one; and a
# handle that has become stale is refused by the log if the other commit was of the same incarnation and sink. Other
# writers do no harm: their commits are rebased on.
#
# With a key, rows are merged. A merge that changes nothing makes no version, so one without files is made for the
# number.

TRIES: Final = 5
"""Against other writers, before the job pauses between the tries."""

LOOK_BACK: Final = 100
"""Versions whose log is made durable again when an epoch is found that an earlier process has committed."""

_OF_THE_LOG: Final = ("json", "checkpoint.parquet")

DELETED: Final = "__holdfast_deleted"


class DeltaCommitter(Committer):
    """Commits epochs into one table.

    Args:
        path: Of the table into which the sink writes today.
        changes: Key and kind of rows.
        context: Of the job.
    """

    def __init__(self, path: str, changes: ChangeColumns, context: CommitterInitContext) -> None:
        self._path = path
        self._changes = changes
        self._of_epochs = EpochChanges(context.uid, changes)
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Commits one epoch; if the table does not let it, it asks for another try."""
        path, identity = target_of("DeltaSink", requests)
        for _ in range(TRIES):
            table = require_table(path, identity)
            try:
                is_new = self._commit_on(table, path, requests)
            except HoldfastError:
                raise
            except Exception as error:
                # Whether it was committed is not known: the table is asked before the next try.
                reason = StorageError(f"The Delta table {path!r} was not written: {shown_error(error)}")
                reason.__cause__ = error
                if not isinstance(error, deltalake().exceptions.CommitFailedError):
                    break
                continue
            _make_durable(path, table.version() - (0 if is_new else LOOK_BACK))
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
        table = require_table(self._path, None)
        try:
            version = table.transaction_version(self._application(incarnation))
        except Exception as error:
            raise StorageError(f"The Delta table {self._path!r} cannot be read: {shown_error(error)}") from error
        return None if version is None else int(version)

    def _application(self, incarnation: str) -> str:
        return f"holdfast.{incarnation}.{self._context.uid}"

    def _commit_on(self, table: Table, path: str, requests: Sequence[CommitRequest]) -> bool:
        """Commits an epoch unless this version of the table has it; whether it was new."""
        first = requests[0]
        application = self._application(first.incarnation)
        last = table.transaction_version(application)
        if last is not None and last >= first.epoch:
            return False
        transaction = deltalake().Transaction(application, first.epoch)
        properties = deltalake().CommitProperties(app_transactions=[transaction])
        if "staged" in first.committable:
            _add(table, path, requests, properties)
        else:
            self._merge(table, requests, properties)
        return True

    def _merge(self, table: Table, requests: Sequence[CommitRequest], properties: Any) -> None:
        puts, deletes = self._of_epochs.last_of_each_key(staged_rows(self._context, requests))
        rows = pa.concat_tables(
            [part.append_column(DELETED, pa.repeat(is_deleted, part.num_rows)) for part, is_deleted in
             ((puts, pa.scalar(False)), (deletes, pa.scalar(True)))]
        )  # fmt: skip
        key = " and ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in self._changes.key)
        values = {_quoted(name): f"source.{_quoted(name)}" for name in puts.column_names}
        merger = table.merge(rows, key, source_alias="source", target_alias="target", commit_properties=properties)
        merger = merger.when_matched_delete(predicate=f"source.{DELETED}")
        merger = merger.when_matched_update(values, predicate=f"not source.{DELETED}")
        before = table.version()
        merger.when_not_matched_insert(values, predicate=f"not source.{DELETED}").execute()
        if table.version() == before:
            _append(table, [], properties)


def _add(table: Table, path: str, requests: Sequence[CommitRequest], properties: Any) -> None:
    """Adds the staged files of an epoch to a table.

    Raises:
        ConfigurationError: One is not there, or not whole.
    """
    actions = [
        deltalake().transaction.AddAction(
            path=file.name,
            size=request.committable["bytes"],
            partition_values=request.committable["partition"],
            modification_time=file.modified_at,
            data_change=True,
            stats=json.dumps({"numRecords": request.committable["rows"]}),
        )
        for request, file in zip(requests, table_at(path).publish(requests), strict=True)
    ]
    _append(table, actions, properties)


def _append(table: Table, actions: list[Any], properties: Any) -> None:
    columns = list(table.metadata().partition_columns)
    table.create_write_transaction(
        actions, "append", table.schema(), partition_by=columns, commit_properties=properties
    )


def _make_durable(path: str, since: int) -> None:
    """Makes sure that what was committed outlives the machine: the client does not wait for a disk.

    Args:
        path: Of the table.
        since: The version from which on.
    """
    if local_path(path) is None:
        return
    fs, log = file_system_for(path), join(path, "_delta_log")
    for name in fs.list_names(log):
        number, _, kind = name.partition(".")
        if not number.isdecimal() or int(number) < since:
            continue
        if kind == "json":
            for line in fs.read(join(log, name)).splitlines():
                added = _added(line) if line.startswith(b'{"add"') else None
                if added is not None and "://" not in added:
                    with suppress(NotExistError):  # compacted, and cleaned up since
                        fs.make_durable(join(path, unquote(added)))
        if kind in _OF_THE_LOG:
            fs.make_durable(join(log, name))


def _added(line: bytes) -> str | None:
    """The file that a line of the log adds; None for what only other clients write, or take for JSON."""
    try:
        return str(json.loads(line, strict=False)["add"]["path"])
    except MALFORMED:
        return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Rows into a table of Delta Lake, exactly once and without a JVM.
#
# A table's readers find files by its log, so all rows of an epoch are seen at once. Tasks write the files below
# `_holdfast` in the table's directory (`table_directory`); the driver adds all of an epoch in one version, which also
# says that the epoch is in there. With a key, rows are staged in the job's own directory and merged into the table by
# the driver.


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
        require_path(self.path)
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
        check_partitions("DeltaSink", schema, self.partition_by)
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
            table = require_table(self.path, kept["identity"])
        else:
            table = self._find_or_make()
        check_rules(table, self.path, bool(self.changes.key))
        columns = list(table.metadata().partition_columns)
        if self.partition_by and columns != list(self.partition_by):
            raise ConfigurationError(
                f"The Delta table {self.path!r} is partitioned by {columns!r}, not by {list(self.partition_by)!r}."
            )
        if self._schema is not None:
            if not self.changes.key:  # the client divides what it merges
                require_partitions(self.path, self._schema, columns)
            self._fit(table, self._schema)
        identity = table.metadata().id
        table_at(self.path).write_identity(identity)
        needed = needed_columns(table)
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
        partition = dict(zip(target["partition_by"], map(partition_text, values), strict=True))
        committable = {"identity": target["identity"], "partition": partition}
        return table_at(self.path).staging(context, committable, self.format)

    def _find_or_make(self) -> Table:
        table = open_table(self.path)
        if table is None:
            if not (self._create_table and self._schema is not None):
                raise ConfigurationError(
                    f"There is no Delta table at {self.path!r}: make it, or give create_table=True."
                )
            table = make_table(self.path, self._schema, self.partition_by)
        return table

    def _fit(self, table: Table, schema: pa.Schema) -> None:
        missing = missing_columns(table, self.path, schema)
        if missing and not self._add_columns:
            raise ConfigurationError(
                f"The Delta table {self.path!r} has no columns {[field.name for field in missing]!r}; it has "
                f"{[field.name for field in table.schema().fields]!r}. Nothing was written. Map the stream to its "
                "columns, or give add_columns=True."
            )
        if missing:
            add_columns(table, self.path, missing)

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
