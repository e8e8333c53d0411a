"""The staged output that a restored checkpoint names: who wrote it, and what becomes of it if its sink is gone; no I/O.

An entry of a checkpoint says of itself which incarnation of the job, epoch and subtask wrote it. Whoever commits it
again uses that, also another job that was started from the checkpoint. Entries of older versions of Holdfast lack the
incarnation: it is the lineage of the checkpoint that names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.document.metadata import OperatorMetadata
from holdfast.errors import RestoreError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.document import committables_of
from holdfast.runtime.commit.sink_committing import Entry
from holdfast.runtime.graph.plan import JobPlan

logger = get_logger(__name__)

Output = dict[str, list[Entry]]
"""Committables by sink uid."""


def stamped(committables: Mapping[str, Sequence[Entry]], incarnation: str) -> Output:
    """The same committables, each with the incarnation that wrote it where it does not say so itself."""
    return {uid: [{"incarnation": incarnation, **entry} for entry in entries] for uid, entries in committables.items()}


def output_to_commit(
    plan: JobPlan, operators: Sequence[OperatorMetadata], lineage: str, allow_non_restored: bool
) -> Output:
    """What a restored checkpoint names, as far as the job has the sinks.

    Args:
        plan: The job.
        operators: The operators of the checkpoint's document.
        lineage: Of the checkpoint.
        allow_non_restored: Whether output without a sink is dropped.

    Raises:
        RestoreError: There is output of sinks that the job has not; names them.
    """
    output = stamped(committables_of(operators), lineage)
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
    logger.warning(
        "output of sinks that the job does not have is dropped, as asked for, and never committed: %s", shown
    )
    return {uid: entries for uid, entries in output.items() if uid in sinks}


def _rows_of(entries: Sequence[Entry]) -> str:
    """How many rows that are, as text; what older versions of Holdfast wrote may not tell."""
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
        text = f"{f'{text} and ' if known else ''}{unknown} committables that do not say how many rows they have"
    return text
