"""What the API server double can break, so that tests that order a fault can trust that it strikes."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path

import httpx2
import pytest
from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import ConfigMap

from holdfast.testing.kubernetes.api_server import Fault, FaultKind, KubernetesApiServer
from tests.services.kubernetes.cluster import KubernetesCluster

pytestmark = pytest.mark.services


@pytest.fixture
def maps(cluster: KubernetesCluster, server: KubernetesApiServer) -> str:
    return cluster.path("configmaps")


def create(cluster: KubernetesCluster, name: str) -> httpx2.Response:
    return cluster.request("POST", cluster.path("configmaps"), {"metadata": {"name": name}})


def exists(server: KubernetesApiServer, cluster: KubernetesCluster, name: str) -> bool:
    return server.peek("configmaps", name, cluster.namespace) is not None


@pytest.mark.parametrize(("kind", "applied"), [(FaultKind.DROP_BEFORE, False), (FaultKind.DROP_AFTER, True)])
def test_a_connection_breaks_before_or_after_the_write(
    server: KubernetesApiServer, cluster: KubernetesCluster, kind: FaultKind, applied: bool
) -> None:
    server.inject(Fault(kind, verb="create", resource="configmaps"))
    with pytest.raises(httpx2.TransportError):
        create(cluster, "a")
    assert exists(server, cluster, "a") == applied
    assert create(cluster, "b").status_code == 201


@pytest.mark.parametrize(("kind", "applied"), [(FaultKind.HANG_BEFORE, False), (FaultKind.HANG_AFTER, True)])
def test_an_answer_never_comes(
    server: KubernetesApiServer, cluster: KubernetesCluster, kind: FaultKind, applied: bool
) -> None:
    server.inject(Fault(kind, verb="create"))
    with pytest.raises(httpx2.ReadTimeout):
        cluster.http.post(cluster.path("configmaps"), json={"metadata": {"name": "a"}}, timeout=0.5)
    assert exists(server, cluster, "a") == applied


@pytest.mark.parametrize(("kind", "applied"), [(FaultKind.ERROR_BEFORE, False), (FaultKind.ERROR_AFTER, True)])
def test_a_status_is_answered_whatever_happened(
    server: KubernetesApiServer, cluster: KubernetesCluster, kind: FaultKind, applied: bool
) -> None:
    server.inject(Fault(kind, verb="create", code=500))
    assert create(cluster, "a").status_code == 500
    assert exists(server, cluster, "a") == applied


def test_a_request_is_carried_out_after_its_connection_broke(
    server: KubernetesApiServer, cluster: KubernetesCluster
) -> None:
    server.inject(Fault(FaultKind.LATE, verb="create", seconds=2))
    with pytest.raises(httpx2.TransportError):
        create(cluster, "a")
    assert not exists(server, cluster, "a")
    deadline = time.monotonic() + 60
    while not exists(server, cluster, "a"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_faults_strike_only_what_they_describe(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    create(cluster, "a")
    server.inject(Fault(FaultKind.ERROR_BEFORE, verb="get", resource="configmaps", name="a", skip=1, times=2))
    codes = [cluster.request("GET", cluster.path("configmaps", name)).status_code for name in "abaaa"]
    assert codes == [200, 404, 503, 503, 200]
    assert server.pending_faults == 0


def test_a_paused_server_answers_when_it_is_resumed(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    server.pause()
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(create(cluster, "a").status_code))
    thread.start()
    thread.join(0.3)
    assert answers == []
    server.resume()
    thread.join(60)
    assert answers == [201]


def test_a_stopped_server_refuses_connections_and_keeps_its_objects(
    server: KubernetesApiServer, cluster: KubernetesCluster
) -> None:
    create(cluster, "a")
    server.stop()
    with pytest.raises(httpx2.ConnectError):
        create(cluster, "b")
    server.restart()
    assert create(cluster, "b").status_code == 201
    assert exists(server, cluster, "a")


@pytest.mark.parametrize("by_status", [False, True])
def test_a_compacted_history_is_gone(server: KubernetesApiServer, cluster: KubernetesCluster, by_status: bool) -> None:
    old = create(cluster, "a").json()["metadata"]["resourceVersion"]
    first = cluster.request("GET", cluster.path("configmaps"), limit="1", labelSelector="!none").json()
    create(cluster, "b")
    create(cluster, "c")
    chunk = cluster.request("GET", cluster.path("configmaps"), limit="1").json()["metadata"]["continue"]
    create(cluster, "d")
    server.compact()
    create(cluster, "e")
    server.answer_gone_by_status(by_status)
    try:
        answer = cluster.request(
            "GET", cluster.path("configmaps"), watch="true", resourceVersion=old, timeoutSeconds="5"
        )
    finally:
        server.answer_gone_by_status(False)
    if by_status:
        assert answer.status_code == 410
        status = answer.json()
    else:
        event = json.loads(answer.text.splitlines()[0])
        assert (answer.status_code, event["type"]) == (200, "ERROR")
        status = event["object"]
    assert (status["code"], status["reason"]) == (410, "Expired")
    assert first["items"]
    refused = cluster.request("GET", cluster.path("configmaps"), limit="1", **{"continue": chunk})
    assert refused.status_code == 410
    rest = cluster.request(
        "GET", cluster.path("configmaps"), **{"continue": refused.json()["metadata"]["continue"]}
    ).json()
    assert [item["metadata"]["name"] for item in rest["items"]] == ["b", "c", "d", "e"]
    exact = {"resourceVersion": old, "resourceVersionMatch": "Exact"}
    assert cluster.request("GET", cluster.path("configmaps"), **exact).status_code == 410


def test_a_list_as_it_was_at_a_version(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    create(cluster, "a")
    then = cluster.request("GET", cluster.path("configmaps")).json()["metadata"]["resourceVersion"]
    create(cluster, "b")
    cluster.request("DELETE", cluster.path("configmaps", "a"))
    exact = {"resourceVersion": then, "resourceVersionMatch": "Exact"}
    listed = cluster.request("GET", cluster.path("configmaps"), **exact).json()
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]
    future = cluster.request("GET", cluster.path("configmaps"), resourceVersion=str(int(then) + 10**9))
    assert (future.status_code, future.json()["reason"]) == (504, "Timeout")


def test_versions_are_no_sequence_of_one(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    """A client that adds one to a version fails here as it would on a cluster where others write as well."""
    versions = [int(create(cluster, f"m{n}").json()["metadata"]["resourceVersion"]) for n in range(20)]
    assert versions == sorted(versions)
    assert any(later - earlier > 1 for earlier, later in itertools.pairwise(versions))


def test_initial_events_end_with_a_bookmark(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    create(cluster, "a")
    query = {
        "watch": "true",
        "sendInitialEvents": "true",
        "allowWatchBookmarks": "true",
        "resourceVersionMatch": "NotOlderThan",
        "timeoutSeconds": "1",
    }
    answer = cluster.request("GET", cluster.path("configmaps"), **query)
    events = [json.loads(line) for line in answer.text.splitlines()]
    assert [event["type"] for event in events[:2]] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    del query["resourceVersionMatch"]
    assert cluster.request("GET", cluster.path("configmaps"), **query).status_code == 422


def test_a_revoked_token_is_unauthorized(server: KubernetesApiServer, cluster: KubernetesCluster) -> None:
    token = server.add_user("someone", [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}], cluster.namespace)
    client = cluster.open_http(token)
    assert client.get(cluster.path("configmaps")).status_code == 200
    server.revoke(token)
    assert client.get(cluster.path("configmaps")).status_code == 401
    client.close()


def test_it_speaks_tls_with_a_certificate_that_the_kubeconfig_knows(tmp_path: Path) -> None:
    with KubernetesApiServer(tls=True) as server:
        assert server.url.startswith("https://")
        with Client(KubeConfig.from_file(server.write_kubeconfig(tmp_path / "kubeconfig"))) as client:
            assert list(client.list(ConfigMap)) == []
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/version")
