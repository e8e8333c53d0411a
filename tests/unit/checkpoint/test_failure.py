"""When failed checkpoints fail the job."""

import pytest

from holdfast.checkpoint.config import UNLIMITED_TOLERABLE_FAILURE_NUMBER
from holdfast.checkpoint.instruction_executor import CheckpointFailureManager
from holdfast.errors import CheckpointError, CheckpointFailureReason, ConfigurationError
from tests.unit.checkpoint.support import RecordingFailures

Reason = CheckpointFailureReason
COUNTED = {
    Reason.IO_EXCEPTION,
    Reason.CHECKPOINT_ASYNC_EXCEPTION,
    Reason.CHECKPOINT_DECLINED,
    Reason.CHECKPOINT_EXPIRED,
    Reason.FINALIZE_CHECKPOINT_FAILURE,
    Reason.CHECKPOINT_DECLINED_TIME_OUT,  # only hooks of the driver fail so
    Reason.MASTER_HOOK_FAILURE,
}


@pytest.fixture
def failures():
    return RecordingFailures()


def fail(manager, checkpoint_id, reason=Reason.CHECKPOINT_EXPIRED, **how):
    manager.handle_checkpoint_exception(CheckpointError(reason), checkpoint_id=checkpoint_id, **how)


def test_one_more_than_tolerated_fails_the_job_and_the_count_begins_anew(failures):
    manager = CheckpointFailureManager(2, failures)
    for checkpoint_id in (1, 2):
        fail(manager, checkpoint_id)
    assert failures.causes == []
    fail(manager, 3)
    [(cause, execution_id)] = failures.causes
    assert "Exceeded checkpoint tolerable failure threshold." in str(cause)
    assert Reason.CHECKPOINT_EXPIRED.message in str(cause)
    assert execution_id is None
    fail(manager, 4)
    assert len(failures.causes) == 1


def test_by_default_the_first_one_fails_the_job(failures):
    fail(CheckpointFailureManager(0, failures), 1)
    assert len(failures.causes) == 1


@pytest.mark.parametrize("reason", list(Reason))
def test_only_reasons_that_say_something_about_the_job_count(failures, reason):
    fail(CheckpointFailureManager(0, failures), 1, reason)
    assert bool(failures.causes) == (reason in COUNTED)


def test_a_checkpoint_counts_once_but_those_without_id_each_time(failures):
    manager = CheckpointFailureManager(5, failures)
    for _ in range(3):
        fail(manager, 7)
    assert manager.count == 1
    for _ in range(3):
        fail(manager, -1, Reason.IO_EXCEPTION)
    assert manager.count == 4


def test_a_completed_checkpoint_begins_the_count_anew_and_older_failures_no_longer_count(failures):
    manager = CheckpointFailureManager(1, failures)
    fail(manager, 1)
    manager.handle_checkpoint_success(2)
    assert manager.count == 0
    fail(manager, 1)
    fail(manager, 2)
    assert manager.count == 0
    fail(manager, 3)
    manager.handle_checkpoint_success(1)
    assert manager.count == 1
    fail(manager, 4)
    assert len(failures.causes) == 1


def test_savepoints_count_only_when_a_task_is_to_blame(failures):
    manager = CheckpointFailureManager(0, failures)
    fail(manager, 1, is_savepoint=True)
    assert failures.causes == []
    fail(manager, 2, is_savepoint=True, execution_id="task")
    assert failures.causes[0][1] == "task"


def test_a_task_that_fails_the_savepoint_of_a_stop_always_fails_the_job(failures):
    manager = CheckpointFailureManager(UNLIMITED_TOLERABLE_FAILURE_NUMBER, failures)
    fail(manager, 1, Reason.TASK_FAILURE, is_savepoint=True, is_synchronous=True, execution_id="task")
    assert failures.causes[0][1] == "task"


def test_any_number_can_be_tolerated_and_a_negative_one_is_none(failures):
    manager = CheckpointFailureManager(UNLIMITED_TOLERABLE_FAILURE_NUMBER, failures)
    for checkpoint_id in range(100):
        fail(manager, checkpoint_id)
    assert failures.causes == []
    with pytest.raises(ConfigurationError, match="0 or more"):
        CheckpointFailureManager(-1, failures)
