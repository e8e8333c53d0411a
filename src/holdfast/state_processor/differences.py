"""Compare two checkpoints or savepoints by operator, state and key; and count their states."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, root_of
from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.state.compaction import SortedRows, merge_timers
from holdfast.state.layout import MAP_KEY, NAMESPACE, OP, STAMP, VALUE, Op
from holdfast.state.operator_snapshot import snapshot_size
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH, RunReader, Segment, open_run
from holdfast.state.timer_service import TIMER_PREFIX
from holdfast.state_processor.state_table import StateTable
from holdfast.storage.scheme import file_system_for
from holdfast.types.key_codec import describe_key_type
from holdfast.types.opaque import seal_json
from holdfast.types.ordering import are_equal
from holdfast.types.type_information import type_from_json

CHANGE: Final = "change"
BEFORE: Final = "before"
AFTER: Final = "after"
_ROW: Final = "_row"
_ROUND: Final = "round"
_CLEARED: Final = "cleared"


def key_differences(before: StateTable, after: StateTable) -> Iterator[pa.Table]:
    """Yield a row for each key that differs; of maps for each entry, of windows for each key and namespace.

    The first table has no rows, only the columns.

    Columns: `change` (`added`, `removed`, `changed`), the columns that identify a row of the state, and `before` and
    `after`, null for none. A different time of the last use is no difference. One key group at a time is in memory.

    Raises:
        StateMigrationError: The states have different kinds, keys or numbers of key groups, so no keys are equal.
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
    both = SortedRows(sides, identity)
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
        return np.fromiter((are_equal(a, b) for a, b in pairs), bool, len(one))
    same = pc.equal(one, other)
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    equal: npt.NDArray[np.bool_] = pc.if_else(both_null, True, pc.fill_null(same, False)).to_numpy(zero_copy_only=False)
    return equal


# Counts of each state, from run files.


@dataclass(frozen=True)
class StateSummary:
    """One state of one operator.

    Attributes:
        uid: The operator.
        state: Name of the state.
        kind: Its kind: value, list, map and so on, or timers; split, union or broadcast for operator state.
        type: Its type as DDL.
        rows: Number of keys; for map state of entries of maps, of timers of those that have not fired.
        bytes: Size of its segments in all run files, replaced entries included.
        key_group_skew: Entries of the fullest key group, divided by the mean over all of them; 1 is even, 0 is state
            without keys.
    """

    uid: str
    state: str
    kind: str
    type: str
    rows: int
    bytes: int
    key_group_skew: float


def summaries(checkpoint: CompletedCheckpoint, without: Container[str] = ()) -> Iterator[StateSummary]:
    """Yield every state of a checkpoint, by operator and name. Reads, and so verifies, the keys of all its run files.

    Args:
        checkpoint: The checkpoint.
        without: Uids of operators to leave out.

    Raises:
        CorruptFileError: A run file is damaged.
        NotExistError: A run file is missing.
    """
    root = root_of(checkpoint)
    fs = file_system_for(root)
    for operator in sorted(checkpoint.metadata.operators, key=lambda operator: operator.uid):
        if operator.uid in without:
            continue
        runs = [open_run(fs, root, handle) for handle in operator.runs]
        for name in sorted({name for run in runs for name in run.segment_names()}):
            yield _summary(operator, name, runs)
        yield from _of_subtasks(operator)


@dataclass(frozen=True)
class StateSize:
    """Size of one state of one operator, from the footers of its run files.

    Attributes:
        uid: The operator.
        state: Name of the state.
        kind: Its kind, as in `StateSummary`.
        type: Its type as DDL.
        rows: Rows in all run files, replaced ones and removals included.
        bytes: Size of its segments in all run files.
    """

    uid: str
    state: str
    kind: str
    type: str
    rows: int
    bytes: int


def sizes(checkpoint: CompletedCheckpoint) -> Iterator[StateSize]:
    """Yield the size of every state of a checkpoint, by operator and name. Reads the footers of its run files only.

    Raises:
        CorruptFileError: A run file is damaged.
        NotExistError: A run file is missing.
    """
    root = root_of(checkpoint)
    fs = file_system_for(root)
    for operator in sorted(checkpoint.metadata.operators, key=lambda operator: operator.uid):
        runs = [open_run(fs, root, handle) for handle in operator.runs]
        for name in sorted({name for run in runs for name in run.segment_names()}):
            entries = [segment.entry for run in runs if (segment := run.segment(name)) is not None]
            schema = entries[-1].schema
            rows, size = sum(entry.rows for entry in entries), sum(entry.length for entry in entries)
            yield StateSize(operator.uid, name, str(schema["kind"]), _type_of(schema), rows, size)
        for summary in _of_subtasks(operator):
            yield StateSize(summary.uid, summary.state, summary.kind, summary.type, summary.rows, summary.bytes)


def _summary(operator: OperatorMetadata, name: str, runs: Sequence[RunReader]) -> StateSummary:
    segments = [segment for run in runs if (segment := run.segment(name)) is not None]
    schema = segments[-1].entry.schema
    is_timers = name.startswith(TIMER_PREFIX)
    hashes = (
        _waiting_hashes(name, runs, operator.max_parallelism)
        if is_timers
        else _live_hashes([part for segment in segments for part in segment.parts])
    )
    counts = np.bincount(key_groups_of(hashes, operator.max_parallelism), minlength=operator.max_parallelism)
    return StateSummary(
        uid=operator.uid,
        state=name,
        kind=str(schema["kind"]),
        type=_type_of(schema),
        rows=len(hashes),
        bytes=sum(segment.entry.length for segment in segments),
        key_group_skew=round(float(counts.max() / counts.mean()), 2) if len(hashes) else 0.0,
    )


def _of_subtasks(operator: OperatorMetadata) -> Iterator[StateSummary]:
    """Yield the operator state."""
    # What tasks hand to a coordinator that is used by hand is theirs, and says nothing of states.
    subtasks = [subtask for subtask in operator.subtasks if subtask and "states" in subtask]
    for name in sorted({name for subtask in subtasks for name in subtask["states"]}):
        states = [subtask["states"][name] for subtask in subtasks if name in subtask["states"]]
        value = _type_of({"kind": "list" if states[0]["mode"] != "broadcast" else "map", "type": states[0]["type"]})
        yield StateSummary(
            uid=operator.uid,
            state=name,
            kind=states[0]["mode"],
            type=value,
            rows=sum(chunk["count"] for state in states for chunk in state["chunks"]),
            bytes=sum(snapshot_size({"states": {name: state}}) for state in states),
            key_group_skew=0.0,
        )


def _waiting_hashes(name: str, runs: Sequence[RunReader], max_parallelism: int) -> Any:
    """Return the hash of each timer that has not fired and was not deleted.

    Runs without rows of timers count too: `fired_through` of a run applies to the timers of older ones.
    """
    left = merge_timers(name, runs[::-1], KeyGroupRange(0, max_parallelism - 1), is_oldest=True)
    return np.empty(0, np.uint64) if left is None else left.table.column(HASH).to_numpy()


def _live_hashes(segments: Sequence[Segment]) -> Any:
    """Return the hash of each entry that its newest row does not remove."""
    identity = [column for column in segments[-1].table.column_names if column not in (OP, VALUE, STAMP)]
    rounds = []
    for number, segment in enumerate(segments):
        table = segment.table.select([*identity, OP])
        rounds.append(table.append_column(_ROUND, pa.array(np.full(table.num_rows, number, np.int64))))
    said = pa.concat_tables(rounds)
    operation = said.column(OP).cast(pa.int64())
    cleared = said.filter(pc.equal(operation, Op.CLEAR.value))
    said = said.filter(pc.not_equal(operation, Op.CLEAR.value))
    # The last round that speaks about an entry, and what it says, in one number.
    code = pc.add(pc.multiply(said.column(_ROUND), len(Op)), said.column(OP).cast(pa.int64()))
    newest = said.append_column("code", code).group_by(identity).aggregate([("code", "max")])
    newest = newest.filter(pc.not_equal(_remainder(newest.column("code_max")), Op.DELETE.value))
    if cleared.num_rows:
        newest = _after_clears(newest, cleared, [column for column in identity if column != MAP_KEY])
    return newest.column(HASH).to_numpy()


def _after_clears(newest: pa.Table, cleared: pa.Table, whole: list[str]) -> pa.Table:
    """Remove the entries of maps that were cleared in a later round."""
    last = cleared.group_by(whole).aggregate([(_ROUND, "max")]).rename_columns([*whole, _CLEARED])
    joined = newest.join(last, keys=whole, join_type="left outer")
    since = pc.fill_null(joined.column(_CLEARED), -1)
    return joined.filter(pc.greater_equal(pc.divide(joined.column("code_max"), len(Op)), since))


def _remainder(code: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.subtract(code, pc.multiply(pc.divide(code, len(Op)), len(Op)))


def _type_of(schema: Any) -> str:
    if "type" not in schema:
        return "-"
    value = str(type_from_json(seal_json(schema["type"])))
    if schema.get("kind") == "list":
        return f"array<{value}>"
    key = schema.get("map_key")
    if key is None:
        return value
    return f"map<{describe_key_type(key)}, {value}>"


@dataclass(frozen=True)
class Difference:
    """The difference in one operator, or in one of its states.

    Attributes:
        uid: The operator.
        state: The state; None for the operator as a whole.
        change: added, removed, changed; rewritten if kind, type and numbers are equal, but not the files.
        before: Its properties in A, None if it does not exist. With a change only those that have changed.
        after: The same in B.
    """

    uid: str
    state: str | None
    change: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def differences(a: CompletedCheckpoint, b: CompletedCheckpoint) -> Iterator[Difference]:
    """Yield the differences, by operator and state. Reads the keys of all run files that are not the same.

    Raises:
        CorruptFileError: A run file is damaged.
        NotExistError: A run file is missing.
    """
    operators_a, operators_b = a.get_operator_states(), b.get_operator_states()
    content_a, content_b = _contents(operators_a), _contents(operators_b)
    same = {uid for uid, content in content_a.items() if content == content_b.get(uid)}
    states_a, states_b = _states(a, same), _states(b, same)
    for uid in sorted({*operators_a, *operators_b}):
        before, after = operators_a.get(uid), operators_b.get(uid)
        whole = _compared_states(uid, None, _facts(before), _facts(after))
        if whole is not None:
            yield whole
        for name in sorted(name for owner, name in {*states_a, *states_b} if owner == uid):
            found = _compared_states(
                uid, name, _numbers(states_a.get((uid, name))), _numbers(states_b.get((uid, name)))
            )
            if found is not None:
                yield found
            elif content_a[uid].get(name) != content_b[uid].get(name):
                yield Difference(uid, name, "rewritten", {}, {})


def _contents(operators: Mapping[str, OperatorMetadata]) -> dict[str, dict[str, Any]]:
    """Return by operator and state values that are equal if the contents are, wherever their files are."""
    return {uid: _content(operator) for uid, operator in operators.items()}


def _content(operator: OperatorMetadata) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for run in operator.runs:
        for name in run.rows:
            found.setdefault(name, []).append((run.digest, run.size))
    for subtask in _without_paths(operator.subtasks):
        for name, state in (subtask or {}).get("states", {}).items():
            found.setdefault(name, []).append(state)
    return found


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items() if key != "path"}
    if isinstance(value, list | tuple):
        return [_without_paths(item) for item in value]
    return value


def _states(checkpoint: CompletedCheckpoint, without: set[str]) -> dict[tuple[str, str], StateSummary]:
    return {(summary.uid, summary.state): summary for summary in summaries(checkpoint, without)}


def _facts(operator: OperatorMetadata | None) -> dict[str, Any] | None:
    if operator is None:
        return None
    return {
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "key": operator.key,
        "bytes": operator.state_size,
    }


def _numbers(summary: StateSummary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    return {"kind": summary.kind, "type": summary.type, "rows": summary.rows, "bytes": summary.bytes}


def _compared_states(
    uid: str, state: str | None, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> Difference | None:
    if before is None or after is None:
        return Difference(uid, state, "added" if before is None else "removed", before, after)
    changed = [name for name in before if before[name] != after[name]]
    if not changed:
        return None
    return Difference(
        uid, state, "changed", {name: before[name] for name in changed}, {name: after[name] for name in changed}
    )
