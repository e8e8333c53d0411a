"""Rows that delete all that there is of a state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.state.compaction.merge_state import merge_state
from holdfast.state.compaction.rows import Sorted
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.column_layout import MAP_KEY, NAMESPACE, OP, Op
from holdfast.state.run.probe import KEY, Stretch
from holdfast.state.run.run_file import HASH
from holdfast.state.run.run_writer import SegmentData


def tombstones(stretches: Sequence[Stretch]) -> SegmentData | None:
    """Return rows that delete what there is of a state; None if there is nothing.

    Args:
        stretches: All rows of the state in the range, newest first.
    """
    left = merge_state([(one.segment, one.rows) for one in stretches], True, None) if stretches else None
    if left is None:
        return None
    kind = StateKind(left.schema["kind"])
    cell = [name for name in (HASH, KEY, NAMESPACE) if name in left.table.column_names]
    rows = Sorted([left.table], cell)
    table = rows.table(rows.first_of(cell))
    op = Op.CLEAR if kind is StateKind.MAP else Op.DELETE
    columns = [
        table.column(field.name)
        if field.name in cell
        else pa.array(np.full(len(table), op, np.int8))
        if field.name == OP
        else _nothing(len(table), field.type, in_lists=kind is StateKind.LIST and field.name != MAP_KEY)
        for field in table.schema
    ]
    return SegmentData(pa.table(columns, names=table.column_names), left.schema)


def _nothing(number: int, kind: pa.DataType, *, in_lists: bool) -> pa.Array:
    if not in_lists:
        return pa.nulls(number, kind)
    return pa.ListArray.from_arrays(pa.array(np.zeros(number + 1, np.int32)), pa.array([], kind.value_type)).cast(kind)
