"""Change one state of a savepoint, by a run on top of its runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, OutputTypeError, StateError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.state.descriptor import StateKind
from holdfast.state.layout import MAP_KEY, NAMESPACE, OP, STAMP, VALUE, Op
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH, RunHandle
from holdfast.state.timer_service import EVENT, PROCESSING
from holdfast.state.version import StateVersion
from holdfast.state_processor.part_work import RunPlace, split_by_part, write_part
from holdfast.state_processor.state_form import StateColumns, StateForm, column_of, key_rows, state_rows
from holdfast.state_processor.state_table import KEY_GROUP, WINDOW_END, WINDOW_START, StoredOperator, window_bounds
from holdfast.types import tagged
from holdfast.types.key_codec import TaggedKeyCodec

_OWN: Final = frozenset({KEY_GROUP, KEY, NAMESPACE, WINDOW_START, WINDOW_END, MAP_KEY, VALUE, STAMP})


@dataclass(frozen=True)
class StateEdit:
    """A change of one state.

    Attributes:
        uid: The operator.
        state: Name of the state.
        table: Its rows, in the columns that a reader returns.
        is_whole: Whether keys that are not in the table lose the state.
    """

    uid: str
    state: str
    table: pa.Table
    is_whole: bool


def write_edit(edit: StateEdit, operator: StoredOperator, place: RunPlace) -> tuple[RunHandle, ...]:
    """Write the run of an edit, and return all runs of the operator. Blocks.

    Args:
        edit: The edit.
        operator: The operator in the new savepoint, before the edit.
        place: The place of its runs.

    Raises:
        NotExistError: There is no such state.
        NullKeyError, OutputTypeError, StateError, ConfigurationError: The table does not fit the state.
    """
    form = operator.form(edit.state)
    if form.is_timers:
        raise ConfigurationError(
            f"{edit.state!r} are timers, which are not edited: remove the operator and make it anew with to_timers()."
        )
    runs = operator.metadata.runs
    least = {domain: StateVersion(runs).least_timer(domain) for domain in (EVENT, PROCESSING)}
    place = replace(place, least_timers=least)
    puts = split_by_part(_rows(edit, form, operator), place)
    written = []
    for subtask, rows in enumerate(puts):
        older = _removals(form, operator, place.range(subtask), rows) if edit.is_whole else None
        run = write_part(
            place, subtask, {form.name: form}, {form.name: rows}, {} if older is None else {form.name: older}
        )
        written += [] if run is None else [run]
    return (*runs, *written)


def _rows(edit: StateEdit, form: StateForm, operator: StoredOperator) -> pa.Table:
    table, names = edit.table, edit.table.column_names
    unknown = sorted(set(names) - _OWN)
    if unknown or len(set(names)) != len(names):
        raise ConfigurationError(
            f"The table for state {edit.state!r} has the columns {names!r}; there may be {sorted(_OWN)!r}, once each."
        )
    if form.map_key is not None and MAP_KEY not in names:
        raise ConfigurationError(f"State {edit.state!r} is a map, and the table has no column {MAP_KEY!r}.")
    keys = _keys(form, table)
    if KEY_GROUP in names:
        _require_groups(keys, table, operator.metadata.max_parallelism)
    if form.has_time_windows and NAMESPACE in names:
        _require_windows(table)
    columns = StateColumns(
        form,
        VALUE,
        MAP_KEY if form.map_key is not None else None,
        NAMESPACE if NAMESPACE in names else None,
        STAMP if STAMP in names and form.has_stamps else None,
    )
    if isinstance(form.map_key, TaggedKeyCodec):
        _require_tagged(column_of(table, MAP_KEY), MAP_KEY)
    return state_rows(columns, keys, table, operator.now)


def _keys(form: StateForm, table: pa.Table) -> pa.Table:
    """Return the keys of the rows; keys without a declared type are in the table as in files."""
    column = column_of(table, KEY)
    if not (isinstance(form.key, TaggedKeyCodec) and pa.types.is_binary(column.type)):
        return key_rows(form.key, table, [KEY])
    _require_tagged(column, KEY)
    return pa.table({HASH: form.key.hashes(column.to_pylist()), KEY: column})


def _require_tagged(column: pa.Array, name: str) -> None:
    for row, data in enumerate(column.to_pylist()):
        try:
            tagged.decode(data)
        except PARSE_ERRORS as error:
            raise OutputTypeError(
                None,
                f"Row {row}: {data!r:.80} in column {name!r} is no key without a declared type, as readers return it.",
                row=row,
            ) from error


def _require_windows(table: pa.Table) -> None:
    """Raise an error if window columns differ from the namespaces, which count."""
    bounds = window_bounds(table.column(NAMESPACE))
    for at, name in enumerate((WINDOW_START, WINDOW_END)):
        if name in table.column_names and column_of(table, name).to_pylist() != bounds[:, at].tolist():
            raise StateError(
                f"Column {name!r} is not that of the namespaces, which are the windows: change {NAMESPACE!r}, or leave "
                f"{name!r} out."
            )


def _require_groups(keys: pa.Table, table: pa.Table, max_parallelism: int) -> None:
    groups = key_groups_of(keys.column(HASH).to_numpy(), max_parallelism)
    said = column_of(table, KEY_GROUP)
    wrong = np.flatnonzero(~pc.fill_null(pc.equal(said, pa.array(groups)), False).to_numpy(zero_copy_only=False))
    if len(wrong):
        row = int(wrong[0])
        raise StateError(
            f"Row {row} says key group {said[row].as_py()!r}, but its key hashes to {groups[row]} of "
            f"{max_parallelism}: the table is of a state with other keys. Leave out the column {KEY_GROUP!r} to "
            "write it all the same."
        )


def _removals(form: StateForm, operator: StoredOperator, key_groups: KeyGroupRange, rows: pa.Table) -> pa.Table:
    """Return rows that remove everything in a range; puts of the same run remain."""
    cell = [name for name in (HASH, KEY, NAMESPACE) if name in rows.column_names]
    old = operator.rows(form, key_groups, None, expired=True)
    tables = [table.select(cell) for table in chain(old, [rows.slice(0, 0)])]
    cells = pa.concat_tables(tables).group_by(cell, use_threads=False).aggregate([]).select(cell)
    op = Op.CLEAR if form.kind is StateKind.MAP else Op.DELETE
    nulls = {field.name: pa.nulls(cells.num_rows, field.type) for field in rows.schema if field.name not in (*cell, OP)}
    columns = {name: cells.column(name) for name in cell} | nulls
    columns[OP] = pa.array(np.full(cells.num_rows, op, np.int8))
    return pa.table({name: columns[name] for name in rows.column_names})
