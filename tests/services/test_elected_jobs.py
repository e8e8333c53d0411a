"""Jobs under high availability, in processes of their own: the leader dies or sleeps, and the next one goes on.

The ledger on the epoch runner, without a JVM; tests/spark has the same story with Spark. The auditor reads the output.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.testing.kubernetes import KubernetesApiServer
from holdfast.testing.zookeeper import ZooKeeperServer
from tests.services.test_ha_takeover import of_type
from tests.stories import ledger
from tests.stories.process import kill_group, run, start

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]


class Cluster:
    """What the drivers of one job share."""

    def __init__(self, kind: str, root: Path, backend: Any) -> None:
        self.root, self.backend = root, backend
        self.options = [f"-D{key}={value}" for key, value in of_type(kind, root, backend).items()]

    def arguments(self, epochs: int) -> tuple[object, ...]:
        return (self.root / "checkpoints", self.root / "out", "--epochs", epochs, *self.options)

    def start(self, name: str, epochs: int, fault: str | None = None) -> subprocess.Popen[bytes]:
        return start("epoch_job.py", *self.arguments(epochs), fault=fault, log=self.root / name)

    def completed(self) -> int:
        return len(list((self.root / "checkpoints").glob("*/chk-*/_metadata")))

    def audit(self, epochs: int) -> None:
        ledger.audit(self.root / "out", ledger.payments(epochs, 40, 7, 1), two_stages=True)


@pytest.fixture(params=["filesystem", "zookeeper", "kubernetes"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    servers: dict[str, Any] = {"zookeeper": ZooKeeperServer, "kubernetes": KubernetesApiServer}
    backend = servers[request.param]() if request.param in servers else None
    if backend is not None:
        backend.start()
    try:
        yield Cluster(request.param, tmp_path, backend)
    finally:
        if backend is not None:
            backend.close()


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def ended(process: subprocess.Popen[bytes], log: Path) -> int:
    try:
        return process.wait(timeout=90)
    except subprocess.TimeoutExpired:
        kill_group(process)
        raise AssertionError(log.read_text()[-4000:]) from None


def test_the_leader_is_killed_in_a_commit_and_the_driver_that_stood_by_goes_on(cluster: Cluster) -> None:
    leader = cluster.start("leader.log", 5, fault="before:pointer.write:3=hang")
    wait_for(lambda: cluster.completed() >= 3, "the leader has come to its third commit")
    standby = cluster.start("standby.log", 5)
    with pytest.raises(subprocess.TimeoutExpired):
        standby.wait(timeout=3)
    assert cluster.completed() == 3, "who stands by changes nothing"
    kill_group(leader)
    assert ended(standby, cluster.root / "standby.log") == 0, (cluster.root / "standby.log").read_text()
    cluster.audit(5)
    listed = CliRunner().invoke(main, ["checkpoints", str(cluster.root / "checkpoints"), "--json", *cluster.options])
    assert listed.exit_code == 0, listed.output
    assert [json.loads(line)["status"] for line in listed.stdout.splitlines()] == ["COMPLETED"] * 3


def test_a_leader_that_slept_for_longer_than_its_lease_stands_by_and_finds_the_job_done(cluster: Cluster) -> None:
    leader = cluster.start("leader.log", 40)
    try:
        wait_for(lambda: cluster.completed() >= 4, "the leader has completed some checkpoints")
        os.kill(leader.pid, signal.SIGSTOP)
        assert run("epoch_job.py", *cluster.arguments(40), timeout=90).code == 0
    finally:
        os.kill(leader.pid, signal.SIGCONT)
    code = ended(leader, cluster.root / "leader.log")
    assert code == 0, (cluster.root / "leader.log").read_text()
    cluster.audit(40)


def test_a_wrong_address_is_an_error_at_start_and_not_a_hang(tmp_path: Path) -> None:
    options = [
        "-Dhigh-availability.type=zookeeper",
        f"-Dhigh-availability.storageDir={tmp_path / 'ha'}",
        "-Dhigh-availability.zookeeper.quorum=127.0.0.1:1",
        "-Dhigh-availability.zookeeper.client.connection-timeout=1 s",
    ]
    finished = run("epoch_job.py", tmp_path / "checkpoints", tmp_path / "out", *options, timeout=60)
    assert finished.code == 1
    assert "127.0.0.1:1" in finished.output and "StorageError" in finished.output
