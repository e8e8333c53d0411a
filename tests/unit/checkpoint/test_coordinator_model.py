"""The coordinator against a model, in virtual time: requests, answers and failures in every order."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.checkpoint import (
    AcknowledgeCheckpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointProperties,
    CheckpointRetentionPolicy,
    DeclineCheckpoint,
    JobManagerCheckpointStorage,
    StandaloneCheckpointIDCounter,
    StandaloneCompletedCheckpointStore,
)
from holdfast.checkpoint.storage import MemoryCheckpointLocation, MemoryCheckpointStorageAccess
from holdfast.errors import CheckpointError, CheckpointFailureReason, PossibleInconsistentStateError, StorageError
from holdfast.kernel.clock import ManualClock
from tests.examples import examples
from tests.unit.checkpoint.support import JOB, RecordingFailures, RecordingVertex

TASKS = 3
TIMEOUT = 700
POLICY = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
KINDS = {
    "checkpoint": CheckpointProperties.for_checkpoint(POLICY),
    "savepoint": CheckpointProperties.for_savepoint(),
    "stop": CheckpointProperties.for_sync_savepoint(True, False),
}


class MemoryAccess(MemoryCheckpointStorageAccess):
    """Savepoints in memory as well; the model needs no files."""

    def initialize_location_for_savepoint(self, checkpoint_id, external_location_pointer):
        return MemoryCheckpointLocation(checkpoint_id, 10**6)


class MemoryStorage(JobManagerCheckpointStorage):
    def create_checkpoint_storage(self, job_id, *, create_subdir=True):
        return MemoryAccess(10**6)


class UnreliableStore(StandaloneCompletedCheckpointStore):
    """A store whose next addition can be made to fail."""

    error = None

    def _record(self, checkpoint, stay):
        if self.error is not None:
            error, self.error = self.error, None
            raise error


class CoordinatorModel(RuleBasedStateMachine):
    @initialize(
        interval=st.sampled_from([0, 100, 1000]),
        pause=st.sampled_from([0, 50]),
        concurrent=st.integers(1, 3),
        tolerable=st.integers(0, 3),
        retained=st.integers(1, 3),
    )
    def begin(self, interval, pause, concurrent, tolerable, retained):
        self.clock = ManualClock(10_000)
        self.vertices = [RecordingVertex("v", index) for index in range(TASKS)]
        self.store = UnreliableStore(retained)
        self.failures = RecordingFailures()
        self.concurrent, self.retained = concurrent, retained
        config = CheckpointConfig()
        config.set_checkpoint_interval(interval).set_min_pause_between_checkpoints(pause)
        config.set_max_concurrent_checkpoints(concurrent).set_checkpoint_timeout(TIMEOUT)
        config.set_checkpoint_storage(MemoryStorage())
        self.coordinator = CheckpointCoordinator(
            JOB,
            config,
            self.vertices,
            self.vertices,
            self.vertices,
            None,
            StandaloneCheckpointIDCounter(),
            self.store,
            None,
            None,
            CheckpointFailureManager(tolerable, self.failures),
            clock=self.clock,
        )
        self.coordinator._timer.close()
        self.futures = []
        self.answers = Counter()
        self.acknowledged = {}
        self.running = True

    def teardown(self):
        if not hasattr(self, "coordinator"):
            return
        self.coordinator.shutdown()
        assert all(future.done() for future in self.futures)
        assert self.coordinator.get_number_of_pending_checkpoints() == 0
        triggered = set(self.vertices[0].triggered)
        told = {number for number, _ in self.vertices[0].completed + self.vertices[0].aborted}
        untold = triggered - told
        savepoints = {
            future.result().checkpoint_id
            for future in self.futures
            if future.exception() is None and future.result().properties.is_savepoint()
        }
        assert untold <= savepoints, "only a plain savepoint ends without a word to the tasks"

    @property
    def pending(self):
        return self.coordinator.get_pending_checkpoints()

    @rule(kind=st.sampled_from(sorted(KINDS)))
    def somebody_asks(self, kind):
        future = self.coordinator.trigger_checkpoint(KINDS[kind], None, False)
        future.add_done_callback(lambda done: self.answers.update([id(done)]))
        self.futures.append(future)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), task=st.integers(0, TASKS - 1))
    def a_task_acknowledges(self, data, task):
        number = data.draw(st.sampled_from(sorted(self.pending)))
        self.acknowledged.setdefault(number, set()).add(task)
        self.coordinator.receive_acknowledge_message(AcknowledgeCheckpoint(JOB, f"v-{task}", number))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def all_acknowledge(self, data):
        number = data.draw(st.sampled_from(sorted(self.pending)))
        for task in range(TASKS):
            self.acknowledged.setdefault(number, set()).add(task)
            self.coordinator.receive_acknowledge_message(AcknowledgeCheckpoint(JOB, f"v-{task}", number))
        assert number not in self.pending

    @rule(number=st.integers(1, 30), task=st.integers(0, TASKS))
    def somebody_acknowledges_anything(self, number, task):
        if number in self.pending and task < TASKS:
            self.acknowledged.setdefault(number, set()).add(task)
        self.coordinator.receive_acknowledge_message(AcknowledgeCheckpoint(JOB, f"v-{task}", number))

    @rule(number=st.integers(1, 30), reason=st.sampled_from(list(CheckpointFailureReason)))
    def somebody_declines(self, number, reason):
        if reason is not CheckpointFailureReason.CHECKPOINT_SUBSUMED:
            self.coordinator.receive_decline_message(DeclineCheckpoint(JOB, "v-0", number, reason))
            assert number not in self.pending

    @rule(ms=st.integers(0, 800))
    def time_passes(self, ms):
        self.clock.advance(ms)
        self.coordinator.poll()
        assert all(self.clock.now_ms() - pending.timestamp < TIMEOUT for pending in self.pending.values())

    @rule(task=st.integers(0, TASKS - 1))
    def a_task_dies(self, task):
        cause = CheckpointError(CheckpointFailureReason.TASK_FAILURE)
        before = self.pending
        self.coordinator.fail_unacknowledged_pending_checkpoints_for(f"v-{task}", cause)
        for number in before.keys() & self.pending.keys():
            assert all(missing.execution_id != f"v-{task}" for missing in before[number].missing_tasks())

    @rule(running=st.booleans())
    def a_task_starts_or_stops(self, running):
        self.vertices[2].state = "RUNNING" if running else "DEPLOYING"

    @rule(error=st.sampled_from([StorageError("full"), PossibleInconsistentStateError("no answer")]))
    def the_next_pointer_fails(self, error):
        self.store.error = error

    @rule(start=st.booleans())
    def the_scheduler_is_started_or_stopped(self, start):
        if start:
            self.coordinator.start_checkpoint_scheduler()
        else:
            self.coordinator.stop_checkpoint_scheduler()
        if not start:
            assert not self.pending

    @invariant()
    def it_all_adds_up(self):
        if not hasattr(self, "coordinator"):
            return
        forced = sum(pending.properties.force_checkpoint() for pending in self.pending.values())
        assert len(self.pending) - forced <= self.concurrent
        counts = self.coordinator.get_statistics().counts
        assert counts.total == counts.completed + counts.failed + counts.in_progress
        assert counts.in_progress == len(self.pending)
        assert all(count == 1 for count in self.answers.values())

    @invariant()
    def every_checkpoint_ends_once_and_completes_only_with_all_answers(self):
        if not hasattr(self, "coordinator"):
            return
        for vertex in self.vertices:
            completed = [number for number, _ in vertex.completed]
            aborted = [number for number, _ in vertex.aborted]
            assert len(set(aborted)) == len(aborted)
            assert len(set(completed)) == len(completed)
            assert not set(completed) & set(aborted)
            for number in completed:
                assert self.acknowledged[number] == set(range(TASKS))
        savepoints = {
            future.result().checkpoint_id
            for future in self.futures
            if future.done() and future.exception() is None and future.result().properties.is_savepoint()
        }
        checkpoints = [number for number, _ in self.vertices[0].completed if number not in savepoints]
        assert checkpoints == sorted(checkpoints), "what completes is newer than all before"
        stored = [checkpoint.checkpoint_id for checkpoint in self.store.get_all_checkpoints()]
        assert stored == checkpoints[-self.retained :]


CoordinatorModel.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestCoordinatorModel = CoordinatorModel.TestCase
