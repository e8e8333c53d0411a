"""What a query of Nexmark is here: the columns that it reads, the program, and what its rows mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.events import TYPES
from holdfast.common import ColumnTimestampAssigner, Duration, WatermarkStrategy
from holdfast.datastream import DataStream
from holdfast.types.type_parser import to_row_type

LATENESS: Final = Duration.of_seconds(4)
"""By so much events may be out of order, as in the published definition of the table."""


@dataclass(frozen=True)
class Computed:
    """A column that is computed from others.

    Attributes:
        function: Gets the columns and returns one.
        columns: Their names.
    """

    function: Callable[..., pa.Array]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Input:
    """Columns of one kind of event.

    Attributes:
        kind: `person`, `auction` or `bid`.
        columns: Name and type of each.
        sources: What a column is, by its name: the name of another one, a value for all rows, or what is computed.
        where: Which events: a column of booleans; all unless given.
    """

    kind: str
    columns: str
    sources: Mapping[str, Any]
    where: Computed | None = None

    @property
    def schema(self) -> pa.Schema:
        """Of the columns."""
        return to_row_type(self.columns).arrow_schema

    @property
    def files(self) -> str:
        """The columns of the files that are read, as DDL."""
        read: set[str] = set(self.where.columns if self.where else ())
        for name in self.schema.names:
            source = self.sources.get(name, name)
            read.update(source.columns if isinstance(source, Computed) else [source] if isinstance(source, str) else [])
        return ", ".join(column for column in TYPES[self.kind].split(", ") if column.split()[0] in read)

    def of_file(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of rows of a file."""
        if self.where:
            batch = batch.filter(_value(self.where, batch, pa.bool_()))
        columns = [_value(self.sources.get(field.name, field.name), batch, field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _value(source: Any, batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    if isinstance(source, Computed):
        return source.function(*(batch.column(name) for name in source.columns)).cast(kind)
    if isinstance(source, str):
        return batch.column(source)
    return pa.repeat(pa.scalar(source, kind), batch.num_rows)


def of(kind: str, columns: str, where: Computed | None = None, /, **sources: Any) -> Input:
    """Return what is read of a kind of event; see `Input`."""
    return Input(kind, columns, sources, where)


DAY: Final = Computed(lambda time: pc.divide(time, 86_400_000), ("date_time",))
"""The number of the day."""


@dataclass(frozen=True)
class Query:
    """A query as a DataStream program.

    Attributes:
        name: `q0` to `q22`.
        inputs: What it reads, by the uid of the stream.
        build: Makes the stream of results.
        keys: Columns of the result of which a later row replaces an earlier one; empty if rows are only added.
        by_columns: Whether Python never touches a row.
        needs_spark: Whether the program has Spark expressions.
        has_event_time: Whether it has windows of event time, of which the end of the input fires the last ones.
    """

    name: str
    inputs: Mapping[str, Input]
    build: Callable[[Mapping[str, DataStream]], DataStream]
    keys: tuple[str, ...] = ()
    by_columns: bool = True
    needs_spark: bool = False
    has_event_time: bool = False


def timed(stream: Any) -> DataStream:
    """The stream with event time."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(LATENESS)
    timed_stream: DataStream = stream.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(ColumnTimestampAssigner("date_time"))
    )
    return timed_stream
