"""The rows of states, sorted and written as one run for a range of key groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import StateError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of, range_of
from holdfast.runtime.function.sink import owner_of
from holdfast.state.compaction.rows import Sorted
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.column_layout import MAP_KEY, NAMESPACE, OP, STAMP, VALUE, Op
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, RunHandle
from holdfast.state.run.run_footer import RunMeta
from holdfast.state.run.run_writer import SegmentData, write_run
from holdfast.state.timer.stored_timers import TIMESTAMP
from holdfast.state.timer.timer_service import EVENT, PROCESSING, TIMER_PREFIX
from holdfast.state_processor.form.state_form import StateForm
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import SHARED
from holdfast.storage.job.naming import FileName
from holdfast.types.key.abstract_key_codec import KeyCodec

_GROUP: Final = "key_group"

Forms = Mapping[str, StateForm]
Rows = Mapping[str, pa.Table]


@dataclass(frozen=True)
class RunPlace:
    """Where the runs of one operator go; it can be pickled.

    Attributes:
        root: The directory of the savepoint.
        uid: The operator.
        key: Codec of its keys.
        max_parallelism: Number of key groups.
        parallelism: Into how many ranges they are cut.
        token, epoch: Of the savepoint.
        least_timers: By time domain the least timer there is in older runs.
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
        """Return the key groups of a part."""
        return range_of(subtask, self.max_parallelism, self.parallelism)

    def new_path(self, subtask: int) -> str:
        """Return the path of a new run, which no other attempt has."""
        name = FileName.new(self.token, self.epoch, 0, owner_of(self.uid), subtask)
        return f"{SHARED}/{name.format()}"


def parts_of(rows: pa.Table, place: RunPlace) -> list[pa.Table]:
    """Cut rows by the parts of their key groups; the order within each stays."""
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
        place: Where.
        subtask: The part.
        forms: The states, by name.
        rows: Their rows, in any order; those of lists of one key in the order of the list.
        older: Rows of some of the states that count where there are no others about the same thing.

    Returns:
        None if there are no rows.

    Raises:
        StateError: Two rows are about the same thing, or a row belongs to another part.
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
        ordered = Sorted([rows.append_column(_GROUP, pa.array(groups))], [*by, HASH])
        return SegmentData(ordered.table(ordered.first_of(by)).drop_columns([_GROUP]), form.schema)
    by = _identity(form, rows)
    ordered = Sorted([rows], by)
    first = ordered.first_of(by)
    table = ordered.table()
    if form.kind is StateKind.LIST:
        return SegmentData(table if first.all() else _joined(table, by, first), form.schema)
    if not first.all():
        raise _twice(form, table.slice(int(np.argmin(first)), 1))
    return SegmentData(table, form.schema)


def _over(form: StateForm, segment: SegmentData, below: pa.Table) -> SegmentData:
    by = _identity(form, below)
    both = Sorted([segment.table, below.select(segment.table.column_names)], by)
    return SegmentData(both.table(both.first_of(by)), form.schema)


def _identity(form: StateForm, rows: pa.Table) -> list[str]:
    """The columns that say what a row is about."""
    cell = [HASH, KEY, NAMESPACE] if NAMESPACE in rows.column_names else [HASH, KEY]
    return [*cell, MAP_KEY] if form.kind is StateKind.MAP else cell


def _joined(table: pa.Table, cell: Sequence[str], first: npt.NDArray[np.bool_]) -> pa.Table:
    """The lists of rows about the same cell, one after the other."""
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
