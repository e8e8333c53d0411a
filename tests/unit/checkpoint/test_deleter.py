"""Deletions beside the epochs: all go, what fails stops no other, and who was deposed deletes nothing."""

import threading
import time

import pytest

from holdfast.checkpoint.retention import Deleter, Deletion
from holdfast.errors import StorageError
from holdfast.kernel import fault


@pytest.fixture(autouse=True)
def unfaulted():
    yield
    fault.clear()


@pytest.fixture(params=[True, False], ids=["parallel", "one at a time"])
def deleter(request):
    made = Deleter(request.param, lambda: True)
    yield made
    made.close()


def deletions(gone, count=20):
    return [Deletion(gone.append, f"{number}") for number in range(count)]


def test_what_is_begun_goes_while_the_caller_does_something_else(deleter):
    gone: list[str] = []
    deleter.begin(deletions(gone), 0.05)
    deadline = time.monotonic() + 60
    while deleter.is_busy and time.monotonic() < deadline:
        time.sleep(0.005)
    assert sorted(gone, key=int) == [f"{number}" for number in range(20)]
    assert deleter.finish() == [f"{number}" for number in range(20)]
    assert deleter.finish() == []


def test_who_waits_does_not_wait_for_the_pace(deleter):
    gone: list[str] = []
    deleter.begin(deletions(gone), 3600)
    assert deleter.is_busy
    assert len(deleter.finish()) == len(gone) == 20
    deleter.begin(deletions(gone), 3600)
    assert deleter.is_busy, "the pace holds for what comes after"


def test_what_has_not_begun_is_given_up_at_the_end(deleter):
    gone: list[str] = []
    deleter.begin(deletions(gone, 1000), 3600)
    deleter.close()
    deleter.close()
    assert len(gone) <= 8
    assert not deleter.is_busy


def test_nothing_is_deleted_once_it_is_not_allowed():
    deposed, gone = threading.Event(), []

    def delete(path):
        gone.append(path)
        if len(gone) == 3:
            deposed.set()

    deleter = Deleter(False, lambda: not deposed.is_set())
    deleter.begin([Deletion(delete, f"{number}") for number in range(20)], 0.01)
    assert deleter.finish() == ["0", "1", "2"] == gone
    deleter.begin([Deletion(delete, "late")], 0.0)
    assert deleter.finish() == []
    deleter.close()


def test_a_file_that_cannot_be_deleted_stops_no_other(deleter, caplog):
    def delete(path):
        if path in ("3", "4"):
            raise StorageError("the storage is away") if path == "3" else PermissionError(13, "Permission denied")

    tasks = [Deletion(delete, f"{number}") for number in range(20)]
    deleter.begin(tasks, 0.01)
    expected = [f"{number}" for number in range(20) if number not in (3, 4)]
    assert deleter.finish() == expected
    assert "the storage is away" in caplog.text
    assert "Permission denied" in caplog.text


def test_a_fault_beside_the_epochs_is_told_to_who_asks_next(deleter):
    fault.install("before:subsume.delete:5=raise")
    deleter.begin(deletions([]), 0.01)
    with pytest.raises(fault.FaultInjectedError):
        deleter.finish()
    assert deleter.finish() == []
