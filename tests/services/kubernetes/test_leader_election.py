"""The contract of leader election over a ConfigMap, and what only this election does."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from holdfast.ha.kubernetes import (
    LEADER_ANNOTATION,
    KubeClient,
    KubernetesConfigMap,
    KubernetesLeaderElectionDriver,
    KubernetesLeaderElectionDriverFactory,
)
from holdfast.ha.kubernetes.leader_election import leader_information_of, leader_key, retrieval_driver_factory
from holdfast.ha.kubernetes.watch import ConfigMapWatcher
from holdfast.ha.leader_election import (
    DefaultLeaderRetrievalService,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
    LeaderInformation,
    LeaderInformationRegister,
    LeaderRetrievalDriverFactory,
)
from holdfast.ha.lease import LeaseTiming
from holdfast.testing.kubernetes.api_server import Fault, FaultKind, KubernetesApiServer
from holdfast.testing.leader_election_contract import (
    ElectionBackend,
    ElectionProcess,
    LeaderElectionContract,
    RecordingRetrievalListener,
    eventually,
)
from tests.services.kubernetes.cluster import KubernetesCluster

pytestmark = pytest.mark.services

TIMES = LeaseTiming(lease_duration=3.0, renew_deadline=2.4, retry_period=0.4)
_numbers = itertools.count()


class ProxiedProcess(ElectionProcess):
    """A process with its own connections, through a proxy that can be cut."""

    def __init__(self, cluster: KubernetesCluster, name: str) -> None:
        self.proxy, kubeconfig = cluster.proxied()
        self.client = KubeClient(cluster.connection(kubeconfig, seconds=2.0), max_retries=3)
        self.watcher = ConfigMapWatcher(self.client.connection, name, watch_seconds=5)
        self.identity = str(uuid.uuid4())
        self._template = KubernetesConfigMap(name, labels={"app": "test"})

    @property
    def driver_factory(self) -> LeaderElectionDriverFactory:
        return KubernetesLeaderElectionDriverFactory(self.client, self.watcher, self._template, self.identity, TIMES)

    def retrieval_driver_factory(self, component_id: str) -> LeaderRetrievalDriverFactory:
        return retrieval_driver_factory(self.watcher, component_id)

    def cut_off(self) -> None:
        self.proxy.cut()

    def mend(self) -> None:
        self.proxy.mend()

    def close(self) -> None:
        self.watcher.close()
        self.client.close()
        self.proxy.close()


class ConfigMapElection(ElectionBackend):
    """One cluster's ConfigMap."""

    patience = 30.0

    def __init__(self, cluster: KubernetesCluster, admin: KubeClient, name: str = "") -> None:
        self._cluster = cluster
        self._admin = admin
        self.name = name or f"election-{next(_numbers)}-cluster-config-map"

    def new_process(self) -> ElectionProcess:
        return ProxiedProcess(self._cluster, self.name)

    def write_information(self, component_id: str, information: LeaderInformation) -> None:
        key = leader_key(component_id)
        self._admin.check_and_update_config_map(
            self.name,
            lambda map: map.without(key) if information.is_empty else map.with_entries({key: information.encode()}),
        )

    def read_information(self, component_id: str) -> LeaderInformation:
        found = self._admin.get_config_map(self.name)
        if found is None:
            return LeaderInformation.empty()
        return leader_information_of(found).for_component_id_or_empty(component_id)


@pytest.fixture(scope="module")
def admin(module_cluster: KubernetesCluster) -> KubeClient:
    client: KubeClient = module_cluster.client()
    return client


class TestKubernetesLeaderElection(LeaderElectionContract):
    @pytest.fixture
    def election_backend(self, module_cluster: KubernetesCluster, admin: KubeClient) -> Iterator[ElectionBackend]:
        yield ConfigMapElection(module_cluster, admin)


# What only this election does.


class Recorder(LeaderElectionListener):
    """Writes down what a driver tells."""

    def __init__(self) -> None:
        self.granted: list[uuid.UUID] = []
        self.revoked = 0
        self.registers: list[LeaderInformationRegister] = []
        self.errors: list[BaseException] = []

    @property
    def leads(self) -> bool:
        return len(self.granted) > self.revoked

    def on_grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        self.granted.append(leader_session_id)

    def on_revoke_leadership(self) -> None:
        self.revoked += 1

    def on_leader_information_change(self, component_id: str, leader_information: LeaderInformation) -> None:
        raise AssertionError("this driver tells the whole register")

    def on_leader_information_register_change(self, register: LeaderInformationRegister) -> None:
        self.registers.append(register)

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)


class Candidates:
    """Drivers of one ConfigMap, closed with the test."""

    name = "lock"

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._closing: list[KubernetesLeaderElectionDriver | ConfigMapWatcher | KubeClient] = []

    def join(
        self, identity: str, times: LeaseTiming = TIMES, seconds: float = 2.0
    ) -> tuple[KubernetesLeaderElectionDriver, Recorder]:
        client = KubeClient(self._cluster.connection(seconds=seconds), max_retries=3)
        watcher = ConfigMapWatcher(client.connection, self.name, watch_seconds=3)
        recorder = Recorder()
        driver = KubernetesLeaderElectionDriver(
            client, watcher, KubernetesConfigMap(self.name, labels={"app": "test"}), identity, times, recorder
        )
        self._closing = [driver, watcher, client, *self._closing]
        return driver, recorder

    def lease(self) -> dict[str, object]:
        text = self._cluster.map(self.name)["metadata"]["annotations"][LEADER_ANNOTATION]
        read: dict[str, object] = json.loads(text)
        return read

    def close(self) -> None:
        for item in self._closing:
            item.close()


@pytest.fixture
def candidates(cluster: KubernetesCluster) -> Iterator[Candidates]:
    made = Candidates(cluster)
    yield made
    made.close()


def test_the_lease_can_be_read_by_people_and_tools(cluster: KubernetesCluster, candidates: Candidates) -> None:
    _, recorder = candidates.join("process-1")
    eventually(lambda: recorder.leads, "it leads")
    lease = candidates.lease()
    assert lease["holderIdentity"] == "process-1"
    assert lease["leaseDurationSeconds"] == 3
    assert cluster.map("lock")["metadata"]["labels"] == {"app": "test"}
    assert "ownerReferences" not in cluster.map("lock")["metadata"]


def test_what_a_leader_publishes_stands_under_the_contracts_key(
    cluster: KubernetesCluster, candidates: Candidates
) -> None:
    driver, recorder = candidates.join("process-1")
    eventually(lambda: recorder.leads, "it leads")
    session = recorder.granted[0]
    driver.publish_leader_information("dispatcher", LeaderInformation.known(session, "host:1,2"))
    assert cluster.map("lock")["data"] == {"org.apache.flink.k8s.leader.dispatcher": f"{session},host:1,2"}
    driver.delete_leader_information("dispatcher")
    assert "data" not in cluster.map("lock")


def test_who_does_not_lead_publishes_and_deletes_nothing(cluster: KubernetesCluster, candidates: Candidates) -> None:
    leader, recorder = candidates.join("process-1")
    eventually(lambda: recorder.leads, "it leads")
    leader.publish_leader_information("dispatcher", LeaderInformation.known(recorder.granted[0], "leader:1"))
    before = cluster.map("lock")["data"]
    other, _ = candidates.join("process-2")
    other.publish_leader_information("dispatcher", LeaderInformation.known(uuid.uuid4(), "impostor:1"))
    other.delete_leader_information("dispatcher")
    assert not other.has_leadership()
    assert cluster.map("lock")["data"] == before


def test_a_closed_leader_gives_the_lease_back_at_once(candidates: Candidates) -> None:
    slow = LeaseTiming(60.0, 50.0, 1.0)
    first, recorder = candidates.join("process-1", slow)
    eventually(lambda: recorder.leads, "the first leads")
    _, successor = candidates.join("process-2", slow)
    first.close()
    assert candidates.lease()["holderIdentity"] in ("", "process-2")
    eventually(lambda: successor.leads, "the second leads long before the lease is over", 10.0)
    assert recorder.errors == [] == successor.errors


def test_a_config_map_that_somebody_deletes_is_reported_and_made_again(
    cluster: KubernetesCluster, candidates: Candidates
) -> None:
    driver, recorder = candidates.join("process-1")
    eventually(lambda: recorder.leads, "it leads")
    cluster.request("DELETE", cluster.path("configmaps", "lock"))
    driver.has_leadership()
    eventually(lambda: len(recorder.granted) == 2, "it makes a new one and leads again")
    assert recorder.revoked == 1
    eventually(lambda: bool(recorder.errors), "it said so")
    assert "lock" in str(recorder.errors[0])


def test_whoever_takes_the_annotation_away_deposes_the_leader(
    cluster: KubernetesCluster, candidates: Candidates
) -> None:
    driver, recorder = candidates.join("process-1")
    eventually(lambda: recorder.leads, "it leads")
    lie = {"metadata": {"annotations": {LEADER_ANNOTATION: json.dumps({"holderIdentity": "stranger"})}}}
    cluster.request("PATCH", cluster.path("configmaps", "lock"), lie, content_type="application/merge-patch+json")
    assert not driver.has_leadership()
    eventually(lambda: recorder.revoked == 1, "it notices")
    eventually(lambda: len(recorder.granted) == 2, "and leads again once the stranger has been silent for a lease")


# Broken networks; only the double can do that.


def test_the_leader_is_revoked_at_its_deadline_although_its_request_hangs(
    server: KubernetesApiServer, candidates: Candidates
) -> None:
    _, recorder = candidates.join("process-1", seconds=30.0)
    eventually(lambda: recorder.leads, "it leads")
    server.pause()
    try:
        eventually(lambda: recorder.revoked == 1, "it is revoked while the server is silent", 10.0)
    finally:
        server.resume()
    eventually(lambda: len(recorder.granted) == 2, "it leads again")


def test_a_leader_is_asked_again_when_an_answer_gets_lost(server: KubernetesApiServer, candidates: Candidates) -> None:
    """One that was taken for no leader at its confirmation would not be found in all of its term."""
    driver, recorder = candidates.join("process-1")
    eventually(lambda: recorder.leads, "it leads")
    server.inject(Fault(FaultKind.DROP_AFTER, verb="get", name="lock", times=3))
    assert driver.has_leadership()
    assert not server.pending_faults


def test_a_renewal_whose_answer_gets_lost_costs_nothing(server: KubernetesApiServer, candidates: Candidates) -> None:
    _, recorder = candidates.join("process-1")
    eventually(lambda: recorder.leads, "it leads")
    for kind in (FaultKind.DROP_AFTER, FaultKind.DROP_BEFORE, FaultKind.ERROR_AFTER):
        server.inject(Fault(kind, verb="update", name="lock"))
        eventually(lambda: server.pending_faults == 0, "the fault has struck")
    renewed = candidates.lease()["renewals"]
    eventually(lambda: candidates.lease()["renewals"] != renewed, "it goes on renewing")
    assert (len(recorder.granted), recorder.revoked) == (1, 0)


def test_a_server_that_restarts_costs_nothing(server: KubernetesApiServer, candidates: Candidates) -> None:
    _, recorder = candidates.join("process-1")
    eventually(lambda: recorder.leads, "it leads")
    server.stop()
    time.sleep(0.5)
    server.restart()
    renewed = candidates.lease()["renewals"]
    eventually(lambda: candidates.lease()["renewals"] != renewed, "it goes on renewing")
    assert (len(recorder.granted), recorder.revoked) == (1, 0)


def test_nothing_is_heard_after_close(candidates: Candidates) -> None:
    driver, recorder = candidates.join("process-1")
    other, second = candidates.join("process-2")
    eventually(lambda: recorder.leads or second.leads, "one leads")
    driver.close()
    other.close()
    heard = (list(recorder.granted), recorder.revoked, list(second.granted), second.revoked)
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("lease-")}
    assert threads == set()
    assert (list(recorder.granted), recorder.revoked, list(second.granted), second.revoked) == heard


# Retrieval.


def follow(
    cluster: KubernetesCluster, name: str = "lock"
) -> tuple[DefaultLeaderRetrievalService, ConfigMapWatcher, RecordingRetrievalListener]:
    watcher = ConfigMapWatcher(cluster.connection(), name, watch_seconds=2, grace_seconds=1)
    service = DefaultLeaderRetrievalService(retrieval_driver_factory(watcher, "dispatcher"))
    listener = RecordingRetrievalListener()
    service.start(listener)
    return service, watcher, listener


def publish(admin: KubeClient, name: str, address: str) -> None:
    text = LeaderInformation.known(uuid.uuid4(), address).encode()
    if admin.get_config_map(name) is None:
        admin.create_config_map(KubernetesConfigMap(name))
    admin.check_and_update_config_map(name, lambda map: map.with_entries({leader_key("dispatcher"): text}))


def test_a_retriever_goes_on_after_everything_that_ends_a_watch(
    server: KubernetesApiServer, cluster: KubernetesCluster
) -> None:
    admin = cluster.client()
    service, watcher, listener = follow(cluster)
    publish(admin, "lock", "host:0")
    eventually(lambda: listener.address == "host:0", "it hears of the first leader")

    def break_watches() -> None:
        server.break_watches()

    def compact() -> None:
        server.inject(Fault(FaultKind.DROP_BEFORE, verb="watch", name="lock", times=2))
        server.break_watches()
        eventually(lambda: server.pending_faults == 0, "the watch has ended")
        server.inject(Fault(FaultKind.DROP_BEFORE, verb="watch", name="lock"))
        admin.check_and_update_config_map("lock", lambda map: map.with_entries({"other": secrets.token_hex(8)}))
        server.compact()

    def compact_by_status() -> None:
        server.answer_gone_by_status()
        compact()

    def restart() -> None:
        server.stop()
        server.restart()

    def refuse_once() -> None:
        server.inject(Fault(FaultKind.ERROR_BEFORE, verb="watch", code=503, times=2))
        server.break_watches()

    def limit_is_over() -> None:
        time.sleep(2.5)

    disasters = [break_watches, compact, compact_by_status, restart, refuse_once, limit_is_over]
    for number, disaster in enumerate(disasters, 1):
        disaster()
        publish(admin, "lock", f"host:{number}")
        eventually(lambda: listener.address == f"host:{number}", f"it hears of the leader after {disaster.__name__}")  # noqa: B023
    server.answer_gone_by_status(False)
    service.stop()
    watcher.close()
    assert listener.errors == []


def test_a_change_during_the_outage_is_found_by_a_new_list(
    server: KubernetesApiServer, cluster: KubernetesCluster
) -> None:
    """The history is gone, so only a new list can show what happened; a deletion shows as absence."""
    admin = cluster.client()
    publish(admin, "lock", "host:1")
    service, watcher, listener = follow(cluster)
    eventually(lambda: listener.address == "host:1", "it hears of the leader")
    server.inject(Fault(FaultKind.DROP_BEFORE, verb="watch", name="lock", times=3))
    server.break_watches()
    publish(admin, "lock", "host:2")
    server.compact()
    eventually(lambda: listener.address == "host:2", "it hears of the new leader")
    service.stop()
    watcher.close()


def test_a_connection_that_died_in_silence_is_given_up(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    admin = cluster.client()
    publish(admin, "lock", "host:1")
    service, watcher, listener = follow(cluster)
    eventually(lambda: listener.address == "host:1", "it hears of the leader")
    server.silence_watches()
    publish(admin, "lock", "host:2")
    eventually(lambda: listener.address == "host:2", "it hears of the new leader")
    service.stop()
    watcher.close()


def test_a_retriever_without_rights_hears_an_error_and_recovers(
    server: KubernetesApiServer, cluster: KubernetesCluster
) -> None:
    token = server.add_user("blind", [], cluster.namespace)
    path = server.write_kubeconfig(cluster.directory / "blind", token, cluster.namespace)
    watcher = ConfigMapWatcher(cluster.connection(path), "lock", watch_seconds=2)
    service = DefaultLeaderRetrievalService(retrieval_driver_factory(watcher, "dispatcher"))
    listener = RecordingRetrievalListener()
    service.start(listener)
    eventually(lambda: bool(listener.errors), "it hears of the missing right")
    assert "watching the ConfigMap 'lock'" in str(listener.errors[0].__cause__)
    server.add_user(
        "blind", [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}], cluster.namespace
    )
    publish(cluster.client(), "lock", "host:1")
    eventually(lambda: listener.address == "host:1", "it hears of the leader once it has the right")
    service.stop()
    watcher.close()


def test_closing_a_watcher_does_not_wait_for_the_next_event(cluster: KubernetesCluster) -> None:
    watcher = ConfigMapWatcher(cluster.connection(), "lock", watch_seconds=60)
    service = DefaultLeaderRetrievalService(retrieval_driver_factory(watcher, "dispatcher"))
    service.start(RecordingRetrievalListener())
    time.sleep(0.3)
    service.stop()
    watcher.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "watch-lock"]
