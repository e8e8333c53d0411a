"""Two drivers of one Spark job with a real ZooKeeper: the leader is killed, the other one goes on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from holdfast.testing.server.zookeeper import ZooKeeperServer
from tests.spark.test_ledger_stories import Story
from tests.stories import ledger
from tests.stories.process import kill_group, start

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(600)]


def says(log: Path, text: str, process: subprocess.Popen[bytes], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < deadline, f"{log.name} does not say {text!r}"
        assert process.poll() is None, log.read_text()[-4000:]
        time.sleep(0.05)


def wait_for_rows(story: Story, rows: int) -> None:
    deadline = time.monotonic() + 200
    while len(ledger.read(story.output)) < rows:
        assert time.monotonic() < deadline, "the leader does not go on"
        time.sleep(0.05)


def test_the_leader_is_killed_and_the_driver_that_stood_by_resumes(tmp_path: Path) -> None:
    story = Story(tmp_path, epochs=2)
    with ZooKeeperServer() as server:
        options = (
            "-Dhigh-availability.type=zookeeper",
            f"-Dhigh-availability.storageDir={tmp_path / 'ha'}",
            f"-Dhigh-availability.zookeeper.quorum={server.connect_string}",
            "-Dhigh-availability.zookeeper.client.session-timeout=6 s",
        )
        endless = ("--hazard", "slow", "--trigger", "continuous")
        leader = start("ledger_job.py", *story.arguments(*endless, *options), log=tmp_path / "leader")
        story.wait_for(1, leader, 200)
        standby = start("ledger_job.py", *story.arguments(*options), log=tmp_path / "standby")
        says(tmp_path / "standby", "standing by", standby)
        for epoch in ledger.payments(6, 400, 11, 78):
            story.add([(payment + 100_000, account, amount) for payment, account, amount in epoch])
        wait_for_rows(story, 801)
        assert len(ledger.read(story.output)) < 3200, "the leader was to be killed in the middle"
        kill_group(leader)
        assert standby.wait(timeout=240) == 0, (tmp_path / "standby").read_text()[-4000:]
        assert "this process leads job" in (tmp_path / "standby").read_text()
    assert not list(story.checkpoints.glob("*/register/v-*")), "the register is in ZooKeeper"
    assert list((tmp_path / "ha").rglob("cluster.json"))
    story.audit()
