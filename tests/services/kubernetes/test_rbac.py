"""deploy/kubernetes/rbac.yaml, applied as it is: everything works under it, and nothing more is allowed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from holdfast.errors import ConfigurationError, StorageError
from holdfast.ha.kubernetes import KubeClient, KubernetesConfigMap
from holdfast.ha.kubernetes.client import check_access, required_rights
from holdfast.ha.options import cluster_config_map_name
from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from holdfast.testing.leader_election_contract import ElectionBackend, LeaderElectionContract, eventually
from holdfast.testing.state_handle_store_contract import StateHandleStoreBackend, StateHandleStoreContract
from tests.contract.register_contract import RegisterContract, RegisterSite
from tests.services.kubernetes.cluster import HastyClock, KubernetesCluster, apply_manifest
from tests.services.kubernetes.test_leader_election import ConfigMapElection
from tests.services.kubernetes.test_register import ConfigMapSite, GatedKubeClient
from tests.services.kubernetes.test_state_handle_store import ConfigMapBackend

pytestmark = pytest.mark.services

MANIFEST = Path(__file__).parents[3] / "deploy/kubernetes/rbac.yaml"
CLUSTER_ID = "my-cluster"
NAME = cluster_config_map_name(CLUSTER_ID)


class LeastRights(KubernetesCluster):
    """The namespace as the service account of the manifest sees it; `request` stays the administrator's."""

    def __init__(self, directory: Path, server: KubernetesApiServer | None) -> None:
        super().__init__(directory, server)
        apply_manifest(self, MANIFEST)
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{CLUSTER_ID}-holdfast/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.request("POST", path, body).json()["status"]["token"]
        config = yaml.safe_load(self.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        self.kubeconfig = directory / "kubeconfig-least"
        self.kubeconfig.write_text(yaml.safe_dump(config))


def is_settled(client: KubeClient) -> bool:
    return all(client.is_allowed(right.verb, "configmaps", right.name) for right in required_rights(NAME))


@pytest.fixture(scope="module")
def least(
    api_server: KubernetesApiServer | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubernetesCluster]:
    made = LeastRights(tmp_path_factory.mktemp("least"), api_server)
    eventually(lambda: is_settled(made.client()), "a real cluster takes a moment to act on new roles")
    yield made
    made.close()


@pytest.fixture(scope="module")
def backend(least: KubernetesCluster) -> ConfigMapBackend:
    return ConfigMapBackend(least)


@pytest.fixture(scope="module")
def clients(least: KubernetesCluster) -> tuple[KubeClient, GatedKubeClient]:
    return least.client(), least.client(GatedKubeClient, clock=HastyClock())


class TestStoreUnderLeastRights(StateHandleStoreContract):
    machine_examples = 5

    @pytest.fixture
    def store_backend(self, backend: ConfigMapBackend) -> StateHandleStoreBackend:
        backend.reset()
        return backend


class TestRegisterUnderLeastRights(RegisterContract):
    ahead = (2,)

    @pytest.fixture
    def new_site(self, clients: tuple[KubeClient, GatedKubeClient]) -> Callable[[], RegisterSite]:
        return lambda: ConfigMapSite(*clients)


class TestElectionUnderLeastRights(LeaderElectionContract):
    @pytest.fixture
    def election_backend(self, least: KubernetesCluster) -> Iterator[ElectionBackend]:
        admin: KubeClient = least.client()
        yield ConfigMapElection(least, admin, NAME)
        admin.delete_config_map(NAME)


def test_the_check_at_the_start_passes(least: KubernetesCluster) -> None:
    check_access(least.client(), NAME)


def test_the_manifest_grants_only_the_required_rights() -> None:
    role = next(d for d in yaml.safe_load_all(MANIFEST.read_text()) if d["kind"] == "Role")
    allowed = {
        (verb, name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
        if rule["apiGroups"] == [""] and rule["resources"] == ["configmaps"]
    }
    assert allowed == {(right.verb, right.name) for right in required_rights(NAME)}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/namespaces/{}/configmaps"),
        ("DELETE", "/api/v1/namespaces/{}/configmaps"),
        ("PATCH", "/api/v1/namespaces/{}/configmaps/x"),
        ("GET", "/api/v1/namespaces/{}/serviceaccounts"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/{}/leases/x"),
        ("GET", "/api/v1/namespaces/default/configmaps/x"),
    ],
)
def test_everything_else_is_forbidden(least: KubernetesCluster, method: str, path: str) -> None:
    connection = least.connection()
    headers = {"Content-Type": "application/merge-patch+json"}
    answer = connection.watches.request(method, path.format(least.namespace), headers=headers)
    connection.close()
    assert answer.status_code == 403


@pytest.mark.parametrize("number", range(6))
def test_a_missing_right_is_named_at_the_start(cluster: KubernetesCluster, number: int) -> None:
    """Of all that the manifest allows, one right at a time is taken away."""
    missing = required_rights(NAME)[number]

    def take_away(document: dict[str, object]) -> None:
        rules = document.get("rules")
        if not isinstance(rules, list):
            return
        for rule in rules:
            if rule.get("resourceNames", [""]) == [missing.name]:
                rule["verbs"].remove(missing.verb)

    apply_manifest(cluster, MANIFEST, take_away)
    path = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/{CLUSTER_ID}-holdfast/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.request("POST", path, body).json()["status"]["token"]
    config = copy.deepcopy(yaml.safe_load(cluster.kubeconfig.read_text()))
    for user in config["users"]:
        user["user"] = {"token": token}
    kubeconfig = cluster.directory / "kubeconfig-lacking"
    kubeconfig.write_text(yaml.safe_dump(config))
    client = KubeClient(cluster.connection(kubeconfig))

    def refusal() -> str:
        with pytest.raises(ConfigurationError) as refused:
            check_access(client, NAME)
        return str(refused.value)

    # A real cluster takes a moment to act on new roles.
    eventually(
        lambda: f"has no right to {missing}. Apply deploy/kubernetes/rbac.yaml" in refusal(), "it is named alone"
    )
    client.close()


def test_a_right_that_is_taken_away_later_is_an_error_that_says_so(
    server: KubernetesApiServer, cluster: KubernetesCluster
) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get", "update"]}]
    token = server.add_user("worker", rules, cluster.namespace)
    path = server.write_kubeconfig(cluster.directory / "worker", token, cluster.namespace)
    client = KubeClient(cluster.connection(path))
    client.create_config_map(KubernetesConfigMap("a"))
    server.add_user("worker", [{**rules[0], "verbs": ["get"]}], cluster.namespace)
    with pytest.raises(StorageError, match=r"cannot update resource.*rbac\.yaml"):
        client.check_and_update_config_map("a", lambda map: map.with_entries({"x": "1"}))
    server.revoke(token)
    with pytest.raises(StorageError, match="credentials"):
        client.get_config_map("a")
    with pytest.raises(ConfigurationError, match="credentials"):
        client.is_allowed("get", "configmaps")
    client.close()
