"""What the document of a checkpoint says of an epoch; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint.document.metadata import WINDOWS, OperatorMetadata
from holdfast.kernel.ids import OperatorID
from holdfast.runtime.commit.sink_committing import Entry
from holdfast.runtime.epoch.job_epochs import JobEpochs


def operators_of(epochs: JobEpochs, staged: Mapping[str, Sequence[Entry]]) -> tuple[OperatorMetadata, ...]:
    """All steps that have state or staged output.

    Args:
        epochs: What the epoch left.
        staged: The committables of the checkpoint, by sink uid.
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
        if step.kind != "pass"
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


def committables_of(operators: Sequence[OperatorMetadata]) -> dict[str, list[Entry]]:
    """The committables that a document names, by sink uid, epoch by epoch."""
    merged: dict[str, list[Entry]] = {}
    for operator in operators:
        for uid, entries in operator.committables.items():
            merged.setdefault(uid, []).extend(entries)
    return {uid: sorted(entries, key=lambda e: int(e["epoch"])) for uid, entries in merged.items() if entries}


def short_position(positions: Mapping[str, Any] | None) -> str:
    """Where the sources stand, as short text."""
    if not positions:
        return "no source position"
    streaming = positions.get("streaming")
    if streaming:
        return f"batch {streaming['batch_id']}"
    return ", ".join(f"{name} {value}" for name, value in positions.items() if not isinstance(value, dict | list))
