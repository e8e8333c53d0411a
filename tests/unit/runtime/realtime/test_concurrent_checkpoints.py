"""Several checkpoints of a real-time job at a time: storage is slow, and barriers do not wait for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.statistics import CheckpointStats
from holdfast.datastream import CheckpointedFunction
from holdfast.kernel import fault
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.master.job_master import JobMaster
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_failed_checkpoints import (
    EXPIRING,
    Gate,
    HeldAt,
    Listening,
    failures,
    goes_on_to_the_end,
    program,
    stopped_after,
)
from tests.unit.runtime.realtime.test_real_time_jobs import (
    KEYS,
    RESTARTS,
    SEEN,
    Count,
    Failing,
    Rows,
    counted,
    each_once,
    numbers,
    see,
    until,
)
from tests.unit.runtime.realtime.test_real_time_jobs import ROWS as ALL

ROWS = 900
SEVERAL = {
    "execution.checkpointing.max-concurrent-checkpoints": "3",
    "execution.checkpointing.interval": "50 ms",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "web.checkpoints.history": "1000",
}


@pytest.fixture(autouse=True)
def slow_storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each file of state takes a tenth of a second, so that a checkpoint takes longer than the interval."""
    write_state = LocalFileSystem.write_state

    def slow(self: LocalFileSystem, path: str, data: Any) -> None:
        time.sleep(0.1)
        write_state(self, path, data)

    monkeypatch.setattr(LocalFileSystem, "write_state", slow)
    yield
    fault.clear()


def history(master: JobMaster) -> list[CheckpointStats]:
    """The checkpoints in the order of their ids."""
    return sorted(master.statistics.create_snapshot().history, key=lambda one: one.checkpoint_id)


def completed(master: JobMaster) -> list[CheckpointStats]:
    return [one for one in history(master) if not one.failure_message]


def most_at_a_time(master: JobMaster) -> int:
    taken = history(master)
    return max(
        sum(other.trigger_timestamp <= one.trigger_timestamp < other.end_timestamp for other in taken) for one in taken
    )


def require_order(master: JobMaster) -> None:
    ends = [one.end_timestamp for one in completed(master)]
    assert ends == sorted(ends), "checkpoints complete in their order"


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_barriers_follow_one_another_before_checkpoints_complete(tmp_path: Path, mode: str) -> None:
    found = Rows()
    options = {**SEVERAL, "execution.checkpointing.mode": mode}
    master = stopped_after(program(found, Count()), tmp_path / "job", found, 400, options)
    assert most_at_a_time(master) == 3
    assert not failures(master).keys() - {"CHECKPOINT_COORDINATOR_SHUTDOWN"}
    require_order(master)
    if mode == "EXACTLY_ONCE":
        goes_on_to_the_end(tmp_path / "job", found)
        return
    stopped_after(program(found, Count()), tmp_path / "job", found, ROWS)
    counts = Counter(row["key"] for row in found)
    assert counts >= Counter(n % KEYS for n in range(ROWS)), "no element is lost; some may be counted twice"


class SlowToSnapshot(Count, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        time.sleep(0.05)


def test_a_job_ends_although_barriers_take_longer_than_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # storage is fast
    found = Rows()
    bounded = RealTimeProgram()
    rows = bounded.from_collection(ALL, "key bigint, n bigint").uid("rows")
    numbered = rows.key_by("key").process(SlowToSnapshot(), "key bigint, count bigint").uid("count")
    numbered.for_each_epoch(found.write).uid("out")
    master = bounded.master(tmp_path, {**SEVERAL, "execution.checkpointing.interval": "1 ms"})
    client = JobClient(master)
    until(lambda: client.get_job_status() is JobStatus.FINISHED)
    each_once(found)
    assert len(history(master)) < 50, "no barrier followed those that were under way at the end of the input"


def test_a_pause_between_checkpoints_lets_one_follow_the_other(tmp_path: Path) -> None:
    found = Rows()
    options = {**SEVERAL, "execution.checkpointing.min-pause": "10 ms"}
    master = stopped_after(program(found, Count()), tmp_path / "job", found, 300, options)
    assert most_at_a_time(master) == 1
    by_time = history(master)[:-1]  # that of a stop does not wait
    assert min(after.trigger_timestamp - before.end_timestamp for before, after in pairwise(by_time)) >= 9


def test_those_that_fail_belong_to_the_next_that_completes(tmp_path: Path) -> None:
    found = Rows()
    fault.install(",".join(f"before:run.write:{arrival}=enospc" for arrival in (2, 3, 5, 6, 9, 14, 15, 16)))
    master = stopped_after(program(found, Count()), tmp_path / "job", found, 500, SEVERAL)
    assert "CHECKPOINT_ASYNC_EXCEPTION" in failures(master)
    assert most_at_a_time(master) > 1
    require_order(master)
    goes_on_to_the_end(tmp_path / "job", found)


def test_tasks_that_hold_back_too_much_decline_several(tmp_path: Path) -> None:
    found, gate = Rows(), Gate(tmp_path)
    slow = program(found, Count(), HeldAt(gate, 101))  # in one of the two source tasks; the other one goes on
    options = {**SEVERAL, "task.checkpoint.alignment.max-size": "4 kb"}
    master = stopped_after(slow, tmp_path / "job", found, 500, options, gate)
    assert "CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED" in failures(master)
    goes_on_to_the_end(tmp_path / "job", found)


def test_several_expire_at_once(tmp_path: Path) -> None:
    found, gate = Rows(), Gate(tmp_path)
    slow = program(found, Count(), HeldAt(gate, 100))
    master = stopped_after(slow, tmp_path / "job", found, 500, {**SEVERAL, **EXPIRING}, gate)
    assert failures(master)["CHECKPOINT_EXPIRED"] >= 2
    goes_on_to_the_end(tmp_path / "job", found)


@pytest.mark.parametrize("at", [100, 500])
def test_after_a_failure_each_element_is_counted_once(tmp_path: Path, at: int) -> None:
    found = Rows()
    made = RealTimeProgram()
    rows = numbers(made, 300).filter(lambda row: row.n < ROWS).uid("first")
    counted(rows.map(Failing(tmp_path / "failed", at), "key bigint, n bigint").uid("map"), found)
    client = JobClient(made.master(tmp_path / "job", {**SEVERAL, **RESTARTS}))
    until(lambda: len(found) >= ROWS)
    client.stop()
    client.await_termination()
    assert (tmp_path / "failed").exists()
    each_once(found, ROWS)


def test_a_bounded_job_ends_with_a_checkpoint_of_all(tmp_path: Path) -> None:
    found = Rows()
    made = RealTimeProgram()
    counted(made.from_collection([(n % 7, n) for n in range(3000)], "key bigint, n bigint").uid("rows"), found)
    assert made.run(tmp_path, SEVERAL) is JobStatus.FINISHED
    each_once(found)


def test_runs_are_merged_while_checkpoints_are_under_way(tmp_path: Path) -> None:
    found = Rows()
    options = {**SEVERAL, "state.compaction.max-runs": "4", "execution.checkpointing.cleaner.grace-period": "0 ms"}
    client = JobClient(master := program(found, Count()).master(tmp_path / "job", options))
    until(lambda: len(found) >= 700)
    merged = master.attempt.compaction.swapped if master.attempt is not None else 0
    client.stop()
    client.await_termination()
    assert merged > 0
    assert most_at_a_time(master) > 1
    goes_on_to_the_end(tmp_path / "job", found)


def test_requests_are_served_between_checkpoints(tmp_path: Path) -> None:
    found = Rows()
    master = program(found, Count(), parallelism=0).master(tmp_path / "job", SEVERAL)
    client = JobClient(master)
    until(lambda: len(completed(master)) > 2)
    path = client.trigger_savepoint(str(tmp_path / "savepoints")).result(60)
    assert (Path(path.removeprefix("file://")) / "_metadata").exists()
    client.rescale(3).result(60)
    until(lambda: len(found) >= 500)
    client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(60)
    assert most_at_a_time(master) > 1
    goes_on_to_the_end(tmp_path / "job", found)


def test_a_request_is_answered_by_a_barrier_behind_it(tmp_path: Path) -> None:
    SEEN.clear()
    found, made = Rows(), RealTimeProgram()
    counted(numbers(made, 300).map(see, "key bigint, n bigint").uid("seen"), found)
    client = JobClient(made.master(tmp_path, SEVERAL))
    until(lambda: len(found) > 0)
    for number in range(8):  # some of them between a barrier and its checkpoint, which takes a tenth of a second
        time.sleep(0.04 * number)
        before = len(SEEN)
        assert before
        client.trigger_checkpoint().result(60)
        assert len(found) >= before
    client.stop()
    client.await_termination()


def test_functions_hear_of_each_checkpoint_once(tmp_path: Path) -> None:
    Listening.heard.clear()
    found, gate = Rows(), Gate(tmp_path)
    made = program(found, Listening(gate), parallelism=1)
    master = stopped_after(made, tmp_path / "job", found, 700, {**SEVERAL, **EXPIRING}, gate)
    assert len(Listening.heard) == len({*Listening.heard})
    heard = {number for what, number in Listening.heard if what == "complete"}
    aborted = {number for what, number in Listening.heard if what == "aborted"}
    assert heard <= {one.checkpoint_id for one in completed(master)}
    failed = {one.checkpoint_id for one in history(master) if one.failure_message}
    assert aborted <= failed
    assert {number for number in failed if number < max(heard)} <= aborted
