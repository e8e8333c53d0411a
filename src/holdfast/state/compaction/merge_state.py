"""Merging the segments of one state: the result says about older runs, and about nothing else, what all of them say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import StateMigrationError
from holdfast.state.compaction.rows import Mask, Positions, Sorted, parts_by_hash
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.column_layout import MAP_KEY, NAMESPACE, OP, STAMP, TIME_TO_LIVE, VALUE, Op
from holdfast.state.layout.evolution import TTL, Conversion, conversion, forms_of
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, Segment
from holdfast.state.run.run_writer import SegmentData

_MUST_AGREE: Final = ("kind", "map_key", "namespace")


def merge_state(
    segments: Sequence[tuple[Segment, slice]], is_oldest: bool, now: int | None, newest: Mapping[str, Any] | None = None
) -> SegmentData | None:
    """Merge the segments of one state.

    Args:
        segments: Segments and their rows, newest first.
        is_oldest: Whether there are no older runs, so that nothing has to be deleted there any more.
        now: Processing time in milliseconds; what has expired by then is dropped if there are no older runs. None to
            drop nothing.
        newest: What the newest run there is says about the state, if it is not one of these: it decides how long
            values live.

    Returns:
        None if nothing is left.

    Raises:
        StateMigrationError: The runs do not agree about kind and types.
    """
    schema = segments[0][0].entry.schema
    for segment, _ in segments:
        for part in _MUST_AGREE:
            if segment.entry.schema.get(part) != schema.get(part):
                raise StateMigrationError(
                    f"The runs of state {segment.entry.name!r} were written with different types ({part}), so they "
                    "cannot be compacted into one; a savepoint in canonical form brings them into one form."
                )
    forms, kind = forms_of(schema), StateKind(schema["kind"])
    conversions = [conversion(segment.entry.schema, forms, kind) for segment, _ in segments]
    merge = _MERGES.get(schema["kind"], _merge_scalars)
    lives = (schema if newest is None else newest).get(TIME_TO_LIVE) if schema[TTL] else None
    expired = now - lives if is_oldest and lives and now is not None else None
    merged = []
    for tables in parts_by_hash(segments):
        merged.append(merge([_converted(*pair) for pair in zip(tables, conversions, strict=True)], is_oldest, expired))
    table = pa.concat_tables(merged)
    # What older runs have is read by what the newest one says, even where it has no rows.
    return SegmentData(table, schema) if table.num_rows or not is_oldest else None


def _converted(table: pa.Table, convert: Conversion | None) -> pa.Table:
    """Bring the rows of an older form into that of the newest run."""
    if convert is None:
        return table
    one = table.combine_chunks()
    columns = {name: _joined(one, name) for name in one.column_names}
    value, stamp = convert.convert(columns[VALUE], columns.pop(STAMP, None), columns[OP])
    before = {name: array for name, array in columns.items() if name not in (VALUE, OP)}
    return pa.table(before | {VALUE: value} | ({} if stamp is None else {STAMP: stamp}) | {OP: columns[OP]})


def _joined(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _cell(table: pa.Table) -> list[str]:
    return [HASH, KEY, NAMESPACE] if NAMESPACE in table.column_names else [HASH, KEY]


def _merge_scalars(tables: Sequence[pa.Table], is_oldest: bool, expired: int | None) -> pa.Table:
    by = _cell(tables[0])
    rows = Sorted(tables, by)
    keep = rows.first_of(by)
    if is_oldest:
        keep &= rows.ops() == Op.PUT
        keep &= _unexpired(rows, expired)
    return rows.table(keep)


def _merge_maps(tables: Sequence[pa.Table], is_oldest: bool, expired: int | None) -> pa.Table:
    by = _cell(tables[0])
    # The map key of a clear is null, so it stands before the entries.
    rows = Sorted(tables, [*by, MAP_KEY])
    ops = rows.ops()
    first = rows.first_of([*by, MAP_KEY])
    starts = rows.first_of(by)
    cell = np.cumsum(starts) - 1
    is_clear = ops == Op.CLEAR
    cleared = np.where(is_clear[starts], rows.age[starts], len(tables))[cell]
    # The entries of the run that clears are newer than its clear.
    keep = first & (rows.age <= cleared)
    keep &= ~((ops == Op.DELETE) & (cleared < len(tables)))
    if is_oldest:
        keep &= ops == Op.PUT
        keep &= _unexpired(rows, expired)
    return rows.table(keep)


def _unexpired(rows: Sorted, expired: int | None) -> Mask | bool:
    if expired is None:
        return True
    stamps = rows.column(STAMP).fill_null(expired + 1)
    alive: Mask = stamps.to_numpy() > expired
    return alive


def _merge_lists(tables: Sequence[pa.Table], is_oldest: bool, expired: int | None) -> pa.Table:
    by = _cell(tables[0])
    rows = Sorted(tables, by)
    ops = rows.ops()
    starts = rows.first_of(by)
    cell = np.cumsum(starts) - 1
    # Rows count up to the newest one that does not append.
    ends = ops != Op.APPEND
    before = np.cumsum(ends) - ends
    counted = before == before[starts][cell]
    heads = np.flatnonzero(starts)
    used = np.flatnonzero(counted)
    # Oldest first within each cell, the cells in order.
    used = used[np.lexsort((-used, cell[used]))]
    replaced = np.zeros(len(heads), bool)
    replaced[cell[counted & ends]] = True
    table = rows.table()
    columns, lengths = _concatenated(table, used, cell[used], len(heads), expired)
    result = np.where(replaced | is_oldest, Op.PUT, Op.APPEND).astype(np.int8)
    result[replaced & (lengths == 0)] = Op.DELETE
    merged = table.select(by).take(pa.array(heads))
    for name in table.column_names:
        if name not in by:
            column = pa.array(result) if name == OP else columns[name]
            merged = merged.append_column(table.schema.field(name), column)
    return merged.filter(pa.array(lengths > 0)) if is_oldest else merged


def _concatenated(
    table: pa.Table, used: Positions, cell: Positions, cells: int, expired: int | None
) -> tuple[Mapping[str, pa.Array], Positions]:
    """Put the lists of some rows together, those of one cell into one."""
    taken = {
        name: table.column(name).take(pa.array(used)).combine_chunks()
        for name in (VALUE, STAMP)
        if name in table.column_names
    }
    sizes = pc.list_value_length(taken[VALUE]).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    owner = np.repeat(cell, sizes)
    flat = {name: array.flatten() for name, array in taken.items()}
    if expired is not None and STAMP in flat:
        alive = flat[STAMP].to_numpy(zero_copy_only=False) > expired
        flat = {name: array.filter(pa.array(alive)) for name, array in flat.items()}
        owner = owner[alive]
    lengths = np.bincount(owner, minlength=cells).astype(np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    joined = {name: pa.ListArray.from_arrays(offsets, flat[name]).cast(table.schema.field(name).type) for name in taken}
    return joined, lengths


_Merge = Callable[[Sequence[pa.Table], bool, int | None], pa.Table]
_MERGES: Final[Mapping[str, _Merge]] = {StateKind.MAP.value: _merge_maps, StateKind.LIST.value: _merge_lists}
