"""Scans: all rows of a state, or those that meet conditions, as Arrow batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.queryable.replica.layer import ReplicaLayer
from holdfast.queryable.replica.state_view import StateView
from holdfast.queryable.wire.description import VALUE, StateDescription
from holdfast.queryable.wire.errors import BadRequestError, LimitExceededError, ServerFailureError
from holdfast.queryable.wire.request import ScanRequest
from holdfast.state.declaration.descriptor import StateKind

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
Condition = tuple[str, str, Any]


class RunningScan:
    """A scan under way; used by one thread at a time.

    Args:
        state: The state, whose layers it keeps until it ends.
        request: What to return.
        message_bytes: Largest batch.

    Raises:
        BadRequestError: A condition does not fit the columns.
    """

    def __init__(self, state: StateView, request: ScanRequest, message_bytes: int) -> None:
        self._description = state.description
        self._conditions = request.where
        self._limit = message_bytes
        self._check()
        self._source = state.scan(request.key_groups, request.batch_rows, message_bytes)

    def next(self) -> list[Any] | None:
        """Return the next batches, serialized without a schema; None at the end.

        Raises:
            LimitExceededError: A single row is larger than a message.
            HoldfastError: A file is damaged.
        """
        try:
            layer = next(self._source, None)
            if layer is None:
                return None
            batch = matching(rows_of(layer, self._description), self._conditions)
            return self._parts(batch) if batch.num_rows else []
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise ServerFailureError(
                f"The rows of state {self._description.name!r} are none: {error!r:.200}."
            ) from error

    def _check(self) -> None:
        for _, operator, _ in self._conditions:
            if operator not in _COMPARISONS:
                raise BadRequestError(f"There is no operator {operator!r:.40}; these are: {' '.join(_COMPARISONS)}.")
        try:
            matching(pa.RecordBatch.from_pylist([], schema=scan_schema(self._description)), self._conditions)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadRequestError(
                f"The conditions {list(self._conditions)!r:.200} do not fit the columns: {error!s:.500}"
            ) from error

    def _parts(self, batch: pa.RecordBatch) -> list[Any]:
        """The batch as messages below the limit."""
        content = batch.serialize()
        if content.size <= self._limit:
            return [content]
        if batch.num_rows == 1:
            raise LimitExceededError(f"One row has {content.size} bytes, the limit is {self._limit}.")
        step = math.ceil(batch.num_rows / min(batch.num_rows, 2 * math.ceil(content.size / self._limit)))
        slices = [batch.slice(at, step) for at in range(0, batch.num_rows, step)]
        return [part for piece in slices for part in self._parts(piece)]


def scan_schema(description: StateDescription) -> pa.Schema:
    """Return the columns of a scan: key, namespace and map key where the state has them, value."""
    fields = [("key", description.key_codec.storage_type)]
    if description.namespaced:
        fields.append(("namespace", pa.binary()))
    value = description.arrow_schema.field(VALUE).type
    if description.kind is StateKind.MAP:
        fields.append(("map_key", value.key_type))
        value = value.item_type
    return pa.schema([*fields, (VALUE, value)])


def rows_of(layer: ReplicaLayer, description: StateDescription) -> pa.RecordBatch:
    """Return the rows of a layer with the columns of a scan."""
    schema = scan_schema(description)
    columns = {"key": layer.keys, "namespace": layer.namespaces, "map_key": layer.map_keys, VALUE: layer.values}
    arrays = []
    for field in schema:
        array = columns[field.name]
        if array is None:
            raise TypeError(f"there is no column {field.name!r}")
        arrays.append(array if array.type == field.type else array.view(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_columns(layer: ReplicaLayer, description: StateDescription) -> None:
    """Make sure that the rows of a layer have the columns of their state.

    Raises:
        pyarrow.ArrowException or TypeError: They have not.
    """
    if len(layer):
        rows_of(layer.slice(0, 1), description)


def matching(batch: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """Return the rows that meet all conditions."""
    if not conditions:
        return batch
    masks = []
    for path, operator, operand in conditions:
        column = _at(batch, path)
        masks.append(_COMPARISONS[operator](column, _operand(operand, column.type)))
    mask = masks[0]
    for other in masks[1:]:
        mask = pc.and_(mask, other)
    return batch.filter(mask)


def _operand(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A value in the column's type, so that a text can stand for a date; as it is where that would change it."""
    scalar = pa.scalar(value)
    try:
        return scalar.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return scalar


def _at(batch: pa.RecordBatch, path: str) -> pa.Array:
    name, *fields = path.split(".")
    if name not in batch.schema.names:
        raise KeyError(f"no column {name!r}, but {batch.schema.names!r}")
    column = batch.column(name)
    for field in fields:
        column = pc.struct_field(column, field)
    return column
