"""The same over HTTPS: what depends on sockets must not depend on their being plain."""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lightkube import KubeConfig

from holdfast.errors import StorageError
from holdfast.ha.kubernetes import (
    KubeClient,
    KubernetesConfigMap,
    KubernetesLeaderElectionDriver,
    KubernetesRegister,
)
from holdfast.ha.kubernetes.client import KubernetesConnection
from holdfast.ha.kubernetes.leader_election import retrieval_driver_factory
from holdfast.ha.kubernetes.watch import ConfigMapWatcher
from holdfast.ha.leader_election import DefaultLeaderRetrievalService, LeaderInformation
from holdfast.ha.lease import LeaseTiming
from holdfast.ha.options import CONFIG_FILE
from holdfast.kernel.configuration import Configuration
from holdfast.testing.kubernetes.api_server import Fault, FaultKind, KubernetesApiServer
from holdfast.testing.leader_election_contract import RecordingRetrievalListener, eventually
from tests.contract.register_contract import completing, ids
from tests.services.kubernetes.test_leader_election import Recorder

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def tls_server() -> Iterator[KubernetesApiServer]:
    with KubernetesApiServer(tls=True) as server:
        yield server


@pytest.fixture
def kubeconfig(tls_server: KubernetesApiServer, tmp_path: Path) -> Path:
    return tls_server.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_configuration(Configuration({CONFIG_FILE.key: str(kubeconfig)}))
    yield made
    made.close()


def test_lead_publish_follow_and_leave(client: KubeClient) -> None:
    watcher = ConfigMapWatcher(client.connection, "lock", watch_seconds=30)
    recorder, listener = Recorder(), RecordingRetrievalListener()
    times = LeaseTiming(3.0, 2.4, 0.4)
    driver = KubernetesLeaderElectionDriver(client, watcher, KubernetesConfigMap("lock"), "me", times, recorder)
    retrieval = DefaultLeaderRetrievalService(retrieval_driver_factory(watcher, "dispatcher"))
    retrieval.start(listener)
    eventually(lambda: recorder.leads, "it leads")
    driver.publish_leader_information("dispatcher", LeaderInformation.known(uuid.uuid4(), "host:1"))
    eventually(lambda: listener.address == "host:1", "it is found")
    retrieval.stop()
    driver.close()
    watcher.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch-")]
    assert recorder.errors == [] == listener.errors


def test_broken_connections_are_found_out_about(tls_server: KubernetesApiServer, client: KubeClient) -> None:
    register = KubernetesRegister(client, KubernetesConfigMap("job"))
    lease = register.raise_token("driver")
    for number, kind in enumerate((FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.LATE), 1):
        tls_server.inject(Fault(kind, verb="update", name="job", seconds=0.05))
        lease.write(completing(number))
    tls_server.stop()
    tls_server.restart()
    lease.write(completing(4))
    assert ids(register.read()) == [1, 2, 3, 4]


def test_a_server_whose_certificate_nobody_vouches_for_is_refused(kubeconfig: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    kubeconfig.write_text(yaml.safe_dump(config))
    client = KubeClient.from_configuration(Configuration({CONFIG_FILE.key: str(kubeconfig)}))
    with pytest.raises(StorageError, match="CERTIFICATE_VERIFY_FAILED"):
        client.get_config_map("a")
    client.close()


def test_a_pod_finds_the_server_by_its_service_account(
    tls_server: KubernetesApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that every pod has, and a token that is renewed behind the process's back."""
    account = tmp_path / "serviceaccount"
    account.mkdir()
    cluster = tls_server.kubeconfig()["clusters"][0]["cluster"]
    host, port = tls_server.url.removeprefix("https://").split(":")
    first = tls_server.add_user("pod", [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}])
    (account / "token").write_text(first)
    (account / "namespace").write_text("default")
    (account / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    config = KubeConfig.from_service_account(account).get()
    assert config is not None
    client = KubeClient(KubernetesConnection(config, config.namespace, 10.0))
    client.create_config_map(KubernetesConfigMap("from-a-pod"))
    (account / "token").write_text(tls_server.add_user("pod"))
    tls_server.revoke(first)
    assert client.get_config_map("from-a-pod") is not None
    client.close()
