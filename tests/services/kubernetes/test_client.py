"""Transactions on ConfigMaps: contention, failures on the way, and what is said when they cannot be done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    ConflictError,
    HoldfastError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.ha.kubernetes import FlinkKubeClient, KubeClient, KubernetesConfigMap
from holdfast.ha.options import CONFIG_FILE, CONTEXT, MAX_RETRIES, NAMESPACE, REQUEST_TIMEOUT
from holdfast.kernel.configuration import Configuration
from holdfast.testing.kubernetes.api_server import Fault, FaultKind, KubernetesApiServer
from tests.services.kubernetes.cluster import HastyClock, KubernetesCluster

pytestmark = pytest.mark.services


@pytest.fixture
def client(cluster: KubernetesCluster) -> KubeClient:
    made: KubeClient = cluster.client()
    made.create_config_map(KubernetesConfigMap("a", {"count": "0"}))
    return made


def increment(current: KubernetesConfigMap) -> KubernetesConfigMap:
    return current.with_entries({"count": str(int(current.data["count"]) + 1)})


def count(client: KubeClient) -> int:
    found = client.get_config_map("a")
    assert found is not None
    return int(found.data["count"])


def test_the_old_name_is_the_same_class() -> None:
    assert FlinkKubeClient is KubeClient


def test_no_update_gets_lost_among_many_writers(cluster: KubernetesCluster, client: KubeClient) -> None:
    def work() -> None:
        own: KubeClient = KubeClient(cluster.connection(), max_retries=100)
        for _ in range(10):
            assert own.check_and_update_config_map("a", increment) is True
        own.close()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(client) == 60


def test_a_change_of_nothing_writes_nothing(cluster: KubernetesCluster, client: KubeClient) -> None:
    before = cluster.map("a")
    assert client.check_and_update_config_map("a", lambda current: None) is False
    assert cluster.map("a") == before


def test_an_error_of_the_change_ends_the_transaction(client: KubeClient) -> None:
    def refuse(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
        raise AlreadyExistError("no")

    with pytest.raises(AlreadyExistError):
        client.check_and_update_config_map("a", refuse)


def test_a_missing_config_map_is_an_error_at_once(client: KubeClient) -> None:
    calls: list[object] = []
    with pytest.raises(StorageError, match="'nobody' does not exist"):
        client.check_and_update_config_map("nobody", lambda current: calls.append(current))  # type: ignore[func-returns-value]
    assert calls == []


def test_a_name_is_created_once_and_deleted_as_often_as_one_likes(client: KubeClient) -> None:
    with pytest.raises(AlreadyExistError, match="'a' exists already"):
        client.create_config_map(KubernetesConfigMap("a"))
    client.delete_config_map("a")
    client.delete_config_map("a")
    assert client.get_config_map("a") is None


def test_when_others_change_it_every_time_nothing_was_written(cluster: KubernetesCluster, client: KubeClient) -> None:
    other: KubeClient = cluster.client()
    tries: list[int] = []

    def disturbed(current: KubernetesConfigMap) -> KubernetesConfigMap:
        tries.append(1)
        other.check_and_update_config_map("a", increment)
        return current.with_entries({"mine": "yes"})

    few: KubeClient = cluster.client(max_retries=3)
    with pytest.raises(ConflictError, match="4 tries; nothing was written"):
        few.check_and_update_config_map("a", disturbed)
    assert len(tries) == 4
    assert cluster.map("a")["data"] == {"count": "4"}


def test_a_namespace_that_does_not_exist_is_named(cluster: KubernetesCluster) -> None:
    config = Configuration({CONFIG_FILE.key: str(cluster.kubeconfig), NAMESPACE.key: "holdfast-nowhere"})
    client = KubeClient.from_configuration(config)
    with pytest.raises(StorageError, match="holdfast-nowhere"):
        client.create_config_map(KubernetesConfigMap("a"))
    client.close()


# What only the double can do.


@pytest.mark.parametrize(
    "kind", [FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.LATE]
)
def test_a_change_that_knows_its_own_work_is_done_exactly_once(
    server: KubernetesApiServer, client: KubeClient, kind: FaultKind
) -> None:
    for number in range(1, 8):
        name = f"step-{number}"

        def once(current: KubernetesConfigMap, name: str = name) -> KubernetesConfigMap | None:
            return None if name in current.data else increment(current).with_entries({name: "done"})

        server.inject(Fault(kind, verb="update", name="a", seconds=0.01 * number))
        client.check_and_update_config_map("a", once)
    assert count(client) == 7


def test_a_server_that_is_too_busy_has_done_nothing(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    client: KubeClient = cluster.client(max_retries=1, clock=HastyClock())
    client.create_config_map(KubernetesConfigMap("a", {"count": "0"}))
    server.inject(Fault(FaultKind.ERROR_BEFORE, verb="update", name="a", code=429, times=5))
    with pytest.raises(StorageError):
        client.check_and_update_config_map("a", increment)
    server.clear_faults()
    assert count(client) == 0


@pytest.mark.parametrize("times", range(1, 5))
@pytest.mark.parametrize("kind", [FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.LATE, FaultKind.ERROR_AFTER])
@pytest.mark.parametrize("cut", ["get", "update"])
def test_what_is_said_at_the_end_of_the_retries_is_true(
    server: KubernetesApiServer, cluster: KubernetesCluster, kind: FaultKind, times: int, cut: str
) -> None:
    """Whatever fails how often: done means done, an error other than unknown means not done."""
    client: KubeClient = cluster.client(max_retries=2, clock=HastyClock())
    client.create_config_map(KubernetesConfigMap("a", {"count": "0"}))
    server.inject(Fault(kind, verb="update", name="a", times=times if cut == "update" else 1))
    if cut == "get":
        server.inject(Fault(FaultKind.ERROR_BEFORE, verb="get", name="a", skip=1, times=times))

    def once(current: KubernetesConfigMap) -> KubernetesConfigMap | None:
        return None if current.data["count"] != "0" else increment(current)

    def outcome() -> str:
        try:
            client.check_and_update_config_map("a", once)
        except PossibleInconsistentStateError:
            return "unknown"
        except HoldfastError:
            return "not done"
        return "done"

    said = outcome()
    server.clear_faults()
    if said != "unknown":
        assert count(client) == (1 if said == "done" else 0)
    assert count(client) in (0, 1)


# Bad input.


def connect(**options: str) -> KubeClient:
    return KubeClient.from_configuration(Configuration(options))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "clusters: []",
        "apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\nusers: []\n",
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: []\ncontexts: []\nusers: []\n",
        "current-context: a\nclusters: []\nusers: []\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n",
    ],
)
def test_a_kubeconfig_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="kubeconfig"):
        connect(**{CONFIG_FILE.key: str(path)})


def test_a_kubeconfig_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no-such-file.*kubectl"):
        connect(**{CONFIG_FILE.key: str(tmp_path / "no-such-file")})


def test_a_context_that_does_not_exist_is_refused(cluster: KubernetesCluster) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        connect(**{CONFIG_FILE.key: str(cluster.kubeconfig), CONTEXT.key: "nowhere"})


def test_a_certificate_that_does_not_exist_is_refused(cluster: KubernetesCluster, tmp_path: Path) -> None:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1", "certificate-authority": "/no/such/ca.crt"}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:1"):
        connect(**{CONFIG_FILE.key: str(path)})


def test_a_kubeconfig_without_a_user_asks_as_nobody(cluster: KubernetesCluster, tmp_path: Path) -> None:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for context in config["contexts"]:
        del context["context"]["user"]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    client = connect(**{CONFIG_FILE.key: str(path)})
    with pytest.raises(StorageError, match=r"system:anonymous|nauthorized"):
        client.get_config_map("a")
    client.close()


def test_a_server_that_is_not_there_is_an_error_and_not_a_hang(cluster: KubernetesCluster, tmp_path: Path) -> None:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:1"}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    client = KubeClient.from_configuration(
        Configuration({CONFIG_FILE.key: str(path), MAX_RETRIES.key: 1, REQUEST_TIMEOUT.key: "1 s"}), clock=HastyClock()
    )
    actions: list[Callable[[], object]] = [
        lambda: client.get_config_map("a"),
        lambda: client.create_config_map(KubernetesConfigMap("a")),
        lambda: client.check_and_update_config_map("a", increment),
        lambda: client.is_allowed("get", "configmaps"),
    ]
    for action in actions:
        with pytest.raises(StorageError, match=r"127\.0\.0\.1:1"):
            action()
    client.close()


def test_a_server_that_never_answers_is_given_up(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    client = KubeClient(cluster.connection(seconds=0.2), max_retries=1, clock=HastyClock())
    client.create_config_map(KubernetesConfigMap("a", {"count": "0"}))
    server.inject(Fault(FaultKind.HANG_AFTER, verb="update", name="a", times=2))
    with pytest.raises((PossibleInconsistentStateError, ConflictError)) as said:
        client.check_and_update_config_map("a", increment)
    assert isinstance(said.value, PossibleInconsistentStateError)
    assert count(client) in (1, 2)
    client.close()
