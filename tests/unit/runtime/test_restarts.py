"""When a failed attempt is followed by another, and when the job fails."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    ConfigurationError,
    EngineError,
    EngineLostError,
    EngineUnavailableError,
    HoldfastError,
    InputError,
    InputGoneError,
    JobExecutionError,
    StorageError,
    UnsharedStorageError,
    UserFunctionError,
)
from holdfast.runtime.graph.stream_graph import KeyedNode, StreamGraph
from holdfast.runtime.job.control import JobControl, JobStatus
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
    """A service that the function calls is down once in an epoch, for ever: each time the job gets further.

    How far it is shows in the output, so each epoch begins when the one before is committed.
    """
    master, payments = job(tmp_path, failures=0, **{"sink.committer.max-pending-checkpoints": 0})
    failed: set[int] = set()

    def fail_once_an_epoch(stage: int, partition: int) -> None:
        epoch = len(list((tmp_path / "out").glob("*.parquet")))
        if epoch not in failed:
            failed.add(epoch)
            Moody.remaining = 1

    master.job.engine._interceptor = fail_once_an_epoch
    assert master.run() is JobStatus.SUSPENDED
    assert len(failed) == len(payments)
    ledger.audit(tmp_path / "out", payments)


def broken(tmp_path: Path, failures: Iterator[HoldfastError], **options: Any) -> tuple[Any, Any]:
    """A job whose engine fails in these ways, one attempt after the other, and then no more."""
    master, payments = job(tmp_path, failures=0, **options)

    def fail(stage: int, partition: int) -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    master.job.engine._interceptor = fail
    return master, payments


def of_spark(kind: type[HoldfastError] = EngineError) -> Iterator[HoldfastError]:
    """The same failure again and again, as Spark tells of it: with numbers and ids that are others each time."""
    for number in itertools.count(1):
        yield kind(
            f"Spark failed while running batch {number}: java.lang.IllegalStateException: o{1000 + number} broke"
        )


def test_an_unknown_failure_fails_the_job_after_ten_times(tmp_path: Path) -> None:
    master, _ = broken(tmp_path, of_spark())
    with pytest.raises(JobExecutionError, match=r"10 times in a row .*identical-unknown-failures.*o1010 broke"):
        master.run()
    assert master.status is JobStatus.FAILED
    assert master.history.failure_count == master.failures_in_a_row == 10


def test_failures_of_unknown_kinds_that_differ_are_not_counted_together(tmp_path: Path) -> None:
    kinds = (EngineError(f"Spark failed: {'x' * number}") for number in range(1, 25))
    master, payments = broken(tmp_path, kinds)
    assert master.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


def test_an_exception_that_is_none_of_holdfasts_is_a_failure_like_any_other(tmp_path: Path) -> None:
    master, payments = broken(tmp_path, iter([TypeError("'NoneType' object is not iterable"), OSError("no space")]))
    assert master.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)
    assert [failure.message for failure in master.history.failures] == [
        "the driver failed: OSError: no space",
        "the driver failed: TypeError: 'NoneType' object is not iterable",
    ]


def test_an_exception_that_always_comes_fails_the_job(tmp_path: Path) -> None:
    master, _ = broken(tmp_path, (TypeError("not that") for _ in itertools.count()))
    with pytest.raises(JobExecutionError, match=r"10 times in a row.*the driver failed: TypeError: not that"):
        master.run()
    assert master.status is JobStatus.FAILED


def test_the_rule_for_unknown_failures_can_be_left_to_the_strategy(tmp_path: Path) -> None:
    failures = itertools.islice(of_spark(), 25)
    master, payments = broken(tmp_path, failures, **{"restart-strategy.identical-unknown-failures": 0})
    assert master.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


@pytest.mark.parametrize("kind", [StorageError, EngineUnavailableError])
def test_an_unavailable_environment_is_awaited_without_limit(tmp_path: Path, kind: type[HoldfastError]) -> None:
    master, payments = broken(tmp_path, itertools.islice(of_spark(kind), 25))
    assert master.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


def test_storage_that_a_worker_has_never_seen_fails_the_job_and_storage_that_it_has_seen_may_come_back(
    tmp_path: Path,
) -> None:
    failures = of_spark(UnsharedStorageError)
    master, payments = broken(tmp_path, failures)
    with pytest.raises(JobExecutionError, match=r"10 times in a row .*identical-unknown-failures"):
        master.run()

    again, payments = job(tmp_path, failures=0)
    again.run()  # it has a checkpoint now
    later, _ = broken(tmp_path, itertools.islice(failures, 25))
    assert later.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


def test_a_permanent_failure_fails_the_job_at_once(tmp_path: Path) -> None:
    master, _ = broken(tmp_path, of_spark(InputGoneError))
    with pytest.raises(InputGoneError):
        master.run()
    assert master.status is JobStatus.FAILED
    assert master.history.failure_count == 1


def test_the_log_of_a_restart_has_the_cause_in_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    master, _ = broken(tmp_path, iter([EngineError("Spark failed: the root of it\n\tat java.lang.Thread.run")]))
    master.run()
    [line] = [record.getMessage() for record in caplog.records if "restarts in" in record.getMessage()]
    assert line.endswith("after 1 failure(s) in a row: EngineError: Spark failed: the root of it")


def test_consecutive_failures_are_reported_until_a_checkpoint_completes(tmp_path: Path) -> None:
    seen: list[int] = []
    failures = itertools.islice(of_spark(), 3)
    master, _ = job(tmp_path, failures=0)

    def fail(stage: int, partition: int) -> None:
        seen.append(master.failures_in_a_row)
        error = next(failures, None)
        if error is not None:
            raise error

    master.job.engine._interceptor = fail
    master.run()
    assert seen[:4] == [0, 1, 2, 3]
    assert seen[-1] == master.failures_in_a_row == 0
    assert master.history.failure_count == 3


@pytest.mark.parametrize("kind", [EngineLostError, EngineError])
def test_an_engine_that_ends_while_the_job_is_stopped_is_no_failure(tmp_path: Path, kind: type[HoldfastError]) -> None:
    """SIGTERM to the process group reaches the JVM and the workers too."""
    master, payments = job(tmp_path, failures=0)

    def end(stage: int, partition: int) -> None:
        master.control.stop()
        raise kind("gone")

    master.job.engine._interceptor = end
    assert master.run() is JobStatus.SUSPENDED
    again, _ = job(tmp_path, failures=0)
    assert again.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


def test_an_epoch_that_an_interrupt_ended_leaves_a_cancelled_job_cancelled(tmp_path: Path) -> None:
    """PySpark cancels what Spark does before a cell of a notebook learns of the interrupt, and cancels its job."""
    master, payments = job(tmp_path, failures=0)

    def end(stage: int, partition: int) -> None:
        master.control.cancel()
        raise EngineError("cancelled as part of cancellation of all jobs")

    master.job.engine._interceptor = end
    assert master.run() is JobStatus.CANCELED
    assert master.job.register.read().terminal == "CANCELED"
    again, _ = job(tmp_path, failures=0)
    assert again.run() is JobStatus.SUSPENDED
    ledger.audit(tmp_path / "out", payments)


@pytest.mark.parametrize(
    "option",
    [
        "execution.checkpointing.tolerable-failed-checkpoints",
        "execution.checkpointing.max-concurrent-checkpoints",
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        "web.checkpoints.history",
        "web.exception-history-size",
    ],
)
def test_a_number_that_cannot_be_is_refused_by_the_name_of_its_option(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigurationError, match=option.removeprefix("restart-strategy.exponential-delay.")):
        job(tmp_path, failures=1, **{option: "-1"})[0].run()


def test_the_delay_begins_when_the_tasks_failed(tmp_path: Path) -> None:
    delay = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "30 s"}
    master, _ = job(tmp_path, failures=0, **delay)
    engine, begun = master.job.engine, []

    def fail(stage: int, partition: int) -> None:
        begun.append(engine.failed_at)
        if len(begun) == 1:
            engine.failed_at = time.monotonic() - 29.9  # its tasks took so long to end
            raise StorageError("the disk is away for a moment")

    engine._interceptor = fail
    began = time.monotonic()
    assert master.run() is JobStatus.SUSPENDED
    assert 0.1 <= time.monotonic() - began < 20
    assert begun[-1] is None, "a later failure has a delay of its own"


def test_only_a_stop_ends_a_pause_early() -> None:
    control = JobControl()
    threading.Timer(0.05, control.wake).start()
    threading.Timer(0.3, control.stop).start()
    began = time.monotonic()
    control.pause(30)
    assert 0.25 <= time.monotonic() - began < 20


def test_an_engine_may_learn_of_the_signal_first(tmp_path: Path) -> None:
    master, _ = broken(tmp_path, of_spark(EngineLostError))
    signal = threading.Timer(0.2, master.control.stop)
    signal.start()
    assert master.run() is JobStatus.SUSPENDED


def test_an_engine_that_is_lost_without_a_signal_fails_the_job(tmp_path: Path) -> None:
    master, _ = broken(tmp_path, of_spark(EngineLostError))
    with pytest.raises(EngineLostError):
        master.run()
    assert master.status is JobStatus.FAILED


def test_an_input_that_cannot_be_read_fails_a_job_that_is_being_stopped(tmp_path: Path) -> None:
    master, _ = job(tmp_path, failures=0)

    def end(stage: int, partition: int) -> None:
        master.control.stop()
        raise InputError("damaged")

    master.job.engine._interceptor = end
    with pytest.raises(JobExecutionError, match="while it was being stopped: damaged"):
        master.run()
