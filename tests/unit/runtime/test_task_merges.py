"""On an object store a task merges its newest small runs into the run that it writes, so that both cost one request."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StateMigrationError
from holdfast.kernel import fault
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.runtime import compaction
from holdfast.runtime.epoch import JobEpochs
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.task import steps
from holdfast.state.compaction_plan import TaskMerge, apply_task_merge, depth
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion
from tests.stories import ledger, tidiness
from tests.stories.local import RESTARTING, master
from tests.stories.weather import Weather
from tests.stories.workers import Workers

EPOCHS, ROWS, ACCOUNTS = 40, 12, 30


@pytest.fixture(autouse=True)
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver take the directory for one in an object store."""
    monkeypatch.setattr(compaction, "local_path", lambda path: None)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> list[StateVersion]:
    """The versions of the ledger after each epoch."""
    found: list[StateVersion] = []
    advance = JobEpochs._advance

    def advanced(epochs: JobEpochs, *arguments: Any) -> None:
        advance(epochs, *arguments)
        found.append(epochs.versions["ledger"])

    monkeypatch.setattr(JobEpochs, "_advance", advanced)
    return found


def run(place: Path, payments: Any, options: dict[str, str] | None = None, **settings: Any) -> Any:
    cached = {"state.local-cache.directory": str(place / "cache"), **(options or {})}
    job = master(
        ledger.graph(place / "out", two_stages=True), place / "job", ledger.inputs(payments), cached, **settings
    )
    assert job.run() is JobStatus.SUSPENDED
    return job


def test_small_runs_are_merged_by_tasks_alone(place: Path, versions: list[StateVersion]) -> None:
    payments = ledger.payments(EPOCHS, ROWS, ACCOUNTS, seed=1)
    job = run(place, payments)
    ledger.audit(place / "out", payments, two_stages=True)
    assert job.compaction.swapped > 7
    written = {run.path: run for version in versions for run in version.runs}
    assert any(run.compacted is not None for run in written.values())
    # Two subtasks write one run each and epoch, merged or not.
    assert len(written) <= 2 * EPOCHS
    assert max(depth(version.runs) for version in versions) < 8


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
@pytest.mark.parametrize("amnesia", [False, True])
def test_merged_runs_have_the_state_of_all_epochs(place: Path, backend: str, amnesia: bool) -> None:
    payments = ledger.payments(EPOCHS, ROWS, ACCOUNTS, seed=2)
    options = {"state.backend.type": backend}
    run(place, payments[:20], options, amnesia=amnesia)
    run(place, payments[:30], options, parallelism=3)  # other key groups: runs of two subtasks are not merged by tasks
    run(place, payments, options, parallelism=3, amnesia=amnesia)
    ledger.audit(place / "out", payments, two_stages=True)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_failures_of_tasks_and_of_storage_leave_nothing_wrong(place: Path) -> None:
    payments = ledger.payments(EPOCHS, ROWS, ACCOUNTS, seed=3)
    weather, workers = Weather(random.Random(3).randrange(10**6), rate=0.02), Workers(3)

    def intercept(stage: int, partition: int) -> None:
        workers(stage, partition)
        weather(stage, partition)

    run(place, payments, RESTARTING, interceptor=intercept)
    fault.clear()
    ledger.audit(place / "out", payments, two_stages=True)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_runs_that_cannot_be_merged_are_written_as_they_are(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Callable[..., Any]:
        raise StateMigrationError("The runs of state 'seq' were written with different types.")

    monkeypatch.setattr(steps, "compact", refuse)
    payments = ledger.payments(30, ROWS, ACCOUNTS, seed=4)
    job = run(place, payments)
    ledger.audit(place / "out", payments, two_stages=True)
    # After three failures there is a pause; until then each of four subtasks tries once an epoch.
    assert 3 <= job.compaction.dropped <= 12
    assert job.compaction.swapped == 0


def handle(number: int, first: int = 0, last: int = 63) -> RunHandle:
    return RunHandle(f"shared/{number}.run", 100, 50, f"{number:064x}", (first, last), {"seq": 5}, 1, number)


def test_a_merge_keeps_deletes_as_long_as_older_runs_need_them() -> None:
    version, new = StateVersion((handle(1), handle(2), handle(3))), handle(4)
    some = TaskMerge(2, 1000).plan("s3://jobs/1", version, new, "shared/5.run", 7)
    assert [run.epoch for run in some.inputs] == [2, 3, 4]
    assert (some.is_oldest, some.now, some.token) == (False, 1000, 7)
    assert [(output.path, output.key_groups) for output in some.outputs] == [("shared/5.run", new.range)]
    assert TaskMerge(3, None).plan("s3://jobs/1", version, new, "shared/5.run", 7).is_oldest


def test_a_merged_run_takes_the_place_of_the_newest_runs_of_its_subtask() -> None:
    other = handle(9, 64, 127)
    version = StateVersion((handle(1), other, handle(2), handle(3)))
    merged = apply_task_merge(version, 2, handle(4))
    assert [run.epoch for run in merged.for_range(KeyGroupRange(0, 63)).runs] == [1, 4]
    assert other in merged.runs and len(merged.runs) == 3
    with pytest.raises(ValueError, match="cannot replace 4 runs"):
        apply_task_merge(version, 4, handle(4))
