"""The coordinator driven epoch by epoch, on a real directory and register."""

import threading

import pytest

from holdfast.checkpoint import CheckpointFailureReason, CompletedCheckpoint
from holdfast.checkpoint.checkpoint_machine import CheckpointParticipant
from holdfast.checkpoint.claim import import_snapshot
from holdfast.checkpoint.completed_checkpoint import read_by_path, read_newest
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.errors import CheckpointError, FencedError, PossibleInconsistentStateError, StateError, StorageError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.job.control import JobControl, SnapshotRequest
from holdfast.storage.register import REGISTER_FORMAT, FencedRegister, RegisterState
from holdfast.storage.versioned_document import FileDocument
from tests.unit.checkpoint.support import LocalJob, complete, document, run_handle

SAVEPOINT = CheckpointProperties.for_savepoint()
TASKS = [CheckpointParticipant("op-0", "op", 0, 2), CheckpointParticipant("op-1", "op", 1, 2)]


@pytest.fixture
def job(tmp_path):
    return LocalJob(tmp_path)


def test_every_epoch_completes_a_checkpoint_when_no_interval_is_set(job):
    writer, coordinator = job.lead()
    for epoch in range(1, 6):
        pending = coordinator.begin(epoch, TASKS)
        for task in TASKS:
            assert coordinator.acknowledge(pending, task.execution_id)
        completed = coordinator.complete(pending, document(pending.checkpoint_id, epoch))
        assert (completed.checkpoint_id, completed.metadata.epoch) == (epoch, epoch)
        assert coordinator.begin(epoch, TASKS) is None
    state = job.register.read()
    assert [pointer.checkpoint_id for pointer in state.checkpoints] == [3, 4, 5]
    assert state.newest.path == "chk-5/_metadata"
    assert read_newest(job.directory, state).metadata.epoch == 5
    assert writer.state == state


def test_at_least_one_checkpoint_is_kept_and_who_wants_less_is_told(tmp_path, caplog):
    job = LocalJob(tmp_path, **{"execution.checkpointing.num-retained": 0})
    _, coordinator = job.lead()
    assert "execution.checkpointing.num-retained is 0" in caplog.text
    for epoch in range(1, 6):
        complete(coordinator, epoch)
    assert [pointer.checkpoint_id for pointer in job.register.read().checkpoints] == [3, 4, 5]


def test_the_next_leader_goes_on_with_new_ids_and_the_old_one_is_fenced(job):
    _, first = job.lead()
    complete(first, 1)
    complete(first, 2)
    pending = first.begin(3)
    _, second = job.lead()
    assert [checkpoint.metadata.epoch for checkpoint in second.get_successful_checkpoints()] == [1, 2]
    with pytest.raises(FencedError):
        first.complete(pending, document(pending.checkpoint_id, 3))
    completed = complete(second, 3)
    assert completed.checkpoint_id > pending.checkpoint_id
    assert job.register.read().newest.checkpoint_id == completed.checkpoint_id
    with pytest.raises((FencedError, CheckpointError)):
        complete(first, 4)


def test_with_an_interval_only_epochs_that_are_due_complete(tmp_path):
    clock = ManualClock()
    _, coordinator = LocalJob(tmp_path, **{"execution.checkpointing.interval": 1000}).lead(clock)
    due = []
    for epoch in range(1, 31):
        clock.advance(100)
        assert coordinator.is_due(epoch) == (epoch % 10 == 0)
        pending = coordinator.begin(epoch)
        if pending is not None:
            due.append(epoch)
            coordinator.complete(pending, document(pending.checkpoint_id, epoch))
    assert due == [10, 20, 30]
    assert coordinator.begin(31) is None
    assert coordinator.begin(31, force=True) is not None


def test_the_pause_counts_from_the_completion_of_the_last_checkpoint_or_savepoint(tmp_path):
    clock = ManualClock()
    job = LocalJob(tmp_path, **{"execution.checkpointing.min-pause": 1000})
    _, coordinator = job.lead(clock)
    clock.advance(1000)
    pending = coordinator.begin(1)
    clock.advance(700)  # its document is a long time coming
    coordinator.complete(pending, document(pending.checkpoint_id, 1))
    clock.advance(999)
    assert not coordinator.is_due(2)
    assert coordinator.begin(2) is None
    clock.advance(1)
    assert coordinator.is_due(3)
    savepoint = coordinator.begin(3, properties=SAVEPOINT, external_location=str(tmp_path / "savepoints"))
    assert savepoint.properties.is_savepoint()
    coordinator.complete(savepoint, document(savepoint.checkpoint_id, 3))
    assert not coordinator.is_due(3), "a savepoint delays the next checkpoint as well"
    assert coordinator.begin(3, force=True) is not None


def test_who_asks_for_a_checkpoint_waits_for_the_end_of_an_epoch(tmp_path):
    _, coordinator = LocalJob(tmp_path, **{"execution.checkpointing.interval": "1 h"}).lead(ManualClock())
    assert not coordinator.is_due(1)
    with pytest.raises(StateError, match="ends of epochs"):
        coordinator.trigger_checkpoint()
    assert coordinator.begin(1) is None
    assert complete(coordinator, 1).metadata.epoch == 1
    assert not coordinator.is_due(2)


def test_a_savepoint_and_the_checkpoint_of_one_epoch(job, tmp_path):
    _, coordinator = job.lead()
    pending = coordinator.begin(1, properties=SAVEPOINT, external_location=str(tmp_path / "savepoints"))
    savepoint = coordinator.complete(pending, document(pending.checkpoint_id, 1))
    pending = coordinator.begin(1)
    assert not pending.properties.is_savepoint()
    coordinator.complete(pending, document(pending.checkpoint_id, 1))
    assert read_by_path(savepoint.get_external_pointer()).metadata.is_savepoint
    assert [pointer.checkpoint_id for pointer in job.register.read().checkpoints] == [2]


def test_a_request_that_fails_at_once_stops_neither_the_epoch_nor_the_job(job):
    _, coordinator = job.lead()
    with pytest.raises(CheckpointError, match="savepoint-dir"):
        coordinator.begin(1, properties=SAVEPOINT)
    pending = coordinator.begin(1)
    assert not pending.properties.is_savepoint()
    coordinator.complete(pending, document(pending.checkpoint_id, 1))
    assert job.failures.causes == []


def test_a_leader_learns_at_the_begin_that_it_was_deposed_when_it_needs_new_ids(job):
    _, coordinator = job.lead()
    job.lead()
    with pytest.raises(FencedError):
        coordinator.begin(1)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_leader_that_never_learns_whether_its_ids_were_reserved_ends_and_none_is_used_twice(job, moment):
    class Silent(FileDocument):
        is_silent = False

        def read(self):
            if self.is_silent:
                raise StorageError("no route to host")
            return super().read()

        def _write_next(self, base, new):
            if not self.is_silent or moment == "after":
                super()._write_next(base, new)
            if self.is_silent:
                raise PossibleInconsistentStateError("no answer")

    silent = Silent(job.directory.fs, job.directory.register_dir, REGISTER_FORMAT)
    job.register = FencedRegister(silent)
    _, coordinator = job.lead()
    silent.is_silent = True
    with pytest.raises(PossibleInconsistentStateError):
        coordinator.begin(1)
    silent.is_silent = False
    first_free = job.register.read().next_checkpoint_id
    assert (first_free > 1) == (moment == "after")
    _, successor = job.lead()
    assert complete(successor, 1).checkpoint_id == first_free


def test_a_checkpoint_needs_all_acknowledgements_and_its_own_document(job):
    _, coordinator = job.lead()
    pending = coordinator.begin(1, TASKS)
    coordinator.acknowledge(pending, "op-0")
    with pytest.raises(StateError, match="op-1"):
        coordinator.complete(pending, document(pending.checkpoint_id))
    coordinator.acknowledge(pending, "op-1")
    with pytest.raises(StateError, match="checkpoint 9"):
        coordinator.complete(pending, document(9))
    assert coordinator.complete(pending, document(pending.checkpoint_id)).checkpoint_id == 1


def test_an_epoch_that_takes_too_long_fails_its_checkpoint(tmp_path):
    clock = ManualClock()
    job = LocalJob(tmp_path, **{"execution.checkpointing.timeout": 500})
    _, coordinator = job.lead(clock)
    pending = coordinator.begin(1)
    clock.advance(500)
    with pytest.raises(CheckpointError) as caught:
        coordinator.complete(pending, document(pending.checkpoint_id))
    assert caught.value.reason is CheckpointFailureReason.CHECKPOINT_EXPIRED
    assert len(job.failures.causes) == 1
    assert job.checkpoints() == []
    assert complete(coordinator, 2).checkpoint_id == 2


def test_an_epoch_that_failed_gives_its_checkpoint_up(job):
    _, coordinator = job.lead()
    pending = coordinator.begin(1, TASKS)
    coordinator.abort(pending, CheckpointError(CheckpointFailureReason.TASK_FAILURE_DURING_CHECKPOINT))
    with pytest.raises(CheckpointError):
        coordinator.complete(pending, document(pending.checkpoint_id))
    again = coordinator.begin(1, force=True)
    assert again.checkpoint_id == 2
    assert coordinator.get_statistics().counts.failed == 1


def test_the_register_is_written_once_a_checkpoint(job):
    writer, coordinator = job.lead()
    complete(coordinator, 1)
    before = writer.state.version
    for epoch in range(2, 52):
        complete(coordinator, epoch)
    assert writer.state.version == before + 50


def test_ids_are_unique_however_often_leaders_change(job):
    seen = []
    for term in range(6):
        _, coordinator = job.lead()
        for epoch in range(term % 3):
            seen.append(complete(coordinator, 100 * term + epoch).checkpoint_id)
        if term % 2:
            seen.append(coordinator.begin(100 * term + 50, force=True).checkpoint_id)
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)
    assert seen[0] >= 1


def test_that_everybody_was_told_is_recorded_with_the_next_pointer(job):
    _, coordinator = job.lead()
    first = complete(coordinator, 1)
    coordinator.get_checkpoint_store().mark_committed(first.checkpoint_id)
    assert job.register.read().newest_committed == 0
    complete(coordinator, 2)
    assert job.register.read().newest_committed == 1


@pytest.mark.parametrize(
    ("status", "policy", "kept"),
    [
        ("FINISHED", "RETAIN_ON_CANCELLATION", []),
        ("CANCELED", "RETAIN_ON_CANCELLATION", [1, 2]),
        ("CANCELED", "DELETE_ON_CANCELLATION", []),
        ("FAILED", "DELETE_ON_CANCELLATION", [1, 2]),
        ("FAILED", "NO_EXTERNALIZED_CHECKPOINTS", []),
        ("SUSPENDED", "NO_EXTERNALIZED_CHECKPOINTS", [1, 2]),
    ],
)
def test_what_is_kept_when_the_job_ends(tmp_path, status, policy, kept):
    job = LocalJob(tmp_path, **{"execution.checkpointing.externalized-checkpoint-retention": policy})
    _, coordinator = job.lead()
    for epoch in (1, 2):
        complete(coordinator, epoch)
    coordinator.get_checkpoint_store().shutdown(status)
    state = job.register.read()
    assert [pointer.checkpoint_id for pointer in state.checkpoints] == kept
    assert state.terminal == (None if status == "SUSPENDED" else status)
    with pytest.raises(CheckpointError) as caught:
        complete(coordinator, 3)
    assert isinstance(caught.value.__cause__, StateError)


def test_a_restored_savepoint_is_what_the_next_recovery_starts_from(tmp_path):
    other = LocalJob(tmp_path / "other")
    _, coordinator = other.lead()
    handle = other.write_run(1, 1)
    for epoch in range(1, 8):
        savepoint = complete(coordinator, epoch, runs=[handle])
    job = LocalJob(tmp_path / "job")
    writer, coordinator = job.lead()
    complete(coordinator, 3)
    found = read_by_path(savepoint.get_external_pointer() + "/")
    unclaimed = CheckpointProperties.for_unclaimed_snapshot()
    coordinator.get_checkpoint_store().add_checkpoint_and_subsume_oldest_one(
        CompletedCheckpoint(found.metadata, found.path, found.pointer, properties=unclaimed)
    )
    coordinator.get_checkpoint_id_counter().set_count(savepoint.checkpoint_id + 1)
    assert read_newest(job.directory, job.register.read()).path == savepoint.path
    assert import_snapshot(found, job.directory, writer.token).operators[0].runs[0].path != handle.path
    first = coordinator.begin(9)
    assert first.checkpoint_id > savepoint.checkpoint_id
    assert first.properties.snapshot_type.name == "FULL_CHECKPOINT"
    coordinator.complete(first, document(first.checkpoint_id, 9))
    second = coordinator.begin(10)
    assert second.properties.snapshot_type.name == "CHECKPOINT"
    coordinator.complete(second, document(second.checkpoint_id, 10))


def test_requests_of_other_threads_are_served_at_the_ends_of_epochs(job):
    _, coordinator = job.lead()
    control = JobControl()
    results = []

    def ask():
        for _ in range(5):
            results.append(control.request(SnapshotRequest()).result(timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    epoch = 0
    while any(thread.is_alive() for thread in threads):
        epoch += 1
        waiting = control.waiting
        completed = complete(coordinator, epoch)
        while (request := control.next_request(among=waiting, drained=False)) is not None:
            request.future.set_result(completed.checkpoint_id)
    assert len(results) == 15


@pytest.mark.parametrize(
    ("spec", "error", "found"),
    [
        ("before:metadata.write=raise", CheckpointError, 1),
        ("after:metadata.write=raise", CheckpointError, 1),
        ("lost:metadata.write=raise", None, 2),
        ("before:metadata.write=enospc", CheckpointError, 1),
        ("before:pointer.write=raise", CheckpointError, 1),
        ("after:pointer.write=raise", PossibleInconsistentStateError, 2),
        ("lost:pointer.write=raise", None, 2),
        ("before:pointer.write=enospc", CheckpointError, 1),
    ],
)
def test_faults_leave_the_old_or_the_new_checkpoint_and_the_job_knows_which(job, spec, error, found):
    _, coordinator = job.lead()
    complete(coordinator, 1, runs=[run_handle("a.run")])
    fault.install(spec)
    try:
        if error is None:
            complete(coordinator, 2)
        else:
            with pytest.raises(error):
                complete(coordinator, 2)
    finally:
        fault.clear()
    state: RegisterState = job.register.read()
    assert read_newest(job.directory, state).metadata.epoch == found
    _, successor = job.lead()
    assert complete(successor, 3).metadata.epoch == 3
