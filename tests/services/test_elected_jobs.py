"""Jobs under high availability, in processes of their own: the leader dies or sleeps, and the next one goes on.

The ledger on the epoch runner, without a JVM; tests/spark has the same story with Spark. The auditor reads the output.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.kernel.ids import JobID
from holdfast.storage import object_store
from holdfast.storage.file_system import join
from holdfast.storage.scheme import file_system_for
from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from holdfast.testing.server.s3_server import S3Server
from holdfast.testing.server.zookeeper import ZooKeeperServer
from tests.services.test_ha_takeover import bucket_of, of_type
from tests.stories import ledger
from tests.stories.process import kill_group, run, start

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]


class Cluster:
    """What the drivers of one job share."""

    def __init__(self, kind: str, root: Path, backend: Any) -> None:
        self.root, self.backend = root, backend
        values = of_type(kind, root, backend)
        self.checkpoints = values["execution.checkpointing.dir"]
        self.options = [f"-D{key}={value}" for key, value in values.items()]

    def arguments(self, epochs: int) -> tuple[object, ...]:
        return (self.checkpoints, self.root / "out", "--epochs", epochs, *self.options)

    def start(self, name: str, epochs: int, fault: str | None = None) -> subprocess.Popen[bytes]:
        return start("epoch_job.py", *self.arguments(epochs), fault=fault, log=self.root / name)

    def completed(self) -> int:
        fs = file_system_for(self.checkpoints)
        job = join(self.checkpoints, str(JobID.from_name("ledger")))
        documents = [join(job, name, "_metadata") for name in fs.list_names(job) if name.startswith("chk-")]
        return sum(map(fs.exists, documents))

    def audit(self, epochs: int) -> None:
        ledger.audit(self.root / "out", ledger.payments(epochs, 40, 7, 1), two_stages=True)


@pytest.fixture(params=["filesystem", "zookeeper", "kubernetes"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with a_cluster(request.param, tmp_path) as cluster:
        yield cluster


@contextmanager
def a_cluster(kind: str, tmp_path: Path) -> Iterator[Cluster]:
    servers: dict[str, Any] = {
        "zookeeper": ZooKeeperServer,
        "kubernetes": KubernetesApiServer,
        "object-store": S3Server,
    }
    with servers[kind]() if kind in servers else nullcontext() as backend:
        if kind == "object-store":
            backend.make_bucket(bucket_of(tmp_path))
        yield Cluster(kind, tmp_path, backend)


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
    kill_the_leader_in_a_commit(cluster)


def test_a_job_all_of_whose_files_are_in_an_object_store_goes_on_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_cluster("object-store", tmp_path) as cluster:
        monkeypatch.setattr(object_store, "_current", cluster.backend.options)
        kill_the_leader_in_a_commit(cluster)


def kill_the_leader_in_a_commit(cluster: Cluster) -> None:
    leader = cluster.start("leader.log", 5, fault="before:pointer.write:3=hang")
    wait_for(lambda: cluster.completed() >= 3, "the leader has come to its third commit")
    standby = cluster.start("standby.log", 5)
    with pytest.raises(subprocess.TimeoutExpired):
        standby.wait(timeout=3)
    assert cluster.completed() == 3, "who stands by changes nothing"
    kill_group(leader)
    assert ended(standby, cluster.root / "standby.log") == 0, (cluster.root / "standby.log").read_text()
    cluster.audit(5)
    listed = CliRunner().invoke(main, ["checkpoints", cluster.checkpoints, "--json", *cluster.options])
    assert listed.exit_code == 0, listed.output
    assert [json.loads(line)["status"] for line in listed.stdout.splitlines()] == ["COMPLETED"] * 3


def test_a_leader_that_slept_for_longer_than_its_lease_stands_by_and_finds_the_job_done(cluster: Cluster) -> None:
    leader = cluster.start("leader.log", 150)
    try:
        wait_for(lambda: cluster.completed() >= 4, "the leader has completed some checkpoints")
        os.kill(leader.pid, signal.SIGSTOP)
        assert leader.poll() is None, "the leader is to sleep in the middle of the job"
        assert run("epoch_job.py", *cluster.arguments(150), timeout=90).code == 0
    finally:
        os.kill(leader.pid, signal.SIGCONT)
    code = ended(leader, cluster.root / "leader.log")
    assert code == 0, (cluster.root / "leader.log").read_text()
    cluster.audit(150)


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
