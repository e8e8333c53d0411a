"""Which keys of a state two savepoints differ in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.compaction.rows import Sorted
from holdfast.state.layout.column_layout import MAP_KEY, NAMESPACE, STAMP, VALUE
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH
from holdfast.state_processor.read.state_table import StateTable

CHANGE: Final = "change"
BEFORE: Final = "before"
AFTER: Final = "after"
_ROW: Final = "_row"


def key_differences(before: StateTable, after: StateTable) -> Iterator[pa.Table]:
    """Yield a row for each key that differs; of maps for each entry, of windows for each key and namespace.

    The first table has no rows: it says which columns the others have.

    Columns: `change` (`added`, `removed`, `changed`), those of the state that say what a row is about, and `before` and
    `after`, null for none. That of time to live is no difference. Each key group is held in memory at once.

    Raises:
        StateMigrationError: The states have other kinds, keys or numbers of key groups, so no key is the same.
    """
    _require_comparable(before, after)
    yield _columns_of(before, after)
    names = [name for name in before.type.names if name not in (VALUE, STAMP)]
    ours, theirs = (replace(table, columns=tuple(names)) for table in (before, after))
    for group in (group for groups in before.operator.wanted_groups(None, before.keys) for group in groups):
        key_groups = KeyGroupRange(group, group)
        old, new = (_rows(table, key_groups) for table in (before, after))
        if old is not None or new is not None:
            yield from _compared(ours, theirs, old, new)


def _columns_of(before: StateTable, after: StateTable) -> pa.Table:
    fields = [field for field in after.type.arrow_schema if field.name not in (VALUE, STAMP)]
    sides = [pa.field(BEFORE, before.value_type), pa.field(AFTER, after.value_type)]
    return pa.schema([pa.field(CHANGE, pa.string()), *fields, *sides]).empty_table()


def _require_comparable(before: StateTable, after: StateTable) -> None:
    for what, one, other in (
        ("kind", before.form.kind, after.form.kind),
        ("keys", before.form.key.to_json(), after.form.key.to_json()),
        ("map keys", before.form.schema.get("map_key"), after.form.schema.get("map_key")),
        ("number of key groups", before.operator.metadata.max_parallelism, after.operator.metadata.max_parallelism),
    ):
        if one != other:
            raise StateMigrationError(
                f"State {before.form.name!r} of {before.operator.metadata.uid!r} has other {what} in both: {one!r} and "
                f"{other!r}. No key of one is a key of the other."
            )


def _rows(table: StateTable, key_groups: KeyGroupRange) -> pa.Table | None:
    found = list(table.operator.rows(table.form, key_groups, table.keys, expired=table.expired))
    return pa.concat_tables(found).combine_chunks() if found else None


def _compared(ours: StateTable, theirs: StateTable, old: pa.Table | None, new: pa.Table | None) -> Iterator[pa.Table]:
    some = old if old is not None else new
    assert some is not None
    identity = [name for name in (HASH, KEY, NAMESPACE, MAP_KEY) if name in some.column_names]
    sides = [_numbered(side, some, identity) for side in (new, old)]
    both = Sorted(sides, identity)
    table, first = both.table(), both.first_of(identity)
    starts = np.flatnonzero(first)
    count = np.diff(np.append(starts, len(both)))
    rows: npt.NDArray[np.int64] = table.column(_ROW).to_numpy()
    is_new = both.age[starts] == 0
    in_new = np.where(is_new, rows[starts], -1)
    last = np.minimum(starts + 1, len(both) - 1)
    in_old = np.where(count == 2, rows[last], np.where(is_new, -1, rows[starts]))
    changed = (in_new >= 0) & (in_old >= 0)
    at = np.flatnonzero(changed)
    if len(at):
        assert old is not None and new is not None
        changed[at] = ~_equal(
            old.column(VALUE).take(pa.array(in_old[at])), new.column(VALUE).take(pa.array(in_new[at]))
        )
    for change, marked, source, kept, picked in (
        ("added", in_old < 0, theirs, new, in_new),
        ("removed", in_new < 0, ours, old, in_old),
        ("changed", changed, theirs, new, in_new),
    ):
        positions = np.flatnonzero(marked)
        if not len(positions):
            continue
        assert kept is not None
        about = source.as_columns(kept.take(pa.array(picked[positions])))
        values = {
            BEFORE: _values(ours, old, in_old[positions]),
            AFTER: _values(theirs, new, in_new[positions]),
        }
        columns = {
            CHANGE: pa.array([change] * len(positions)),
            **dict(zip(about.column_names, about.columns, strict=True)),
        }
        yield pa.table({**columns, **values})


def _numbered(side: pa.Table | None, some: pa.Table, identity: list[str]) -> pa.Table:
    table = (some.slice(0, 0) if side is None else side).select(identity)
    return table.append_column(_ROW, pa.array(np.arange(table.num_rows)))


def _values(table: StateTable, rows: pa.Table | None, positions: npt.NDArray[np.int64]) -> Any:
    wanted = table.value_type
    if rows is None:
        return pa.nulls(len(positions), wanted)
    column = rows.column(VALUE).take(pa.array(positions, mask=positions < 0))
    return column if column.type == wanted else column.cast(wanted)


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    if one.type != other.type or pa.types.is_nested(one.type) or pa.types.is_floating(one.type):
        # Arrow compares no nested values, and for it NaN is not the same as NaN.
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((a == b or repr(a) == repr(b) for a, b in pairs), bool, len(one))
    same = pc.equal(one, other)
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    equal: npt.NDArray[np.bool_] = pc.if_else(both_null, True, pc.fill_null(same, False)).to_numpy(zero_copy_only=False)
    return equal
