"""The contract of leader elections over a real ZooKeeper, and what only it does."""

import itertools
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from holdfast.ha.leader_election import LeaderElectionDriverFactory, LeaderInformation, LeaderRetrievalDriverFactory
from holdfast.ha.zookeeper.connection import ZooKeeperConnection
from holdfast.ha.zookeeper.leader_election import (
    LeaderTree,
    ZooKeeperLeaderElectionDriverFactory,
    ZooKeeperLeaderRetrievalDriver,
)
from holdfast.testing.leader_election_contract import (
    Cluster,
    ElectionBackend,
    ElectionProcess,
    LeaderElectionContract,
    eventually,
)
from holdfast.testing.server.tcp_proxy import TcpProxy
from holdfast.testing.server.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, expire_session

pytestmark = pytest.mark.services


class ZooKeeperProcess(ElectionProcess):
    def __init__(
        self, server: ZooKeeperServer, path: str, tolerates_suspension: bool, session_timeout: float = 1.5
    ) -> None:
        self.proxy = TcpProxy("127.0.0.1", server.port)
        self.connection = ZooKeeperConnection(
            self.proxy.address, session_timeout=session_timeout, connection_timeout=3, retry_wait=0.1, max_retries=2
        )
        self.connection.start()
        self._tree = LeaderTree(self.connection, path)
        self._tolerates = tolerates_suspension
        self.identity = str(uuid.uuid4())

    @property
    def driver_factory(self) -> LeaderElectionDriverFactory:
        return ZooKeeperLeaderElectionDriverFactory(self.connection, self._tree, self.identity, self._tolerates)

    def retrieval_driver_factory(self, component_id: str) -> LeaderRetrievalDriverFactory:
        return partial(ZooKeeperLeaderRetrievalDriver, self.connection, self._tree, component_id, self._tolerates)

    def cut_off(self) -> None:
        self.proxy.stall()

    def mend(self) -> None:
        self.proxy.mend()

    def close(self) -> None:
        self.connection.close()
        self.proxy.close()


class ZooKeeperElectionBackend(ElectionBackend):
    _numbers = itertools.count()

    def __init__(
        self, server: ZooKeeperServer, tolerates_suspension: bool = False, session_timeout: float = 1.5
    ) -> None:
        self._server = server
        self._session_timeout = session_timeout
        self._path = f"/contract-{uuid.uuid4().hex}/leader"
        self._tolerates = tolerates_suspension
        self.observer = ZooKeeperConnection(server.address, session_timeout=10)
        self.observer.start()
        self.tree = LeaderTree(self.observer, self._path)

    def close(self) -> None:
        self.observer.close()

    def new_process(self) -> ZooKeeperProcess:
        return ZooKeeperProcess(self._server, self._path, self._tolerates, self._session_timeout)

    def write_information(self, component_id: str, information: LeaderInformation) -> None:
        client, path = self.observer.client, f"{self._path}/{component_id}/connection_info"
        if information.is_empty:
            client.delete(path)
        elif client.exists(path):
            client.set(path, information.encode().encode())
        else:
            client.create(path, information.encode().encode(), makepath=True)

    def read_information(self, component_id: str) -> LeaderInformation:
        return self.tree.read(component_id)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tick_ms=200) as server:
        yield server


class TestZooKeeperElection(LeaderElectionContract):
    @pytest.fixture
    def election_backend(self, server: ZooKeeperServer) -> Iterator[ElectionBackend]:
        backend = ZooKeeperElectionBackend(server)
        yield backend
        backend.close()


class TestZooKeeperElectionWithToleratedSuspension(LeaderElectionContract):
    @pytest.fixture
    def election_backend(self, server: ZooKeeperServer) -> Iterator[ElectionBackend]:
        backend = ZooKeeperElectionBackend(server, tolerates_suspension=True)
        yield backend
        backend.close()


def clusters(server: ZooKeeperServer, **options: Any) -> Iterator[Cluster]:
    backend = ZooKeeperElectionBackend(server, **options)
    cluster = Cluster(backend)
    yield cluster
    cluster.close()
    backend.close()


@pytest.fixture
def cluster(server: ZooKeeperServer) -> Iterator[Cluster]:
    yield from clusters(server)


@pytest.fixture
def tolerant_cluster(server: ZooKeeperServer) -> Iterator[Cluster]:
    yield from clusters(server, tolerates_suspension=True)


@pytest.fixture
def patient_cluster(server: ZooKeeperServer) -> Iterator[Cluster]:
    """Sessions outlive every wait of a test, so that what happens does not happen because a session ended."""
    yield from clusters(server, session_timeout=2 * ElectionBackend.patience)


def process_of(cluster: Cluster, index: int = 0) -> ZooKeeperProcess:
    process = cluster.candidates[index].process
    assert isinstance(process, ZooKeeperProcess)
    return process


def test_a_suspended_connection_is_lost_leadership_by_default(patient_cluster: Cluster) -> None:
    contender = patient_cluster.candidate().start()
    patient_cluster.leader()
    process = process_of(patient_cluster)
    process.proxy.cut()
    eventually(lambda: not contender.leads, "the leader is revoked long before its session ends")
    process.proxy.mend()
    eventually(lambda: contender.leads, "it leads again, under another session id")
    assert len(set(contender.sessions)) == 2


def test_a_tolerated_suspension_shorter_than_the_session_is_not_noticed(tolerant_cluster: Cluster) -> None:
    listener = tolerant_cluster.retriever()
    candidate = tolerant_cluster.candidate()
    contender = candidate.start()
    tolerant_cluster.leader()
    eventually(lambda: listener.address == candidate.address, "the leader is found")
    process = process_of(tolerant_cluster)
    process.proxy.cut()
    eventually(lambda: not process.connection.is_connected, "the connection is lost")
    process.proxy.mend()
    eventually(lambda: process.connection.is_connected, "the connection is back")
    time.sleep(0.3)
    assert contender.leads and len(contender.sessions) == 1
    assert candidate.has_leadership(contender.sessions[0])
    assert listener.address == candidate.address


def test_a_tolerated_suspension_as_long_as_the_session_ends_leadership(tolerant_cluster: Cluster) -> None:
    contender = tolerant_cluster.candidate().start()
    tolerant_cluster.leader()
    process_of(tolerant_cluster).proxy.cut()
    eventually(lambda: not contender.leads, "the leader gives up by its own clock", 5.0)


def test_an_expired_session_ends_leadership_and_another_leads(cluster: Cluster) -> None:
    first, second = cluster.candidate(), cluster.candidate()
    old = first.start()
    cluster.leader()
    new = second.start()
    session_id = old.session_id
    assert session_id is not None
    expire_session(process_of(cluster).connection.client)
    eventually(lambda: new.leads and not old.leads, "leadership has changed")
    assert not first.has_leadership(session_id)
    assert old.errors == [] and new.errors == []


def test_whichever_answer_is_lost_each_candidate_stands_in_line_once(cluster: Cluster) -> None:
    backend = cluster.backend
    assert isinstance(backend, ZooKeeperElectionBackend)
    backend.observer.ensure_path(backend.tree.latch_path)
    for after in range(6):
        candidate = cluster.candidate()
        process = candidate.process
        assert isinstance(process, ZooKeeperProcess)
        process.proxy.lose_next_answer(after)
        candidate.start()

    def owners() -> list[str]:
        nodes = backend.observer.client.get_children(backend.tree.latch_path)
        return [node.partition("-")[0] for node in nodes]

    eventually(lambda: len(set(owners())) == 6, "every candidate stands in line")
    cluster.leader()
    eventually(lambda: len(owners()) == 6, "no candidate stands there twice")


def test_a_deleted_latch_is_made_again(cluster: Cluster) -> None:
    backend = cluster.backend
    assert isinstance(backend, ZooKeeperElectionBackend)
    contenders = [cluster.candidate().start() for _ in range(2)]
    old = cluster.leader().contenders["dispatcher"]
    path = backend.tree.latch_path
    for node in backend.observer.client.get_children(path):
        backend.observer.client.delete(f"{path}/{node}")
    session_id = old.sessions[0]
    eventually(
        lambda: not cluster.candidates[contenders.index(old)].has_leadership(session_id), "the old session is over"
    )


def test_a_process_that_leaves_while_it_is_cut_off_does_not_lead_afterwards(cluster: Cluster) -> None:
    leaver, other = cluster.candidate(), cluster.candidate()
    leaver.start()
    cluster.leader()
    successor = other.start()
    process = process_of(cluster)
    process.proxy.cut()
    eventually(lambda: not process.connection.is_connected, "the connection is lost")
    leaver.elections.pop("dispatcher").close()
    leaver.contenders.pop("dispatcher")
    process.proxy.mend()
    eventually(lambda: successor.leads, "the other one leads, although the session of the first lives")
    again = leaver.start()
    cluster.leave(other)
    eventually(lambda: again.leads, "whoever left may come back")


def test_an_ensemble_that_loses_its_leader_keeps_ours_or_elects_another() -> None:
    with ZooKeeperEnsemble(tick_ms=300) as ensemble:
        backend = EnsembleBackend(ensemble)
        cluster = Cluster(backend)
        listener = cluster.retriever()
        for _ in range(3):
            cluster.candidate().start()
        cluster.leader()
        killed = ensemble.kill_leader()
        ensemble.leader()
        leader = cluster.leader()
        eventually(lambda: listener.address == leader.address, "the leader is found")
        killed.start()
        cluster.leave(leader)
        leader = cluster.leader()
        eventually(lambda: listener.address == leader.address, "the next leader is found")
        cluster.close()


class EnsembleProcess(ElectionProcess):
    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self.connection = ZooKeeperConnection(
            ensemble.connect_string, session_timeout=6, connection_timeout=10, retry_wait=0.2, max_retries=8
        )
        self.connection.start()
        self._tree = LeaderTree(self.connection, "/flink/default/leader")

    @property
    def driver_factory(self) -> LeaderElectionDriverFactory:
        return ZooKeeperLeaderElectionDriverFactory(self.connection, self._tree, str(uuid.uuid4()), False)

    def retrieval_driver_factory(self, component_id: str) -> LeaderRetrievalDriverFactory:
        return partial(ZooKeeperLeaderRetrievalDriver, self.connection, self._tree, component_id, False)

    def cut_off(self) -> None:
        raise AssertionError("not in this test")

    def mend(self) -> None:
        pass

    def close(self) -> None:
        self.connection.close()


class EnsembleBackend(ElectionBackend):
    patience = 60.0

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self._ensemble = ensemble

    def new_process(self) -> ElectionProcess:
        return EnsembleProcess(self._ensemble)

    def write_information(self, component_id: str, information: LeaderInformation) -> None:
        raise AssertionError("not in this test")

    def read_information(self, component_id: str) -> LeaderInformation:
        raise AssertionError("not in this test")
