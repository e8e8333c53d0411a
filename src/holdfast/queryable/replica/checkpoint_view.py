"""Views of completed checkpoints: queryable states, lookups and scans in them, and how they are built from files."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.errors import CorruptFileError, HoldfastError, StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange, hash_range
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.queryable.replica.layer import (
    ReplicaLayer,
    WantedKeys,
    empty_layer,
    find,
    group_by_run,
    is_put,
    layer_from_run,
    merge,
    total_rows,
    wanted_keys,
)
from holdfast.queryable.wire.errors import (
    BadRequestError,
    LimitExceededError,
    ServerFailureError,
    UnknownKvStateIdError,
)
from holdfast.queryable.wire.frame import to_header
from holdfast.queryable.wire.request import (
    VALUE,
    Condition,
    ScanRequest,
    StateDescription,
    scan_schema,
    without_classes,
)
from holdfast.state import batch
from holdfast.state.descriptor import StateKind
from holdfast.state.evolution import Form, find_conversion, forms_of
from holdfast.state.layout import Op, require_schema
from holdfast.state.probe import Hashes
from holdfast.state.run_file import RunHandle, RunReader, open_run
from holdfast.state.timer_service import TIMER_PREFIX
from holdfast.storage.job_directory import JobDirectory
from holdfast.types.key_codec import codec_from_json
from holdfast.types.opaque import seal_json
from holdfast.types.type_information import type_from_json

logger = get_logger(__name__)

SCALARS: Final = frozenset({StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING, StateKind.FOLDING})
MAX_LAYERS: Final = 6
ROWS_PER_BATCH: Final = 64 * 1024
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
Share = Callable[[int], tuple[KeyGroupRange, ...]]
"""Returns the key groups that a server serves, given the number of key groups."""


@dataclass
class StateView:
    """One state in one checkpoint, for the key groups that a server serves.

    Attributes:
        description: The description of the state.
        key_groups: The ranges that the server serves.
        layers: Its rows, oldest layer first. Merging replaces the tuple by one with the same meaning.
        damage: The error of every query, if a run is damaged or does not fit.
        forms: The forms of its values in files, the present form last; they differ after a schema change.
    """

    description: StateDescription
    key_groups: tuple[KeyGroupRange, ...]
    layers: tuple[ReplicaLayer, ...]
    damage: HoldfastError | None = None
    forms: tuple[Any, ...] = ()
    _newest_first: tuple[tuple[ReplicaLayer, ...], tuple[ReplicaLayer, ...]] = field(default=((), ()), repr=False)

    @cached_property
    def is_whole(self) -> bool:
        """Whether the server serves all key groups of the state."""
        return sum(served.size for served in self.key_groups) == self.description.max_parallelism

    @cached_property
    def missing_value(self) -> pa.Array:
        """The answer for one key that has no value."""
        return pa.nulls(1, self._value_type)

    def find_one(self, key_hash: int, key: bytes) -> pa.Array | None:
        """Return the value of one key as a column of one row, None if there is none.

        Only for scalar state without namespaces whose keys are whole bytes.

        Args:
            key_hash: The hash of the key.
            key: The bytes of the key in a request.
        """
        for layer in self._filled():
            hashes = layer.hash_view
            row = bisect_left(hashes, key_hash)
            while row < len(hashes) and hashes[row] == key_hash:
                raw = layer.raw_key
                assert raw is not None
                if raw(row) == key:
                    return layer.values.slice(row, 1) if layer.ops[row] == Op.PUT else None  # type: ignore[union-attr]
                row += 1
        return None

    def find_many(
        self, hashes: Hashes, keys: pa.Array, namespace: bytes | None, map_keys: pa.Array | None = None
    ) -> pa.Array:
        """Return the values of several keys, null where there is none.

        Args:
            hashes: The hash of each key.
            keys: The keys in comparable form.
            namespace: The namespace of all keys, None for state without namespaces.
            map_keys: The map key of each key, to return maps with this entry only; None for whole maps and other state.

        Raises:
            LimitExceededError: The values exceed the length of one column.
        """
        wanted = wanted_keys(hashes, keys, namespace)
        try:
            return self._scalars(wanted) if self.description.kind in SCALARS else self._merged(wanted, map_keys)
        except pa.ArrowInvalid as error:
            if "overflow" not in str(error):
                raise
            raise LimitExceededError(
                f"The values of these {len(wanted)} keys have more than {batch.COLUMN_BYTES} bytes together. Ask for "
                "fewer keys at once, or for single entries of a map."
            ) from error

    def _scalars(self, wanted: WantedKeys) -> pa.Array:
        position = np.full(len(wanted), -1)
        pieces: list[pa.Array] = []
        base = 0
        for layer in self._filled():
            found, rows = find(layer, wanted)
            if not len(found):
                continue
            assert layer.values is not None
            owners = wanted.order[found]
            if not layer.is_plain:
                values = is_put(layer, rows)
                rows, owners = rows[values], owners[values]
            pieces.append(layer.values.take(pa.array(rows)))
            position[owners] = np.arange(base, base + len(rows))
            base += len(rows)
            wanted = wanted.without(found)
            if not len(wanted):
                break
        if not base:
            return pa.nulls(len(position), self._value_type)
        together = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        missing = position < 0
        return together.take(pa.array(position, mask=missing) if missing.any() else pa.array(position))

    def _merged(self, wanted: WantedKeys, map_keys: pa.Array | None) -> pa.Array:
        parts = []
        for layer in self.layers:
            found, rows = find(layer, wanted)
            if len(rows):
                # From here on the hash of a row is the position of its key among the wanted keys.
                part = layer.take(rows, found.astype(np.uint64))
                parts.append(ReplicaLayer(part.runs, part.hashes, part.ops, None, None, part.map_keys, part.values))
        merged = merge(self.description.kind, parts, at_bottom=True)
        if self.description.kind is StateKind.LIST:
            values = self._as_lists(merged, len(wanted))
        else:
            if map_keys is not None and len(merged):
                merged = _entries(merged, map_keys.take(pa.array(wanted.order)))
            values = self._as_maps(merged, len(wanted))
        return values.take(pa.array(np.argsort(wanted.order)))

    def _as_lists(self, merged: ReplicaLayer, count: int) -> pa.Array:
        position = np.full(count, -1)
        position[merged.hashes.astype(np.int64)] = np.arange(len(merged))
        if merged.values is None:
            return pa.nulls(count, self._value_type)
        return merged.values.take(pa.array(position, mask=position < 0))

    def _as_maps(self, merged: ReplicaLayer, count: int) -> pa.Array:
        kind = self.description.arrow_schema.field(VALUE).type
        if merged.values is None:
            return pa.nulls(count, kind)
        sizes = np.bincount(merged.hashes.astype(np.int64), minlength=count)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        bounds = pa.array(offsets, mask=np.append(sizes == 0, False))
        assert merged.map_keys is not None
        maps = pa.MapArray.from_arrays(bounds, merged.map_keys.view(kind.key_type), merged.values)
        return maps.cast(kind) if maps.type != kind else maps

    def scan(
        self, key_groups: KeyGroupRange | None, rows: int = ROWS_PER_BATCH, max_bytes: int | None = None
    ) -> Iterator[ReplicaLayer]:
        """Return the present rows of a range of key groups, in layers of limited size.

        Args:
            key_groups: The range; None for all.
            rows: Approximate rows of a layer.
            max_bytes: Approximate bytes of a layer, which has fewer rows if they are long.

        Raises:
            BadRequestError: There are not so many key groups.
            UnknownKvStateIdError: This server does not serve all of the range.
        """
        maximum = self.description.max_parallelism
        wanted = key_groups if key_groups is not None else KeyGroupRange(0, maximum - 1)
        if wanted.end >= maximum:
            raise BadRequestError(f"There are {maximum} key groups; {wanted.end} is not one of them.")
        if sum(served.intersection(wanted).size for served in self.key_groups) != wanted.size:
            raise UnknownKvStateIdError(f"Not all of the key groups {wanted.start} to {wanted.end} are served here.")
        low, high = hash_range(wanted, maximum)
        layers = [layer.between(low, high) for layer in self.layers]
        if max_bytes is not None:
            size = sum(layer.nbytes for layer in layers)
            rows = max(1, min(rows, max_bytes * total_rows(layers) // max(1, size)))
        return self._merged_stretches(layers, rows)

    def _merged_stretches(self, layers: Sequence[ReplicaLayer], rows: int) -> Iterator[ReplicaLayer]:
        for stretch in _stretches([layer for layer in layers if len(layer)], rows):
            merged = merge(self.description.kind, stretch, at_bottom=True)
            if len(merged):
                yield merged

    def _filled(self) -> tuple[ReplicaLayer, ...]:
        """Return the layers that have rows, newest first."""
        layers = self.layers
        known = self._newest_first
        if known[0] is not layers:
            known = (layers, tuple(layer for layer in reversed(layers) if len(layer)))
            self._newest_first = known
        return known[1]

    @property
    def _value_type(self) -> pa.DataType:
        return self.description.arrow_schema.field(VALUE).type


def _entries(merged: ReplicaLayer, map_keys: pa.Array) -> ReplicaLayer:
    """Keep the rows with the wanted map key; the hashes of `merged` are positions in `map_keys`."""
    assert merged.map_keys is not None
    same = pc.equal(merged.map_keys, map_keys.take(pa.array(merged.hashes.astype(np.int64))))
    return merged.take(np.flatnonzero(same.to_numpy(zero_copy_only=False)))


def _stretches(layers: Sequence[ReplicaLayer], rows: int) -> Iterator[list[ReplicaLayer]]:
    """Cut layers at common hashes, so that each stretch has about so many rows in all.

    Every layer contributes bounds, as layers of different subtasks have no hashes in common.
    """
    if not layers:
        return
    starts = [0] * len(layers)
    for bound in chain(heapq.merge(*(layer.hashes[rows::rows] for layer in layers)), (None,)):
        ends = [len(layer) if bound is None else int(np.searchsorted(layer.hashes, bound)) for layer in layers]
        part = [layer.slice(*ends_) for layer, *ends_ in zip(layers, starts, ends, strict=True)]
        starts = ends
        if any(map(len, part)):
            yield [layer for layer in part if len(layer)]


def compacted(kind: StateKind, layers: tuple[ReplicaLayer, ...]) -> tuple[ReplicaLayer, ...]:
    """Merge the newest layers, as few rows as possible, so that at most `MAX_LAYERS` are left.

    A row is merged about as often as its layer doubles, so the total cost of merging grows with the logarithm of the
    number of rows.
    """
    groups = group_by_run(layers)
    if len(groups) <= MAX_LAYERS:
        return layers
    start, rows, size = len(groups), 0, 0
    while start > 0:
        layer, *rest = groups[start - 1]
        size += layer.nbytes
        # Layers that are too long for one array are not merged; compaction of the runs limits their number.
        if rest or size > batch.BATCH_BYTES:
            break
        if rows and start < MAX_LAYERS and len(layer) > 2 * rows:
            break
        start -= 1
        rows += len(layer)
    if len(groups) - start < 2:
        return layers
    merged = merge(kind, [layer for layer, *_ in groups[start:]], at_bottom=start == 0)
    return (*(layer for group in groups[:start] for layer in group), merged)


class RunningScan:
    """A running scan of all rows of a state, or those that meet conditions; used by one thread at a time.

    Args:
        state: The state. The scan keeps its layers in memory until it ends.
        request: The request.
        message_bytes: Size limit of a batch.

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
            LimitExceededError: A single row exceeds the size limit.
            HoldfastError: A file is damaged.
        """
        try:
            layer = next(self._source, None)
            if layer is None:
                return None
            batch = filter_rows(to_record_batch(layer, self._description), self._conditions)
            return self._parts(batch) if batch.num_rows else []
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise ServerFailureError(
                f"The rows of state {self._description.name!r} are damaged: {error!r:.200}."
            ) from error

    def _check(self) -> None:
        for _, operator, _ in self._conditions:
            if operator not in _COMPARISONS:
                raise BadRequestError(f"Unknown operator {operator!r:.40}. Use one of: {' '.join(_COMPARISONS)}.")
        try:
            filter_rows(pa.RecordBatch.from_pylist([], schema=scan_schema(self._description)), self._conditions)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadRequestError(
                f"The conditions {list(self._conditions)!r:.200} do not fit the columns: {error!s:.500}"
            ) from error

    def _parts(self, batch: pa.RecordBatch) -> list[Any]:
        """Split the batch into messages below the size limit."""
        content = batch.serialize()
        if content.size <= self._limit:
            return [content]
        if batch.num_rows == 1:
            raise LimitExceededError(f"One row has {content.size} bytes, the limit is {self._limit}.")
        step = math.ceil(batch.num_rows / min(batch.num_rows, 2 * math.ceil(content.size / self._limit)))
        slices = [batch.slice(at, step) for at in range(0, batch.num_rows, step)]
        return [part for piece in slices for part in self._parts(piece)]


def to_record_batch(layer: ReplicaLayer, description: StateDescription) -> pa.RecordBatch:
    """Return the rows of a layer with the columns of a scan."""
    schema = scan_schema(description)
    columns = {"key": layer.keys, "namespace": layer.namespaces, "map_key": layer.map_keys, VALUE: layer.values}
    arrays = []
    for column in schema:
        array = columns[column.name]
        if array is None:
            raise TypeError(f"there is no column {column.name!r}")
        arrays.append(array if array.type == column.type else array.view(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_columns(layer: ReplicaLayer, description: StateDescription) -> None:
    """Check that a layer has the columns of its state.

    Raises:
        pyarrow.ArrowException or TypeError: It has not.
    """
    if len(layer):
        to_record_batch(layer.slice(0, 1), description)


def filter_rows(batch: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    if not conditions:
        return batch
    masks = []
    for path, operator, operand in conditions:
        column = _column_at(batch, path)
        masks.append(_COMPARISONS[operator](column, _operand(operand, column.type)))
    mask = masks[0]
    for other in masks[1:]:
        mask = pc.and_(mask, other)
    return batch.filter(mask)


def _operand(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Convert a value to the column's type, so that a string can be compared with a date; if that fails, keep it."""
    scalar = pa.scalar(value)
    try:
        return scalar.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return scalar


def _column_at(batch: pa.RecordBatch, path: str) -> pa.Array:
    name, *fields = path.split(".")
    if name not in batch.schema.names:
        raise KeyError(f"no column {name!r}; columns are {batch.schema.names!r}")
    column = batch.column(name)
    for part in fields:
        column = pc.struct_field(column, part)
    return column


@dataclass(frozen=True)
class CheckpointView:
    """The queryable states of one completed checkpoint.

    Attributes:
        job_id: 32 hexadecimal digits.
        job_name: The job's name.
        checkpoint_id: The checkpoint.
        epoch: The epoch after which the state was taken.
        lineage: The line of checkpoints that it belongs to; a restore begins a new one.
        completed_at: Milliseconds since 1970.
        states: The states by the name under which they are queried.
    """

    job_id: str
    job_name: str
    checkpoint_id: int
    epoch: int
    lineage: str
    completed_at: int
    states: Mapping[str, StateView]

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The header fields of every answer, which identify the checkpoint."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "epoch": self.epoch,
            "lineage": self.lineage,
            "completed_at": self.completed_at,
        }

    @cached_property
    def answer_headers(self) -> dict[str, bytes]:
        """The encoded header of answers, by state."""
        return {
            name: to_header(self.identity | {"state": view.description.fingerprint})
            for name, view in self.states.items()
        }


@dataclass(frozen=True)
class _ReadPlan:
    """How to read the runs of a state: its description, the forms of its values, and the key groups to read."""

    description: StateDescription
    forms: Sequence[Form]
    key_groups: tuple[KeyGroupRange, ...]


class ViewBuilder:
    """Builds views of the checkpoints of one job from their documents and the footers of their runs.

    Views share layers: only runs that no earlier view had are opened.

    Args:
        directory: The job's directory.
        share: The key groups to serve.
    """

    def __init__(self, directory: JobDirectory, share: Share) -> None:
        self._directory = directory
        self._share = share
        self._schemas: dict[str, Mapping[str, Mapping[str, Any]]] = {}
        self._clashes: set[tuple[str, str]] = set()

    def build(self, metadata: CheckpointMetadata, before: CheckpointView | None) -> CheckpointView:
        """Return the view of a checkpoint.

        Args:
            metadata: The checkpoint's document.
            before: A view whose layers are reused where the runs are the same.

        Raises:
            HoldfastError: A footer is damaged or missing.
        """
        states: dict[str, StateView] = {}
        for operator in metadata.operators:
            if operator.key is None:
                continue
            for state, schema in self._queryable(operator).items():
                name = str(schema["queryable"])
                if name in states:
                    self._report_clash(name, operator.uid, states[name].description.uid)
                    continue
                known = before.states.get(name) if before is not None else None
                states[name] = self._view(operator, state, name, schema, known)
        return CheckpointView(
            metadata.job_id,
            metadata.job_name,
            metadata.checkpoint_id,
            metadata.epoch,
            metadata.incarnation,
            metadata.completed_at,
            states,
        )

    def forget(self, kept: Iterable[CheckpointMetadata]) -> None:
        """Forget the runs that none of these checkpoints names."""
        paths = {run.path for metadata in kept for operator in metadata.operators for run in operator.runs}
        for path in [path for path in self._schemas if path not in paths]:
            del self._schemas[path]

    def _queryable(self, operator: OperatorMetadata) -> dict[str, Mapping[str, Any]]:
        """Return the queryable states of an operator with their schema in the newest run that has them."""
        found: dict[str, Mapping[str, Any]] = {}
        for handle in reversed(operator.runs):
            for state, schema in self._schemas_of(handle).items():
                found.setdefault(state, schema)
        return {state: schema for state, schema in sorted(found.items()) if schema.get("queryable")}

    def _schemas_of(self, handle: RunHandle) -> Mapping[str, Mapping[str, Any]]:
        known = self._schemas.get(handle.path)
        if known is None:
            run = self._open(handle)
            segments = ((name, run.segment(name)) for name in run.segment_names() if not name.startswith(TIMER_PREFIX))
            known = {name: segment.entry.schema for name, segment in segments if segment is not None}
            for name, schema in known.items():
                require_schema(schema, name, run.path)
            self._schemas[handle.path] = known
        return known

    def _view(
        self,
        operator: OperatorMetadata,
        state: str,
        name: str,
        schema: Mapping[str, Any],
        before: StateView | None,
    ) -> StateView:
        key_groups = self._share(operator.max_parallelism)
        try:
            description = _describe(operator, state, name, schema)
        except StateMigrationError as error:
            where = f"State {state!r:.80} of operator {operator.uid!r:.80} in {self._directory.path!r}"
            raise StateMigrationError(f"{where}: {error}") from error
        forms = forms_of(seal_json(schema))
        seen = tuple(form.to_json() for form in forms)
        fits = before is not None and (before.description, before.key_groups, before.forms) == (
            description,
            key_groups,
            seen,
        )
        known = before.layers if fits and before else ()
        try:
            layers = self._layers(operator, state, _ReadPlan(description, forms, key_groups), known)
        except HoldfastError as error:
            logger.error(  # noqa: TRY400 - the message says what to do; a stack adds nothing
                "State %r of job %s cannot be queried: %s", name, self._directory.job_id, error
            )
            return StateView(description, key_groups, (), error, seen)
        return StateView(description, key_groups, layers, None, seen)

    def _layers(
        self, operator: OperatorMetadata, state: str, reading: _ReadPlan, known: Sequence[ReplicaLayer]
    ) -> tuple[ReplicaLayer, ...]:
        ids = [run.path for run in operator.runs]
        by_first = {group[0].runs[0]: group for group in group_by_run(known)}
        layers: list[ReplicaLayer] = []
        at = 0
        while at < len(ids):
            group: Sequence[ReplicaLayer] | None = by_first.get(ids[at])
            if group is None or group[0].runs != tuple(ids[at : at + len(group[0].runs)]):
                group = self._of_run(operator.runs[at], state, reading)
            layers += group
            at += len(group[0].runs)
        return tuple(layers)

    def _of_run(self, handle: RunHandle, state: str, reading: _ReadPlan) -> Sequence[ReplicaLayer]:
        """Return the rows of a run as layers. Only the first layer names the run."""
        ranges = [held for held in reading.key_groups if held.intersection(handle.range)]
        if not ranges or not handle.rows.get(state):
            return [empty_layer((handle.path,))]
        run = self._open(handle)
        segment = run.segment(state)
        if segment is None:
            raise CorruptFileError(
                run.path, None, f"it has no state {state!r:.80}, though the checkpoint counts rows of it."
            )
        convert = find_conversion(seal_json(segment.entry.schema), reading.forms, reading.description.kind)
        if convert is not None:
            convert.verify(state, handle.path)
        layers: list[ReplicaLayer] = []
        try:
            for part in segment.parts:
                runs = () if layers else (handle.path,)
                stretches = [layer_from_run(runs, part, held, convert) for held in ranges]
                layers.append(_joined([one for one in stretches if len(one)] or stretches[:1]))
                check_columns(layers[-1], reading.description)
        except (pa.ArrowException, *PARSE_ERRORS) as error:
            raise CorruptFileError(
                run.path, None, f"its rows of state {state!r:.80} cannot be read: {error!r:.200}."
            ) from error
        return layers

    def _open(self, handle: RunHandle) -> RunReader:
        return open_run(self._directory.fs, self._directory.path, handle)

    def _report_clash(self, name: str, second: str, first: str) -> None:
        if (name, second) not in self._clashes:
            self._clashes.add((name, second))
            logger.error(
                "Registration name clash: queryable state %r of operator %r has already been registered by operator "
                "%r, which keeps it. Give one of them another name.",
                name,
                second,
                first,
            )


def _joined(parts: Sequence[ReplicaLayer]) -> ReplicaLayer:
    """Concatenate stretches of one run, whose hashes ascend from one to the next."""
    if len(parts) == 1:
        return parts[0]

    def column(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else pa.concat_arrays(arrays)

    return ReplicaLayer(
        parts[0].runs,
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.ops for part in parts]),
        column("keys"),
        column("namespaces"),
        column("map_keys"),
        column("values"),
    )


def _describe(operator: OperatorMetadata, state: str, name: str, schema: Mapping[str, Any]) -> StateDescription:
    kind = StateKind(schema["kind"])
    arrow = type_from_json(without_classes(schema["type"])).arrow_type
    if kind is StateKind.LIST:
        arrow = pa.list_(arrow)
    elif kind is StateKind.MAP:
        arrow = pa.map_(codec_from_json(without_classes(schema["map_key"])).storage_type, arrow)
    return StateDescription(
        name,
        state,
        operator.uid,
        operator.operator_id,
        kind,
        operator.max_parallelism,
        operator.key,
        schema["type"],
        schema["map_key"],
        schema["namespace"] is not None,
        pa.schema([(VALUE, arrow)]).serialize().to_pybytes(),
    )
