"""An Iceberg table as the sink needs it: found in its catalog, checked, made or given columns where that is wanted."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.secret import shown, shown_error
from holdfast.storage.file_system.s3_connection import endpoint_of
from holdfast.storage.file_system.s3_options import current_s3_options
from holdfast.storage.file_system.scheme import file_system_for, local_path

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
        known = {key: shown(key, properties[key]) for key in ("type", "uri", "warehouse") if key in properties}
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
            f"The Iceberg table {self.name!r} in the catalog {self.shown!r} {what}: {shown_error(error)}"
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
