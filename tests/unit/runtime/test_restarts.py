"""When a failed attempt is followed by another, and when the job fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import JobExecutionError, UserFunctionError
from holdfast.runtime.graph import KeyedNode, StreamGraph
from holdfast.runtime.status import JobStatus
from holdfast.testing.epoch_runner import LocalEngine, run_job
from tests.stories import ledger

FAST = {"restart-strategy.type": "exponential-delay"} | {
    f"restart-strategy.exponential-delay.{name}": "1 ms" for name in ("initial-backoff", "max-backoff")
}


class Moody(ledger.Ledger):
    """Raises at its first `failures` elements, counted over all attempts of the process."""

    remaining = 0

    def process_element(self, value: Any, ctx: Any) -> Any:
        if type(self).remaining:
            type(self).remaining -= 1
            raise ValueError("not in the mood")
        yield from super().process_element(value, ctx)


def job(tmp_path: Path, failures: int, **options: Any) -> tuple[Any, list[list[tuple[int, str, int]]]]:
    payments = ledger.payments(3, 20, 3, 4)
    graph: StreamGraph = ledger.graph(tmp_path / "out")
    node = graph.of(KeyedNode)[0]
    object.__setattr__(node.operator, "function", Moody())
    Moody.remaining = failures
    engine = LocalEngine(ledger.inputs(payments))
    return run_job(graph, tmp_path / "checkpoints", engine, {**FAST, **options}, name="moody"), payments


def test_two_failures_in_a_row_are_survived(tmp_path: Path) -> None:
    master, payments = job(tmp_path, failures=2)
    assert master.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


def test_the_third_failure_in_the_same_way_fails_the_job_with_the_users_error(tmp_path: Path) -> None:
    master, payments = job(tmp_path, failures=3)
    with pytest.raises(JobExecutionError, match="3 times in a row") as failed:
        master.run()
    assert isinstance(failed.value.__cause__, UserFunctionError)
    assert master.status is JobStatus.FAILED
    again, _ = job(tmp_path, failures=0)
    assert again.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


def test_the_rule_can_be_left_to_the_strategy(tmp_path: Path) -> None:
    master, payments = job(tmp_path, failures=7, **{"restart-strategy.identical-failures": 0})
    assert master.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


def test_failures_with_progress_between_them_are_not_in_a_row(tmp_path: Path) -> None:
    """A service that the function calls is down once in an epoch, for ever: each time the job gets further."""
    master, payments = job(tmp_path, failures=0)
    failed: set[int] = set()

    def fail_once_an_epoch(level: int, partition: int) -> None:
        epoch = len(list((tmp_path / "out").glob("*.parquet")))
        if epoch not in failed:
            failed.add(epoch)
            Moody.remaining = 1

    master.job.engine._interceptor = fail_once_an_epoch
    assert master.run() is JobStatus.SUSPENDED
    assert len(failed) == len(payments)
    ledger.audit(tmp_path / "out", payments)
