"""What a checkpoint holds of each state, counted from its run files."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.checkpoint.recovery import root_of
from holdfast.kernel.key_group import key_groups_of
from holdfast.state.layout import MAP_KEY, OP, STAMP, VALUE, Op
from holdfast.state.operator_snapshot import size_of
from holdfast.state.run import HASH, Segment, open_run
from holdfast.storage.file_system import file_system_for
from holdfast.types.sealed_type import sealed
from holdfast.types.type_information import type_from_json

_ROUND: Final = "round"
_CLEARED: Final = "cleared"


@dataclass(frozen=True)
class StateSummary:
    """One state of one operator.

    Attributes:
        uid: The operator.
        state: Name of the state.
        kind: Its kind: value, list, map, ... or timer; split, union or broadcast for operator state.
        type: Its type as DDL.
        rows: Entries that are there: keys, for map state entries of maps.
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
        segments: dict[str, list[Segment]] = {}
        for handle in operator.runs:
            run = open_run(fs, root, handle)
            for name in run.segment_names():
                segment = run.segment(name)
                assert segment is not None
                segments.setdefault(name, []).append(segment)
        for name in sorted(segments):
            yield _summary(operator, name, segments[name])
        yield from _of_subtasks(operator)


def _summary(operator: OperatorMetadata, name: str, segments: Sequence[Segment]) -> StateSummary:
    schema = segments[-1].entry.schema
    hashes = _live_hashes(segments)
    counts = np.bincount(key_groups_of(hashes, operator.max_parallelism), minlength=operator.max_parallelism)
    return StateSummary(
        uid=operator.uid,
        state=name,
        kind=str(schema.get("kind", "timer")),
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
    return f"map<{type_from_json(key['type']) if key.get('kind') == 'atomic' else key.get('kind')}, {value}>"
