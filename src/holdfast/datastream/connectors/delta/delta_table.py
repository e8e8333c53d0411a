"""A Delta table as the sink needs it: found, checked, and made or given columns where that is asked for.

What a table demands of its writers is its protocol. The sink adds files that tasks have written, so it refuses tables
whose rules such files might break: constraints, generated columns, other names in files than in the schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.secret import shown_error
from holdfast.storage.file_system.s3_connection import asked_endpoint
from holdfast.storage.file_system.s3_options import current_s3_options
from holdfast.storage.file_system.scheme import local_path

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
