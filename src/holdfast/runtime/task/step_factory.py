"""How a task opens the steps of its stage: their functions, the state that they begin with, their writers."""

from __future__ import annotations

from holdfast.errors import CorruptFileError, HoldfastError, NotExistError
from holdfast.kernel.key_group import range_of
from holdfast.kernel.watermark import WatermarkGeneratorContext
from holdfast.runtime.exchange.descriptor import EpochDescriptor
from holdfast.runtime.function.sink import WriterInitContext, owner_of
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.operator import SubtaskInfo
from holdfast.runtime.task.identity import TaskIdentity
from holdfast.runtime.task.operator_state import TaskSnapshotStore, inline_limit
from holdfast.runtime.task.passing_step import PassingRun
from holdfast.runtime.task.queryable_names import QueryableNames
from holdfast.runtime.task.reading_step import ReadingRun
from holdfast.runtime.task.sink_step import SinkRun, StageRun
from holdfast.runtime.task.step import KeyedRun, OperatorRun, StepRun
from holdfast.runtime.task.timestamp_step import GeneratedRun, TimestampRun
from holdfast.runtime.task.worker import LoadedJob
from holdfast.runtime.window_operator.window_subtask import subtask_kind
from holdfast.state.backend import OperatorStateBackend
from holdfast.state.operator.operator_snapshot import OperatorSnapshot
from holdfast.state.run.version import StateVersion
from holdfast.storage.file_system.path import is_absolute, join
from holdfast.storage.job.job_directory import TASK_OWNED
from holdfast.storage.job.naming import FileName


def create_step(
    job: LoadedJob, epoch: EpochDescriptor, identity: TaskIdentity, step: Step, tasks: int
) -> StepRun | None:
    """The step as it runs in this task; None where it has fewer subtasks than the stage has tasks."""
    if step.kind in ("sink", "staging"):
        run = SinkRun if step.kind == "sink" else StageRun
        return run(step, _writer_context(job, epoch, identity, step, tasks), epoch)
    if step.operator is not None and step.operator.shape == "splits":
        return ReadingRun(step, identity.partition)
    if step.strategy is not None and step.strategy.supplier is not None:
        before = epoch.event_time.before(step.uid)
        context = WatermarkGeneratorContext(identity.partition, before, epoch.processing_time)
        held = epoch.generators.get(step.uid, {}).get(identity.partition)
        return GeneratedRun(step, step.strategy, context, epoch.epoch, held)
    if step.strategy is not None:
        return TimestampRun(step, step.strategy, identity.partition, epoch.epoch)
    if step.parallelism and identity.partition >= step.parallelism:
        return None
    if step.kind == "pass":
        return PassingRun(step, identity.partition)
    return _create_operator(job, epoch, identity, step, tasks)


def _create_operator(
    job: LoadedJob, epoch: EpochDescriptor, identity: TaskIdentity, step: Step, tasks: int
) -> OperatorRun:
    """A step with a user's function, and with the state that its subtask has."""
    info = _subtask_info(job, epoch, identity, step, tasks)
    instance = job.instance(step, info)
    given = epoch.state_of(step.uid, info.subtask)
    state = _operator_state(job, epoch, identity, step, info, given)
    at_work = subtask_kind(instance.spec, is_stamped=step.stamped)
    if step.kind == "narrow":
        return OperatorRun(step, at_work(instance, info, None, state), given)
    key_groups = range_of(identity.partition, step.max_parallelism, step.parallelism)
    names = QueryableNames(step.uid)
    backend = job.keyed_backend(step, info, key_groups, names)
    version = epoch.versions.get(step.uid, StateVersion()).for_range(key_groups)
    try:
        backend.open_version(version, job.run_files, job.descriptor.job_root)
    except NotExistError as error:
        raise _gone(job, version, error) from error
    return KeyedRun(step, at_work(instance, info, backend, state), job, epoch, names, given)


def _subtask_info(
    job: LoadedJob, epoch: EpochDescriptor, identity: TaskIdentity, step: Step, tasks: int
) -> SubtaskInfo:
    descriptor = job.descriptor
    return SubtaskInfo(
        uid=step.uid,
        name=step.name,
        job_id=descriptor.job_id,
        subtask=identity.partition,
        parallelism=step.parallelism or tasks,
        max_parallelism=step.max_parallelism,
        epoch=epoch.epoch,
        attempt_number=descriptor.attempt_number,
        processing_time=epoch.processing_time,
        watermark=epoch.event_time.before(step.uid),
        is_restored=descriptor.is_restored,
        has_past=descriptor.is_restored or epoch.follows,
        checkpoint_id=epoch.news.next_id,
        restored_checkpoint_id=epoch.news.newest,
        completed_checkpoint_id=epoch.news.completed,
        aborted_checkpoint_ids=epoch.news.aborted,
        parameters=descriptor.parameters,
    )


def _gone(job: LoadedJob, version: StateVersion, error: NotExistError) -> HoldfastError:
    """A run that a version names and that is not there is no better than a damaged one."""
    paths = [join(job.descriptor.job_root, run.path) for run in version.runs if not is_absolute(run.path)]
    missing = [path for path in paths if not job.file_system.exists(path)]
    return CorruptFileError(missing[0], None, "it is not there.") if missing else error


def _operator_state(
    job: LoadedJob,
    epoch: EpochDescriptor,
    identity: TaskIdentity,
    step: Step,
    info: SubtaskInfo,
    given: OperatorSnapshot | None,
) -> OperatorStateBackend | None:
    """The operator state of a subtask; None for a step that has none and was left none."""
    if not step.has_operator_state and given is None:
        return None
    plan, token = job.descriptor.plan, job.descriptor.token
    limit = inline_limit(job.configuration, job.stage(identity.stage), plan.epoch_job_of(identity.stage).stages)
    store = TaskSnapshotStore(
        job.directory,
        lambda: FileName.new(token, epoch.epoch, epoch.attempt, owner_of(step.uid), info.subtask),
        limit,
    )
    state = job.operator_backend(step, info)
    state.restore(given or OperatorSnapshot({}), store)
    return state


def _writer_context(
    job: LoadedJob, epoch: EpochDescriptor, identity: TaskIdentity, step: Step, tasks: int
) -> WriterInitContext:
    return WriterInitContext(
        job_id=job.descriptor.job_id,
        uid=step.uid,
        epoch=epoch.epoch,
        subtask=identity.partition,
        parallelism=tasks,
        attempt=epoch.attempt,
        token=job.descriptor.token,
        input_type=step.input_type,
        staging_dir=f"{job.descriptor.job_root}/{TASK_OWNED}",
        processing_time=epoch.processing_time,
        watermark=epoch.event_time.before(step.uid),
        incarnation=job.descriptor.incarnation,
        target=job.descriptor.targets.get(step.uid),
    )
