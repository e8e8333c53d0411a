"""Where a job attempt starts: the newest completed checkpoint, one that was asked for, or nothing."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.checkpoint import recovery as recovery
from holdfast.checkpoint.claim import Claim, adopt, directory_of_job
from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.metadata import (
    CLAIMED,
    EVENT_TIME_AGAIN,
    TARGETS,
    WINDOWS,
    CheckpointMetadata,
    OperatorMetadata,
)
from holdfast.checkpoint.options import CLAIM_MODE, IGNORE_UNCLAIMED_STATE, RECOVERY_PATH, RecoveryClaimMode
from holdfast.checkpoint.statistics import RestoredStats
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, RestoreError, StateMigrationError
from holdfast.ha.job_register import is_elsewhere
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import OperatorID, new_nonce
from holdfast.kernel.secret import get_logger
from holdfast.runtime.graph.input_fitting import InputRules
from holdfast.runtime.graph.plan import JobPlan, Step
from holdfast.runtime.graph.stream_graph import KeyedNode, StreamGraph
from holdfast.runtime.job.engine import Job
from holdfast.runtime.job.options import KEEP_INPUTS, MAX_PARALLELISM, RENEW_INPUTS, START_FRESH, START_REQUEST
from holdfast.state.api import RAW_KEYED
from holdfast.state.timer_service import EVENT, PROCESSING
from holdfast.state.version import StateVersion
from holdfast.storage.register import CheckpointPointer, Lease, RegisterState

# InputMapping a checkpoint's operators to a job's: which state goes where, and what is refused.

logger = get_logger(__name__)

Versions = dict[str, StateVersion]


def migrate_derived_uids(graph: StreamGraph, operators: tuple[OperatorMetadata, ...]) -> tuple[OperatorMetadata, ...]:
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


_NEW: Final = "new"
"""The start of a job that has no checkpoint."""


@dataclass(frozen=True)
class Restored:
    """What an attempt starts from; the defaults are a fresh start.

    Attributes:
        checkpoint_id: The checkpoint, None for a fresh start.
        epoch: Its epoch, or the highest that is known to have completed: numbers never go back.
        lineage: Incarnation of the job: the line of checkpoints that this attempt goes on with, or begins.
        request: The start on request that the incarnation was made for, as the register remembers it.
        restored_lineage: That of the checkpoint; another one if it was started from on request.
        targets: What identifies the targets of sinks, by uid.
        master_states: What the hooks of the job master's side have given to it, by name.
        is_committed: Whether all sinks are known to have committed what the checkpoint names.
        is_own: Whether it is one that the job's register names; the ids of others say nothing here.
        allow_non_restored: Whether state without an operator is dropped.
        rules: What the user has said about inputs that do not fit.
        retained: The checkpoints that the register names and that can be read.
        source: What the statistics say of the checkpoint, None for a fresh start.
        claim: A snapshot that the job is to delete, None if there is none.
        event_time: How far event time was, None if it begins anew.
    """

    checkpoint_id: int | None = None
    epoch: int = 0
    processing_time: int = 0
    lineage: str = ""
    request: str = ""
    restored_lineage: str = ""
    operators: tuple[OperatorMetadata, ...] = ()
    targets: Mapping[str, Any] = field(default_factory=dict)
    positions: Mapping[str, Any] | None = None
    master_states: Mapping[str, Any] = field(default_factory=dict)
    is_committed: bool = False
    is_own: bool = False
    allow_non_restored: bool = False
    rules: InputRules = field(default_factory=InputRules)
    retained: tuple[CompletedCheckpoint, ...] = ()
    source: RestoredStats | None = None
    claim: Claim | None = None
    event_time: Mapping[str, Mapping[str, Any]] | None = None


def is_fresh(configuration: Configuration) -> bool:
    """Whether the job is to start without state, whatever checkpoints there are."""
    return configuration.get(START_FRESH)


def is_chosen(configuration: Configuration) -> bool:
    """Whether the program or the command line says where to start, instead of at the newest completed checkpoint."""
    return is_fresh(configuration) or configuration.get(RECOVERY_PATH) is not None


def request_of(configuration: Configuration) -> str:
    """What tells one start on request from another, also in a process that is started again; empty without one."""
    if not is_chosen(configuration):
        return ""
    path = configuration.get(RECOVERY_PATH)
    start = "fresh" if path is None else f"path {path.strip().rstrip('/')}"
    name = configuration.get(START_REQUEST)
    return f"{start} as {name}" if name else start


def restore(job: Job, lease: Lease, *, is_first: bool) -> Restored:
    """What the next attempt starts from: the newest completed checkpoint, or what the process was started with.

    Args:
        job: The job.
        lease: Raised before, so that nobody else can complete a checkpoint any more.
        is_first: Whether no checkpoint of this process has completed; only then it counts what it was started with.

    Raises:
        CorruptFileError: The checkpoint is damaged; names it and proposes the one before.
        RestoreError: The checkpoint asked for is not there.
        ConfigurationError: The directory belongs to another job.
    """
    options, state = job.configuration, lease.state
    request = request_of(options)
    is_asked = is_first and bool(request)
    if is_asked:
        found = recovery.readable(job.directory, state)
        retained = tuple(item for _, item in found if isinstance(item, CompletedCheckpoint))
        if _has_happened(request, state, found):
            is_asked = False
            logger.warning(
                "job %r was started in this way before (%s), by a process that has died since: it goes on from "
                "checkpoint %d of that start. To start once more, name the start with %s",
                job.name, request, retained[-1].checkpoint_id, START_REQUEST.key,
            )  # fmt: skip
    else:
        retained = tuple(recovery.recover_all(job.directory, state))
    _require_own(job, retained)
    path = options.get(RECOVERY_PATH)
    if is_asked and path is not None:
        start = _from_path(path, job, lease, request)
    elif is_asked or not retained:
        start = _anew(job, state, request if is_asked else _NEW)
    else:
        start = _from_own(retained[-1], job, state, request)
    known = [checkpoint.metadata for checkpoint in retained]
    return replace(
        start,
        epoch=max((start.epoch, *(metadata.epoch for metadata in known))),
        processing_time=max((start.processing_time, *(metadata.processing_time for metadata in known))),
        retained=retained,
    )


def _from_path(path: str, job: Job, lease: Lease, request: str) -> Restored:
    """The start from a checkpoint or savepoint that was asked for, whose files become those of the job."""
    try:
        snapshot = recovery.load(path)
    except NotExistError as error:
        raise RestoreError(message=str(error)) from error
    is_claimed = job.configuration.get(CLAIM_MODE) is RecoveryClaimMode.CLAIM
    claim = _claimed(snapshot, job) if is_claimed else None
    metadata = adopt(snapshot, job.directory, lease.token)
    start = _restored(metadata, job, _incarnation_for(request, lease.state))
    return replace(start, request=request, source=_statistics(snapshot, job), claim=claim)


def _anew(job: Job, state: RegisterState, request: str) -> Restored:
    return Restored(lineage=_incarnation_for(request, state), request=request, rules=_input_rules(job.configuration))


def _from_own(checkpoint: CompletedCheckpoint, job: Job, state: RegisterState, request: str) -> Restored:
    """The start from the newest checkpoint that the job itself has completed."""
    metadata = checkpoint.metadata
    return replace(
        _restored(metadata, job, metadata.lineage),
        request=request if request == state.request else "",
        is_committed=state.notified >= metadata.checkpoint_id,
        is_own=True,
        source=_statistics(checkpoint, job),
        claim=Claim.from_json(metadata.extra[CLAIMED]) if metadata.extra.get(CLAIMED) else None,
    )


def _claimed(snapshot: CompletedCheckpoint, job: Job) -> Claim | None:
    is_of_another = not snapshot.metadata.is_savepoint and not recovery.is_in(snapshot, job.directory)
    if is_of_another and is_elsewhere(directory_of_job(snapshot)):
        raise ConfigurationError(
            f"{snapshot.path!r} cannot be claimed: the register of its job is in a coordination store, and only who "
            "leads that job may delete there. Take a savepoint of it and claim that, or start with NO_CLAIM."
        )
    return Claim.of(snapshot, job.directory)


def _has_happened(
    request: str, state: RegisterState, found: Sequence[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]]
) -> bool:
    """Whether the newest checkpoint comes from this very start, which then is not to be made once more."""
    newest = found[-1][1] if found else None
    return (
        request == state.request
        and isinstance(newest, CompletedCheckpoint)
        and newest.metadata.lineage == state.incarnation
    )


def _incarnation_for(request: str, state: RegisterState) -> str:
    """The incarnation of a start: one for each start, however often its process dies before its first checkpoint."""
    if request == state.request and state.incarnation is not None:
        return state.incarnation
    return new_nonce()


def _require_own(job: Job, retained: Sequence[CompletedCheckpoint]) -> None:
    """Without a directory of its own a job might take another's checkpoints for its own."""
    others = {checkpoint.get_job_id() for checkpoint in retained} - {str(job.job_id)}
    if others and job.directory.path == job.directory.root:
        raise ConfigurationError(
            f"{job.directory.path!r} holds the checkpoints of job {min(others)}, not of {job.job_id}: with "
            "execution.checkpointing.create-subdir off each job needs an execution.checkpointing.dir of its own."
        )


def _statistics(checkpoint: CompletedCheckpoint, job: Job) -> RestoredStats:
    return RestoredStats(checkpoint.checkpoint_id, checkpoint.properties, job.clock.now_ms(), checkpoint.path)


def _restored(metadata: CheckpointMetadata, job: Job, lineage: str) -> Restored:
    return Restored(
        checkpoint_id=metadata.checkpoint_id,
        epoch=metadata.epoch,
        processing_time=metadata.processing_time,
        lineage=lineage,
        restored_lineage=metadata.lineage,
        operators=migrate_derived_uids(job.graph, metadata.operators),
        targets=metadata.extra.get(TARGETS, {}),
        positions=metadata.source_positions,
        master_states=metadata.master_states,
        event_time=metadata.extra.get(EVENT_TIME_AGAIN),
        allow_non_restored=job.configuration.get(IGNORE_UNCLAIMED_STATE),
        rules=_input_rules(job.configuration),
    )


def _input_rules(options: Configuration) -> InputRules:
    keep, anew = options.get(KEEP_INPUTS), options.get(RENEW_INPUTS)
    return InputRules(options.get(IGNORE_UNCLAIMED_STATE), frozenset(keep), frozenset(anew))
