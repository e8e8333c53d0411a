"""Long lives of jobs: thousands of epochs with failures, and a process that is killed again and again.

`make soak` runs them; each prints what it went through, and a seed that makes the same life again.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel import fault
from holdfast.runtime.job.control import JobStatus
from tests.stories import ledger, tidiness
from tests.stories.local import RESTARTING, run
from tests.stories.process import kill_group, start
from tests.stories.weather import Weather
from tests.stories.workers import Workers

pytestmark = pytest.mark.soak

LIVES: list[dict[str, Any]] = [
    {},
    {"state.backend.type": "columnar"},
    {"execution.checkpointing.interval": "50 ms"},
    {"state.compaction.max-runs": "3", "state.backend.hashmap.memory": "20 kb"},
]


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("STORY_SEED", random.SystemRandom().randrange(10**6)))
    print(f"\nsoak: replay with STORY_SEED={chosen}")
    return chosen


@pytest.mark.parametrize("options", LIVES, ids=str)
def test_two_thousand_epochs_in_bad_weather_at_changing_parallelism(
    tmp_path: Path, seed: int, options: dict[str, Any]
) -> None:
    started, epochs, rows, accounts = time.monotonic(), 2000, 8, 60
    payments = ledger.payments(epochs, rows, accounts, seed)
    weather, workers, chance = Weather(seed, rate=0.02), Workers(seed), random.Random(seed)

    def intercept(stage: int, partition: int) -> None:
        workers(stage, partition)
        weather(stage, partition)

    until = 0
    while until < epochs:
        until = min(epochs, until + chance.randrange(100, 400))
        graph = ledger.graph(tmp_path / "out", two_stages=True)
        inputs = ledger.inputs(payments[:until])
        settings: dict[str, Any] = {"interceptor": intercept, "parallelism": chance.choice((1, 2, 3, 5))}
        status = run(graph, tmp_path / "job", inputs, {**RESTARTING, **options}, **settings)
        assert status is JobStatus.SUSPENDED
    fault.clear()
    ledger.audit(tmp_path / "out", payments, two_stages=True)
    tidiness.inspect(tmp_path / "job", outputs=(tmp_path / "out",))
    struck = sum(weather.struck.values())
    token = tidiness.register_of(tidiness.job_directory(tmp_path / "job")).token
    seconds = time.monotonic() - started
    print(f"soak: {epochs} epochs, {struck} failures, {token} attempts, {options}: right; {seconds:.0f} s")


def test_three_thousand_epochs_of_a_process_that_is_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Sometimes a second driver starts while the first one runs; the audit reads nothing but the output."""
    epochs, rows, accounts = 3000, 30, 80
    chance, begun = random.Random(seed), time.monotonic()
    checkpoints, output, log = tmp_path / "checkpoints", tmp_path / "out", tmp_path / "log"
    program = ("epoch_job.py", checkpoints, output, "--epochs", epochs, "--rows", rows, "--accounts", accounts)
    kills = starts = 0
    ended = False
    while not ended:
        drivers: list[subprocess.Popen[bytes]] = []
        for _ in range(2 if chance.random() < 0.2 else 1):
            drivers.append(start(*program, "--seed", seed, "--parallelism", chance.choice((1, 2, 3)), log=log))
            starts += 1
            time.sleep(chance.uniform(0.5, 2.5))
        time.sleep(chance.uniform(0, 2))
        for driver in drivers:
            if driver.poll() is None:
                kill_group(driver)
                kills += 1
        ended = any(driver.returncode == 0 for driver in drivers)
        assert time.monotonic() - begun < 1800, log.read_text()[-4000:]
    payments = ledger.payments(epochs, rows, accounts, seed)
    ledger.audit(output, payments, two_stages=True)
    final = start(*program, "--seed", seed, log=log)
    assert final.wait(120) == 0, log.read_text()[-4000:]
    tidiness.inspect(checkpoints, "ledger", outputs=(output,))
    seconds = time.monotonic() - begun
    print(f"soak: {epochs} epochs, {starts} starts, {kills} of them killed by SIGKILL: right and tidy; {seconds:.0f} s")
