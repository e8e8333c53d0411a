"""Fitting a checkpoint's operators to a job's: which state goes where, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.errors import ConfigurationError, RestoreError, StateMigrationError
from holdfast.runtime.graph import KeyedNode, StreamGraph
from holdfast.runtime.plan import JobPlan
from holdfast.state.raw_state import RAW_KEYED
from holdfast.state.version import StateVersion

logger = logging.getLogger(__name__)

Versions = dict[str, StateVersion]


def stored_max_parallelism(graph: StreamGraph, operators: Iterable[OperatorMetadata]) -> dict[str, int]:
    """Max parallelism by uid of the state to be restored; the plan adopts it where the program sets none.

    Raises:
        ConfigurationError: The program sets another one explicitly.
    """
    stored = {op.uid: op.max_parallelism for op in operators if _is_partitioned(op)}
    for node in graph.of(KeyedNode):
        wanted, found = node.max_parallelism, stored.get(node.identity)
        if wanted is not None and found is not None and wanted != found:
            raise ConfigurationError(
                f"max parallelism mismatch: {node.identity!r} sets {wanted}, but its state was written with {found}, "
                "which is fixed for the life of "
                "the state: remove the setting"
            )
    return stored


def restored_versions(plan: JobPlan, operators: Iterable[OperatorMetadata], allow_non_restored: bool) -> Versions:
    """State versions of the job's keyed operators from those of a checkpoint.

    Args:
        plan: The job.
        operators: The operators of the checkpoint's document.
        allow_non_restored: Whether state without an operator is dropped.

    Raises:
        RestoreError: The checkpoint has state of operators that the job has not; names the uids missing and new.
        StateMigrationError: The key of an operator has another type than the one its state is partitioned by.
    """
    steps = {step.uid: step for step in plan.keyed_steps()}
    known = {*steps, *(step.uid for step in plan.stateful_steps() if step.has_operator_state)}
    stored = {op.uid: op for op in operators}
    missing = sorted(
        uid for uid, op in stored.items() if (op.runs and uid not in steps) or (any(op.subtasks) and uid not in known)
    )
    new = sorted(uid for uid in known if uid not in stored)
    if missing and not allow_non_restored:
        raise RestoreError(
            missing,
            new,
            f"the checkpoint holds state of operators that this job does not have: {missing}; new in this job: "
            f"{new or 'none'}. Give the operators their "
            "old uids, or drop that state with -n (execution.state-recovery.ignore-unclaimed-state)",
        )
    if missing:
        logger.warning("state of these operators is dropped, as asked for: %s", ", ".join(missing))
    versions: Versions = {}
    for uid, step in steps.items():
        operator = stored.get(uid)
        if operator is None or not _is_partitioned(operator):
            versions[uid] = StateVersion()
            continue
        assert step.codec is not None
        if operator.key != step.codec.to_json():
            raise StateMigrationError(
                f"operator {uid!r} is keyed by {step.codec.to_json()!r}, but its state is partitioned by "
                f"{operator.key!r}: a key's type cannot "
                "change; give the operator a new uid to start with empty state"
            )
        versions[uid] = StateVersion(operator.runs)
    return versions


def _is_partitioned(operator: OperatorMetadata) -> bool:
    """Whether it has state that belongs to key groups: runs, or raw keyed state, which is kept beside them."""
    subtasks = (part.get("states", {}).get(RAW_KEYED) for part in operator.subtasks if part)
    return bool(operator.runs) or any(state is not None and state["chunks"] for state in subtasks)
