"""Stories of the coordinator with tasks that are triggered and acknowledge, in virtual time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.checkpoint import (
    AcknowledgeCheckpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointProperties,
    CheckpointRetentionPolicy,
    DeclineCheckpoint,
    ExecutionJobVertex,
    FileSystemCheckpointStorage,
    OperatorSubtaskState,
    StandaloneCheckpointIDCounter,
    StandaloneCompletedCheckpointStore,
)
from holdfast.checkpoint.statistics import COMPLETED, FAILED
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    PossibleInconsistentStateError,
    RestoreError,
    StateError,
    StorageError,
)
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.ids import JobID
from tests.unit.checkpoint.support import JOB, RecordingFailures, RecordingVertex

Reason = CheckpointFailureReason
CHECKPOINT = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION)


_made = []


class Setting:
    """A coordinator with two tasks, in virtual time; `poll` stands for the timer thread.

    The thread is not started unless a story is about it: it looks at the clock at the same time as `poll` does, and
    whoever comes second finds nothing to do and returns before the other one has done it.
    """

    def __init__(
        self,
        root,
        *,
        tolerable=0,
        store=None,
        counter=None,
        executor=None,
        vertices=None,
        has_thread=False,
        **options,
    ):
        _made.append(self)
        self.clock = ManualClock(1_000_000)
        self.vertices = vertices or [RecordingVertex("v", 0), RecordingVertex("v", 1)]
        self.failures = RecordingFailures()
        self.store = store or StandaloneCompletedCheckpointStore(2)
        config = CheckpointConfig()
        config.set_checkpoint_storage(
            FileSystemCheckpointStorage(str(root), savepoint_directory=str(root / "savepoints"))
        )
        for key, value in options.items():
            config.configuration.set("execution.checkpointing." + key.replace("_", "-"), value)
        self.coordinator = CheckpointCoordinator(
            JOB,
            config,
            self.vertices,
            self.vertices,
            self.vertices,
            None,
            counter or StandaloneCheckpointIDCounter(),
            self.store,
            None,
            executor,
            CheckpointFailureManager(tolerable, self.failures),
            clock=self.clock,
        )
        if not has_thread:
            self.coordinator._timer.close()

    def trigger(self, properties=CHECKPOINT, location=None):
        return self.coordinator.trigger_checkpoint(properties, location, False)

    def acknowledge(self, checkpoint_id, *indexes, state=None):
        return [
            self.coordinator.receive_acknowledge_message(
                AcknowledgeCheckpoint(JOB, f"v-{index}", checkpoint_id, subtask_state=state)
            )
            for index in indexes or range(len(self.vertices))
        ]

    def decline(self, checkpoint_id, reason=Reason.CHECKPOINT_DECLINED, execution_id="v-0"):
        self.coordinator.receive_decline_message(DeclineCheckpoint(JOB, execution_id, checkpoint_id, reason))

    def advance(self, ms):
        self.clock.advance(ms)
        self.coordinator.poll()

    @property
    def pending(self):
        return sorted(self.coordinator.get_pending_checkpoints())

    @property
    def counts(self):
        return self.coordinator.get_statistics().counts


@pytest.fixture
def setting(tmp_path):
    return Setting(tmp_path)


@pytest.fixture(autouse=True)
def _no_timer_outlives_its_test():
    yield
    while _made:
        _made.pop().coordinator.shutdown()


def reason_of(future):
    error = future.exception(timeout=60)
    assert isinstance(error, CheckpointError), error
    return error.get_checkpoint_failure_reason()


def test_a_checkpoint_completes_when_all_have_acknowledged(setting, tmp_path):
    future = setting.trigger()
    assert [vertex.triggered for vertex in setting.vertices] == [[1], [1]]
    setting.clock.advance(50)
    assert setting.acknowledge(1, 0) == [True]
    assert not future.done()
    assert setting.acknowledge(1, 1) == [True]
    completed = future.result(timeout=60)
    assert (completed.checkpoint_id, completed.get_duration()) == (1, 50)
    assert completed.get_external_pointer() == str(tmp_path / str(JOB) / "chk-1")
    assert (tmp_path / str(JOB) / "chk-1" / "_metadata").exists()
    assert [vertex.completed for vertex in setting.vertices] == [[(1, 0)], [(1, 0)]]
    assert setting.coordinator.get_successful_checkpoints() == [completed]
    assert setting.pending == []


def test_what_the_tasks_hand_over_is_in_the_document(setting):
    future = setting.trigger()
    for index in (1, 0):
        state = (OperatorSubtaskState("op", state={"n": index}, committables={"out": [index]}, parallelism=2),)
        setting.acknowledge(1, index, state=state)
    [operator] = future.result(timeout=60).metadata.operators
    assert operator.uid == "op"
    assert operator.subtasks == ({"subtask": 0, "state": {"n": 0}}, {"subtask": 1, "state": {"n": 1}})
    assert operator.committables == {"out": [0, 1]}


def test_duplicate_unknown_late_and_foreign_acknowledgements_change_nothing(setting):
    future = setting.trigger()
    assert setting.acknowledge(1, 0) == [True]
    assert setting.acknowledge(1, 0) == [True]
    assert setting.coordinator.receive_acknowledge_message(AcknowledgeCheckpoint(JOB, "stranger", 1))
    assert setting.acknowledge(99, 0) == [False]
    foreign = AcknowledgeCheckpoint(JobID.from_name("other"), "v-1", 1)
    assert not setting.coordinator.receive_acknowledge_message(foreign)
    assert not future.done()
    setting.acknowledge(1, 1)
    assert future.result(timeout=60).checkpoint_id == 1
    assert setting.acknowledge(1, 1) == [False]


def test_any_decline_gives_the_checkpoint_up_and_everybody_is_told_once(setting):
    future = setting.trigger()
    setting.acknowledge(1, 0)
    setting.decline(1, Reason.CHECKPOINT_DECLINED_TASK_NOT_READY, execution_id="stranger")
    assert reason_of(future) is Reason.CHECKPOINT_DECLINED_TASK_NOT_READY
    setting.decline(1)
    setting.decline(77)
    assert [vertex.aborted for vertex in setting.vertices] == [[(1, 0)], [(1, 0)]]
    assert setting.pending == []
    assert setting.failures.causes == []
    with pytest.raises(ValueError, match="job"):
        setting.coordinator.receive_decline_message(DeclineCheckpoint(JobID.from_name("other"), "v-0", 1))


def test_a_decline_without_a_reason_counts_as_declined(setting):
    future = setting.trigger()
    setting.decline(1, CheckpointError("I would rather not"))
    assert reason_of(future) is Reason.CHECKPOINT_DECLINED
    assert len(setting.failures.causes) == 1


def test_a_checkpoint_that_takes_too_long_expires_and_late_answers_are_known_as_late(tmp_path):
    setting = Setting(tmp_path, tolerable=1, timeout=600)
    future = setting.trigger()
    setting.acknowledge(1, 0)
    setting.advance(599)
    assert not future.done()
    setting.advance(1)
    assert reason_of(future) is Reason.CHECKPOINT_EXPIRED
    assert setting.acknowledge(1, 1) == [True]
    [stats] = setting.coordinator.get_statistics().history
    assert (stats.status, stats.num_acknowledged) == (FAILED, 2)
    assert not (tmp_path / str(JOB) / "chk-1").exists()
    second = setting.trigger()
    setting.acknowledge(2)
    assert second.result(timeout=60).checkpoint_id == 2


def test_a_newer_checkpoint_replaces_those_under_way_but_no_savepoint(tmp_path):
    setting = Setting(tmp_path, **{"max-concurrent-checkpoints": 3})
    first, savepoint, third = (
        setting.trigger(),
        setting.trigger(CheckpointProperties.for_savepoint()),
        setting.trigger(),
    )
    assert setting.pending == [1, 2, 3]
    setting.acknowledge(3)
    assert third.result(timeout=60).checkpoint_id == 3
    assert reason_of(first) is Reason.CHECKPOINT_SUBSUMED
    assert setting.pending == [2]
    setting.acknowledge(2)
    assert savepoint.result(timeout=60).checkpoint_id == 2
    assert [checkpoint.checkpoint_id for checkpoint in setting.coordinator.get_successful_checkpoints()] == [3]
    assert setting.vertices[0].completed == [(3, 0)]


def test_old_checkpoints_go_and_the_tasks_are_told_which(setting, tmp_path):
    for checkpoint_id in (1, 2, 3):
        setting.trigger()
        setting.acknowledge(checkpoint_id)
    assert setting.vertices[0].completed == [(1, 0), (2, 0), (3, 1)]
    assert setting.vertices[0].subsumed == [(1, 3)], "told once, and after what has replaced it"
    assert sorted(path.name for path in (tmp_path / str(JOB)).iterdir()) == ["chk-2", "chk-3"]


def test_a_savepoint_goes_to_its_own_directory_and_is_not_stored(setting, tmp_path):
    future = setting.trigger(CheckpointProperties.for_savepoint(), str(tmp_path / "mine"))
    assert setting.vertices[0].options.get_checkpoint_type().is_savepoint()
    setting.acknowledge(1)
    path = future.result(timeout=60).get_external_pointer()
    assert path.startswith(str(tmp_path / "mine" / f"savepoint-{str(JOB)[:6]}-"))
    assert setting.vertices[0].options.get_target_location().path == path
    assert setting.coordinator.get_successful_checkpoints() == []
    assert setting.vertices[0].completed == []
    default = setting.coordinator.trigger_savepoint(None)
    setting.acknowledge(2)
    assert default.result(timeout=60).get_external_pointer().startswith(str(tmp_path / "savepoints"))


def test_the_savepoint_of_a_stop_commits_but_is_not_stored(setting, tmp_path):
    earlier = setting.trigger()
    future = setting.coordinator.trigger_synchronous_savepoint(True, str(tmp_path / "s"))
    setting.acknowledge(2)
    assert future.result(timeout=60).properties.is_synchronous()
    assert setting.vertices[0].completed == [(2, 0)]
    assert reason_of(earlier) is Reason.CHECKPOINT_SUBSUMED
    assert setting.coordinator.get_successful_checkpoints() == []


def test_requests_wait_for_their_turn(setting):
    first, second, third = setting.trigger(), setting.trigger(), setting.trigger()
    assert setting.pending == [1]
    setting.acknowledge(1)
    assert setting.pending == [2]
    setting.decline(2)
    assert setting.pending == [3]
    setting.acknowledge(3)
    assert (first.result(10).checkpoint_id, reason_of(second), third.result(10).checkpoint_id) == (
        1,
        Reason.CHECKPOINT_DECLINED,
        3,
    )


def test_a_task_that_does_not_run_stops_the_request_before_it_begins(setting):
    setting.vertices[1].state = "DEPLOYING"
    future = setting.trigger()
    assert reason_of(future) is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert setting.vertices[0].triggered == []
    assert (setting.counts.total, setting.counts.failed) == (1, 1)
    setting.vertices[1].state = "FINISHED"
    ended = setting.trigger()
    assert setting.vertices[1].triggered == []
    setting.acknowledge(1, 0)
    assert ended.result(timeout=60)


def test_a_task_that_cannot_be_triggered_fails_the_checkpoint(setting):
    setting.vertices[1].failure = OSError("connection refused")
    future = setting.trigger()
    assert reason_of(future) is Reason.IO_EXCEPTION
    assert setting.pending == []
    setting.vertices[1].failure = None
    setting.trigger()
    assert setting.pending == [2]


def test_periodic_checkpoints_come_at_their_interval_after_a_random_first_one(tmp_path):
    setting = Setting(tmp_path, interval=1000)
    setting.coordinator.start_checkpoint_scheduler()
    waited = 0
    while not setting.pending:
        setting.advance(10)
        waited += 10
    assert 0 <= waited <= 1000
    setting.acknowledge(1)
    for checkpoint_id in (2, 3, 4):
        setting.advance(990)
        assert setting.pending == []
        setting.advance(10)
        assert setting.pending == [checkpoint_id]
        setting.acknowledge(checkpoint_id)


def test_a_thread_of_the_coordinator_takes_periodic_checkpoints_and_gives_up_those_that_take_too_long(tmp_path):
    setting = Setting(tmp_path, has_thread=True, interval=1000, timeout=5000)
    setting.coordinator.start_checkpoint_scheduler()
    until(lambda: setting.clock.sleepers == 1)
    setting.clock.advance(1000)
    until(lambda: setting.pending == [1])
    until(lambda: setting.clock.sleepers == 1)
    setting.clock.advance(5000)
    until(lambda: setting.counts.failed == 1)
    until(lambda: setting.pending == [2])


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_pause_after_a_checkpoint_delays_the_next_periodic_one_but_no_other(tmp_path):
    setting = Setting(tmp_path, interval=1000, min_pause=800, **{"max-concurrent-checkpoints": 2})
    setting.coordinator.start_checkpoint_scheduler()
    while not setting.pending:
        setting.advance(10)
    setting.advance(900)
    setting.acknowledge(1)
    setting.advance(100)
    assert setting.pending == []
    manual = setting.trigger()
    setting.acknowledge(2)
    assert manual.result(timeout=60)
    setting.advance(790)
    assert setting.pending == []
    setting.advance(10)
    assert setting.pending == [3]
    setting.coordinator.shutdown()


def test_stopping_the_scheduler_gives_up_what_is_under_way_or_waits(tmp_path):
    setting = Setting(tmp_path, interval=1000)
    setting.coordinator.start_checkpoint_scheduler()
    under_way, waiting = setting.trigger(), setting.trigger()
    setting.coordinator.stop_checkpoint_scheduler()
    assert reason_of(under_way) is Reason.CHECKPOINT_COORDINATOR_SUSPEND
    assert reason_of(waiting) is Reason.CHECKPOINT_COORDINATOR_SUSPEND
    setting.advance(100_000)
    assert setting.pending == []
    refused = setting.coordinator.trigger_checkpoint(CHECKPOINT, None, True)
    assert reason_of(refused) is Reason.PERIODIC_SCHEDULER_SHUTDOWN
    manual = setting.trigger()
    setting.acknowledge(2)
    assert manual.result(timeout=60).checkpoint_id == 2
    assert setting.failures.causes == []
    setting.coordinator.start_checkpoint_scheduler()
    setting.advance(1000)
    assert setting.pending == [3]
    setting.coordinator.shutdown()


def test_after_the_shutdown_nothing_is_triggered_and_messages_are_ignored(setting):
    under_way = setting.trigger()
    setting.coordinator.shutdown()
    assert reason_of(under_way) is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
    assert reason_of(setting.trigger()) is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
    assert setting.acknowledge(1, 0) == [False]
    setting.decline(1)
    with pytest.raises(CheckpointError):
        setting.coordinator.start_checkpoint_scheduler()
    setting.coordinator.shutdown()


@pytest.mark.parametrize(
    ("cause", "reason"),
    [((CheckpointError(Reason.TASK_FAILURE),), Reason.TASK_FAILURE), ((), Reason.TASK_FAILURE_DURING_CHECKPOINT)],
)
def test_a_task_that_dies_gives_up_only_what_waits_for_it(tmp_path, cause, reason):
    setting = Setting(tmp_path, **{"max-concurrent-checkpoints": 2})
    first, second = setting.trigger(), setting.trigger()
    setting.acknowledge(1, 0)
    setting.coordinator.fail_unacknowledged_pending_checkpoints_for("v-0", *cause)
    assert not first.done()
    assert reason_of(second) is reason
    setting.acknowledge(1, 1)
    assert first.result(timeout=60)


class BrokenStore(StandaloneCompletedCheckpointStore):
    """A store whose next addition fails."""

    def __init__(self, error):
        super().__init__(2)
        self.error = error

    def _record(self, checkpoint, stay):
        if self.error is not None:
            error, self.error = self.error, None
            raise error


def test_a_pointer_that_was_not_written_fails_the_checkpoint_and_its_files_go(tmp_path):
    setting = Setting(tmp_path, tolerable=1, store=BrokenStore(StorageError("disk full")))
    future = setting.trigger()
    setting.acknowledge(1)
    assert reason_of(future) is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert setting.vertices[0].aborted == [(1, 0)]
    assert setting.vertices[0].completed == []
    assert not (tmp_path / str(JOB) / "chk-1").exists()
    second = setting.trigger()
    setting.acknowledge(2)
    assert second.result(timeout=60).checkpoint_id == 2


def test_when_nobody_knows_whether_the_pointer_was_written_nothing_is_deleted(tmp_path):
    setting = Setting(tmp_path, store=BrokenStore(PossibleInconsistentStateError("no answer")))
    future = setting.trigger()
    setting.acknowledge(1)
    assert reason_of(future) is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert (tmp_path / str(JOB) / "chk-1" / "_metadata").exists()
    assert len(setting.failures.causes) == 1


def test_a_document_that_is_there_already_fails_the_checkpoint_and_stays(setting, tmp_path):
    directory = tmp_path / str(JOB) / "chk-1"
    directory.mkdir(parents=True)
    (directory / "_metadata").write_bytes(b"somebody else's")
    future = setting.trigger()
    setting.acknowledge(1)
    assert reason_of(future) is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert (directory / "_metadata").read_bytes() == b"somebody else's"


def test_statistics_tell_of_every_checkpoint(setting):
    setting.trigger()
    setting.clock.advance(30)
    setting.acknowledge(1)
    setting.trigger()
    setting.decline(2)
    setting.trigger()
    snapshot = setting.coordinator.get_statistics()
    assert (snapshot.counts.total, snapshot.counts.completed, snapshot.counts.failed) == (3, 1, 1)
    assert snapshot.counts.in_progress == 1
    assert [(stats.checkpoint_id, stats.status) for stats in snapshot.history] == [
        (3, "IN_PROGRESS"),
        (2, FAILED),
        (1, COMPLETED),
    ]
    assert snapshot.latest_completed.end_to_end_duration == 30
    assert snapshot.history[1].failure_message == Reason.CHECKPOINT_DECLINED.message


class JobVertex(ExecutionJobVertex):
    def __init__(self, *uids):
        self.uids, self.restored = uids, None

    def get_operator_uids(self):
        return self.uids

    def restore_state(self, checkpoint_id, states):
        self.restored = (checkpoint_id, states)


def test_a_restore_gives_each_vertex_the_state_of_its_operators(setting):
    setting.trigger()
    setting.acknowledge(1, 0, state=(OperatorSubtaskState("a", state=1), OperatorSubtaskState("b", state=2)))
    setting.acknowledge(1, 1)
    first, second = JobVertex("a"), JobVertex("b", "c")
    assert setting.coordinator.restore_latest_checkpointed_state({"x": first, "y": second}, True, True)
    assert (first.restored[0], list(first.restored[1]), list(second.restored[1])) == (1, ["a"], ["b"])
    assert setting.counts.restored == 1
    with pytest.raises(RestoreError) as caught:
        setting.coordinator.restore_latest_checkpointed_state({"x": JobVertex("a", "new")}, True, True)
    assert (caught.value.missing_uids, caught.value.new_uids) == (("b",), ("new",))
    assert setting.coordinator.restore_latest_checkpointed_state({"x": JobVertex("a")}, True, False)


def test_without_a_checkpoint_there_is_nothing_to_restore(setting):
    assert not setting.coordinator.restore_latest_checkpointed_state({}, False, False)
    with pytest.raises(StateError, match="no completed checkpoint"):
        setting.coordinator.restore_latest_checkpointed_state({}, True, False)


def test_everything_works_in_an_executor_as_well(tmp_path):
    with ThreadPoolExecutor(2) as executor:
        setting = Setting(tmp_path, executor=executor)
        futures = [setting.trigger() for _ in range(5)]
        for checkpoint_id, future in enumerate(futures, 1):
            while checkpoint_id not in setting.vertices[1].triggered:
                time.sleep(0.001)
            setting.acknowledge(checkpoint_id)
            assert future.result(timeout=60).checkpoint_id == checkpoint_id
        setting.coordinator.shutdown()


def test_a_checkpoint_that_comes_in_after_a_newer_one_has_completed_does_not_become_the_newest(tmp_path):
    """Both are acknowledged while the newer one is being written; a recovery must not find the older one."""
    is_writing, may_go_on = threading.Event(), threading.Event()

    class Slow(StandaloneCompletedCheckpointStore):
        def _record(self, checkpoint, stay):
            is_writing.set()
            assert may_go_on.wait(60)

    with ThreadPoolExecutor(2) as executor:
        setting = Setting(tmp_path, store=Slow(3), executor=executor, max_concurrent_checkpoints=2)
        older, newer = setting.trigger(), setting.trigger()
        while setting.vertices[1].triggered != [1, 2]:
            time.sleep(0.001)
        setting.acknowledge(2)
        assert is_writing.wait(60)
        setting.acknowledge(1)
        may_go_on.set()
        assert newer.result(timeout=60).checkpoint_id == 2
        assert reason_of(older) is Reason.CHECKPOINT_SUBSUMED
        setting.coordinator.shutdown()
    assert [checkpoint.checkpoint_id for checkpoint in setting.store.get_all_checkpoints()] == [2]
    assert setting.vertices[0].completed == [(2, 0)]
    assert setting.vertices[0].aborted == [(1, 2)]
    assert not (tmp_path / str(JOB) / "chk-1").exists()


def test_a_request_that_waits_has_its_turn_when_the_one_before_it_expires(tmp_path):
    setting = Setting(tmp_path, tolerable=5, timeout="1 s")
    first, second = setting.trigger(), setting.trigger()
    assert setting.pending == [1]
    setting.advance(1_000)
    assert reason_of(first) is Reason.CHECKPOINT_EXPIRED
    assert setting.pending == [2]
    setting.acknowledge(2)
    assert second.result(timeout=60).checkpoint_id == 2


def test_a_task_that_cannot_be_told_keeps_no_other_from_being_told(tmp_path):
    class Gone(RecordingVertex):
        def notify_checkpoint_complete(self, checkpoint_id, timestamp, subsumed_checkpoint_id):
            raise ConnectionError("gone")

        def notify_checkpoint_aborted(self, checkpoint_id, latest_completed_id, timestamp):
            raise ConnectionError("gone")

    setting = Setting(tmp_path, tolerable=5, vertices=[Gone("v", 0), RecordingVertex("v", 1)])
    setting.trigger()
    setting.acknowledge(1)
    setting.trigger()
    setting.decline(2)
    assert setting.vertices[1].completed == [(1, 0)]
    assert setting.vertices[1].aborted == [(2, 1)]


def test_a_counter_that_cannot_be_reached_fails_one_request_and_not_the_ones_after_it(tmp_path):
    class Away(StandaloneCheckpointIDCounter):
        is_away = True

        def get_and_increment(self):
            if self.is_away:
                raise ConnectionError("no route to host")
            return super().get_and_increment()

    counter = Away()
    setting = Setting(tmp_path, tolerable=5, counter=counter)
    assert reason_of(setting.trigger()) is Reason.IO_EXCEPTION
    counter.is_away = False
    future = setting.trigger()
    setting.acknowledge(1)
    assert future.result(timeout=60).checkpoint_id == 1


def test_trouble_with_files_is_the_reason_however_deep_it_lies(setting):
    failure = RuntimeError("the task has no connection")
    failure.__cause__ = ConnectionResetError("reset by peer")
    setting.vertices[0].failure = failure
    assert reason_of(setting.trigger()) is Reason.IO_EXCEPTION


def test_a_callback_may_ask_for_the_next_checkpoint(setting):
    seen = []

    def again(future):
        seen.append(future.result().checkpoint_id)
        if len(seen) < 3:
            setting.trigger().add_done_callback(again)

    setting.trigger().add_done_callback(again)
    for checkpoint_id in (1, 2, 3):
        setting.acknowledge(checkpoint_id)
    assert seen == [1, 2, 3]
