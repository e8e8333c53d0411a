"""The live state of a job as a DataFrame, all partitions from one completed checkpoint.

    aircraft = (
        spark.read.format("holdfast")
        .option("address", "127.0.0.1:9069").option("job", "flights").option("state", "aircraft")
        .load()
    )

Columns: `key`, `namespace` and `map_key` where the state has them, `value`. Options: `address`, `job` (name or id),
`state`; optional are `token`, `tls` (a file with certificates, or `system`), `checkpoint` (exactly this one),
`partitions` (default 8), `hold` (default 300: seconds within which all of it is read) and `pushdown`: with `true` the
server filters rows by comparisons of texts and whole numbers, for which Spark requires
`spark.sql.python.filterPushdown.enabled` as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import KeyGroupRange, range_of
from holdfast.queryable import QueryableStateClient, StateDescription, exactly
from holdfast.queryable.client.client_core import job_id_of
from holdfast.queryable.server.proxy import parse_address
from holdfast.queryable.wire.request import NEWEST, Condition
from holdfast.spark.schema import Times, stream_schema
from holdfast.state.descriptor import StateKind
from holdfast.types.arrow import times_to_texts
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import CompositeKeyCodec, KeyCodec
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

# By name: Spark 4.0 has data sources in Python, but pushes nothing down to them.
_OPERATORS: Final = {
    "EqualTo": "==",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
# Of these types Spark and Arrow compare values in the same way; of numbers with a point they do not (NaN).
_PLAIN: Final = (bool, int, str)
_COMPARED_ALIKE: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", "string"})
_DEFAULT_PARTITIONS: Final = 8
_DEFAULT_HOLD: Final = 300.0


@dataclass(frozen=True)
class StateLocation:
    """A state, and the server that has it.

    Attributes:
        address: `host:port` of a query server.
        job: Name or id of the job.
        state: Name of the state.
        token: Bearer token.
        tls: A file with certificates, or `system`; None for no TLS.
    """

    address: str
    job: str
    state: str
    token: str | None
    tls: str | None

    def connect(self) -> QueryableStateClient:
        trusted: str | bool | None = True if self.tls == "system" else self.tls
        return QueryableStateClient(*parse_address(self.address), trusted, self.token)


class StateDataSource(DataSource):
    """Reads queryable state."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        """Return the columns, which the server knows. Blocks."""
        where = self._where()
        with where.connect() as client:
            return stream_schema(columns_of(client.describe(where.job, where.state)), Times.TEXTS)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        checkpoint = options.get("checkpoint")
        count = int(options.get("partitions", _DEFAULT_PARTITIONS))
        kind = FilteringStateReader if options.get("pushdown", "false").lower() == "true" else StateReader
        hold = float(options.get("hold", _DEFAULT_HOLD))
        return kind(self._where(), None if checkpoint is None else int(checkpoint), count, hold)

    def _where(self) -> StateLocation:
        options = self.options
        missing = [name for name in ("address", "job", "state") if not options.get(name)]
        if missing:
            raise ConfigurationError(
                f'format("holdfast") needs the options address, job and state; missing: {missing}.'
            )
        return StateLocation(
            options["address"], options["job"], options["state"], options.get("token"), options.get("tls")
        )


class KeyGroupPartition(InputPartition):
    """A range of key groups of one checkpoint."""

    def __init__(self, start: int, end: int, checkpoint_id: int) -> None:
        super().__init__((start, end, checkpoint_id))
        self.start = start
        self.end = end
        self.checkpoint_id = checkpoint_id


class StateReader(DataSourceReader):
    """Reads a state, range by range of key groups.

    Args:
        where: What to read.
        checkpoint_id: From this checkpoint; None for the newest when the query is planned.
        count: Number of partitions.
        hold: Seconds within which all of them are read.
    """

    def __init__(self, where: StateLocation, checkpoint_id: int | None, count: int, hold: float) -> None:
        self._where = where
        self._checkpoint_id = checkpoint_id
        self._count = count
        self._hold = hold
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        """Choose the checkpoint, and split the key groups."""
        with self._where.connect() as client:
            what = client.describe(self._where.job, self._where.state)
            # The job may complete many checkpoints before the last task has read its part, or reads it again.
            wanted = NEWEST if self._checkpoint_id is None else exactly(self._checkpoint_id)
            held = client.hold(self._where.job, self._where.state, self._hold, consistency=wanted)
        count = max(1, min(self._count, what.max_parallelism))
        ranges = [range_of(index, what.max_parallelism, count) for index in range(count)]
        return [KeyGroupPartition(part.start, part.end, held.checkpoint_id) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KeyGroupPartition)
        held = KeyGroupRange(partition.start, partition.end)
        with self._where.connect() as client:
            scan = client.scan(
                str(job_id_of(self._where.job)),
                self._where.state,
                key_groups=held,
                where=self._conditions,
                consistency=exactly(partition.checkpoint_id),
            )
            columns = columns_of(scan.head.description)
            for batch in scan:
                yield times_to_texts(as_columns(batch, scan.head.description, columns))


class FilteringStateReader(StateReader):
    """Lets the server filter rows; Spark refuses such a reader unless pushing filters down is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # the name is Spark's
        """Pass the filters to the server; Spark checks them all the same."""
        with self._where.connect() as client:
            what = client.describe(self._where.job, self._where.state)
        columns = columns_of(what)
        for condition in filters:
            operator = _OPERATORS.get(type(condition).__name__)
            path = tuple(getattr(condition, "attribute", ()))
            value = getattr(condition, "value", None)
            if operator is not None and type(value) in _PLAIN and _type_at(columns, path) in _COMPARED_ALIKE:
                self._conditions += ((".".join(path), operator, value),)
            yield condition


def columns_of(what: StateDescription) -> RowTypeInformation:
    """Return the columns of the DataFrame."""
    fields: list[tuple[str, TypeInformation]] = [("key", _key_type(what.key_codec))]
    if what.namespaced:
        fields.append(("namespace", Types.BINARY()))
    if what.kind is StateKind.MAP:
        fields.append(("map_key", _key_type(what.map_key_codec)))
    value = Types.LIST(what.value_type) if what.kind is StateKind.LIST else what.value_type
    fields.append(("value", value))
    names, types = zip(*fields, strict=True)
    return RowTypeInformation(names, types)


def as_columns(batch: pa.RecordBatch, what: StateDescription, columns: RowTypeInformation) -> pa.RecordBatch:
    """Return a batch of a scan with exactly the columns of the DataFrame."""
    codecs = {"key": what.key_codec, "map_key": what.map_key_codec if what.kind is StateKind.MAP else None}
    arrays = []
    for field in columns.arrow_schema:
        array = batch.column(batch.schema.get_field_index(field.name))
        codec = codecs.get(field.name)
        if isinstance(codec, CompositeKeyCodec):
            keys = [codec.user_key(key) for key in codec.from_storage(array)]
            array = codec.key_type.to_array(keys)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns.arrow_schema)


def _type_at(columns: RowTypeInformation, path: tuple[str, ...]) -> str | None:
    """Return the type of a column, or of a field of the value; None if the server does not see it as a column."""
    kind: TypeInformation = columns
    for position, name in enumerate(path):
        is_open = position == 0 or path[0] == "value"
        if not is_open or not isinstance(kind, RowTypeInformation) or name not in kind.names or "." in name:
            return None
        kind = kind.types[kind.names.index(name)]
    return kind.ddl


def _key_type(codec: KeyCodec) -> TypeInformation:
    """Return the type of keys; keys without a declared type are bytes."""
    kind = getattr(codec, "key_type", None)
    return kind if isinstance(kind, TypeInformation) else Types.BINARY()
