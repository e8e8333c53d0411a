"""What a checkpoint holds of each state, counted from its run files."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.metadata import OperatorMetadata
from holdfast.checkpoint.recovery.retained import root_of
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.state.compaction.merge_timer import merge_timers
from holdfast.state.layout.column_layout import MAP_KEY, OP, STAMP, VALUE, Op
from holdfast.state.operator.operator_snapshot import size_of
from holdfast.state.run.run_file import HASH, RunReader, Segment, open_run
from holdfast.state.timer.timer_service import TIMER_PREFIX
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.types.information.sealed_type import sealed
from holdfast.types.information.type_information import type_from_json
from holdfast.types.key.key_codec import shown_key_type

_ROUND: Final = "round"
_CLEARED: Final = "cleared"


@dataclass(frozen=True)
class StateSummary:
    """One state of one operator.

    Attributes:
        uid: The operator.
        state: Name of the state.
        kind: Its kind: value, list, map, ... or timers; split, union or broadcast for operator state.
        type: Its type as DDL.
        rows: Entries that are there: keys, for map state entries of maps, of timers those that have not fired yet.
        bytes: Size of its segments in all run files, entries that newer ones replace included.
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
    """Every state of a checkpoint, by operator and name. Reads, and so checks, the keys of all its run files.

    Args:
        checkpoint: The checkpoint.
        without: Uids of operators that are left out.

    Raises:
        CorruptFileError: A run file is damaged.
        NotExistError: A run file is gone.
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
    """How large one state of one operator is, as the run files say without being read.

    Attributes:
        uid: The operator.
        state: Name of the state.
        kind: Its kind, as in `StateSummary`.
        type: Its type as DDL.
        rows: Rows in all run files, those that newer ones replace and removals included.
        bytes: Size of its segments in all run files.
    """

    uid: str
    state: str
    kind: str
    type: str
    rows: int
    bytes: int


def sizes(checkpoint: CompletedCheckpoint) -> Iterator[StateSize]:
    """The size of every state of a checkpoint, by operator and name. Reads the ends of its run files only.

    Raises:
        CorruptFileError: A run file is damaged.
        NotExistError: A run file is gone.
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
    """The operator state, which belongs to subtasks and not to keys."""
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
            bytes=sum(size_of({"states": {name: state}}) for state in states),
            key_group_skew=0.0,
        )


def _waiting_hashes(name: str, runs: Sequence[RunReader], max_parallelism: int) -> Any:
    """The hash of each timer that has not fired yet and was not deleted.

    A run also says of older ones up to which time their timers have fired, even if it has no rows about any of them.
    """
    left = merge_timers(name, runs[::-1], KeyGroupRange(0, max_parallelism - 1), is_oldest=True)
    return np.empty(0, np.uint64) if left is None else left.table.column(HASH).to_numpy()


def _live_hashes(segments: Sequence[Segment]) -> Any:
    """The hash of each entry that the newest run which speaks about it has not removed."""
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
    """Without the entries of maps that were cleared in a later round."""
    last = cleared.group_by(whole).aggregate([(_ROUND, "max")]).rename_columns([*whole, _CLEARED])
    joined = newest.join(last, keys=whole, join_type="left outer")
    since = pc.fill_null(joined.column(_CLEARED), -1)
    return joined.filter(pc.greater_equal(pc.divide(joined.column("code_max"), len(Op)), since))


def _remainder(code: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.subtract(code, pc.multiply(pc.divide(code, len(Op)), len(Op)))


def _type_of(schema: Any) -> str:
    if "type" not in schema:
        return "-"
    value = str(type_from_json(sealed(schema["type"])))
    if schema.get("kind") == "list":
        return f"array<{value}>"
    key = schema.get("map_key")
    if key is None:
        return value
    return f"map<{shown_key_type(key)}, {value}>"
