"""`DeltaSink`: writes rows into tables of Delta Lake, exactly once, without a JVM.

Tasks write data files below `_holdfast` in the table's directory (`table_files`). The driver adds all files of an epoch
in one version of the table, which also records the epoch (`table_committer`). So readers, who find files by the table's
log, see all rows of an epoch at once. With a key, rows are staged in the job's own directory, and the driver merges
them into the table.
"""

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

from holdfast.datastream.connectors.row_changes import ChangeColumns, columns_of
from holdfast.datastream.connectors.table_committer import Record, Table, TableBackend, TableCommitter
from holdfast.datastream.connectors.table_files import DataFile, check_required, table_directory
from holdfast.datastream.sinks.output_files import PartitionedStaging, Values
from holdfast.datastream.sinks.staged_files import sweep_staged_files
from holdfast.errors import ConfigurationError, NotExistError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import redacted_message
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
from holdfast.storage.object_store import bucket_endpoint, current_s3_options
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import element_schema
from holdfast.types.type_information import TypeInformation

LOOK_BACK: Final = 100
"""Versions whose log is synced again when an earlier process has committed the epoch."""
_LOG_SUFFIXES: Final = ("json", "checkpoint.parquet")
DELETED: Final = "__holdfast_deleted"
_FORGETS: Final = "delta.setTransactionRetentionDuration"
_CHECKPOINTS: Final = {"delta.checkpointInterval": "10"}
"""Properties of tables that the sink creates in object stores, where every commit reads the log since its last
checkpoint several times. The client's own default is 100 versions, Spark's is 10."""
_PARTITIONS: Final = ("string", "long", "integer", "short", "byte", "boolean", "date")
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|[][\\^|\x00-\x1f\x7f]")
_RULES_OF_COLUMNS: Final = frozenset(
    {"delta.generationExpression", "delta.invariants", "delta.identity.start", "delta.columnMapping.physicalName"}
)


class DeltaSink(Sink):
    """Writes a stream into a Delta table, exactly once. Needs `pip install 'holdfast[delta]'`.

    Without a key, each row is appended. With a key, the last row of each key in an epoch is merged into the table.

    Args:
        path: The directory of the table, which the driver and every executor have mounted under the same path; or
            `s3://bucket/directory`, in a store that the `s3.*` options reach.
        key: The columns that identify a row. The last row of a key in an epoch wins, so key the stream by these columns
            before the sink.
        row_kind: A column of the stream with the kind of each row, as in Flink's `RowKind`: `+I`, `-U`, `+U`, `-D` or 0
            to 3. It is not written. Needs a key. Rows with a kind (`Types.CHANGELOG`) need no such column.
        partition_by: The partition columns of a new table. An existing table must have the same ones.
        create_table: Whether to create a missing table, with the columns of the stream.
        add_columns: Whether columns that only the stream has are added to the table when a job starts.
        compression: The codec of the files that tasks write: `snappy`, `zstd`, `lz4`, `gzip` or `none`.

    Raises:
        ConfigurationError: There is no file system for the path, or deltalake cannot open such a path.

    Example:
        >>> import tempfile
        >>> from deltalake import DeltaTable
        >>> from holdfast.datastream.connectors.delta import DeltaSink
        >>> from holdfast.testing import EpochProgram
        >>> place, program = tempfile.mkdtemp(), EpochProgram()
        >>> words = program.source("words", "word string, n bigint")
        >>> result = words.sink_to(DeltaSink(f"{place}/counts", key="word", create_table=True)).uid("counts")
        >>> job = program.run(f"{place}/job", [{"words": [("kelp", 1)]}, {"words": [("kelp", 2)]}])
        >>> DeltaTable(f"{place}/counts").to_pyarrow_table().to_pylist()
        [{'word': 'kelp', 'n': 2}]
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
        """Check that the stream has a declared type, and the columns that the sink names.

        Raises:
            ConfigurationError: It has not, or Delta has no type for a column.
        """
        require_parquet("DeltaSink", element_type)
        self.changes = self.changes.for_stream("DeltaSink", element_type)
        schema = element_schema(element_type)
        schema = pa.schema([schema.field(name) for name in self.changes.written(schema.names)])
        if self._schema is not None and self._schema != schema:
            raise ConfigurationError(f"{self!r} is used for two streams of different types: make a sink for each.")
        check_partitions("DeltaSink", schema, self.partition_by)
        self._schema = schema

    def key_columns(self) -> Sequence[str]:
        return self.changes.key

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Check that the table is the same as before, and that it fits the stream; create the table or columns. Blocks.

        Raises:
            StorageError: The table is not the one of the checkpoint, or cannot be read.
            ConfigurationError: The table does not exist, or does not fit the stream.
        """
        if kept is not None and not (type(kept) is dict and {"path", "identity"} <= kept.keys()):
            raise ConfigurationError(
                f"The checkpoint does not say which table {self!r} wrote into, but {reprlib.repr(kept)}. Start from "
                "another one (-s PATH)."
            )
        if kept is not None and kept["path"] == self.path:
            table = require_table(self.path, kept["identity"])
        else:
            table = self._open_or_create()
        check_rules(table, self.path, bool(self.changes.key))
        columns = list(table.metadata().partition_columns)
        if self.partition_by and columns != list(self.partition_by):
            raise ConfigurationError(
                f"The Delta table {self.path!r} is partitioned by {columns!r}, not by {list(self.partition_by)!r}."
            )
        if self._schema is not None:
            if not self.changes.key:  # for a merge, the client partitions the rows
                check_partitions_of_table(self.path, self._schema, columns)
            self._add_missing_columns(table, self._schema)
        identity = table.metadata().id
        table_directory(self.path).write_identity(identity)
        needed = required_columns(table)
        return {"path": self.path, "identity": identity, "partition_by": columns, "needed": needed}

    def create_writer(self, context: WriterInitContext) -> BatchSinkWriter:
        return _DeltaWriter(self, context)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return TableCommitter(_DeltaBackend(self.path, self.changes.key), self.changes, context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        return sweep_staged_files(context, is_dead) + table_directory(self.path).sweep(context, is_dead)

    def stage(self, context: WriterInitContext, values: Values) -> ParquetStaging:
        """Return the writer of one partition, or of the rows to merge."""
        target = context.target
        if self.changes.key:
            name = context.file_name(".parquet")
            committable = {"path": self.path, "identity": target["identity"], "file": name}
            return ParquetStaging(context.staging_dir, name, committable, self.format)
        partition = dict(zip(target["partition_by"], map(partition_text, values), strict=True))
        committable = {"identity": target["identity"], "partition": partition}
        return table_directory(self.path).staging(context, committable, self.format)

    def _open_or_create(self) -> Table:
        table = open_table(self.path)
        if table is None:
            if not (self._create_table and self._schema is not None):
                raise ConfigurationError(
                    f"There is no Delta table at {self.path!r}: create it, or pass create_table=True."
                )
            table = create_table(self.path, self._schema, self.partition_by)
        return table

    def _add_missing_columns(self, table: Table, schema: pa.Schema) -> None:
        missing = missing_columns(table, self.path, schema)
        if missing and not self._add_columns:
            raise ConfigurationError(
                f"The Delta table {self.path!r} has no columns {[field.name for field in missing]!r}; it has "
                f"{[field.name for field in table.schema().fields]!r}. Nothing was written. Map the stream to its "
                "columns, or pass add_columns=True."
            )
        if missing:
            add_columns(table, self.path, missing)

    def __repr__(self) -> str:
        return f"DeltaSink({self.path!r})"


class _DeltaWriter(PartitionedStaging):
    """Rejects rows that the table cannot take before they are staged, while the epoch can still run again."""

    def __init__(self, sink: DeltaSink, context: WriterInitContext) -> None:
        columns = () if sink.changes.key else context.target["partition_by"]
        super().__init__(columns, partial(sink.stage, context))
        self._sink = sink
        self._uid = context.uid
        self._needed: list[str] = context.target["needed"]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._sink.changes.check_rows("DeltaSink", self._uid, batch)
        check_required(self._sink, self._uid, self._sink.changes.upserts(batch), self._needed)
        super().write_batch(batch)


class _DeltaBackend(TableBackend):
    """Commits to a Delta table. An epoch is recorded as the transaction version of the application `marker`.

    The names of its files are in the information about that commit, which has the key `marker`, too.

    A stale handle is refused by the log if the other commit was of the same marker. Commits of other writers do no
    harm: the client rebases on them.
    """

    sink = "DeltaSink"

    def __init__(self, path: str, key: Sequence[str]) -> None:
        self._path = path
        self._key = key

    def load(self) -> Table:
        return require_table(self._path, None)

    def load_target(self, path: str, identity: str, epoch: int) -> Table:
        return require_table(path, identity)

    def last_epoch(self, table: Table, marker: str) -> int | None:
        version = table.transaction_version(marker)
        return None if version is None else int(version)

    def recorded_names(self, table: Table, marker: str) -> list[str] | None:
        # `table.history()` keeps the interpreter's lock while it waits for an object store.
        epoch, fs = str(self.last_epoch(table, marker)), file_system_for(self._path)
        for version in range(table.version(), -1, -1):
            try:
                entry = fs.read(join(self._path, "_delta_log", f"{version:020}.json"))
            except NotExistError:
                return None  # older versions are cleaned up, or in a checkpoint
            actions = [json.loads(line) for line in entry.splitlines()]
            for action in actions:
                if marker in action.get("commitInfo", ()):  # the newest one of this sink and incarnation
                    recorded, *names = str(action["commitInfo"][marker]).split()
                    return names if recorded == epoch else None
            if any(action.get("txn", {}).get("appId") == marker for action in actions):
                return None  # an older release recorded the epoch in this commit: no need to read the rest of the log
        return None

    def add_files(
        self, table: Table, record: Record, requests: Sequence[CommitRequest], path: str, files: Sequence[DataFile]
    ) -> None:
        actions = [
            deltalake().transaction.AddAction(
                path=file.name,
                size=request.committable["bytes"],
                partition_values=request.committable["partition"],
                modification_time=file.modified_at,
                data_change=True,
                stats=json.dumps({"numRecords": request.committable["rows"]}),
            )
            for request, file in zip(requests, files, strict=True)
        ]
        _append(table, actions, _commit_properties(record))

    def change_rows(self, table: Table, record: Record, upserts: pa.Table, deletes: pa.Table) -> None:
        rows = pa.concat_tables(
            [part.append_column(DELETED, pa.repeat(is_deleted, part.num_rows)) for part, is_deleted in
             ((upserts, pa.scalar(False)), (deletes, pa.scalar(True)))]
        )  # fmt: skip
        properties = _commit_properties(record)
        key = " and ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in self._key)
        values = {_quoted(name): f"source.{_quoted(name)}" for name in upserts.column_names}
        merger = table.merge(rows, key, source_alias="source", target_alias="target", commit_properties=properties)
        merger = merger.when_matched_delete(predicate=f"source.{DELETED}")
        merger = merger.when_matched_update(values, predicate=f"not source.{DELETED}")
        before = table.version()
        merger.when_not_matched_insert(values, predicate=f"not source.{DELETED}").execute()
        if table.version() == before:  # the merge changed nothing, so it made no version that records the epoch
            _append(table, [], properties)

    def make_durable(self, table: Table, path: str, *, is_new: bool) -> None:
        _make_durable(path, table.version() - (0 if is_new else LOOK_BACK))

    def is_conflict(self, error: Exception) -> bool:
        return isinstance(error, deltalake().exceptions.CommitFailedError)

    def failure(self, what: str, error: Exception, path: str | None = None) -> StorageError:
        return StorageError(f"The Delta table {path or self._path!r} {what}: {redacted_message(error)}")


def _commit_properties(record: Record) -> Any:
    names = {record.marker: " ".join([str(record.epoch), *record.names])}
    transaction = deltalake().Transaction(record.marker, record.epoch)
    return deltalake().CommitProperties(app_transactions=[transaction], custom_metadata=names)


def _append(table: Table, actions: list[Any], properties: Any) -> None:
    columns = list(table.metadata().partition_columns)
    table.create_write_transaction(
        actions, "append", table.schema(), partition_by=columns, commit_properties=properties
    )


def _make_durable(path: str, since: int) -> None:
    """Sync the versions from `since` on, and the files that they add, to disk: the client does not."""
    if local_path(path) is None:
        return
    fs, log = file_system_for(path), join(path, "_delta_log")
    for name in fs.list_names(log):
        number, _, kind = name.partition(".")
        if not number.isdecimal() or int(number) < since:
            continue
        if kind == "json":
            for line in fs.read(join(log, name)).splitlines():
                added = _added_file(line) if line.startswith(b'{"add"') else None
                if added is not None and "://" not in added:
                    with suppress(NotExistError):  # compacted, and cleaned up since
                        fs.make_durable(join(path, unquote(added)))
        if kind in _LOG_SUFFIXES:
            fs.make_durable(join(log, name))


def _added_file(line: bytes) -> str | None:
    """Return the file that a line of the log adds; None if the line is not what the client library writes."""
    try:
        return str(json.loads(line, strict=False)["add"]["path"])
    except PARSE_ERRORS:
        return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# The table: open, check, create, add columns. The sink adds files that tasks have written, so it rejects tables with
# rules that such files might break: constraints, generated columns, other column names in files than in the schema.

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
"""Writer features that do not constrain added files, provided that `check_rules` finds no constraint in use."""


def require_path(path: str) -> None:
    """Check that deltalake opens the directory that a local path names.

    Raises:
        ConfigurationError: It would open another directory, or panic.
    """
    found = None if local_path(path) is None else _MISREAD.search(path)
    if found is not None:
        raise ConfigurationError(
            f"deltalake, the client of Delta tables, cannot open the directory {path!r}, because its name contains "
            f"{found.group()!r}: choose a directory without it."
        )


def deltalake() -> Any:
    """Import the client library.

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
    """Open the newest version of a table; return None if there is no table. Blocks.

    Raises:
        StorageError: It cannot be read.
    """
    library = deltalake()
    try:
        # Not `is_deltatable`: it holds the GIL while it waits for the store.
        return library.DeltaTable(path, storage_options=_storage_options(path))
    except library.exceptions.TableNotFoundError:
        return None
    except Exception as error:
        raise StorageError(f"The Delta table {path!r} cannot be read: {redacted_message(error)}") from error


def _storage_options(path: str) -> dict[str, str] | None:
    """Return the options with which the client reaches an object store; None for a directory."""
    if local_path(path) is not None:
        return None
    options, bucket = current_s3_options(), path.removeprefix("s3://").partition("/")[0]
    endpoint = bucket_endpoint(bucket, options)
    # A commit creates the file of its version, which fails if it exists. An environment variable could turn
    # that off, so it is set here.
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
    """Open the newest version of the table with this identity; None accepts any. Blocks.

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


def create_table(path: str, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
    """Create a table, or open the one that another process has just created. Blocks.

    Raises:
        StorageError: It cannot be created.
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
            raise StorageError(f"The Delta table {path!r} cannot be created: {redacted_message(error)}") from error
    return require_table(path, None)


def check_rules(table: Table, path: str, is_merged: bool) -> None:
    """Check that a table accepts files that tasks have written.

    Raises:
        ConfigurationError: A rule of the table forbids it; the message names the rule.
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


def fields_of(schema: pa.Schema) -> list[Any]:
    """Return the columns of a stream as fields of a table.

    Raises:
        ConfigurationError: Delta has no type for a column, or two names differ only in case.
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
                f"{what} would have the columns {other!r} and {name!r}, which Delta does not distinguish: it "
                "ignores upper and lower case. Map the stream to other names."
            )


def missing_columns(table: Table, path: str, schema: pa.Schema) -> list[Any]:
    """Return the fields of a stream that the table lacks.

    Raises:
        ConfigurationError: A column that both have does not fit, or the table requires one that the stream lacks.
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


def required_columns(table: Table) -> list[str]:
    return [field.name for field in table.schema().fields if not field.nullable]


def check_partitions_of_table(path: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Check that a stream has the partition columns of a table, and that their values can be written as text.

    Raises:
        ConfigurationError: It has not, or they cannot.
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
    """Check that a stream can be partitioned by these columns.

    Raises:
        ConfigurationError: A column is missing, or its type cannot name a partition.
    """
    types = {field.name: _text(field.type) for field in fields_of(schema)}
    for name in partition_by:
        if types.get(name) not in _PARTITIONS:
            raise ConfigurationError(
                f"{sink} is partitioned by {name!r}, which is {types.get(name, 'no column of the stream')}: partitions "
                f"are columns of the types {', '.join(_PARTITIONS)}."
            )


def partition_text(value: Any) -> str | None:
    """Return a value of a partition column as the table's log writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _text(kind: Any) -> str:
    name = str(getattr(kind, "type", kind))
    return str(kind.to_json()) if name in ("array", "map", "struct") else name


def add_columns(table: Table, path: str, fields: Sequence[Any]) -> None:
    """Add columns to a table; they are null in its rows. Blocks.

    Raises:
        StorageError: Another writer changed the table at the same time.
    """
    library = deltalake()
    try:
        table.alter.add_columns([library.Field(field.name, field.type, nullable=True) for field in fields])
    except Exception as error:
        raise StorageError(
            f"The Delta table {path!r} did not get the columns {[field.name for field in fields]!r}: "
            f"{redacted_message(error)}"
        ) from error
