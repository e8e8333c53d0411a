"""Write all state of one operator of a savepoint from a transformation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import xxhash

from holdfast.checkpoint.metadata import WINDOWS, OperatorMetadata
from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel import fault
from holdfast.kernel.ids import JobID, OperatorID
from holdfast.runtime.function.sink import owner_of
from holdfast.runtime.graph.plan import window_format_of
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.operator import OperatorInstance, OperatorSubtask, SubtaskInfo
from holdfast.runtime.task.operator_state import TaskSnapshotStore
from holdfast.state.operator_snapshot import Mode, OperatorSnapshot
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH, RunHandle
from holdfast.state.timer_service import EVENT, PROCESSING
from holdfast.state.version import StateVersion
from holdfast.state_processor.bootstrap import (
    KeyBy,
    KeyedTable,
    OperatorTable,
    SourcePositions,
    StateBootstrapTransformation,
    as_table,
)
from holdfast.state_processor.part_work import PartWork, RunPlace, element_type_of_table, write_here
from holdfast.state_processor.state_form import StateColumns, StateForm, column_of, convert_column
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import SHARED, FileName, JobDirectory
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import batch_to_elements, elements_to_batch
from holdfast.types.composite import RowTypeInformation, StructTypeInformation
from holdfast.types.key_codec import KeyCodec, TaggedKeyCodec, key_codec_for
from holdfast.types.opaque import PickledTypeInformation
from holdfast.types.program_classes import pickle_program, unpickle_program
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_row_type, to_type

_INLINE = 20 * 1024
_OWNER: Final = "source"
_SUFFIX: Final = ".src"


@dataclass(frozen=True)
class SavepointTarget:
    """The savepoint that is written.

    Attributes:
        root: Its directory.
        job_id: The job.
        parallelism: Greatest number of parts into which keyed state is cut.
        token, epoch: Token and epoch of the savepoint.
        now: Processing time, in milliseconds.
    """

    root: str
    job_id: str
    parallelism: int
    token: int
    epoch: int
    now: int

    def place(
        self,
        uid: str,
        key: KeyCodec,
        max_parallelism: int,
        least_timers: Mapping[str, int | None] | None = None,
    ) -> RunPlace:
        """Return the place of the runs of an operator."""
        parallelism = min(self.parallelism, max_parallelism)
        least = least_timers or {}
        return RunPlace(self.root, uid, key, max_parallelism, parallelism, self.token, self.epoch, least)


@dataclass(frozen=True)
class _Table:
    """Data with the type of its rows."""

    table: pa.Table | None
    frame: Any
    row_type: TypeInformation
    columns: Mapping[str, TypeInformation] = field(default_factory=dict)


def write_operator(
    uid: str, transformation: StateBootstrapTransformation, max_parallelism: int, target: SavepointTarget
) -> OperatorMetadata:
    """Write the state of an operator, and return its entry of the document. Blocks.

    Raises:
        HoldfastError: Something cannot be its state.
    """
    transformation.require_distinct(uid)
    max_parallelism = transformation.max_parallelism or max_parallelism
    runs: list[RunHandle] = []
    codec: KeyCodec | None = None
    windows: Mapping[str, Any] = {}
    for keyed in transformation.keyed:
        data = _data(keyed.data, keyed.element_type)
        own = _codec(keyed.key, data)
        if codec is not None and own != codec:
            raise StateError(
                f"Tables for operator {uid!r} are keyed by {codec.to_json()!r} and by {own.to_json()!r}. An operator "
                "has one type of key: say it with key_type."
            )
        codec = own
        by_row = _by_row(keyed, data.row_type)
        if by_row is not None:
            windows = window_format_of(by_row[0]) or windows
        # The newest run of a range says when its next timer is due, also that of older runs.
        least = {domain: StateVersion(tuple(runs)).least_timer(domain) for domain in (EVENT, PROCESSING)}
        runs += _write_keyed(keyed, data, by_row, target.place(uid, own, max_parallelism, least), target.now)
    subtasks = _operator_state(uid, transformation.operator, target) if transformation.operator else None
    parallelism = min(target.parallelism, max_parallelism)
    return OperatorMetadata(
        uid=uid,
        operator_id=OperatorID.from_uid(uid).to_hex(),
        name=uid,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        key=None if codec is None else codec.to_json(),
        runs=tuple(runs),
        states={WINDOWS: dict(windows)} if windows else {},
        subtasks=() if subtasks is None else (subtasks, *[None] * (parallelism - 1)),
    )


def _data(data: Any, element_type: TypeInformation | None) -> _Table:
    table = as_table(data)
    if table is None and isinstance(data, list | tuple):
        kind = element_type or PickledTypeInformation()
        batch = elements_to_batch(list(data), kind)
        return _Table(pa.Table.from_batches([batch]), None, kind, _columns(kind))
    if table is not None:
        kind = element_type_of_table(table)
        return _Table(table, None, kind, _columns(kind))
    if not hasattr(data, "sparkSession"):
        raise ConfigurationError(
            f"State is made of an Arrow table, a Spark DataFrame or a list of elements, not of {type(data).__name__}."
        )
    from holdfast.spark.state_parts import row_type_of

    kind = row_type_of(data)
    return _Table(None, data, kind, _columns(kind))


def _columns(kind: TypeInformation) -> Mapping[str, TypeInformation]:
    return dict(zip(kind.names, kind.types, strict=True)) if isinstance(kind, RowTypeInformation) else {}


def _codec(key: KeyBy, data: _Table) -> KeyCodec:
    if key.selector is not None:
        return key_codec_for(key.key_type)
    missing = [name for name in key.columns if name not in data.columns]
    if missing:
        raise ConfigurationError(f"There are no columns {missing} to key by; there are {list(data.columns)}.")
    if key.untyped:
        return TaggedKeyCodec()
    types = [data.columns[name] for name in key.columns]
    # A column of rows is a key by itself, as in a job, and its fields have names of their own.
    names = () if len(types) == 1 and isinstance(types[0], StructTypeInformation) else key.columns
    if key.key_type is not None:
        return key_codec_for(key.key_type, names)
    return key_codec_for(types[0] if len(types) == 1 else RowTypeInformation(key.columns, types), names)


def _write_keyed(
    keyed: KeyedTable, data: _Table, by_row: tuple[OperatorSpec, Any] | None, place: RunPlace, now: int
) -> list[RunHandle]:
    if not keyed.states and not keyed.is_by_row:
        raise ConfigurationError(
            f"A table for operator {place.uid!r} is keyed, and nothing says what becomes of it: call to_state(), "
            "to_timers(), transform() or window()."
        )
    work = PartWork(
        place,
        keyed.key.columns,
        None if keyed.key.selector is None else pickle_program(keyed.key.selector),
        data.row_type,
        tuple(_state_columns(state, place) for state in keyed.states),
        None if by_row is None else pickle_program(by_row),
        now,
    )
    for state in work.states:
        unknown = [name for name in state.names() if name not in data.columns]
        if unknown:
            raise ConfigurationError(
                f"State {state.form.name!r} is to be in columns {unknown}, which are not there: {list(data.columns)}."
            )
    if data.table is not None:
        return write_here(work, data.table)
    return _write_by_spark(work, data)


def _by_row(keyed: KeyedTable, element_type: TypeInformation) -> tuple[OperatorSpec, Any] | None:
    """Return the operator that makes state of rows, and the function of their event time; None for state in columns."""
    if keyed.window is not None:
        return keyed.window.spec(element_type), keyed.window.time_of
    if keyed.function is not None:
        return OperatorSpec(keyed.function, "process", True, element_type, PickledTypeInformation()), None
    return None


def _state_columns(state: Any, place: RunPlace) -> StateColumns:
    if state.descriptor is None:
        form = StateForm.timers(state.domain, place.key, place.max_parallelism)
    else:
        form = StateForm.declared(state.descriptor, place.key)
    return StateColumns(form, state.value, state.map_key, None, state.stamp)


def _write_by_spark(work: PartWork, data: _Table) -> list[RunHandle]:
    from holdfast.spark.state_parts import write_parts

    def keys(table: pa.Table) -> Any:
        found = work.keys(table)
        return work.subtasks(found), found.column(HASH).to_numpy(), column_of(found, KEY)

    def write(part: int, hashes: Any, stored: pa.Array, rows: pa.Table) -> Any:
        run = work.write(part, pa.table({HASH: hashes, KEY: stored}), rows)
        return None if run is None else run.to_json()

    place = work.place
    columns = work.select_columns(list(data.columns))
    written = write_parts(data.frame, columns, place.parallelism, place.key.storage_type, keys, write)
    runs = [RunHandle.from_json(run) for run in written]
    return sorted(runs, key=lambda run: run.key_groups)


def _operator_state(uid: str, tables: Sequence[OperatorTable], target: SavepointTarget) -> Any:
    """Return the operator state, all of it in the first subtask."""
    backend = OperatorStateBackend(uid)
    directory = JobDirectory(
        file_system_for(target.root), target.root, JobID.from_hex(target.job_id), create_subdir=False
    )
    store = TaskSnapshotStore(directory, lambda: FileName.new(target.token, target.epoch, 0, owner_of(uid), 0), _INLINE)
    backend.restore(OperatorSnapshot({}), store)
    for given in tables:
        data = _data(given.data, given.element_type)
        table = data.table if data.table is not None else _collected(data.frame)
        if given.function is not None:
            _run_function(uid, given, data.row_type, table, backend, target)
        else:
            _fill(given, table, backend)
    snapshot = backend.snapshot(store)
    return None if snapshot is None else snapshot.to_json()


def _collected(frame: Any) -> pa.Table:
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    rows = [tuple(row) for row in frame.collect()]  # Spark 3.5
    return pa.Table.from_batches([elements_to_batch(rows, to_row_type(frame.schema))])


def _fill(given: OperatorTable, table: pa.Table, backend: OperatorStateBackend) -> None:
    descriptor: Any = given.descriptor
    column = convert_column(column_of(table, given.value), descriptor.type_info, descriptor.name, given.value)
    values = descriptor.type_info.to_list(column)
    if given.mode is Mode.BROADCAST:
        state = backend.get_broadcast_state(descriptor)
        state.put_all(zip(column_of(table, given.key).to_pylist(), values, strict=True))
        if len(list(state.keys())) != table.num_rows:
            raise StateError(f"Broadcast state {descriptor.name!r} has two rows for one key: leave one of them out.")
    elif given.mode is Mode.UNION:
        backend.get_union_list_state(descriptor).add_all(values)
    else:
        backend.get_list_state(descriptor).add_all(values)


def _run_function(
    uid: str,
    given: OperatorTable,
    element_type: TypeInformation,
    table: pa.Table,
    backend: OperatorStateBackend,
    target: SavepointTarget,
) -> None:
    function, _ = unpickle_program(pickle_program(given.function))
    spec = OperatorSpec(function, "process", False, element_type, to_type(None))
    info = SubtaskInfo(uid=uid, name=uid, epoch=target.epoch, processing_time=target.now)
    instance = OperatorInstance(spec, info, None)
    try:
        operator = OperatorSubtask(instance, info, None, backend)
        for batch in table.to_batches():
            operator.process(batch_to_elements(batch, element_type))
        operator.snapshot_state(1)
    finally:
        instance.close()


# Positions of sources, with the files that they need.


def write_positions(positions: SourcePositions, target: SavepointTarget) -> dict[str, Any]:
    """Write what sources remember, and return what the document says of all of it. Blocks.

    Static inputs of the job have not been read.

    Raises:
        StorageError: Something could not be written.
    """
    fs = file_system_for(target.root)
    handles = {}
    for name, content in positions.files.items():
        path = f"{SHARED}/{FileName.new(target.token, target.epoch, 0, _OWNER, 0).format(_SUFFIX)}"
        with fault.point("source.copy"):
            fs.create_exclusive(join(target.root, path), content)
        handles[name] = {"path": path, "size": len(content), "digest": xxhash.xxh3_64_hexdigest(content)}
    return {"streaming": {**positions.streaming, "sources": handles}, "static": []}
