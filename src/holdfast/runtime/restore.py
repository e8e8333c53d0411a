"""Restore: where a job attempt starts, and which operator gets which state of a checkpoint.

Only documents are read here. `checkpoint/claim.py` brings the files of a requested snapshot into the job's directory.
`JobAttempt` uses the result: `Engine.prepare` sets the positions of the sources, and tasks open the runs in the first
epoch (`runtime/task/stage_task.py`).
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.checkpoint.claim import Claim, directory_of_job, import_snapshot
from holdfast.checkpoint.completed_checkpoint import (
    CompletedCheckpoint,
    is_in,
    read_by_path,
    read_retained,
    try_read_retained,
)
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
from holdfast.ha.job_register import has_external_register
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import OperatorID, new_nonce
from holdfast.kernel.secret import get_logger
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import JobPlan, Step
from holdfast.runtime.graph.stream_graph import KeyedNode, StreamGraph
from holdfast.runtime.job.engine import Job
from holdfast.runtime.job.options import KEEP_INPUTS, MAX_PARALLELISM, RENEW_INPUTS, START_FRESH, START_REQUEST
from holdfast.state.api import RAW_KEYED
from holdfast.state.timer_service import EVENT, PROCESSING
from holdfast.state.version import StateVersion
from holdfast.storage.register import CheckpointPointer, RegisterState, RegisterWriter

logger = get_logger(__name__)

Versions = dict[str, StateVersion]
_NEW: Final = "new"
"""Requested start of a job that has no checkpoint."""


@dataclass(frozen=True)
class AttemptStart:
    """The start of an attempt; the defaults mean a fresh start.

    Attributes:
        checkpoint_id: The checkpoint; None for a fresh start.
        epoch: Its epoch, or the highest completed one: numbers never go back.
        processing_time: Processing time of that epoch, in milliseconds since 1970.
        incarnation: Incarnation of the job that this attempt continues or begins.
        requested_start: The requested start that began the incarnation, as in the register.
        source_incarnation: Incarnation that wrote the checkpoint; another one after a requested start.
        operators: State of the operators.
        targets: Identities of the targets of sinks, by uid.
        positions: Source positions; None to read from the beginning.
        master_states: State of the master hooks, by name.
        is_committed: Whether all sinks are known to have committed the checkpoint's output.
        is_own: Whether the job's register names the checkpoint.
        allow_non_restored: Whether to drop state without an operator.
        rules: The user's rules for inputs that do not match their positions.
        retained: The readable checkpoints that the register names.
        source: The checkpoint's statistics; None for a fresh start.
        claim: A snapshot that the job must delete; None if there is none.
        event_time: Progress of event time, for a replay; None to begin it anew.
    """

    checkpoint_id: int | None = None
    epoch: int = 0
    processing_time: int = 0
    incarnation: str = ""
    requested_start: str = ""
    source_incarnation: str = ""
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


def restore(job: Job, writer: RegisterWriter, *, is_first: bool) -> AttemptStart:
    """Return the start of the next attempt: the newest completed checkpoint, or the requested one.

    Args:
        job: The job.
        writer: The writer of the attempt. Its token is raised, so no other leader can complete a checkpoint any more.
        is_first: Whether this process has completed no checkpoint; only then a requested start counts.

    Raises:
        CorruptFileError: The checkpoint is damaged; the message proposes another one.
        RestoreError: The configured checkpoint does not exist.
        ConfigurationError: The directory belongs to another job.
    """
    options, state = job.configuration, writer.state
    requested_start = requested_start_of(options)
    is_requested = is_first and bool(requested_start)
    if is_requested:
        found = try_read_retained(job.directory, state)
        retained = tuple(item for _, item in found if isinstance(item, CompletedCheckpoint))
        if _is_repeated(requested_start, state, found):
            is_requested = False
            logger.warning(
                "job %r was started in this way before (%s) by a process that has died: it goes on from "
                "checkpoint %d of that start. To repeat the start, give it a name with %s",
                job.name, requested_start, retained[-1].checkpoint_id, START_REQUEST.key,
            )  # fmt: skip
    else:
        retained = tuple(read_retained(job.directory, state))
    _require_own(job, retained)
    path = options.get(RECOVERY_PATH)
    if is_requested and path is not None:
        start = _from_path(path, job, writer, requested_start)
    elif is_requested or not retained:
        start = _fresh_start(job, state, requested_start if is_requested else _NEW)
    else:
        start = _from_own(retained[-1], job, state, requested_start)
    known = [checkpoint.metadata for checkpoint in retained]
    return replace(
        start,
        epoch=max((start.epoch, *(metadata.epoch for metadata in known))),
        processing_time=max((start.processing_time, *(metadata.processing_time for metadata in known))),
        retained=retained,
    )


def migrate_derived_uids(graph: StreamGraph, operators: tuple[OperatorMetadata, ...]) -> tuple[OperatorMetadata, ...]:
    """Replace uids that an older version of Holdfast derived by those that this version derives.

    An older version derived the uid of an operator from the name of its step and its position. Such a checkpoint does
    not describe the program's structure. So uids are replaced only if all operators and sinks of the checkpoint are
    exactly those that the older version would derive for this program; otherwise the restore refuses the unclaimed
    state.
    """
    stored = {operator.uid for operator in operators}
    present = {node.former_uid or node.identity: node.identity for node in graph.nodes if node.keeps_state}
    if stored != present.keys() or stored == set(present.values()):
        return operators
    logger.info(
        "derived uids have changed since the checkpoint was written: %s",
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
    """Return the max parallelism of restored state by uid; the plan uses it where the program sets none.

    Args:
        graph: The program.
        operators: The operators of the checkpoint.
        default_max: `pipeline.max-parallelism`, if set; the state's own takes precedence, with a warning.

    Raises:
        ConfigurationError: The program sets another one.
    """
    stored = {op.uid: op.max_parallelism for op in operators if _is_partitioned(op)}
    for node in graph.of(KeyedNode):
        wanted, found = node.max_parallelism, stored.get(node.identity)
        if wanted is not None and found is not None and wanted != found:
            raise ConfigurationError(
                f"Operator {node.identity!r} sets max parallelism {wanted}, but its state has {found}, which "
                "cannot change: remove the setting."
            )
    others = {
        node.identity: found
        for node in graph.of(KeyedNode)
        if not node.max_parallelism and (found := stored.get(node.identity, default_max)) != default_max
    }
    if default_max is not None and others:
        logger.warning(
            "%s is %d, but has no effect on state that was written with another value, which is fixed: %s",
            MAX_PARALLELISM.key,
            default_max,
            ", ".join(f"{uid!r} keeps {found}" for uid, found in others.items()),
        )
    return stored


def _renaming(missing: Sequence[str], new: Sequence[str]) -> str:
    before, after = missing[0], new[0] if new else "..."
    return (
        "SavepointWriter.from_existing_savepoint(path)"
        f".change_operator_identifier({before!r}, {after!r}).write(new_path)"
    )


def restored_versions(plan: JobPlan, operators: Iterable[OperatorMetadata], allow_non_restored: bool) -> Versions:
    """Return the state versions of the job's keyed operators from a checkpoint; no run is opened.

    Args:
        plan: The job.
        operators: The operators of the checkpoint's document.
        allow_non_restored: Whether to drop state without an operator.

    Raises:
        RestoreError: The checkpoint has state of operators that the job does not have.
        StateMigrationError: The key type of an operator differs from the one that partitions its state.
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
            f"the checkpoint has state of operators that this job does not have: {missing}; new in this job: "
            f"{new or 'none'}. Give the operators their old uids, .uid('...'); or rename them in a copy of the "
            f"snapshot, {_renaming(missing, new)}, and start from it with -s; or drop that state with -n "
            "(execution.state-recovery.ignore-unclaimed-state). The uid of an operator without one is derived from the "
            "structure of the program and changes with it",
        )
    if missing:
        logger.warning("dropped the state of these operators (-n): %s", ", ".join(missing))
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
                f"{operator.key!r}: the type of a key cannot change; give the operator a new uid to start "
                "with empty state"
            )
        _require_same_windows(operator, step)
        versions[uid] = StateVersion(operator.runs)
    return versions


def _require_same_windows(operator: OperatorMetadata, step: Step) -> None:
    """Refuse open windows that differ from the windows of the program.

    A checkpoint of an older release does not describe its windows; then the operator checks them when they fire.
    """
    before, now = operator.states.get(WINDOWS), step.windows
    timers = map(StateVersion(operator.runs).least_timer, (EVENT, PROCESSING))
    if before is None or not now or before == now or all(time is None for time in timers):
        return
    raise StateMigrationError(
        f"Operator {operator.uid!r} has open windows of another kind: the checkpoint has {reprlib.repr(before)}, and "
        f"the program has {dict(now)!r}. Start the job with the former windows, or give the operator another uid, "
        "which drops its open windows."
    )


def _is_partitioned(operator: OperatorMetadata) -> bool:
    """Return whether an operator has state in key groups: runs, or raw keyed state."""
    subtasks = (part.get("states", {}).get(RAW_KEYED) for part in operator.subtasks if part)
    return bool(operator.runs) or any(state is not None and state["chunks"] for state in subtasks)


def is_fresh(configuration: Configuration) -> bool:
    return configuration.get(START_FRESH)


def is_start_requested(configuration: Configuration) -> bool:
    """Return whether the configuration requests a start, instead of that from the newest completed checkpoint."""
    return is_fresh(configuration) or configuration.get(RECOVERY_PATH) is not None


def requested_start_of(configuration: Configuration) -> str:
    """Return an id of the requested start that survives a restart of the process; empty for none."""
    if not is_start_requested(configuration):
        return ""
    path = configuration.get(RECOVERY_PATH)
    start = "fresh" if path is None else f"path {path.strip().rstrip('/')}"
    name = configuration.get(START_REQUEST)
    return f"{start} as {name}" if name else start


def _from_path(path: str, job: Job, writer: RegisterWriter, requested_start: str) -> AttemptStart:
    """Start from the configured checkpoint or savepoint, whose files become the job's own."""
    try:
        snapshot = read_by_path(path)
    except NotExistError as error:
        raise RestoreError(message=str(error)) from error
    is_claimed = job.configuration.get(CLAIM_MODE) is RecoveryClaimMode.CLAIM
    claim = _claimed(snapshot, job) if is_claimed else None
    metadata = import_snapshot(snapshot, job.directory, writer.token)
    start = _restored(metadata, job, _incarnation_for(requested_start, writer.state))
    return replace(start, requested_start=requested_start, source=_statistics(snapshot, job), claim=claim)


def _fresh_start(job: Job, state: RegisterState, requested_start: str) -> AttemptStart:
    return AttemptStart(
        incarnation=_incarnation_for(requested_start, state),
        requested_start=requested_start,
        rules=_input_rules(job.configuration),
    )


def _from_own(checkpoint: CompletedCheckpoint, job: Job, state: RegisterState, requested_start: str) -> AttemptStart:
    """Start from the newest checkpoint of the job itself."""
    metadata = checkpoint.metadata
    return replace(
        _restored(metadata, job, metadata.incarnation),
        requested_start=requested_start if requested_start == state.requested_start else "",
        is_committed=state.newest_committed >= metadata.checkpoint_id,
        is_own=True,
        source=_statistics(checkpoint, job),
        claim=Claim.from_json(metadata.extra[CLAIMED]) if metadata.extra.get(CLAIMED) else None,
    )


def _claimed(snapshot: CompletedCheckpoint, job: Job) -> Claim | None:
    is_of_another = not snapshot.metadata.is_savepoint and not is_in(snapshot, job.directory)
    if is_of_another and has_external_register(directory_of_job(snapshot)):
        raise ConfigurationError(
            f"{snapshot.path!r} cannot be claimed: the register of its job is in a coordination store, and only the "
            "leader of that job may delete its files. Take a savepoint of it and claim that, or start with NO_CLAIM."
        )
    return Claim.of(snapshot, job.directory)


def _is_repeated(
    requested_start: str,
    state: RegisterState,
    found: Sequence[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]],
) -> bool:
    """Return whether the newest checkpoint comes from this very start, which must then not be repeated."""
    newest = found[-1][1] if found else None
    return (
        requested_start == state.requested_start
        and isinstance(newest, CompletedCheckpoint)
        and newest.metadata.incarnation == state.incarnation
    )


def _incarnation_for(requested_start: str, state: RegisterState) -> str:
    """Return the incarnation of a start; the same if its process died before the first checkpoint."""
    if requested_start == state.requested_start and state.incarnation is not None:
        return state.incarnation
    return new_nonce()


def _require_own(job: Job, retained: Sequence[CompletedCheckpoint]) -> None:
    """Check that the retained checkpoints are the job's: without a subdirectory they may be another job's."""
    others = {checkpoint.get_job_id() for checkpoint in retained} - {str(job.job_id)}
    if others and job.directory.path == job.directory.root:
        raise ConfigurationError(
            f"{job.directory.path!r} has the checkpoints of job {min(others)}, not of {job.job_id}: with "
            "execution.checkpointing.create-subdir off, each job needs its own execution.checkpointing.dir."
        )


def _statistics(checkpoint: CompletedCheckpoint, job: Job) -> RestoredStats:
    return RestoredStats(checkpoint.checkpoint_id, checkpoint.properties, job.clock.now_ms(), checkpoint.path)


def _restored(metadata: CheckpointMetadata, job: Job, incarnation: str) -> AttemptStart:
    return AttemptStart(
        checkpoint_id=metadata.checkpoint_id,
        epoch=metadata.epoch,
        processing_time=metadata.processing_time,
        incarnation=incarnation,
        source_incarnation=metadata.incarnation,
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
