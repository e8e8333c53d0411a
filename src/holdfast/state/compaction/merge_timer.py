"""Merging the segments of timers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.state.compaction.rows import Sorted
from holdfast.state.layout.column_layout import NAMESPACE, OP, Op
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, RunReader
from holdfast.state.run.run_writer import SegmentData
from holdfast.state.timer.stored_timers import TIMESTAMP
from holdfast.state.timer.timer_queue import MIN_TIME

_GROUP = "key_group"


Times = npt.NDArray[np.int64]


def merge_timers(
    name: str, runs: Sequence[RunReader], key_groups: KeyGroupRange, is_oldest: bool
) -> SegmentData | None:
    """Merge the timers of one service and time domain.

    Args:
        name: Of the segment.
        runs: Newest first.
        key_groups: The range that is merged.
        is_oldest: Whether there are no older runs.

    Returns:
        None if nothing is left.

    Raises:
        StateMigrationError: The runs do not agree about namespaces.
    """
    horizon = np.full(key_groups.size, MIN_TIME, np.int64)
    tables: list[pa.Table] = []
    schema = None
    for run in runs:
        for segment in run.newest_first(name):
            if schema is not None and schema != segment.entry.schema:
                raise StateMigrationError(f"The runs of timers {name!r} have different namespaces; see {run.path!r}.")
            schema = segment.entry.schema
            rows = segment.range(key_groups)
            tables.append(
                _alive(run, name, segment.table.slice(rows.start, rows.stop - rows.start), horizon, key_groups)
            )
        _raise_horizon(run, name, horizon, key_groups)
    tables = [table for table in tables if table.num_rows]
    if not tables or schema is None:
        return None
    merged = Sorted(tables, [_GROUP, TIMESTAMP, KEY, NAMESPACE, HASH])
    keep = merged.first_of([_GROUP, TIMESTAMP, KEY, NAMESPACE])
    if is_oldest:
        keep &= merged.ops() == Op.PUT
    table = merged.table(keep).drop_columns([_GROUP])
    return SegmentData(table, schema) if table.num_rows else None


def fired_through(name: str, runs: Sequence[RunReader], key_groups: KeyGroupRange) -> int | None:
    """Return up to which time all timers of a range have fired by what some runs say, None if none says anything.

    Every run that says something must speak about the whole range.
    """
    times = [
        run.meta.fired_through[name]
        for run in runs
        if name in run.meta.fired_through and run.meta.key_groups.intersection(key_groups)
    ]
    return max(times, default=None)


def _alive(run: RunReader, name: str, rows: pa.Table, horizon: Times, key_groups: KeyGroupRange) -> pa.Table:
    """Return the rows of a run that newer runs have not fired, with their key groups."""
    groups = key_groups_of(rows.column(HASH).to_numpy(), run.meta.max_parallelism)
    times = rows.column(TIMESTAMP).to_numpy()
    keep = times > horizon[groups - key_groups.start]
    fired = run.meta.fired_through.get(name)
    if fired is not None:
        # Such a row deletes what is dead anyway.
        keep &= (rows.column(OP).to_numpy() != Op.DELETE) | (times > fired)
    return rows.append_column(_GROUP, pa.array(groups)).filter(pa.array(keep))


def _raise_horizon(run: RunReader, name: str, horizon: Times, key_groups: KeyGroupRange) -> None:
    fired = run.meta.fired_through.get(name)
    shared = run.meta.key_groups.intersection(key_groups)
    if fired is not None and shared:
        part = horizon[shared.start - key_groups.start : shared.end - key_groups.start + 1]
        np.maximum(part, fired, out=part)
