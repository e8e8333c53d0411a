"""Process the rows of a keyed table, here or in tasks: compute their keys, and write parts of their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError, NullKeyError, StateError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of, range_of
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.runtime.function.sink import owner_of
from holdfast.runtime.operator import OpenedSelector, OperatorInstance, OperatorSubtask, SubtaskInfo, user_error
from holdfast.runtime.window_operator.pane_operator import PaneSubtask
from holdfast.runtime.window_operator.window_subtask import WindowSubtask, subtask_class
from holdfast.state.backend import AbstractKeyedStateBackend, load_state_backend
from holdfast.state.compaction import SortedRows
from holdfast.state.descriptor import StateKind
from holdfast.state.environment import Environment
from holdfast.state.layout import MAP_KEY, NAMESPACE, OP, STAMP, VALUE, Op
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH, RunHandle, RunMeta, SegmentData, write_run
from holdfast.state.timer_service import EVENT, PROCESSING, TIMER_PREFIX
from holdfast.state.timers import TIMESTAMP
from holdfast.state.version import StateVersion
from holdfast.state_processor.state_form import StateColumns, StateForm, column_of, key_rows, state_rows, times_of
from holdfast.storage.job_directory import SHARED, FileName
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import Timestamps, batch_to_elements, timestamp_column
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import KeyCodec
from holdfast.types.program_classes import unpickle_program
from holdfast.types.type_information import TypeInformation

_GROUP: Final = "key_group"

Forms = Mapping[str, StateForm]
Rows = Mapping[str, pa.Table]
_ELEMENTS_AT_ONCE: Final = 8192
_THREADS: Final = 4


@dataclass(frozen=True)
class RunPlace:
    """The place of the runs of one operator; it can be pickled.

    Attributes:
        root: The directory of the savepoint.
        uid: The operator.
        key: Codec of its keys.
        max_parallelism: Number of key groups.
        parallelism: Number of ranges into which they are cut.
        token, epoch: Token and epoch of the savepoint.
        least_timers: Time of the earliest timer in older runs, by time domain.
    """

    root: str
    uid: str
    key: KeyCodec
    max_parallelism: int
    parallelism: int
    token: int
    epoch: int
    least_timers: Mapping[str, int | None]

    def range(self, subtask: int) -> KeyGroupRange:
        return range_of(subtask, self.max_parallelism, self.parallelism)

    def new_path(self, subtask: int) -> str:
        """Return a new path, different for each attempt."""
        name = FileName.new(self.token, self.epoch, 0, owner_of(self.uid), subtask)
        return f"{SHARED}/{name.format()}"


def split_by_part(rows: pa.Table, place: RunPlace) -> list[pa.Table]:
    """Split rows by the parts of their key groups; the order within each part stays."""
    if place.parallelism == 1:
        return [rows]
    groups = key_groups_of(rows.column(HASH).to_numpy(), place.max_parallelism).astype(np.int64)
    owners = (groups * place.parallelism // place.max_parallelism).astype(np.int16)
    order = np.argsort(owners, kind="stable")
    bounds = np.searchsorted(owners[order], np.arange(place.parallelism + 1))
    return [rows.take(pa.array(order[start:stop])) for start, stop in pairwise(bounds.tolist())]


def write_part(place: RunPlace, subtask: int, forms: Forms, rows: Rows, older: Rows | None = None) -> RunHandle | None:
    """Write the rows of states of one range of key groups as a run. Blocks.

    Args:
        place: The place of the run.
        subtask: The part.
        forms: The states, by name.
        rows: Their rows, in any order; those of lists of one key in the order of the list.
        older: Rows of some of the states that count where `rows` has none for the same key or entry.

    Returns:
        None if there are no rows.

    Raises:
        StateError: Two rows have the same key or entry, or a row belongs to another part.
        StorageError: It could not be written.
    """
    made = {name: segment_of(forms[name], table, place) for name, table in rows.items()}
    for name, below in (older or {}).items():
        made[name] = _over(forms[name], made[name], below)
    segments = {name: segment for name, segment in made.items() if segment.table.num_rows}
    if not segments:
        return None
    key_groups = place.range(subtask)
    for name, segment in segments.items():
        _require_range(name, segment.table, key_groups, place)
    least = {domain: _least(segments, domain, place.least_timers.get(domain)) for domain in (EVENT, PROCESSING)}
    meta = RunMeta(key_groups, place.max_parallelism, place.token, place.epoch, place.key.to_json(), least, {})
    return write_run(file_system_for(place.root), place.root, place.new_path(subtask), segments, meta)


def segment_of(form: StateForm, rows: pa.Table, place: RunPlace) -> SegmentData:
    """Return the rows of one state as a segment.

    Raises:
        StateError: Two rows are about the same thing.
    """
    if form.is_timers:
        groups = key_groups_of(rows.column(HASH).to_numpy(), place.max_parallelism)
        by = [_GROUP, TIMESTAMP, KEY, NAMESPACE]
        ordered = SortedRows([rows.append_column(_GROUP, pa.array(groups))], [*by, HASH])
        return SegmentData(ordered.table(ordered.first_of(by)).drop_columns([_GROUP]), form.schema)
    by = _identity(form, rows)
    ordered = SortedRows([rows], by)
    first = ordered.first_of(by)
    table = ordered.table()
    if form.kind is StateKind.LIST:
        return SegmentData(table if first.all() else _joined(table, by, first), form.schema)
    if not first.all():
        raise _twice(form, table.slice(int(np.argmin(first)), 1))
    return SegmentData(table, form.schema)


def _over(form: StateForm, segment: SegmentData, below: pa.Table) -> SegmentData:
    by = _identity(form, below)
    both = SortedRows([segment.table, below.select(segment.table.column_names)], by)
    return SegmentData(both.table(both.first_of(by)), form.schema)


def _identity(form: StateForm, rows: pa.Table) -> list[str]:
    """Return the columns that identify a row."""
    cell = [HASH, KEY, NAMESPACE] if NAMESPACE in rows.column_names else [HASH, KEY]
    return [*cell, MAP_KEY] if form.kind is StateKind.MAP else cell


def _joined(table: pa.Table, cell: Sequence[str], first: npt.NDArray[np.bool_]) -> pa.Table:
    """Concatenate the lists of rows of the same cell."""
    starts = np.flatnonzero(first)
    columns: dict[str, Any] = {name: table.column(name).take(pa.array(starts)) for name in cell}
    for name in (VALUE, STAMP):
        if name in table.column_names:
            lists = table.column(name).combine_chunks()
            offsets = np.concatenate([[0], np.cumsum(lists.value_lengths().to_numpy())])
            ends = offsets[np.append(starts, table.num_rows)].astype(np.int32)
            columns[name] = pa.ListArray.from_arrays(pa.array(ends), lists.flatten())
    return pa.table({**columns, OP: pa.array(np.full(len(starts), Op.PUT, np.int8))})


def _twice(form: StateForm, row: pa.Table) -> StateError:
    what = f"key {_shown_key(form.key, row)!r}"
    if form.kind is StateKind.MAP and form.map_key is not None:
        stored = row.column(MAP_KEY).combine_chunks()
        if not stored.null_count:
            what += f", map key {form.map_key.user_key(form.map_key.from_storage(stored)[0])!r}"
    return StateError(
        f"State {form.name!r} has two rows for {what}, so nobody knows which one counts: leave one of them out."
    )


def _shown_key(codec: KeyCodec, row: pa.Table) -> Any:
    return codec.user_key(codec.from_storage(row.column(KEY).combine_chunks())[0])


def _require_range(name: str, table: pa.Table, key_groups: KeyGroupRange, place: RunPlace) -> None:
    groups = key_groups_of(table.column(HASH).to_numpy(), place.max_parallelism)
    outside = np.flatnonzero((groups < key_groups.start) | (groups > key_groups.end))
    if len(outside):
        key = _shown_key(place.key, table.slice(int(outside[0]), 1))
        raise StateError(
            f"Key {key!r} of state {name!r} hashes to key group {groups[outside[0]]}, but came to the part of the key "
            f"groups {key_groups.start} to {key_groups.end}: another type of key than "
            f"{place.key.to_json()!r} has placed it."
        )


def _least(segments: Mapping[str, SegmentData], domain: str, before: int | None) -> int | None:
    times = [] if before is None else [before]
    for name, segment in segments.items():
        if name.startswith(f"{TIMER_PREFIX}{domain}_"):
            puts = segment.table.filter(pc.equal(segment.table.column(OP), Op.PUT.value))
            least: Any = pc.min(puts.column(TIMESTAMP)).as_py()
            times += [] if least is None else [least]
    return min(times, default=None)


@dataclass(frozen=True)
class PartWork:
    """The processing of the rows of one keyed table.

    Attributes:
        place: The place of runs.
        key_columns: Columns of the key; empty with a selector.
        selector: Pickled function of a row; None with columns.
        element_type: Type of the rows as elements, for functions.
        states: The states in its columns.
        by_row: Pickled operator that makes state of each row, and the function of its event time; None for columns.
        now: Processing time.
    """

    place: RunPlace
    key_columns: tuple[str, ...]
    selector: bytes | None
    element_type: TypeInformation
    states: tuple[StateColumns, ...] = ()
    by_row: bytes | None = None
    now: int = 0

    def select_columns(self, available: Sequence[str]) -> list[str]:
        """Return those of the available columns that are read, in their order."""
        if self.by_row is not None or self.selector is not None:
            return list(available)
        wanted = {*self.key_columns, *(name for state in self.states for name in state.names())}
        return [name for name in available if name in wanted]

    def keys(self, table: pa.Table) -> pa.Table:
        """Return `hash` and `key` of each row.

        Raises:
            NullKeyError: A key is null.
            OutputTypeError: A key is not of the declared type.
            UserFunctionError: The selector raised.
        """
        if self.selector is None:
            return key_rows(self.place.key, table, self.key_columns)
        codec, info = self.place.key, SubtaskInfo(uid=self.place.uid, name=self.place.uid, epoch=self.place.epoch)
        selector, classes = unpickle_program(self.selector)
        classes.use()
        opened = OpenedSelector(selector, info)
        select = opened.bind(info)
        try:
            elements = enumerate(self._elements(table))
            dict_keys = [codec.dict_key(self._selected(select, element, row)) for row, element in elements]
        finally:
            opened.close()
        return pa.table({HASH: codec.hashes(dict_keys), KEY: codec.storage_array(dict_keys)})

    def _selected(self, select: Callable[[Any], Any], element: Any, row: int) -> Any:
        try:
            key = select(element)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.place.uid, None, self.place.epoch, "computing a key") from error
        if key is None:
            raise NullKeyError(self.place.uid, row=row)
        return key

    def subtasks(self, keys: pa.Table) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the part of each row."""
        groups = key_groups_of(keys.column(HASH).to_numpy(), self.place.max_parallelism).astype(np.int64)
        return (groups * self.place.parallelism // self.place.max_parallelism).astype(np.int32)

    def write(self, subtask: int, keys: pa.Table, table: pa.Table) -> RunHandle | None:
        """Write the state of one part. Blocks.

        Args:
            subtask: The part.
            keys: `hash` and `key` of its rows.
            table: Its rows.

        Returns:
            None if there is no state.
        """
        if self.by_row is not None:
            return self._run(subtask, keys, table)
        forms = {state.form.name: state.form for state in self.states}
        rows = {state.form.name: state_rows(state, keys, table, self.now) for state in self.states}
        return write_part(self.place, subtask, forms, rows)

    def _elements(self, table: pa.Table) -> Iterator[Any]:
        for batch in table.to_batches():
            yield from batch_to_elements(batch, self.element_type)

    def _run(self, subtask: int, keys: pa.Table, table: pa.Table) -> RunHandle | None:
        assert self.by_row is not None
        place = self.place
        (spec, time_of), classes = unpickle_program(self.by_row)
        classes.use()
        info = SubtaskInfo(
            uid=place.uid,
            name=place.uid,
            subtask=subtask,
            parallelism=place.parallelism,
            max_parallelism=place.max_parallelism,
            epoch=place.epoch,
            processing_time=self.now,
        )
        backend = _backend(place, info)
        backend.open_version(StateVersion(), file_system_for(place.root), place.root)
        instance = OperatorInstance(spec, info, _backend(place, info))
        try:
            operator = subtask_class(spec, has_timestamps=time_of is not None)(instance, info, backend)
            for start in range(0, table.num_rows, _ELEMENTS_AT_ONCE):
                part = keys.slice(start, _ELEMENTS_AT_ONCE).combine_chunks()
                dict_keys = place.key.from_storage(column_of(part, KEY))
                hashes = part.column(HASH).to_numpy()
                rows = table.slice(start, _ELEMENTS_AT_ONCE).combine_chunks()
                _bootstrap(operator, time_of, rows, self.element_type, dict_keys, hashes)
            if isinstance(operator, PaneSubtask):
                operator.close(MIN_WATERMARK, self.now)
            run = backend.flush(lambda: place.new_path(subtask), place.token, place.epoch)
        finally:
            instance.close()
            backend.dispose()
        return run


def _bootstrap(
    operator: OperatorSubtask, time_of: Any, rows: pa.Table, kind: TypeInformation, dict_keys: Any, hashes: Any
) -> None:
    """Process rows by the operator that makes state of them."""
    info = operator.info
    times: Timestamps | None = None
    if isinstance(time_of, str):
        times = times_of(column_of(rows, time_of), time_of)
    elements: list[Any] = []
    if not isinstance(operator, PaneSubtask) or callable(time_of):
        elements = [element for batch in rows.to_batches() for element in batch_to_elements(batch, kind)]
    if callable(time_of):
        try:
            times = timestamp_column([time_of(element) for element in elements])
        except Exception as error:
            raise user_error(
                error, operator.info.uid, None, operator.info.epoch, "telling the time of a row"
            ) from error
    if isinstance(operator, PaneSubtask):
        operator.process_rows(rows.to_batches()[0], dict_keys, hashes, times)
        return
    emitted = operator.process(elements, dict_keys, hashes, times)
    if emitted and isinstance(operator, WindowSubtask):
        raise StateError(
            f"A window of operator {info.uid!r} is complete with the rows that are given and would emit "
            f"{emitted[0]!r:.200}, which no job would see: leave out the rows of windows that are over."
        )


def _backend(place: RunPlace, info: SubtaskInfo) -> AbstractKeyedStateBackend:
    environment = Environment(
        job_id="",
        operator=place.uid,
        subtask=info.subtask,
        parallelism=place.parallelism,
        max_parallelism=place.max_parallelism,
        processing_time=info.processing_time,
    )
    state_backend = load_state_backend(Configuration({"state.backend.type": "hashmap"}))
    return state_backend.create_keyed_state_backend(
        environment, "", place.uid, place.key, place.max_parallelism, place.range(info.subtask), None
    )


def write_here(work: PartWork, table: pa.Table) -> list[RunHandle]:
    """Write all parts of a table in this process, several at once. Blocks.

    Raises:
        HoldfastError: Something in it cannot be state; nothing names what was written.
    """
    table = table.select(work.select_columns(table.column_names))
    keys = work.keys(table)
    owners = work.subtasks(keys)
    order = np.argsort(owners.astype(np.int16), kind="stable")
    bounds = np.searchsorted(owners[order], np.arange(work.place.parallelism + 1)).tolist()

    def write(part: tuple[int, tuple[int, int]]) -> RunHandle | None:
        subtask, (start, stop) = part
        if start == stop:
            return None
        rows = pa.array(order[start:stop])
        return work.write(subtask, keys.take(rows), table.take(rows))

    parts = list(enumerate(pairwise(bounds)))
    if work.by_row is not None or len(parts) == 1:
        written = list(map(write, parts))
    else:
        with ThreadPoolExecutor(min(_THREADS, len(parts))) as pool:
            written = list(pool.map(write, parts))
    return [run for run in written if run is not None]


def element_type_of_table(table: pa.Table) -> TypeInformation:
    """Return the type of rows with the columns of a table, as functions get them.

    Raises:
        StateError: It has no columns.
    """
    from holdfast.types.type_parser import to_row_type

    if not table.column_names:
        raise StateError("A table without columns has no rows for a function.")
    found = to_row_type(table.schema)
    assert isinstance(found, RowTypeInformation)
    return found
