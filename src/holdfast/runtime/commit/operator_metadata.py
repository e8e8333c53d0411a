"""Operators, and output of sinks, as a checkpoint's document has them.

Each committable in a checkpoint names the incarnation, epoch and subtask that wrote it, and is committed under that
identity, also by another job that was started from the checkpoint. Committables of older versions of Holdfast have no
incarnation: it is that of their checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint.metadata import WINDOWS, OperatorMetadata
from holdfast.errors import RestoreError
from holdfast.kernel.ids import OperatorID
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.commit_manager import Entry
from holdfast.runtime.epoch import JobEpochs
from holdfast.runtime.graph.plan import JobPlan

logger = get_logger(__name__)

Output = dict[str, list[Entry]]
"""Committables by sink uid."""


def operator_metadata(epochs: JobEpochs, staged: Mapping[str, Sequence[Entry]]) -> tuple[OperatorMetadata, ...]:
    """Return all steps that have state or staged output, as a checkpoint's document describes them.

    Args:
        epochs: State after the epoch.
        staged: Committables of the checkpoint, by sink uid.
    """
    operators = [
        OperatorMetadata(
            uid=step.uid,
            operator_id=OperatorID.from_uid(step.uid).to_hex(),
            name=step.name,
            parallelism=step.parallelism,
            max_parallelism=step.max_parallelism,
            key=step.codec.to_json() if step.codec else None,
            runs=epochs.versions[step.uid].runs if step.codec else (),
            states={WINDOWS: dict(step.windows)} if step.windows else {},
            subtasks=epochs.operator_states.to_json(step.uid),
        )
        for step in epochs.plan.stateful_steps()
        if step.kind != "forward"
    ]
    operators += [
        OperatorMetadata(
            uid=step.uid,
            operator_id=OperatorID.from_uid(step.uid).to_hex(),
            name=step.name,
            parallelism=1,
            max_parallelism=1,
            committables={step.uid: list(staged.get(step.uid, ()))},
        )
        for step in epochs.plan.sinks()
    ]
    return tuple(operators)


def merge_committables(operators: Sequence[OperatorMetadata]) -> dict[str, list[Entry]]:
    """Return the committables of a document by sink uid, in the order of epochs."""
    merged: dict[str, list[Entry]] = {}
    for operator in operators:
        for uid, entries in operator.committables.items():
            merged.setdefault(uid, []).extend(entries)
    return {uid: sorted(entries, key=lambda e: int(e["epoch"])) for uid, entries in merged.items() if entries}


def short_position(positions: Mapping[str, Any] | None) -> str:
    """Return the source positions as short text."""
    if not positions:
        return "no source position"
    streaming = positions.get("streaming")
    if streaming:
        return f"batch {streaming['batch_id']}"
    if "static_consumed" in positions:
        return "all static inputs read" if positions["static_consumed"] else "static inputs not read to their end"
    return ", ".join(f"{name} {value}" for name, value in positions.items() if not isinstance(value, dict | list))


def with_incarnation(committables: Mapping[str, Sequence[Entry]], incarnation: str) -> Output:
    """Add the incarnation to the committables that do not have one."""
    return {uid: [{"incarnation": incarnation, **entry} for entry in entries] for uid, entries in committables.items()}


def output_to_commit(
    plan: JobPlan, operators: Sequence[OperatorMetadata], incarnation: str, allow_non_restored: bool
) -> Output:
    """Return the committables of a restored checkpoint for the sinks that the job has.

    Args:
        plan: The job.
        operators: The operators of the checkpoint's document.
        incarnation: Incarnation of the job that wrote the checkpoint.
        allow_non_restored: Whether to drop output without a sink.

    Raises:
        RestoreError: The checkpoint has output of sinks that the job does not have.
    """
    output = with_incarnation(merge_committables(operators), incarnation)
    sinks = {step.uid for step in plan.sinks()}
    missing = sorted(set(output) - sinks)
    if not missing:
        return output
    shown = ", ".join(f"{_rows_of(output[uid])} of {uid!r}" for uid in missing)
    if not allow_non_restored:
        new = sorted(sinks - {uid for operator in operators for uid in operator.committables})
        raise RestoreError(
            missing,
            new,
            f"the checkpoint names output of sinks that this job does not have: {missing}, namely {shown}, which may "
            f"not be committed yet; new in this job: {new or 'none'}. Give the sinks their old uids, so that it is "
            "committed, or drop that output with -n (execution.state-recovery.ignore-unclaimed-state)",
        )
    logger.warning("dropped output of sinks that the job does not have (-n), which is never committed: %s", shown)
    return {uid: entries for uid, entries in output.items() if uid in sinks}


def _rows_of(entries: Sequence[Entry]) -> str:
    """Describe the number of rows; older versions of Holdfast did not record it."""
    known: dict[tuple[int, int], int] = {}
    unknown = 0
    for entry in entries:
        value = entry["value"]
        rows = entry.get("rows", value.get("rows") if isinstance(value, Mapping) else None)
        place = int(entry["epoch"]), int(entry["subtask"])
        if not isinstance(rows, int):
            unknown += 1
        elif "rows" in entry:  # of all that the subtask wrote in the epoch
            known[place] = rows
        else:
            known[place] = known.get(place, 0) + rows
    total = sum(known.values())
    text = f"{total} {'row' if total == 1 else 'rows'}"
    if unknown:
        text = f"{f'{text} and ' if known else ''}{unknown} committables without a number of rows"
    return text
