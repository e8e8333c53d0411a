"""Real processes that campaign: ten leaders killed, one stopped for longer than its lease.

The oracle is the job's register: what a leader was told it wrote is there, and nobody wrote after a successor had.
"""

import hashlib
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast.ha import HighAvailabilityServices, RegisterCheckpointRecoveryFactory
from holdfast.ha.services import create_high_availability_services
from holdfast.kernel.configuration import Configuration
from holdfast.storage import object_store
from holdfast.storage.object_store import S3Options
from holdfast.storage.register import RegisterState
from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from holdfast.testing.leader_election_contract import RecordingRetrievalListener, eventually
from holdfast.testing.server.s3_server import S3Server
from holdfast.testing.server.zookeeper import ZooKeeperServer
from tests.programs.ha_candidate import JOB, CandidateProcess

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]


class Site:
    """One cluster: its configuration, the processes that campaign, and an observer."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.configuration = configuration
        self.candidates: list[CandidateProcess] = []
        self.all: list[CandidateProcess] = []
        self._executor = ThreadPoolExecutor(1)
        self.observer: HighAvailabilityServices = create_high_availability_services(
            Configuration(configuration), self._executor
        )
        self.listener = RecordingRetrievalListener()
        self._retriever = self.observer.get_dispatcher_leader_retriever()
        self._retriever.start(self.listener)

    def start(self, number: int) -> None:
        started = [CandidateProcess(self.configuration) for _ in range(number)]
        self.candidates += started
        self.all += started
        eventually(lambda: all(c.said("started") for c in started), "all candidates have started", 60)

    def leader(self) -> CandidateProcess:
        """Wait until a candidate that runs is announced, has written, and return it."""

        def announced() -> list[CandidateProcess]:
            return [c for c in self.candidates if c.address == self.listener.address and c.said("wrote")]

        eventually(lambda: len(announced()) == 1, f"a leader is announced, {self.listener.address!r} is", 60)
        return announced()[0]

    def register(self) -> RegisterState:
        factory = self.observer.get_checkpoint_recovery_factory()
        assert isinstance(factory, RegisterCheckpointRecoveryFactory)
        return factory.get_register(JOB).read()

    def audit(self) -> None:
        """Compare what the processes were told with what the register holds, while the last leader goes on writing."""
        told = self.written("wrote")
        state = self.register()
        recorded = [(pointer.token, pointer.checkpoint_id) for pointer in state.checkpoints]
        tokens = [token for token, _ in recorded]
        assert tokens == sorted(tokens), "a deposed leader wrote after its successor"
        ids = [checkpoint_id for _, checkpoint_id in recorded]
        assert ids == sorted(set(ids)), "an id was used twice"
        assert told <= set(recorded), "a write that was acknowledged is lost"
        # The last write of a process that was killed may have happened without a word.
        assert len(set(recorded) - self.written("wrote") - self.written("unknown")) <= len(self.all)
        assert [e for c in self.all for e in c.said("error")] == []
        granted = [e["token"] for c in self.all for e in c.said("granted")]
        assert len(granted) == len(set(granted)), "two terms had one token"

    def written(self, event: str) -> set[tuple[int, int]]:
        return {(e["token"], e["checkpoint_id"]) for c in self.all for e in c.said(event)}

    def close(self) -> None:
        self._retriever.stop()
        for candidate in self.all:
            if candidate.is_running:
                candidate.send_signal(signal.SIGCONT)
                candidate.kill()
        self.observer.close()
        self._executor.shutdown()


def bucket_of(root: Path) -> str:
    """A bucket of the test's own: the servers of one process share what they hold."""
    return f"bucket-{hashlib.sha256(str(root).encode()).hexdigest()[:12]}"


def of_type(kind: str, tmp_path: Path, backend: Any) -> dict[str, Any]:
    common = {
        "high-availability.type": kind,
        "high-availability.storageDir": str(tmp_path / "ha"),
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
    }
    if kind == "object-store":
        prefix = "high-availability.filesystem.leader-election"
        return {
            "high-availability.type": "filesystem",
            "high-availability.storageDir": f"s3://{bucket_of(tmp_path)}/ha",
            "execution.checkpointing.dir": f"s3://{bucket_of(tmp_path)}/checkpoints",
            "s3.endpoint": backend.endpoint,
            "s3.access-key": "test",
            "s3.secret-key": "test",
            "s3.region": "us-east-1",
            f"{prefix}.lease-duration": "3 s",
            f"{prefix}.renew-deadline": "2 s",
            f"{prefix}.retry-period": "400 ms",
        }
    if kind == "filesystem":
        prefix = "high-availability.filesystem.leader-election"
        return {
            **common,
            f"{prefix}.lease-duration": "1500 ms",
            f"{prefix}.renew-deadline": "1 s",
            f"{prefix}.retry-period": "200 ms",
        }
    if kind == "zookeeper":
        prefix = "high-availability.zookeeper"
        return {
            **common,
            f"{prefix}.quorum": backend.connect_string,
            f"{prefix}.client.session-timeout": "1500 ms",
            f"{prefix}.client.retry-wait": "200 ms",
        }
    prefix = "high-availability.kubernetes.leader-election"
    return {
        **common,
        "kubernetes.cluster-id": "take-over",
        "kubernetes.namespace": "default",
        "kubernetes.config.file": str(backend.write_kubeconfig(tmp_path / "kubeconfig")),
        f"{prefix}.lease-duration": "1500 ms",
        f"{prefix}.renew-deadline": "1 s",
        f"{prefix}.retry-period": "200 ms",
    }


@contextmanager
def a_site(kind: str, tmp_path: Path) -> Iterator[Site]:
    servers: dict[str, Any] = {
        "zookeeper": ZooKeeperServer,
        "kubernetes": KubernetesApiServer,
        "object-store": S3Server,
    }
    with servers[kind]() if kind in servers else nullcontext() as backend:
        if kind == "object-store":
            backend.make_bucket(bucket_of(tmp_path))
        site = Site(of_type(kind, tmp_path, backend))
        try:
            yield site
        finally:
            site.close()


@pytest.fixture(params=["filesystem", "zookeeper", "kubernetes"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with a_site(request.param, tmp_path) as site:
        yield site


def test_ten_leaders_are_killed_and_each_time_another_takes_over(site: Site) -> None:
    site.start(10)
    for _ in range(10):
        leader = site.leader()
        time.sleep(0.15)  # let it write a little more: the kill may hit the middle of a write
        leader.kill()
        site.candidates.remove(leader)
    site.audit()
    assert len({e["token"] for c in site.all for e in c.said("granted")}) == 10


def test_a_leader_that_is_stopped_for_longer_than_its_lease_changes_nothing_when_it_goes_on(site: Site) -> None:
    site.start(2)
    old = site.leader()
    old.send_signal(signal.SIGSTOP)
    site.candidates.remove(old)
    new = site.leader()
    before = len(new.said("wrote"))
    eventually(lambda: len(new.said("wrote")) > before + 3, "the new leader goes on")
    stale = old.said("wrote")[-1]["token"]
    old.send_signal(signal.SIGCONT)
    eventually(
        lambda: bool(old.said("fenced") or old.said("revoked") or old.said("unknown")), "the old leader learns of it"
    )
    eventually(lambda: len(new.said("wrote")) > before + 10, "the new leader is not disturbed")
    site.audit()
    written = [pointer.token for pointer in site.register().checkpoints]
    assert written.index(new.said("wrote")[0]["token"]) >= written.count(stale)
    assert not new.said("revoked")


def test_a_leader_that_leaves_in_good_order_is_replaced_at_once(site: Site) -> None:
    site.start(2)
    first = site.leader()
    site.candidates.remove(first)
    first.leave()
    second = site.leader()
    assert second is not first
    site.audit()


def test_leaders_that_share_an_object_store_are_killed_or_stopped_and_others_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files have no leases of an operating system; here there is not even one, only conditional writes."""
    monkeypatch.setattr(object_store, "_current", S3Options())
    with a_site("object-store", tmp_path) as site:
        site.start(3)
        killed = site.leader()
        killed.kill()
        site.candidates.remove(killed)
        stopped = site.leader()
        stopped.send_signal(signal.SIGSTOP)
        site.candidates.remove(stopped)
        last = site.leader()
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda: bool(stopped.said("fenced") or stopped.said("revoked")), "the stopped one learns of it")
        before = len(last.said("wrote"))
        eventually(lambda: len(last.said("wrote")) > before + 3, "the last one is not disturbed")
        site.audit()
        assert len({e["token"] for c in site.all for e in c.said("granted")}) == 3
