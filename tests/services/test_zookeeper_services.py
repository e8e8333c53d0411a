"""High-availability services over a real ZooKeeper: stores, clean-up, and every bad input as a clear error at start."""

import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from holdfast.errors import ConfigurationError, CorruptFileError, FencedError, FormatVersionError, StorageError
from holdfast.ha import ExecutionPlan, ExecutionPlanListener, create_client_high_availability_services
from holdfast.ha.zookeeper import ZooKeeperConnection, ZooKeeperLeaderElectionHaServices
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.register import CheckpointPointer
from holdfast.storage.state_handle import encode_document
from holdfast.testing.leader_election_contract import RecordingContender, RecordingRetrievalListener, eventually
from holdfast.testing.server.tcp_proxy import TcpProxy
from holdfast.testing.server.zookeeper import ZooKeeperServer, expire_session

pytestmark = pytest.mark.services

JOB = JobID.from_name("a job")
OTHER = JobID.from_name("another job")


class Events(ExecutionPlanListener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, JobID]] = []

    def on_added_execution_plan(self, job_id: JobID) -> None:
        self.heard.append(("added", job_id))

    def on_removed_execution_plan(self, job_id: JobID) -> None:
        self.heard.append(("removed", job_id))


class Site:
    """Configurations and services of one cluster."""

    def __init__(self, server: ZooKeeperServer, directory: Path, executor: Executor) -> None:
        self.server, self.directory, self.executor = server, directory, executor
        self.root = f"/root-{uuid.uuid4().hex}"
        self.opened: list[ZooKeeperLeaderElectionHaServices] = []
        self.client: Any = KazooClient(server.address)
        self.client.start()

    def configuration(self, **changes: Any) -> Configuration:
        values = {
            "high-availability.type": "zookeeper",
            "high-availability.storageDir": str(self.directory / "ha"),
            "high-availability.zookeeper.quorum": self.server.address,
            "high-availability.zookeeper.path.root": self.root,
            "high-availability.zookeeper.client.session-timeout": "2 s",
            "high-availability.zookeeper.client.connection-timeout": "3 s",
            "high-availability.zookeeper.client.retry-wait": "100 ms",
            "execution.checkpointing.dir": str(self.directory / "checkpoints"),
        }
        return Configuration({**values, **{key.replace("__", "."): value for key, value in changes.items()}})

    def open(self, **changes: Any) -> ZooKeeperLeaderElectionHaServices:
        services = ZooKeeperLeaderElectionHaServices(self.configuration(**changes), self.executor)
        self.opened.append(services)
        return services

    def nodes(self, path: str | None = None) -> set[str]:
        path = self.root if path is None else path
        if not self.client.exists(path):
            return set()
        below = (self.nodes(f"{path}/{child}") for child in self.client.get_children(path))
        return {path}.union(*below)

    def close(self) -> None:
        for services in self.opened:
            services.close()
        self.client.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def site(server: ZooKeeperServer, tmp_path: Path) -> Iterator[Site]:
    with ThreadPoolExecutor(2) as executor:
        site = Site(server, tmp_path, executor)
        yield site
        site.close()


def lead(services: ZooKeeperLeaderElectionHaServices, address: str = "host:1") -> tuple[RecordingContender, Any]:
    election = services.get_dispatcher_leader_election()
    contender = RecordingContender(address, election)
    election.start_leader_election(contender)
    return contender, election


def test_the_leader_keeps_plans_and_its_successor_recovers_them(site: Site) -> None:
    first, second = site.open(), site.open()
    old, election = lead(first)
    eventually(lambda: old.leads, "the first leads")
    new, second_election = lead(second, "host:2")
    events = Events()
    mine, theirs = first.get_execution_plan_store(), second.get_execution_plan_store()
    mine.start(Events())
    theirs.start(events)
    plan = ExecutionPlan(JOB, "a job", {"script": "job.py"})
    mine.put_execution_plan(plan)
    eventually(lambda: events.heard == [("added", JOB)], "the other process hears of the plan")
    with pytest.raises(FencedError):
        theirs.put_execution_plan(ExecutionPlan(OTHER, "another job", {}))
    election.close()
    eventually(lambda: new.leads, "the second leads")
    assert theirs.recover_execution_plan(JOB) == plan
    with pytest.raises(FencedError):
        mine.put_execution_plan(ExecutionPlan(OTHER, "another job", {}))
    failed = theirs.global_cleanup_async(JOB, site.executor).exception(timeout=30)
    assert "another process holds a lock" in str(failed), "the deposed leader has not released it yet"
    mine.stop()
    theirs.global_cleanup_async(JOB, site.executor).result(timeout=30)
    assert theirs.get_job_ids() == []
    theirs.stop()
    second_election.close()


def test_the_register_of_a_job_fences_the_leader_before(site: Site) -> None:
    first = site.open().get_checkpoint_recovery_factory()
    second = site.open().get_checkpoint_recovery_factory()
    used = [first.create_checkpoint_id_counter(JOB).get_and_increment() for _ in range(3)]
    assert second.create_checkpoint_id_counter(JOB).get_and_increment() > max(used)
    with pytest.raises(FencedError):
        first.get_writer(JOB).write(lambda state: replace(state, terminal="FINISHED"))


def test_cleaning_up_a_job_removes_its_node_unless_checkpoints_are_retained(site: Site) -> None:
    services = site.open()
    writer = services.get_checkpoint_recovery_factory().get_writer(JOB)
    pointer = CheckpointPointer(1, "chk-1/_metadata", 1, "0" * 64, writer.token)
    writer.write(lambda state: replace(state, checkpoints=(pointer,), next_checkpoint_id=2))
    services.global_cleanup_async(JOB, site.executor).result(timeout=30)
    assert writer.check().checkpoints == (pointer,)
    writer.write(lambda state: replace(state, checkpoints=(), terminal="FINISHED"))
    for _ in range(2):
        services.global_cleanup_async(JOB, site.executor).result(timeout=30)
    assert not [node for node in site.nodes() if str(JOB) in node]
    services.global_cleanup_async(OTHER, site.executor).result(timeout=30)


def test_closing_keeps_everything_and_cleaning_up_leaves_nothing(site: Site) -> None:
    services = site.open()
    contender, election = lead(services)
    eventually(lambda: contender.leads, "it leads")
    store = services.get_execution_plan_store()
    store.start(Events())
    store.put_execution_plan(ExecutionPlan(JOB, "a job", {}))
    services.get_checkpoint_recovery_factory().get_writer(JOB)
    store.stop()
    election.close()
    site.opened.remove(services)
    services.close()
    kept = site.nodes()
    assert {node.rpartition("/")[2] for node in kept} >= {"cluster", "execution-plans", str(JOB), "register", "latch"}
    neighbour = site.open(**{"high-availability.cluster-id": "/default/nested"})
    again = site.open()
    site.opened.remove(again)
    again.close_with_optional_clean(True)
    left = {node.removeprefix(site.root) for node in site.nodes()}
    assert left == {"", "/default", "/default/nested", "/default/nested/cluster"}, "the neighbour is not touched"
    assert sorted(path.name for path in (site.directory / "ha" / "default").iterdir()) == ["nested"]
    site.opened.remove(neighbour)
    neighbour.close_with_optional_clean(True)
    assert site.nodes() == set(), "empty parents go as well"


def test_a_client_finds_the_rest_endpoint(site: Site) -> None:
    services = site.open()
    election = services.get_cluster_rest_endpoint_leader_election()
    election.start_leader_election(RecordingContender("rest:8081", election))
    client = create_client_high_availability_services(site.configuration())
    listener = RecordingRetrievalListener()
    retriever = client.get_cluster_rest_endpoint_leader_retriever()
    retriever.start(listener)
    eventually(lambda: listener.address == "rest:8081", "the client finds the endpoint")
    retriever.stop()
    client.close()
    election.close()


def test_plans_survive_an_expired_session(site: Site) -> None:
    services = site.open()
    contender, election = lead(services)
    eventually(lambda: contender.leads, "it leads")
    store = services.get_execution_plan_store()
    store.start(Events())
    store.put_execution_plan(ExecutionPlan(JOB, "a job", {"version": 1}))
    expire_session(services._connection.client)
    eventually(lambda: len(contender.sessions) == 2 and contender.leads, "it leads again, in another session")
    assert store.recover_execution_plan(JOB) is not None
    store.put_execution_plan(ExecutionPlan(JOB, "a job", {"version": 2}))
    recovered = store.recover_execution_plan(JOB)
    assert recovered is not None and recovered.document == {"version": 2}
    store.stop()
    election.close()


# Bad input. One that hung would meet the time limit of every test.


@pytest.mark.parametrize("quorum", ["", "   ", "host:port", "host:70000", "a b:2181", "http://host:2181", "host:2181,"])
def test_a_malformed_quorum_is_refused(site: Site, quorum: str) -> None:
    with pytest.raises(ConfigurationError, match=r"high-availability\.zookeeper\.quorum"):
        site.open(**{"high-availability.zookeeper.quorum": quorum})


def test_a_missing_quorum_is_named(site: Site) -> None:
    configuration = site.configuration()
    configuration.remove("high-availability.zookeeper.quorum")
    with pytest.raises(ConfigurationError, match=r"mandatory parameter 'high-availability\.zookeeper\.quorum'"):
        ZooKeeperLeaderElectionHaServices(configuration, site.executor)


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_quorum_where_nobody_answers_is_named(site: Site, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(StorageError, match=rf"{host}:{port}.*high-availability\.zookeeper\.quorum"):
        site.open(**{"high-availability.zookeeper.quorum": f"{host}:{port}"})


def test_a_quorum_that_is_something_else_is_named(site: Site) -> None:
    """A server that accepts and says nothing."""
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(StorageError, match="Could not connect to ZooKeeper"),
    ):
        site.open(**{"high-availability.zookeeper.quorum": f"127.0.0.1:{mute.getsockname()[1]}"})


@pytest.mark.parametrize("cluster_id", ["/", "..", "a/../b", "line\nbreak", "\uf8ff", "prod/jobs", "prod/cluster"])
def test_a_cluster_id_that_cannot_be_a_node_is_refused(site: Site, cluster_id: str) -> None:
    with pytest.raises(ConfigurationError, match=r"high-availability\.cluster-id"):
        site.open(**{"high-availability.cluster-id": cluster_id})


def test_the_nodes_of_zookeeper_itself_are_refused(site: Site) -> None:
    for changes in (
        {"high-availability.zookeeper.path.root": "/zookeeper"},
        {"high-availability.zookeeper.path.root": "/", "high-availability.cluster-id": "zookeeper/quota"},
        {"high-availability.zookeeper.path.root": "/a/../b"},
    ):
        with pytest.raises(ConfigurationError):
            site.open(**changes)


@pytest.mark.parametrize("plans", ["/jobs", "/leader/plans", "/team"])
def test_plans_are_not_kept_where_something_else_is(site: Site, plans: str) -> None:
    changes = {"high-availability.cluster-id": "prod/team", "high-availability.zookeeper.path.execution-plans": plans}
    with pytest.raises(ConfigurationError, match=r"path\.execution-plans"):
        site.open(**changes)


def test_a_plan_that_was_damaged_is_put_again_by_the_one_who_put_it(site: Site) -> None:
    services = site.open()
    contender, election = lead(services)
    eventually(lambda: contender.leads, "it leads")
    store = services.get_execution_plan_store()
    store.start(Events())
    store.put_execution_plan(ExecutionPlan(JOB, "a job", {}))
    [written] = [path for path in (site.directory / "ha").rglob("submittedExecutionPlan*") if path.is_file()]
    written.write_bytes(b"{}")
    with pytest.raises(CorruptFileError):
        store.recover_execution_plan(JOB)
    store.put_execution_plan(ExecutionPlan(JOB, "a job", {"version": 2}))
    assert store.recover_execution_plan(JOB) == ExecutionPlan(JOB, "a job", {"version": 2})
    store.stop()
    election.close()


def test_a_storage_directory_that_cannot_be_written_is_named(site: Site) -> None:
    (site.directory / "a file").write_text("not a directory")
    with pytest.raises(StorageError, match=r"high-availability\.storageDir"):
        site.open(**{"high-availability.storageDir": str(site.directory / "a file" / "ha")})


def test_two_clusters_with_one_id_and_two_directories_are_refused(site: Site) -> None:
    site.open()
    with pytest.raises(ConfigurationError, match="exists and keeps its state in"):
        site.open(**{"high-availability.storageDir": str(site.directory / "elsewhere")})
    linked = site.directory / "link"
    linked.symlink_to(site.directory / "ha")
    site.open(**{"high-availability.storageDir": str(linked)})


def test_two_clusters_with_one_id_and_one_directory_are_refused(site: Site) -> None:
    """Two ZooKeepers, or two roots, that do not know of each other."""
    site.open()
    with pytest.raises(ConfigurationError, match="belongs to another cluster"):
        site.open(**{"high-availability.zookeeper.path.root": f"{site.root}/other"})
    with pytest.raises(ConfigurationError, match="belongs to another cluster"):
        site.open(**{"high-availability.zookeeper.path.root": f"{site.root}/other"})


def test_many_processes_may_start_a_new_cluster_at_once(site: Site) -> None:
    errors: list[BaseException] = []

    def start() -> None:
        try:
            site.open()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_cluster_of_a_newer_version_is_refused(site: Site) -> None:
    site.client.create(f"{site.root}/default/cluster", encode_document("cluster", 99, {}), makepath=True)
    with pytest.raises(FormatVersionError, match="cluster '/default'"):
        site.open()


def test_an_acl_without_credentials_is_rejected(site: Site) -> None:
    acl = {"high-availability.zookeeper.client.acl": "creator"}
    with pytest.raises(ConfigurationError, match=r"client\.authorization"):
        site.open(**acl)
    with pytest.raises(ConfigurationError, match="scheme:credential"):
        site.open(**acl, **{"high-availability.zookeeper.client.authorization": "secret"})
    owner = {**acl, "high-availability.zookeeper.client.authorization": "digest:me:secret"}
    services = site.open(**owner)
    services.get_checkpoint_recovery_factory().get_writer(JOB)
    stranger = {**acl, "high-availability.zookeeper.client.authorization": "digest:you:guess"}
    with pytest.raises(StorageError, match="may not do that"):
        site.open(**stranger)
    site.opened.remove(services)
    services.close_with_optional_clean(True)


def test_a_request_during_an_outage_fails_in_time_and_says_why(site: Site) -> None:
    with TcpProxy("127.0.0.1", site.server.port) as proxy:
        connection = ZooKeeperConnection(
            proxy.address, session_timeout=2, connection_timeout=0.5, retry_wait=0.1, max_retries=2
        )
        connection.start()
        proxy.cut()
        eventually(lambda: not connection.is_connected, "the connection is lost")
        with pytest.raises(StorageError, match="is lost"):
            connection.read(lambda: connection.client.exists_async("/"))
        proxy.mend()
        eventually(lambda: connection.is_connected, "the connection is back")
        assert connection.read(lambda: connection.client.exists_async("/")) is not None
        connection.close()
