"""The services over ConfigMaps as a process uses them, from the options to the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import (
    ConfigurationError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    HoldfastError,
    StorageError,
)
from holdfast.ha import options
from holdfast.ha import options as kubernetes_option
from holdfast.ha.blob_store import BlobKey
from holdfast.ha.execution_plan_store import ExecutionPlan, ExecutionPlanListener
from holdfast.ha.kubernetes import KubernetesLeaderElectionHaServices
from holdfast.ha.kubernetes.client import KubernetesConnection
from holdfast.ha.options import cluster_config_map_name, job_config_map_name
from holdfast.ha.services import create_client_high_availability_services, create_high_availability_services
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.storage.state_handle import encode_document
from holdfast.testing.kubernetes.api_server import Fault, FaultKind, KubernetesApiServer
from holdfast.testing.leader_election_contract import RecordingContender, RecordingRetrievalListener, eventually
from tests.contract.register_contract import completing, ids
from tests.services.kubernetes.cluster import KubernetesCluster

pytestmark = pytest.mark.services

CLUSTER = cluster_config_map_name("demo")
JOB = JobID.from_hex("0123456789abcdef0123456789abcdef")
OTHER_JOB = JobID.from_hex("f" * 32)
MERGE = "application/merge-patch+json"


class NoListener(ExecutionPlanListener):
    def on_added_execution_plan(self, job_id: JobID) -> None:
        raise AssertionError("there is no watcher on Kubernetes")

    def on_removed_execution_plan(self, job_id: JobID) -> None:
        raise AssertionError("there is no watcher on Kubernetes")


class Processes:
    """Opens services as several processes of one cluster would; closes what a test leaves open."""

    def __init__(self, cluster: KubernetesCluster, directory: Path, executor: ThreadPoolExecutor) -> None:
        self.cluster = cluster
        self.storage = directory / "ha"
        self._executor = executor
        self._open: list[KubernetesLeaderElectionHaServices] = []
        self._values: dict[str, Any] = {
            options.HA_TYPE.key: "kubernetes",
            options.HA_STORAGE_PATH.key: str(self.storage),
            "execution.checkpointing.dir": str(directory / "checkpoints"),
            kubernetes_option.CLUSTER_ID.key: "demo",
            kubernetes_option.CONFIG_FILE.key: str(cluster.kubeconfig),
            kubernetes_option.NAMESPACE.key: cluster.namespace,
            kubernetes_option.LEASE_DURATION.key: "3 s",
            kubernetes_option.RENEW_DEADLINE.key: "2400 ms",
            kubernetes_option.RETRY_PERIOD.key: "400 ms",
        }

    def configuration(self, **changes: Any) -> Configuration:
        values = {**self._values, **{key.replace("__", "-").replace("_", "."): value for key, value in changes.items()}}
        return Configuration({key: value for key, value in values.items() if value is not None})

    def start(self, configuration: Configuration | None = None) -> KubernetesLeaderElectionHaServices:
        services = create_high_availability_services(configuration or self.configuration(), self._executor)
        assert isinstance(services, KubernetesLeaderElectionHaServices)
        self._open.append(services)
        return services

    def end(self, services: KubernetesLeaderElectionHaServices) -> None:
        self._open.remove(services)
        services.close()

    def forget(self, services: KubernetesLeaderElectionHaServices) -> None:
        self._open.remove(services)

    def close(self) -> None:
        for services in self._open:
            services.close()

    def map(self, name: str) -> dict[str, Any] | None:
        answer = self.cluster.request("GET", self.cluster.path("configmaps", name))
        return None if answer.status_code == 404 else answer.json()

    def clean(self, services: KubernetesLeaderElectionHaServices, job_id: JobID) -> None:
        services.global_cleanup_async(job_id, self._executor).result(30)


@pytest.fixture
def processes(cluster: KubernetesCluster, tmp_path: Path) -> Iterator[Processes]:
    with ThreadPoolExecutor(2) as executor:
        made = Processes(cluster, tmp_path, executor)
        yield made
        made.close()


Election = Callable[[KubernetesLeaderElectionHaServices], Any]


def lead(services: KubernetesLeaderElectionHaServices, address: str = "host:1") -> tuple[Any, RecordingContender]:
    election = services.get_dispatcher_leader_election()
    contender = RecordingContender(address, election)
    election.start_leader_election(contender)
    return election, contender


def test_what_stands_where_is_that_of_the_contract(processes: Processes) -> None:
    services = processes.start()
    election, contender = lead(services)
    eventually(lambda: contender.leads, "it leads")
    key = "org.apache.flink.k8s.leader.dispatcher"
    eventually(lambda: key in (processes.map(CLUSTER) or {"data": {}})["data"], "its address is published")
    found = processes.map(CLUSTER)
    assert found is not None
    assert found["data"][key] == f"{contender.session_id},host:1"
    assert found["metadata"]["labels"] == {
        "app": "demo",
        "configmap-type": "high-availability",
        "type": "flink-native-kubernetes",
    }
    assert services.get_leader_path_for_resource_manager() == "resourcemanager"
    assert services.get_leader_path_for_rest_server() == "restserver"
    assert services.get_leader_path_for_job_manager(JOB) == f"job-{JOB}"
    election.close()


@pytest.mark.parametrize(
    ("elect", "retrieve"),
    [
        (
            lambda services: services.get_dispatcher_leader_election(),
            lambda services: services.get_dispatcher_leader_retriever(),
        ),
        (
            lambda services: services.get_resource_manager_leader_election(),
            lambda services: services.get_resource_manager_leader_retriever(),
        ),
        (
            lambda services: services.get_cluster_rest_endpoint_leader_election(),
            lambda services: services.get_web_monitor_leader_retriever(),
        ),
        (
            lambda services: services.get_job_manager_leader_election(JOB),
            lambda services: services.get_job_manager_leader_retriever(JOB, "ignored:1"),
        ),
    ],
    ids=["dispatcher", "resource manager", "rest", "job master"],
)
def test_every_component_is_elected_and_found(processes: Processes, elect: Election, retrieve: Election) -> None:
    services, other = processes.start(), processes.start()
    listener = RecordingRetrievalListener()
    retriever = retrieve(other)
    retriever.start(listener)
    election = elect(services)
    election.start_leader_election(RecordingContender("host:1", election))
    eventually(lambda: listener.address == "host:1", "it is found from another process")
    election.close()
    eventually(lambda: listener.address is None, "it is gone")
    retriever.stop()


def test_a_client_finds_the_rest_endpoint(processes: Processes) -> None:
    client = create_client_high_availability_services(processes.configuration())
    listener = RecordingRetrievalListener()
    retriever = client.get_cluster_rest_endpoint_leader_retriever()
    retriever.start(listener)
    services = processes.start()
    election = services.get_cluster_rest_endpoint_leader_election()
    election.start_leader_election(RecordingContender("rest:8081", election))
    eventually(lambda: listener.address == "rest:8081", "the client finds it")
    election.close()
    retriever.stop()
    client.close()


def test_the_next_leader_finds_plans_blobs_and_checkpoints(processes: Processes, tmp_path: Path) -> None:
    first = processes.start()
    election, contender = lead(first)
    eventually(lambda: contender.leads, "the first leads")
    plans = first.get_execution_plan_store()
    plans.start(NoListener())
    plans.put_execution_plan(ExecutionPlan(JOB, "counting", {"script": "count.py"}))
    code = tmp_path / "code"
    code.write_bytes(b"print(1)")
    blob = BlobKey.of(code)
    first.create_blob_store().put(code, JOB, blob)
    writer = first.create_checkpoint_recovery_factory().get_writer(JOB)
    writer.write(completing(7, token=writer.token))
    plans.stop()
    election.close()
    processes.end(first)

    second = processes.start()
    election, contender = lead(second)
    eventually(lambda: contender.leads, "the second leads")
    plans = second.get_execution_plan_store()
    plans.start(NoListener())
    assert plans.get_job_ids() == [JOB]
    plan = plans.recover_execution_plan(JOB)
    assert plan is not None
    assert (plan.job_name, plan.document) == ("counting", {"script": "count.py"})
    second.create_blob_store().get(JOB, blob, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"print(1)"
    successor = second.create_checkpoint_recovery_factory().get_writer(JOB)
    assert (successor.token, ids(successor.state)) == (2, [7])
    plans.stop()
    election.close()


def test_a_deposed_leader_changes_neither_plans_nor_checkpoints(processes: Processes) -> None:
    first, second = processes.start(), processes.start()
    election, contender = lead(first, "first:1")
    eventually(lambda: contender.leads, "the first leads")
    plans = first.get_execution_plan_store()
    plans.start(NoListener())
    plans.put_execution_plan(ExecutionPlan(JOB, "counting"))
    writer = first.create_checkpoint_recovery_factory().get_writer(JOB)
    election.close()
    other_election, other = lead(second, "second:1")
    eventually(lambda: other.leads, "the second leads")
    second.create_checkpoint_recovery_factory().get_writer(JOB)
    with pytest.raises(FencedError):
        plans.put_execution_plan(ExecutionPlan(OTHER_JOB, "too late"))
    with pytest.raises(FencedError):
        writer.write(completing(1))
    found = processes.map(CLUSTER)
    assert found is not None
    assert [key for key in found["data"] if key.startswith("executionPlan-")] == [f"executionPlan-{JOB}"]
    plans.stop()
    other_election.close()


# The end.


def test_closing_keeps_every_byte(processes: Processes) -> None:
    services = processes.start()
    services.create_checkpoint_recovery_factory().get_writer(JOB)
    before = {name: processes.map(name) for name in (CLUSTER, job_config_map_name("demo", JOB))}
    files = sorted(path for path in processes.storage.rglob("*") if path.is_file())
    processes.forget(services)
    services.close_with_optional_clean(False)
    assert {name: processes.map(name) for name in before} == before
    assert sorted(path for path in processes.storage.rglob("*") if path.is_file()) == files


def test_cleaning_up_removes_the_clusters_config_map_and_files(processes: Processes, tmp_path: Path) -> None:
    services = processes.start()
    election, contender = lead(services)
    eventually(lambda: contender.leads, "it leads")
    plans = services.get_execution_plan_store()
    plans.start(NoListener())
    plans.put_execution_plan(ExecutionPlan(JOB, "counting"))
    code = tmp_path / "code"
    code.write_bytes(b"print(1)")
    services.create_blob_store().put(code, JOB, BlobKey.of(code))
    plans.stop()
    election.close()
    processes.forget(services)
    services.close_with_optional_clean(True)
    assert processes.map(CLUSTER) is None
    assert [path for path in processes.storage.rglob("*") if path.is_file()] == []
    processes.start()  # the id is free again


def test_pointers_that_cannot_be_deleted_keep_the_blobs(
    server: KubernetesApiServer, processes: Processes, tmp_path: Path
) -> None:
    """A pointer to nothing is worse than a file without a pointer."""
    services = processes.start()
    code = tmp_path / "code"
    code.write_bytes(b"print(1)")
    blob = BlobKey.of(code)
    services.create_blob_store().put(code, JOB, blob)
    server.inject(Fault(FaultKind.ERROR_BEFORE, verb="delete", name=CLUSTER))
    with pytest.raises(StorageError, match="the blobs are kept"):
        services.cleanup_all_data()
    assert services.create_blob_store().get(JOB, blob, tmp_path / "copy")
    services.cleanup_all_data()
    assert processes.map(CLUSTER) is None


def test_a_jobs_data_are_removed_as_often_as_one_likes(processes: Processes) -> None:
    services = processes.start()
    name = job_config_map_name("demo", JOB)
    writer = services.create_checkpoint_recovery_factory().get_writer(JOB)
    writer.write(completing(1))
    processes.clean(services, JOB)
    assert processes.map(name) is not None, "its register names a checkpoint that is kept for the user"
    writer.write(lambda state: replace(state, checkpoints=(), terminal="FINISHED"))
    for _ in range(3):
        processes.clean(services, JOB)
        assert processes.map(name) is None
    processes.clean(services, OTHER_JOB)
    with pytest.raises(HoldfastError):
        writer.write(completing(2))


# Two clusters, and what else cannot be.


def test_two_clusters_with_one_id_and_two_directories_are_refused(processes: Processes, tmp_path: Path) -> None:
    processes.start()
    elsewhere = processes.configuration(high__availability_storageDir=str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigurationError, match=r"cluster with the id 'demo' exists"):
        processes.start(elsewhere)
    assert not (tmp_path / "elsewhere" / "demo" / "cluster.json").exists()


def test_one_directory_may_have_two_names(processes: Processes, tmp_path: Path) -> None:
    processes.start()
    (tmp_path / "other-name").symlink_to(processes.storage)
    processes.start(processes.configuration(high__availability_storageDir=str(tmp_path / "other-name")))


def test_two_clusters_with_one_directory_and_two_namespaces_are_refused(processes: Processes) -> None:
    processes.start()
    namespace = f"{processes.cluster.namespace}-2"
    processes.cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    with pytest.raises(ConfigurationError, match="belongs to another cluster"):
        processes.start(processes.configuration(kubernetes_namespace=namespace))
    processes.cluster.request("DELETE", f"/api/v1/namespaces/{namespace}")


def test_clusters_with_two_ids_live_side_by_side(processes: Processes) -> None:
    first = processes.start()
    second = processes.start(processes.configuration(kubernetes_cluster__id="demo2"))
    (one, contender), (two, other) = lead(first), lead(second)
    eventually(lambda: contender.leads and other.leads, "both lead")
    one.close()
    two.close()


def test_a_config_map_that_somebody_deleted_is_made_again_for_the_same_cluster(processes: Processes) -> None:
    services = processes.start()
    election, contender = lead(services)
    eventually(lambda: contender.leads, "it leads")
    processes.cluster.request("DELETE", processes.cluster.path("configmaps", CLUSTER))
    eventually(lambda: len(contender.sessions) == 2, "it leads again")
    processes.start()
    election.close()


@pytest.mark.parametrize("cluster_id", ["Demo", "a_b", "x" * 46, None])
def test_a_cluster_id_that_kubernetes_cannot_take_is_refused(processes: Processes, cluster_id: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"kubernetes\.cluster-id"):
        processes.start(processes.configuration(kubernetes_cluster__id=cluster_id))


def test_the_general_cluster_id_will_do(processes: Processes) -> None:
    changes = {"kubernetes_cluster__id": None, "high__availability_cluster__id": "demo"}
    processes.start(processes.configuration(**changes))
    assert processes.map(CLUSTER) is not None


def test_without_a_storage_directory_nothing_starts(processes: Processes) -> None:
    with pytest.raises(ConfigurationError, match=r"high-availability\.storageDir"):
        processes.start(processes.configuration(high__availability_storageDir=None))


def test_a_storage_directory_that_cannot_be_written_is_refused(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"high-availability\.storageDir"):
        processes.start(processes.configuration(high__availability_storageDir=str(tmp_path / "file" / "ha")))


def test_times_with_which_two_could_lead_are_refused(processes: Processes) -> None:
    wrong = {kubernetes_option.RENEW_DEADLINE.key: "4 s"}
    with pytest.raises(ConfigurationError, match="leader election"):
        processes.start(processes.configuration().add_all(wrong))


def test_missing_rights_are_named_at_the_start(server: KubernetesApiServer, processes: Processes) -> None:
    cluster = processes.cluster
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "list"]}]
    token = server.add_user("poor", rules, cluster.namespace)
    path = server.write_kubeconfig(cluster.directory / "poor", token, cluster.namespace)
    with pytest.raises(ConfigurationError, match=r"update configmaps, delete configmaps, watch configmaps named"):
        processes.start(processes.configuration(kubernetes_config_file=str(path)))
    assert processes.map(CLUSTER) is None


def test_a_server_that_is_not_there_is_an_error_and_not_a_hang(processes: Processes) -> None:
    config = yaml.safe_load(processes.cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:1"}
    path = processes.cluster.directory / "nowhere"
    path.write_text(yaml.safe_dump(config))
    configuration = processes.configuration(kubernetes_config_file=str(path))
    for start in (processes.start, create_client_high_availability_services):
        with pytest.raises(StorageError, match=r"127\.0\.0\.1:1"):
            start(configuration)


def patch_cluster(processes: Processes, data: dict[str, str]) -> None:
    path = processes.cluster.path("configmaps", CLUSTER)
    assert processes.cluster.request("PATCH", path, {"data": data}, content_type=MERGE).status_code == 200


def test_a_cluster_of_a_newer_version_is_refused(processes: Processes) -> None:
    processes.end(processes.start())
    patch_cluster(processes, {"cluster": encode_document("cluster", 99, {}).decode()})
    with pytest.raises(FormatVersionError, match="demo"):
        processes.start()
    patch_cluster(processes, {"cluster": "nonsense"})
    with pytest.raises(CorruptFileError, match="demo"):
        processes.start()


def test_a_plan_of_a_newer_version_is_refused_and_kept(processes: Processes) -> None:
    services = processes.start()
    election, contender = lead(services)
    eventually(lambda: contender.leads, "it leads")
    plans = services.get_execution_plan_store()
    plans.start(NoListener())
    plans.put_execution_plan(ExecutionPlan(JOB, "counting"))
    found = processes.map(CLUSTER)
    assert found is not None
    body = json.loads(found["data"][f"executionPlan-{JOB}"])
    newer = encode_document(body["kind"], 99, {"handle": body["handle"], "marks": {}}).decode()
    patch_cluster(processes, {f"executionPlan-{JOB}": newer})
    with pytest.raises(FormatVersionError, match="executionPlan"):
        plans.recover_execution_plan(JOB)
    with pytest.raises(FormatVersionError):
        plans.get_job_ids()
    plans.stop()
    election.close()


def test_the_answer_to_the_first_request_may_get_lost(server: KubernetesApiServer, processes: Processes) -> None:
    for kind in (FaultKind.DROP_AFTER, FaultKind.DROP_BEFORE):
        server.inject(Fault(kind, verb="create", resource="configmaps", name=""))
        services = processes.start()
        assert server.pending_faults == 0
        processes.forget(services)
        services.close_with_optional_clean(True)


def test_a_failed_start_leaves_no_connection_open(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[KubernetesConnection] = []
    close = KubernetesConnection.close
    monkeypatch.setattr(KubernetesConnection, "close", lambda self: (closed.append(self), close(self)))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError):
        processes.start(processes.configuration(high__availability_storageDir=str(tmp_path / "file" / "ha")))
    assert len(closed) == 1
