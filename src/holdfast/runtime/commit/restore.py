"""Fitting a checkpoint's operators to a job's: which state goes where, and what is refused."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import replace

from holdfast.checkpoint.document.metadata import WINDOWS, OperatorMetadata
from holdfast.errors import ConfigurationError, RestoreError, StateMigrationError
from holdfast.kernel.ids import OperatorID
from holdfast.kernel.secret import get_logger
from holdfast.runtime.graph.plan import JobPlan, Step
from holdfast.runtime.graph.stream_graph import KeyedNode, StreamGraph
from holdfast.runtime.job.options import MAX_PARALLELISM
from holdfast.state.declaration.raw_state import RAW_KEYED
from holdfast.state.run.version import StateVersion
from holdfast.state.timer.timer_service import EVENT, PROCESSING

logger = get_logger(__name__)

Versions = dict[str, StateVersion]


def under_present_uids(graph: StreamGraph, operators: tuple[OperatorMetadata, ...]) -> tuple[OperatorMetadata, ...]:
    """The operators of a checkpoint, by the uids of this program where it was written by one that derived them else.

    A uid that was not set used to be made of the name of the step and its number among all. Such a checkpoint says
    nothing of structure. So it is taken only if all of its operators and sinks are exactly those that this program
    would have had; another program is refused later, because state is left that nobody claims.
    """
    stored = {operator.uid for operator in operators}
    present = {node.former_uid or node.identity: node.identity for node in graph.nodes if node.keeps_state}
    if stored != present.keys() or stored == set(present.values()):
        return operators
    logger.info(
        "uids that were not set are derived in another way since the checkpoint was written: %s",
        ", ".join(f"{former!r} is {uid!r} now" for former, uid in present.items() if former != uid),
    )
    return tuple(
        replace(
            operator,
            uid=(uid := present[operator.uid]),
            operator_id=OperatorID.from_uid(uid).to_hex(),
            committables={present[sink]: staged for sink, staged in operator.committables.items()},
        )
        for operator in operators
    )


def stored_max_parallelism(
    graph: StreamGraph, operators: Iterable[OperatorMetadata], default_max: int | None = None
) -> dict[str, int]:
    """Max parallelism by uid of the state to be restored; the plan adopts it where the program sets none.

    Args:
        graph: The program.
        operators: Of the checkpoint.
        default_max: `pipeline.max-parallelism`, if it is set; it gives way to the state, and the log says so.

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
    others = {
        node.identity: found
        for node in graph.of(KeyedNode)
        if not node.max_parallelism and (found := stored.get(node.identity, default_max)) != default_max
    }
    if default_max is not None and others:
        logger.warning(
            "%s is %d, but has no effect on state that was written with another one, which is fixed for its life: %s",
            MAX_PARALLELISM.key,
            default_max,
            ", ".join(f"{uid!r} keeps {found}" for uid, found in others.items()),
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
            f"{new or 'none'}. Give the operators their old uids, .uid('...'), or drop that state with -n "
            "(execution.state-recovery.ignore-unclaimed-state). A uid that is not set is derived from the structure of "
            "the program and changes with it",
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
        _require_same_windows(operator, step)
        versions[uid] = StateVersion(operator.runs)
    return versions


def _require_same_windows(operator: OperatorMetadata, step: Step) -> None:
    """Refuse to go on with open windows that the program would take for others, and mix with its own.

    A checkpoint of an older release does not say what they are. Where it can be told then, the operator does so when
    they end.
    """
    before, now = operator.states.get(WINDOWS), step.windows
    timers = map(StateVersion(operator.runs).least_timer, (EVENT, PROCESSING))
    if before is None or not now or before == now or all(time is None for time in timers):
        return
    raise StateMigrationError(
        f"Operator {operator.uid!r} has windows in state that it does not make now: they are kept as "
        f"{reprlib.repr(before)}, and the program has {dict(now)!r}. Start the job with the windows that it had, or "
        "give the operator another uid, which leaves its open windows behind."
    )


def _is_partitioned(operator: OperatorMetadata) -> bool:
    """Whether it has state that belongs to key groups: runs, or raw keyed state, which is kept beside them."""
    subtasks = (part.get("states", {}).get(RAW_KEYED) for part in operator.subtasks if part)
    return bool(operator.runs) or any(state is not None and state["chunks"] for state in subtasks)
