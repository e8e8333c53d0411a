"""A long life in bad weather: hundreds of epochs in which tasks and fault points fail at random, on several workers."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import pytest

from holdfast.kernel import fault
from holdfast.runtime.job.control import JobStatus
from tests.stories import ledger, tidiness
from tests.stories.local import RESTARTING, run
from tests.stories.weather import Weather
from tests.stories.workers import Workers

EPOCHS, ROWS, ACCOUNTS = 500, 6, 40


def test_500_epochs_with_random_failures_leave_the_right_output_and_nothing_else(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    seed = int(os.environ.get("STORY_SEED", random.SystemRandom().randrange(10**6)))
    print(f"replay with STORY_SEED={seed}")
    payments = ledger.payments(EPOCHS, ROWS, ACCOUNTS, seed)
    weather, workers = Weather(seed, rate=0.02), Workers(seed)

    def intercept(stage: int, partition: int) -> None:
        workers(stage, partition)
        weather(stage, partition)

    graph = ledger.graph(place / "out", two_stages=True)
    status = run(graph, place / "job", ledger.inputs(payments), RESTARTING, interceptor=intercept)
    assert status is JobStatus.SUSPENDED
    assert sum(weather.struck.values()) > 20, "this was no bad weather"
    fault.clear()
    ledger.audit(place / "out", payments, two_stages=True)
    tidiness.inspect(place / "job", outputs=(place / "out",))

    # A new process finds the state that the whole history has left: one more payment an account shows it.
    payments.append([(EPOCHS * ROWS + i, f"account-{i}", 1) for i in range(ACCOUNTS)])
    run(ledger.graph(place / "out", two_stages=True), place / "job", ledger.inputs(payments), amnesia=True)
    ledger.audit(place / "out", payments, two_stages=True)


@pytest.mark.parametrize("point", ["notify", "sink.commit", "subsume.delete"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_attempt_that_finds_nothing_to_do_tidies_up_after_those_that_failed(
    place: Path, moment: str, point: str
) -> None:
    """The failure comes after the last pointer write: the next attempt has no epoch, but still commits and sweeps."""
    payments = ledger.payments(6, ROWS, ACCOUNTS, seed=3)

    def strike(stage: int, partition: int) -> None:
        newest = tidiness.register_of(directory).newest
        if newest is not None and tidiness.retained(directory)[-1].metadata.epoch == 5:
            fault.install(f"{moment}:{point}:1=raise")

    directory = tidiness.job_directory(place / "job")
    graph = ledger.graph(place / "out", two_stages=True)
    at_once = RESTARTING | {"sink.committer.max-pending-checkpoints": "0"}  # else the commit before may be struck, too
    status = run(graph, place / "job", ledger.inputs(payments), at_once, interceptor=strike)
    assert status is JobStatus.SUSPENDED
    ledger.audit(place / "out", payments, two_stages=True)
    tidiness.inspect(place / "job", outputs=(place / "out",))
    register = tidiness.register_of(directory)
    assert register.newest is not None
    assert register.token == 2, "the fault struck once"
    assert register.newest_committed == register.newest.checkpoint_id
