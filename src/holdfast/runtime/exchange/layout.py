"""A stretch of elements on its way through a task, as Python objects, as columns, or both.

The other form is made when somebody asks for it: a sink behind an exchange never makes Python objects, a chain of
maps never makes columns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import NullKeyError
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
from holdfast.types.changed_row import CHANGES, originals
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_columns import hashes_of_columns
from holdfast.types.type_information import TypeInformation

TIMESTAMP = "__hf_timestamp"
"""The column of event times, where elements cross an exchange or are staged."""


class Chunk:
    """Elements of one type; give it one form at least.

    Args:
        type_: Type of the elements.
        uid: The step that made them, for errors.
        elements: As the step made them: rows may still be plain tuples.
        batch: As columns.
        stamps: The timestamp of each element, as a column; None where event time plays no part.
    """

    __slots__ = ("_adopted", "_batch", "_elements", "_given", "stamps", "type", "uid")

    def __init__(
        self,
        type_: TypeInformation,
        uid: str,
        *,
        elements: list[Any] | None = None,
        batch: pa.RecordBatch | None = None,
        stamps: Timestamps | None = None,
    ) -> None:
        self.type = type_
        self.uid = uid
        self.stamps = stamps
        self._elements = elements
        self._batch = batch
        self._adopted = not isinstance(type_, RowTypeInformation)
        self._given = False

    def __len__(self) -> int:
        if self._elements is not None:
            return len(self._elements)
        assert self._batch is not None
        return int(self._batch.num_rows)

    def stamped(self, stamps: Timestamps | None) -> Chunk:
        """The same elements with other timestamps."""
        copy = Chunk(self.type, self.uid, elements=self._elements, batch=self._batch, stamps=stamps)
        copy._adopted = self._adopted
        copy._given = True
        return copy

    def slice(self, start: int, count: int) -> Chunk:
        """Some of the elements, in the forms that are there."""
        end = start + count
        piece = Chunk(
            self.type,
            self.uid,
            elements=None if self._elements is None else self._elements[start:end],
            batch=None if self._batch is None else self._batch.slice(start, count),
            stamps=None if self.stamps is None else self.stamps.slice(start, count),
        )
        piece._adopted = self._adopted
        piece._given = self._given
        return piece

    def given(self) -> None:
        """Somebody has got the elements in pieces."""
        self._given = True

    def fitting(self) -> Iterator[Chunk]:
        """The elements in stretches of which each has columns: one, unless they are more than Arrow can hold in one."""
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
        yield from self.slice(0, middle).fitting()
        yield from self.slice(middle, len(self) - middle).fitting()
        self.given()

    def stamped_batch(self) -> pa.RecordBatch:
        """The columns with that of the timestamps as the last."""
        batch = self.batch
        stamps = no_timestamps(len(self)) if self.stamps is None else self.stamps
        return pa.RecordBatch.from_arrays([*batch.columns, stamps], names=[*batch.schema.names, TIMESTAMP])

    @classmethod
    def of_stamped_batch(cls, type_: TypeInformation, uid: str, batch: pa.RecordBatch) -> Chunk:
        """Elements from columns with the timestamps among them."""
        stamps = batch.column(batch.schema.get_field_index(TIMESTAMP))
        return cls(type_, uid, batch=batch.drop_columns([TIMESTAMP]), stamps=stamps)

    @property
    def elements(self) -> list[Any]:
        """The elements as Python objects: rows, or plain values.

        Rows are made from the columns, so a chained function gets what one behind an exchange would get. Whoever asks
        next gets them as they were, also if a function has changed one.

        Raises:
            OutputTypeError: The columns have a value that Python has not.
        """
        if self._elements is None or not self._adopted:
            found = [batch_to_elements(piece.batch, self.type, self.uid) for piece in self.fitting()]
            self._elements = found[0] if len(found) == 1 else list(chain.from_iterable(found))
            self._adopted = True
        elif CHANGES and self._given:
            self._elements = originals(self._elements)
        self._given = True
        return self._elements

    @property
    def columns(self) -> pa.RecordBatch | None:
        """The elements as columns if they are there, perhaps with values that are none of their types."""
        return self._batch

    @property
    def batch(self) -> pa.RecordBatch:
        """The elements as columns.

        Raises:
            OutputTypeError: An element does not match the declared type of the step that made it.
            ElementsTooLongError: They are more than a batch can hold; those of `fitting` are not.
        """
        if self._batch is None:
            assert self._elements is not None
            if CHANGES and self._given:
                self._elements = originals(self._elements)
            self._batch = elements_to_batch(self._elements, self.type, self.uid)
        return self._batch


# Columns in which elements cross an exchange between two stages.
#
# Reserved columns start with `__hf_`. `__hf_control` is null for elements and holds a marker (or nothing, for a tick)
# for control rows; `__hf_target` says to which task a row goes that is not placed by its key. The elements of a single
# edge stand in columns of their own names; where several edges cross the same exchange, each has one struct column. The
# engine adds `__hf_hash` on the way; the key of an edge with a Python selector travels in `__hf_key`, with its hash
# beside it. Times of day travel as numbers of nanoseconds, in keys and in parts of columns, too.

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


class RowLayout:
    """Packs the elements of the edges that cross one exchange into one schema, and unpacks them again."""

    def __init__(self, edges: Sequence[Edge]) -> None:
        self.edges = tuple(edges)
        self.flat = len(self.edges) == 1
        self._columns = [(edge, schema_with_nanos(edge_schema(edge))) for edge in self.edges]
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
        return Arrival(edge, batch if schema is None else nanos_to_times(batch, schema), hashes)


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
    """The column in a type that it may already have."""
    return column if column.type.equals(wanted) else column.cast(wanted)


# Elements that cross an exchange in messages: a message has many elements of one edge, all for one task.
#
# Between two Python stages Spark would make each element a row of the JVM, twice, only to carry it. So a task splits
# its elements by target itself and sends columns, each a binary value for Spark. What such a value is, its first byte
# says:
#
#     message    = "p" (1 byte), 0 (1), number of the edge (2, big endian), 0 (4), record batch as an Arrow IPC message
#     marker     = "m", see `marker`
#     tick       = nothing
#     ballast    = nothing
#
# Spark counts the rows that it hands to a task at once, and a few hundred messages of megabytes have killed a JVM. (It
# can look at their bytes too, but then it does after each row, and in a plan with messages are rows of sources as
# well.) So a message counts for more than one: before it come empty rows, one for so many of its bytes that what a task
# gets at once stays below some megabytes.
#
# The columns of the record batch are those of the edge, with the hash behind them if the edge has keys. No schema is
# sent: both sides have it from the plan. Edges into operators that order their rows cross as rows (`layout`).

PHASE: Final = f"{RESERVED}phase"
"""Rows of a task are read in its order, where broadcast elements come before the others."""

SCHEMA: Final = pa.schema([pa.field(CONTROL, pa.binary()), pa.field(TARGET, pa.int32()), pa.field(PHASE, pa.int32())])

_HEAD: Final = struct.Struct(">cxH4x")
_KIND: Final = b"p"
_ALIGNMENT: Final = 8
_ROWS: Final = 20_000
"""Elements that a step gets at once: more make no difference in speed, but in memory."""

_WORTH_A_STEP: Final = 5_000
"""Of messages with fewer elements on average, several become one."""

_MESSAGE_BYTES: Final = 4 << 20
_HELD_FOR_A_TASK: Final = 2 << 20
_HELD: Final = 32 << 20
_BATCH_BYTES: Final = 28 << 20
"""What a task gets at once has no more bytes, and a message: with one of 4 MB as many as Arrow makes room for."""


class MessageLayout:
    """Reads what crossed one exchange in messages.

    Args:
        edges: That cross it, in the order of the plan.
    """

    schema = SCHEMA

    def __init__(self, edges: Sequence[Edge]) -> None:
        self.edges = tuple(edges)
        self._schemas = [message_schema(edge) for edge in self.edges]
        self._order = sorted(range(len(self.edges)), key=lambda number: not self.edges[number].broadcast)

    def control(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """One control row for each task of the next stage."""
        return _batch(rows, list(range(len(rows))), 1)

    def unpack(self, batch: pa.RecordBatch) -> tuple[list[bytes], Iterable[Arrival]]:
        """Splits a batch that crossed the exchange into what tasks say and the elements of each edge.

        Raises:
            ValueError: Something in it is no message of this exchange.
        """
        controls: list[bytes] = []
        found: list[list[pa.RecordBatch]] = [[] for _ in self.edges]
        for content in _contents(batch.column(batch.schema.get_field_index(CONTROL))):
            if content[0] == _KIND[0]:
                number, elements = self._read(content)
                found[number].append(elements)
            else:
                controls.append(content.to_pybytes())
        return controls, (arrival for number in self._order for arrival in self._arrivals(number, found[number]))

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
            hashes = None
            if edge.key is not None:
                hashes = batch.column(batch.num_columns - 1).to_numpy().view(np.uint64)
                batch = batch.select(batch.schema.names[:-1])
            yield Arrival(edge, batch, hashes)


class MessageWriter:
    """Packs what one task sends through one exchange.

    Args:
        layout: Of the exchange.
        tasks: Number of tasks behind it.
        batch_rows: How many rows such a task gets at once.
    """

    def __init__(self, layout: MessageLayout, tasks: int, batch_rows: int) -> None:
        self._layout = layout
        self._row_bytes = -(-_BATCH_BYTES // batch_rows)
        self._held_at_most = min(_HELD, tasks * _HELD_FOR_A_TASK)
        self._numbers = {edge.name: number for number, edge in enumerate(layout.edges)}
        self._held: dict[tuple[int, tuple[int, ...] | None], _Held] = {}

    def add(self, edge: Edge, batch: pa.RecordBatch, targets: Sequence[int | None]) -> Iterator[pa.RecordBatch]:
        """Takes elements in the columns of their edge, and yields what is ready to be sent.

        Args:
            edge: The edge.
            batch: The elements.
            targets: The tasks that get them; None for the one that the key of each says.

        Raises:
            NullKeyError: An element has no key.
        """
        placed = None if edge.key is not None else tuple(target for target in targets if target is not None)
        where = self._numbers[edge.name], placed
        held = self._held.setdefault(where, _Held())
        held.batches.append(batch)
        held.size += batch.nbytes
        if held.size >= self._held_at_most:
            yield from self._send(*where, self._held.pop(where))

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yields what was held back so far."""
        held, self._held = self._held, {}
        for where, own in held.items():
            yield from self._send(*where, own)

    def _send(self, number: int, targets: tuple[int, ...] | None, held: _Held) -> Iterator[pa.RecordBatch]:
        edge = self._layout.edges[number]
        written = _Written(self._row_bytes)
        phase = 0 if edge.broadcast else 1
        for parts, elements in self._placed(edge, targets, held.batches):
            for piece in _pieces(elements):
                message = piece.serialize()
                for part in parts:
                    written.add(_HEAD.pack(_KIND, number), message, part)
                    if written.size >= _BATCH_BYTES:
                        yield written.batch(phase)
                        written = _Written(self._row_bytes)
        if written.tasks:
            yield written.batch(phase)

    def _placed(
        self, edge: Edge, targets: tuple[int, ...] | None, batches: list[pa.RecordBatch]
    ) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
        """Yields stretches of the elements with the tasks that get them."""
        schema = edge_schema(edge)
        arrays = [
            [as_type(column, field.type) for column, field in zip(b.columns, schema, strict=True)] for b in batches
        ]
        typed = [pa.RecordBatch.from_arrays(columns, schema=schema) for columns in arrays]
        for batch in pa.Table.from_batches(typed, schema).combine_chunks().to_batches():
            if edge.key is None:
                assert targets is not None
                yield targets, batch
            else:
                yield from _by_key(edge, batch)


class _Written:
    """Messages with their ballast, one after the other, as they stand in the column in which they are sent."""

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


class _Held:
    __slots__ = ("batches", "size")

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size = 0


def arriving_layout(stage: Stage) -> RowLayout | MessageLayout:
    """How elements arrive at a stage behind an exchange."""
    return (MessageLayout if stage.arrives_packed else RowLayout)(stage.arriving)


def leaving_layout(stage: Stage) -> RowLayout | MessageLayout | None:
    """How elements leave a stage, None if there is no exchange below it."""
    if not stage.leaving:
        return None
    return (MessageLayout if stage.leaves_packed else RowLayout)(stage.leaving)


def message_schema(edge: Edge) -> pa.Schema:
    """The columns of the messages of an edge."""
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
    order = np.argsort(targets, kind="stable")
    ordered = whole.take(pa.array(order))
    present, starts = np.unique(targets[order], return_index=True)
    for target, start, end in zip(present.tolist(), starts, [*starts[1:], len(targets)], strict=True):
        yield [target], ordered.slice(start, end - start)


def _hashes_of(edge: Edge, batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    assert edge.key is not None
    if edge.key.spec.selector is not None:
        given = batch.column(batch.schema.get_field_index(KEY_HASH)).to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(given).view(np.uint64)
    columns = [batch.column(batch.schema.get_field_index(name)) for name in edge.key.spec.columns]
    try:
        return hashes_of_columns(edge.key.codec, columns)
    except NullKeyError as error:
        raise NullKeyError(edge.consumer, row=error.row) from error


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the rows in pieces of a few megabytes; a row alone may have more.

    Rows of a piece need not be as long as the others, so it may have to be cut again.
    """
    parts = min(batch.num_rows, -(-batch.nbytes // _MESSAGE_BYTES))
    if parts <= 1:
        yield batch
        return
    rows = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, rows):
        yield from _pieces(batch.slice(start, rows))


def _contents(column: pa.Array) -> Iterator[pa.Buffer]:
    """The values of a column of bytes, where they lie, but for those without any."""
    if not len(column):
        return
    column = as_type(column, pa.binary())  # Spark may have been told to make large ones
    _, buffer, content = column.buffers()
    ends = np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    filled = np.flatnonzero(ends[1:] > ends[:-1])
    for start, end in zip(ends[filled].tolist(), ends[filled + 1].tolist(), strict=True):
        yield content.slice(start, end - start)


def _batch(contents: Sequence[bytes], targets: Sequence[int], phase: int) -> pa.RecordBatch:
    return _batch_of(pa.array(contents, pa.binary()), targets, phase)


def _batch_of(contents: pa.Array, targets: Sequence[int], phase: int) -> pa.RecordBatch:
    columns = [contents, pa.array(targets, pa.int32()), pa.array(np.full(len(targets), phase, np.int32))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
