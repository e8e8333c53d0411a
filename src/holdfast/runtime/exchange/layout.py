"""Elements on their way through a task (`Chunk`), and the columns in which they cross an exchange between two stages.

`RowLayout` sends elements as rows of the engine, which sorts them where an operator orders its rows. `MessageLayout`
sends many elements of one edge and task as one binary value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import NullKeyError
from holdfast.kernel.failure_text import short_repr
from holdfast.kernel.key_group import key_groups_of
from holdfast.runtime.graph.plan import Edge, SourcePlan, Stage
from holdfast.state import batch as batches
from holdfast.types.arrow import (
    ElementsTooLongError,
    Timestamps,
    batch_to_elements,
    element_schema,
    elements_to_batch,
    nanos_to_times,
    no_timestamps,
    schema_with_nanos,
)
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import hashes_of_columns
from holdfast.types.row import CHANGES, originals
from holdfast.types.type_information import TypeInformation

TIMESTAMP = "__hf_timestamp"
"""The column of event times, where elements cross an exchange or are staged."""


class Chunk:
    """Elements of one type, as Python objects, as columns, or both; at least one form must be given.

    The other form is made when it is first used: a sink behind an exchange never makes Python objects, and a chain of
    maps never makes columns.

    Args:
        type_: Type of the elements.
        uid: The step that made them, for errors.
        elements: As the step made them: rows may still be plain tuples.
        batch: As columns.
        timestamps: The timestamp of each element, as a column; None where event time plays no part.
    """

    __slots__ = ("_batch", "_elements", "_is_converted", "_is_shared", "timestamps", "type", "uid")

    def __init__(
        self,
        type_: TypeInformation,
        uid: str,
        *,
        elements: list[Any] | None = None,
        batch: pa.RecordBatch | None = None,
        timestamps: Timestamps | None = None,
    ) -> None:
        self.type = type_
        self.uid = uid
        self.timestamps = timestamps
        self._elements = elements
        self._batch = batch
        self._is_converted = not isinstance(type_, RowTypeInformation)
        self._is_shared = False

    def __len__(self) -> int:
        if self._elements is not None:
            return len(self._elements)
        assert self._batch is not None
        return int(self._batch.num_rows)

    def with_timestamps(self, timestamps: Timestamps | None) -> Chunk:
        """Return the same elements with other timestamps."""
        copy = Chunk(self.type, self.uid, elements=self._elements, batch=self._batch, timestamps=timestamps)
        copy._is_converted = self._is_converted
        copy._is_shared = True
        return copy

    def slice(self, start: int, count: int) -> Chunk:
        """Return some of the elements, in the forms that exist."""
        end = start + count
        piece = Chunk(
            self.type,
            self.uid,
            elements=None if self._elements is None else self._elements[start:end],
            batch=None if self._batch is None else self._batch.slice(start, count),
            timestamps=None if self.timestamps is None else self.timestamps.slice(start, count),
        )
        piece._is_converted = self._is_converted
        piece._is_shared = self._is_shared
        return piece

    def mark_shared(self) -> None:
        """Record that functions have got these elements, so that later readers get them unchanged."""
        self._is_shared = True

    def split_for_arrow(self) -> Iterator[Chunk]:
        """Yield the elements in chunks that each fit into one Arrow batch; mostly this chunk itself."""
        batch = None
        try:
            batch = self.batch
        except ElementsTooLongError:
            if len(self) < 2:
                raise
        if batch is not None and (len(self) < 2 or batch.nbytes <= batches.BATCH_BYTES):
            yield self
            return
        del batch
        middle = len(self) // 2
        yield from self.slice(0, middle).split_for_arrow()
        yield from self.slice(middle, len(self) - middle).split_for_arrow()
        self.mark_shared()

    def batch_with_timestamps(self) -> pa.RecordBatch:
        """Return the columns, and the timestamps as the last one."""
        batch = self.batch
        timestamps = no_timestamps(len(self)) if self.timestamps is None else self.timestamps
        return pa.RecordBatch.from_arrays([*batch.columns, timestamps], names=[*batch.schema.names, TIMESTAMP])

    @classmethod
    def from_batch_with_timestamps(cls, type_: TypeInformation, uid: str, batch: pa.RecordBatch) -> Chunk:
        """Make a chunk of columns of which one has the timestamps."""
        timestamps = batch.column(batch.schema.get_field_index(TIMESTAMP))
        return cls(type_, uid, batch=batch.drop_columns([TIMESTAMP]), timestamps=timestamps)

    @property
    def elements(self) -> list[Any]:
        """The elements as Python objects: rows, or plain values.

        Rows are made from the columns, so a chained function gets what one behind an exchange would get. Later readers
        get them unchanged, also if a function has changed one.

        Raises:
            OutputTypeError: Python has no value for one in the columns.
        """
        if self._elements is None or not self._is_converted:
            found = [batch_to_elements(piece.batch, self.type, self.uid) for piece in self.split_for_arrow()]
            self._elements = found[0] if len(found) == 1 else list(chain.from_iterable(found))
            self._is_converted = True
        elif CHANGES and self._is_shared:
            self._elements = originals(self._elements)
        self._is_shared = True
        return self._elements

    @property
    def columns(self) -> pa.RecordBatch | None:
        """The columns if they exist; they may have values that are invalid for their types."""
        return self._batch

    @property
    def batch(self) -> pa.RecordBatch:
        """The elements as columns.

        Raises:
            OutputTypeError: An element does not match the declared type of the step that made it.
            ElementsTooLongError: They do not fit into one batch; use `split_for_arrow`.
        """
        if self._batch is None:
            assert self._elements is not None
            if CHANGES and self._is_shared:
                self._elements = originals(self._elements)
            self._batch = elements_to_batch(self._elements, self.type, self.uid)
        return self._batch


# Columns of rows that cross an exchange. Reserved ones start with `__hf_`. `__hf_control` is null for elements; in
# control rows it has a marker, or nothing for a tick. `__hf_target` is the task of a row without a key. The elements of
# a single edge have columns of their own names; where several edges cross the same exchange, each has one struct
# column. The engine adds `__hf_hash`; the key of an edge with a Python selector is in `__hf_key`, with its hash beside
# it. Times of day are sent as nanoseconds, also in keys and inside of columns.

RESERVED = "__hf_"
CONTROL = "__hf_control"
TARGET = "__hf_target"
HASH = "__hf_hash"
KEY = "__hf_key"
KEY_HASH = "__hf_key_hash"

REPORT_SCHEMA = pa.schema([pa.field(CONTROL, pa.binary())])
"""Rows that the last stage sends to the driver."""


def edge_schema(edge: Edge) -> pa.Schema:
    """Return the columns of one edge: elements, event times if any, and key and hash if a selector makes the key."""
    schema = schema_with_timestamps(edge)
    if edge.key is not None and edge.key.spec.selector is not None:
        schema = schema.append(pa.field(KEY, edge.key.codec.storage_type)).append(pa.field(KEY_HASH, pa.int64()))
    return schema


def schema_with_timestamps(carrier: Edge | SourcePlan) -> pa.Schema:
    """Return the columns of elements, and of their event times if they have any."""
    schema = element_schema(carrier.element_type)
    return schema.append(pa.field(TIMESTAMP, pa.int64())) if carrier.has_timestamp_column else schema


@dataclass(frozen=True)
class Arrival:
    """Elements of one edge that arrived in a task; `hashes` is None if they have no key."""

    edge: Edge
    batch: pa.RecordBatch
    hashes: npt.NDArray[np.uint64] | None


class RowLayout:
    """Rows of one schema for the elements of all edges that cross one exchange."""

    def __init__(self, edges: Sequence[Edge]) -> None:
        self.edges = tuple(edges)
        self.flat = len(self.edges) == 1
        self._columns = [(edge, schema_with_nanos(edge_schema(edge))) for edge in self.edges]
        self._times = {edge.name: edge_schema(edge) for edge, sent in self._columns if sent != edge_schema(edge)}
        # Broadcast elements come first: the engine sorts them to the front, but a batch may have both.
        self._unpacked = sorted(self._columns, key=lambda column: not column[0].broadcast)
        self.schema = pa.schema([pa.field(CONTROL, pa.binary()), pa.field(TARGET, pa.int32()), *self._fields()])

    def _fields(self) -> Iterable[pa.Field]:
        if self.flat:
            return list(self._columns[0][1])
        return [pa.field(edge.name, pa.struct(list(schema))) for edge, schema in self._columns]

    def pack(self, edge: Edge, batch: pa.RecordBatch, target: int | None = None) -> pa.RecordBatch:
        """Return elements of one edge in the schema of the exchange; `target` is the task of those without a key."""
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
        """Return a batch of control rows, one for each task of the next stage."""
        tasks = len(rows)
        columns = [pa.array(rows, pa.binary()), pa.array(np.arange(tasks, dtype=np.int32))]
        columns += [pa.nulls(tasks, field.type) for field in list(self.schema)[2:]]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def unpack(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[Arrival]]:
        """Split a batch that crossed the exchange into control rows and the elements of each edge."""
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
        return Arrival(edge, batch if schema is None else nanos_to_times(batch, schema), hashes)


class SourceLayout:
    """Columns of sources as they arrive at stage 0: those of a single source, or one struct column a source."""

    def __init__(self, sources: Sequence[SourcePlan]) -> None:
        self.sources = tuple(sources)
        self.flat = len(self.sources) == 1
        self._schemas = [schema_with_timestamps(source) for source in self.sources]

    def column(self, position: int) -> str:
        return f"{RESERVED}source_{position}"

    def unpack(self, batch: pa.RecordBatch) -> Iterable[tuple[SourcePlan, pa.RecordBatch]]:
        if self.flat:
            if batch.num_rows:
                yield self.sources[0], nanos_to_times(batch, self._schemas[0])
            return
        for position, source in enumerate(self.sources):
            column = batch.column(batch.schema.get_field_index(self.column(position)))
            if column.null_count != len(column):
                schema = self._schemas[position]
                found = pa.RecordBatch.from_arrays(column.filter(column.is_valid()).flatten(), names=schema.names)
                yield source, nanos_to_times(found, schema)


def _hashes(batch: pa.RecordBatch) -> npt.NDArray[np.uint64] | None:
    position = batch.schema.get_field_index(HASH)
    if position < 0:
        return None
    hashes: Any = batch.column(position).fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(hashes).view(np.uint64)


def as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast a column unless it has the type already."""
    return column if column.type.equals(wanted) else column.cast(wanted)


# Messages: each has many elements of one edge, all for one task. As rows, each element would become a row of the JVM
# twice, only to be sent. So a task splits its elements by target itself and sends columns, which are one binary value
# for Spark. The first byte tells what a value is:
#
#     message    = "p" (1 byte), 0 (1), number of the edge (2, big endian), 0 (4), record batch as an Arrow IPC message
#     marker     = "m", see `task_report`
#     tick       = nothing
#     ballast    = nothing
#
# Spark limits what a task gets at once by rows, and a few hundred messages of megabytes have killed a JVM. (It can
# limit by bytes too, but then it checks after each row, also those of sources.) So empty rows (ballast) precede a
# message, one for so many of its bytes that what a task gets at once stays below some megabytes.
#
# The columns of the record batch are those of the edge, with the hash behind them if the edge has keys. No schema is
# sent: both sides have it from the plan. Edges into operators that order their rows use `RowLayout`.

PHASE: Final = f"{RESERVED}phase"
"""Rows of a task are sorted by it: 0, broadcast elements, comes before the others."""

SCHEMA: Final = pa.schema([pa.field(CONTROL, pa.binary()), pa.field(TARGET, pa.int32()), pa.field(PHASE, pa.int32())])

_HEAD: Final = struct.Struct(">cxH4x")
_KIND: Final = b"p"
_ALIGNMENT: Final = 8
_ROWS: Final = 20_000
"""Elements that a step gets at once: more cost memory and are not faster."""

_WORTH_A_STEP: Final = 5_000
"""Messages with fewer elements on average are combined before a step gets them."""

_FREQUENT: Final = 8
_FEW_ROWS: Final = 8
"""Rows that are looked at one by one: NumPy takes longer for them."""
_MESSAGE_BYTES: Final = 4 << 20
_HELD_FOR_A_TASK: Final = 2 << 20
_HELD: Final = 32 << 20
_BATCH_BYTES: Final = 28 << 20
"""Bytes that a task gets at once, and one more message: with one of 4 MB that is as much as Arrow allocates."""


class MessageLayout:
    """Messages of the edges that cross one exchange.

    Args:
        edges: The edges, in the order of the plan.
    """

    schema = SCHEMA

    def __init__(self, edges: Sequence[Edge]) -> None:
        self.edges = tuple(edges)
        self.edge_schemas = [edge_schema(edge) for edge in self.edges]
        self._schemas = [message_schema(edge) for edge in self.edges]
        self._order = sorted(range(len(self.edges)), key=lambda number: not self.edges[number].broadcast)

    def control(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """Return a batch of control rows, one for each task of the next stage."""
        return message_batch(rows, list(range(len(rows))))

    def unpack(self, batch: pa.RecordBatch) -> tuple[list[bytes], Iterable[Arrival]]:
        """Split a batch that crossed the exchange into control rows and the elements of each edge.

        Raises:
            ValueError: A value is no message of this exchange.
        """
        controls: list[bytes] = []
        messages: list[pa.Buffer] = []
        for content in contents_of(batch):
            if content[0] == _KIND[0]:
                messages.append(content)
            else:
                controls.append(content.to_pybytes())
        return controls, self.arrivals(messages)

    def arrivals(self, messages: Iterable[pa.Buffer]) -> Iterator[Arrival]:
        """Return the elements of messages by edge, those of broadcast edges first.

        Raises:
            ValueError: A value is no message of this exchange.
        """
        found: list[list[pa.RecordBatch]] = [[] for _ in self.edges]
        for message in messages:
            number, elements = self._read(message)
            found[number].append(elements)
        return (arrival for number in self._order for arrival in self._arrivals(number, found[number]))

    def _read(self, content: pa.Buffer) -> tuple[int, pa.RecordBatch]:
        if content.size < _HEAD.size:
            raise ValueError(f"a message of {content.size} bytes is too short")
        _, number = _HEAD.unpack_from(content)
        if number >= len(self.edges):
            raise ValueError(f"a message is of edge {number}, and there are {len(self.edges)}")
        if content.address % _ALIGNMENT:
            content = pa.py_buffer(content.to_pybytes())
        try:
            message = pa.ipc.read_message(content.slice(_HEAD.size))
            return number, pa.ipc.read_record_batch(message, self._schemas[number])
        except (pa.ArrowException, OSError, EOFError) as error:
            raise ValueError(f"a message of edge {self.edges[number].name!r} cannot be read: {error}") from error

    def _arrivals(self, number: int, batches: list[pa.RecordBatch]) -> Iterator[Arrival]:
        edge = self.edges[number]
        table = pa.Table.from_batches(batches, self._schemas[number])
        if table.num_rows < _WORTH_A_STEP * len(batches):
            table = table.combine_chunks()
        for batch in table.to_batches(_ROWS):
            if edge.key is None:
                yield Arrival(edge, batch, None)
            else:
                hashes = batch.column(batch.num_columns - 1).to_numpy().view(np.uint64)
                yield Arrival(edge, batch.select(batch.schema.names[:-1]), hashes)


class MessageWriter:
    """Collects what one task sends through one exchange, and writes it as messages.

    Args:
        layout: The layout of the exchange.
        tasks: Number of tasks behind it.
        batch_rows: Rows that such a task gets at once.
        message_bytes: Bytes of a message, None for a few megabytes; one with a single element may be longer.
    """

    def __init__(self, layout: MessageLayout, tasks: int, batch_rows: int, message_bytes: int | None = None) -> None:
        self._layout = layout
        self.message_bytes = message_bytes or _MESSAGE_BYTES
        self._row_bytes = -(-_BATCH_BYTES // batch_rows)
        self._max_pending = min(_HELD, tasks * _HELD_FOR_A_TASK)
        self._numbers = {edge.name: number for number, edge in enumerate(layout.edges)}
        self._pending: dict[tuple[int, tuple[int, ...] | None], _Pending] = {}

    def add(self, edge: Edge, batch: pa.RecordBatch, targets: Sequence[int | None]) -> Iterator[pa.RecordBatch]:
        """Add elements in the columns of their edge, and yield what is ready to be sent.

        Args:
            edge: The edge.
            batch: The elements.
            targets: The tasks that get them; None for the task of each element's key.

        Raises:
            NullKeyError: An element has no key.
        """
        placed = None if edge.key is not None else tuple(target for target in targets if target is not None)
        where = self._numbers[edge.name], placed
        held = self._pending.setdefault(where, _Pending())
        held.batches.append(batch)
        held.size += batch.nbytes
        if held.size >= self._max_pending:
            yield from self._send(*where, self._pending.pop(where))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield all that was not sent yet."""
        held, self._pending = self._pending, {}
        for where, own in held.items():
            yield from self._send(*where, own)

    def flush_messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield all that was not sent yet, as messages with their tasks."""
        held, self._pending = self._pending, {}
        for where, own in held.items():
            for task, head, message in self._messages(*where, own):
                yield task, b"".join((head, message))

    def _send(self, number: int, targets: tuple[int, ...] | None, held: _Pending) -> Iterator[pa.RecordBatch]:
        written = _MessageColumn(self._row_bytes)
        phase = 0 if self._layout.edges[number].broadcast else 1
        for task, head, message in self._messages(number, targets, held):
            written.add(head, message, task)
            if written.size >= _BATCH_BYTES:
                yield written.batch(phase)
                written = _MessageColumn(self._row_bytes)
        if written.tasks:
            yield written.batch(phase)

    def _messages(
        self, number: int, targets: tuple[int, ...] | None, held: _Pending
    ) -> Iterator[tuple[int, bytes, pa.Buffer]]:
        head = _HEAD.pack(_KIND, number)
        for tasks, elements in self._placed(number, targets, held.batches):
            for piece in _pieces(elements, self.message_bytes):
                message = piece.serialize()
                for task in tasks:
                    yield task, head, message

    def _placed(
        self, number: int, targets: tuple[int, ...] | None, batches: list[pa.RecordBatch]
    ) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
        """Yield parts of the elements with the tasks that get them."""
        edge, schema = self._layout.edges[number], self._layout.edge_schemas[number]
        arrays = [
            [as_type(column, field.type) for column, field in zip(b.columns, schema, strict=True)] for b in batches
        ]
        typed = [pa.RecordBatch.from_arrays(columns, schema=schema) for columns in arrays]
        if len(typed) > 1:
            typed = pa.Table.from_batches(typed, schema).combine_chunks().to_batches()
        for batch in typed:
            if edge.key is None:
                assert targets is not None
                yield targets, batch
            else:
                yield from _by_key(edge, batch)


class _MessageColumn:
    """The buffers of a binary column of messages and their ballast."""

    def __init__(self, row_bytes: int) -> None:
        self.tasks: list[int] = []
        self.size = 0
        self._row_bytes = row_bytes
        self._ends = [0]
        self._parts: list[bytes | pa.Buffer] = []

    def add(self, head: bytes, message: pa.Buffer, task: int) -> None:
        self._parts += head, message
        ballast = message.size // self._row_bytes
        self._ends += [self.size] * ballast
        self.size += len(head) + message.size
        self._ends.append(self.size)
        self.tasks += [task] * (ballast + 1)

    def batch(self, phase: int) -> pa.RecordBatch:
        ends = pa.py_buffer(np.array(self._ends, np.int32))
        content = pa.py_buffer(b"".join(self._parts))
        contents = pa.Array.from_buffers(pa.binary(), len(self.tasks), [None, ends, content], 0)
        return _batch_of(contents, self.tasks, phase)


class _Pending:
    __slots__ = ("batches", "size")

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size = 0


def arriving_layout(stage: Stage) -> RowLayout | MessageLayout:
    """Return the layout of the exchange before a stage."""
    return (MessageLayout if stage.arrives_packed else RowLayout)(stage.arriving)


def leaving_layout(stage: Stage) -> RowLayout | MessageLayout | None:
    """Return the layout of the exchange after a stage, None if there is none."""
    if not stage.leaving:
        return None
    return (MessageLayout if stage.leaves_packed else RowLayout)(stage.leaving)


def message_schema(edge: Edge) -> pa.Schema:
    schema = edge_schema(edge)
    return schema if edge.key is None else schema.append(pa.field(HASH, pa.int64()))


def _by_key(edge: Edge, batch: pa.RecordBatch) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
    assert edge.key is not None
    hashes = _hashes_of(edge, batch)
    whole = pa.RecordBatch.from_arrays([*batch.columns, pa.array(hashes.view(np.int64))], schema=message_schema(edge))
    parallelism = edge.key.parallelism
    if parallelism == 1:
        yield [0], whole
        return
    groups = key_groups_of(hashes, edge.key.max_parallelism).astype(np.int64)
    # There are at most 32768 of them, and of such short numbers numpy sorts any number in linear time.
    targets = (groups * parallelism // edge.key.max_parallelism).astype(np.uint16)
    if (targets == targets[:1]).all():  # most messages of a few elements
        if len(targets):
            yield [int(targets[0])], whole
        return
    order = np.argsort(targets, kind="stable")
    ordered = whole.take(pa.array(order))
    start = 0
    for target, count in enumerate(np.bincount(targets).tolist()):
        if count:
            yield [target], ordered.slice(start, count)
            start += count


def _hashes_of(edge: Edge, batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    assert edge.key is not None
    if edge.key.spec.selector is not None:
        given = batch.column(batch.schema.get_field_index(KEY_HASH)).to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(given).view(np.uint64)
    columns = [batch.column(batch.schema.get_field_index(name)) for name in edge.key.spec.columns]
    try:
        return hashes_of_columns(edge.key.codec, columns)
    except NullKeyError as error:
        raise null_key_error(edge, batch, error) from error


def null_key_error(edge: Edge, batch: pa.RecordBatch, error: NullKeyError) -> NullKeyError:
    """Return the error for a row without a key that names the operator, the column and the row."""
    assert edge.key is not None
    columns, row = edge.key.spec.columns, error.row
    element = None
    if row is not None:
        names = element_schema(edge.element_type).names
        element = short_repr(batch.select(names).slice(row, 1).to_pylist()[0])
    column = columns[0] if len(columns) == 1 else None
    return NullKeyError(edge.consumer, row=row, column=column, element=element)


def _pieces(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces of at most so many bytes; a single row may be larger."""
    parts = min(batch.num_rows, -(-batch.nbytes // size))
    if parts <= 1:
        yield batch
        return
    rows = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, rows):
        yield from _pieces(batch.slice(start, rows), size)  # a piece of long rows is cut again


def contents_of(batch: pa.RecordBatch) -> Iterator[pa.Buffer]:
    """Yield the messages and markers of a batch that crossed an exchange, without copying them."""
    if not batch.num_rows:
        return
    # Spark may be configured to make large ones.
    column = as_type(batch.column(batch.schema.get_field_index(CONTROL)), pa.binary())
    _, buffer, content = column.buffers()
    if len(column) <= _FEW_ROWS:
        edges = memoryview(buffer).cast("i")
        places = [(edges[at], edges[at + 1]) for at in range(column.offset, column.offset + len(column))]
    else:
        ends = np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1]
        filled = np.flatnonzero(ends[1:] > ends[:-1])
        places = list(zip(ends[filled].tolist(), ends[filled + 1].tolist(), strict=True))
    for start, end in places:
        if end > start:
            yield content.slice(start, end - start)


def message_batch(contents: Sequence[bytes], targets: Sequence[int]) -> pa.RecordBatch:
    """Return a batch of messages or control rows, each for one task."""
    return _batch_of(pa.array(contents, pa.binary()), targets, 1)


def _batch_of(contents: pa.Array, targets: Sequence[int], phase: int) -> pa.RecordBatch:
    places = _frequent_places if len(targets) <= _FREQUENT else _places
    return pa.RecordBatch.from_arrays([contents, *places(tuple(targets), phase)], schema=SCHEMA)


def _places(targets: tuple[int, ...], phase: int) -> tuple[pa.Array, pa.Array]:
    """Return the columns of targets and phases."""
    return pa.array(targets, pa.int32()), pa.array([phase] * len(targets), pa.int32())


_frequent_places = lru_cache(1024)(_places)
"""A real-time task sends small batches to the same tasks again and again."""
