"""Columns in which elements cross an exchange between two stages.

Reserved columns start with `__hf_`. `__hf_control` is null for elements and holds a marker (or nothing, for a tick)
for control rows; `__hf_target` says to which task a row goes that is not placed by its key. The elements of a single
edge stand in columns of their own names; where several edges cross the same exchange, each has one struct column. The
engine adds `__hf_hash` on the way; the key of an edge with a Python selector travels in `__hf_key`, with its hash
beside it. Times of day travel as numbers of nanoseconds, in keys and in parts of columns, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.runtime.exchange.chunk import TIMESTAMP
from holdfast.runtime.graph.plan import Edge, SourcePlan
from holdfast.types.conversion.arrow import element_schema
from holdfast.types.conversion.times_of_day import numbered_schema, with_times

RESERVED = "__hf_"
CONTROL = "__hf_control"
TARGET = "__hf_target"
HASH = "__hf_hash"
KEY = "__hf_key"
KEY_HASH = "__hf_key_hash"

BARRIER_SCHEMA = pa.schema([pa.field(CONTROL, pa.binary())])
"""What the last stage hands to the driver."""


def edge_schema(edge: Edge) -> pa.Schema:
    """Columns of one edge: elements, event times if they have any, and key and hash if a selector made the key."""
    schema = stamped_schema(edge)
    if edge.key is not None and edge.key.spec.selector is not None:
        schema = schema.append(pa.field(KEY, edge.key.codec.storage_type)).append(pa.field(KEY_HASH, pa.int64()))
    return schema


def stamped_schema(carrier: Edge | SourcePlan) -> pa.Schema:
    """Columns of elements and, where they have event times, of these."""
    schema = element_schema(carrier.element_type)
    return schema.append(pa.field(TIMESTAMP, pa.int64())) if carrier.carries_times else schema


@dataclass(frozen=True)
class Arrival:
    """Elements of one edge as they arrived; `hashes` is None if they were not placed by key."""

    edge: Edge
    batch: pa.RecordBatch
    hashes: npt.NDArray[np.uint64] | None


class EdgeLayout:
    """Packs the elements of the edges that cross one exchange into one schema, and unpacks them again."""

    def __init__(self, edges: Sequence[Edge]) -> None:
        self.edges = tuple(edges)
        self.flat = len(self.edges) == 1
        self._columns = [(edge, numbered_schema(edge_schema(edge))) for edge in self.edges]
        self._times = {edge.name: edge_schema(edge) for edge, sent in self._columns if sent != edge_schema(edge)}
        # Broadcast elements come first; the engine has sorted them to the front, but a batch may hold both.
        self._unpacked = sorted(self._columns, key=lambda column: not column[0].broadcast)
        self.schema = pa.schema([pa.field(CONTROL, pa.binary()), pa.field(TARGET, pa.int32()), *self._fields()])

    def _fields(self) -> Iterable[pa.Field]:
        if self.flat:
            return list(self._columns[0][1])
        return [pa.field(edge.name, pa.struct(list(schema))) for edge, schema in self._columns]

    def pack(self, edge: Edge, batch: pa.RecordBatch, target: int | None = None) -> pa.RecordBatch:
        """Elements of one edge in the schema of the exchange; `target` places those that have no key."""
        rows = batch.num_rows
        where = pa.nulls(rows, pa.int32()) if target is None else pa.array(np.full(rows, target, np.int32))
        columns: list[pa.Array] = [pa.nulls(rows, pa.binary()), where]
        if self.flat:
            columns += [
                as_type(column, field.type) for column, field in zip(batch.columns, self._columns[0][1], strict=True)
            ]
        else:
            for other, schema in self._columns:
                if other is edge:
                    arrays = [as_type(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
                    columns.append(pa.StructArray.from_arrays(arrays, fields=list(schema)))
                else:
                    columns.append(pa.nulls(rows, pa.struct(list(schema))))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def control(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """One control row for each task of the next stage."""
        tasks = len(rows)
        columns = [pa.array(rows, pa.binary()), pa.array(np.arange(tasks, dtype=np.int32))]
        columns += [pa.nulls(tasks, field.type) for field in list(self.schema)[2:]]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def unpack(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[Arrival]]:
        """Splits a batch that crossed the exchange into control rows and the elements of each edge."""
        controls: list[bytes] = []
        control = batch.column(batch.schema.get_field_index(CONTROL))
        if control.null_count != len(control):
            controls = control.drop_null().to_pylist()
            batch = batch.filter(control.is_null())
        return controls, [arrival for arrival in self._arrivals(batch) if arrival.batch.num_rows]

    def _arrivals(self, batch: pa.RecordBatch) -> Iterable[Arrival]:
        hashes = _hashes(batch)
        if self.flat:
            edge, schema = self._columns[0]
            columns = [batch.column(batch.schema.get_field_index(field.name)) for field in schema]
            yield self._arrived(edge, pa.RecordBatch.from_arrays(columns, names=schema.names), hashes)
            return
        for edge, schema in self._unpacked:
            column = batch.column(batch.schema.get_field_index(edge.name))
            if column.null_count == len(column):
                continue
            valid = column.is_valid()
            arrays = column.filter(valid).flatten()
            own = None if hashes is None else hashes[valid.to_numpy(zero_copy_only=False)]
            yield self._arrived(edge, pa.RecordBatch.from_arrays(arrays, names=schema.names), own)

    def _arrived(self, edge: Edge, batch: pa.RecordBatch, hashes: npt.NDArray[np.uint64] | None) -> Arrival:
        schema = self._times.get(edge.name)
        return Arrival(edge, batch if schema is None else with_times(batch, schema), hashes)


class SourceLayout:
    """Columns in which sources arrive at stage 0: those of a single source, or one struct column a source."""

    def __init__(self, sources: Sequence[SourcePlan]) -> None:
        self.sources = tuple(sources)
        self.flat = len(self.sources) == 1
        self._schemas = [stamped_schema(source) for source in self.sources]

    def column(self, position: int) -> str:
        """Name of the struct column of a source."""
        return f"{RESERVED}source_{position}"

    def unpack(self, batch: pa.RecordBatch) -> Iterable[tuple[SourcePlan, pa.RecordBatch]]:
        """The elements of each source."""
        if self.flat:
            if batch.num_rows:
                yield self.sources[0], with_times(batch, self._schemas[0])
            return
        for position, source in enumerate(self.sources):
            column = batch.column(batch.schema.get_field_index(self.column(position)))
            if column.null_count != len(column):
                schema = self._schemas[position]
                found = pa.RecordBatch.from_arrays(column.filter(column.is_valid()).flatten(), names=schema.names)
                yield source, with_times(found, schema)


def _hashes(batch: pa.RecordBatch) -> npt.NDArray[np.uint64] | None:
    position = batch.schema.get_field_index(HASH)
    if position < 0:
        return None
    hashes: Any = batch.column(position).fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(hashes).view(np.uint64)


def as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The column in a type that it may already have."""
    return column if column.type.equals(wanted) else column.cast(wanted)
