"""The cluster under test: the API server double, or the one that HOLDFAST_TEST_KUBECONFIG names.

The user of a real cluster must be allowed to create and delete namespaces, and everything in them (roles too).
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import yaml
from lightkube import KubeConfig
from lightkube.config.client_adapter import Client as open_http_client
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.models import User

from holdfast.errors import PossibleInconsistentStateError, StorageError
from holdfast.ha.kubernetes import KubeClient, KubernetesConfigMap
from holdfast.ha.kubernetes.client import KubernetesConnection
from holdfast.kernel.clock import SystemClock
from holdfast.testing.kubernetes.api_server import KubernetesApiServer
from holdfast.testing.server.tcp_proxy import TcpProxy
from holdfast.testing.state_handle_store_contract import FaultMoment, ProcessDied

REAL = "HOLDFAST_TEST_KUBECONFIG"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class KubernetesCluster:
    """One namespace of a cluster, with its administrator's kubeconfig."""

    def __init__(self, directory: Path, server: KubernetesApiServer | None) -> None:
        self.server = server
        self.directory = directory
        self.namespace = f"holdfast-{secrets.token_hex(4)}"
        real = os.environ.get(REAL)
        if server is not None:
            self.kubeconfig = server.write_kubeconfig(directory / "kubeconfig", namespace=self.namespace)
        else:
            assert real is not None
            self.kubeconfig = Path(real)
        config = KubeConfig.from_file(self.kubeconfig).get()
        assert config is not None
        self.config = config
        self.http: httpx2.Client = open_http_client(config, ConnectionParams(timeout=httpx2.Timeout(30)))
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self._clients: list[KubeClient] = []

    def request(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json", **query: str
    ) -> httpx2.Response:
        """One request of the administrator, as it is."""
        headers = {"Content-Type": content_type}
        return self.http.request(method, path, params=query, json=body, headers=headers)

    def path(self, plural: str, name: str = "") -> str:
        """The path of a type or an object in the namespace."""
        groups = {"leases": "coordination.k8s.io", "roles": "rbac.authorization.k8s.io"}
        group = groups.get(plural)
        base = f"/apis/{group}/v1" if group else "/api/v1"
        path = f"{base}/namespaces/{self.namespace}/{plural}"
        return f"{path}/{name}" if name else path

    def open_http(self, token: str) -> httpx2.Client:
        """A plain client of somebody else."""
        config = self.config._replace(user=User(token=token))
        return open_http_client(config, ConnectionParams(timeout=httpx2.Timeout(30)))

    def connection(self, kubeconfig: Path | None = None, seconds: float = 10.0) -> KubernetesConnection:
        """A connection to the namespace."""
        config = KubeConfig.from_file(kubeconfig or self.kubeconfig).get()
        assert config is not None
        return KubernetesConnection(config, self.namespace, seconds)

    def proxied(self) -> tuple[TcpProxy, Path]:
        """A proxy in front of the API server and a kubeconfig that goes through it."""
        url = urlsplit(self.config.cluster.server)
        proxy = TcpProxy(url.hostname or "127.0.0.1", url.port or (443 if url.scheme == "https" else 80))
        config = yaml.safe_load(self.kubeconfig.read_text())
        for cluster in config["clusters"]:
            # The certificate of a real server does not name the proxy.
            cluster["cluster"] = {"server": f"{url.scheme}://{proxy.address}"}
            if url.scheme == "https":
                cluster["cluster"]["insecure-skip-tls-verify"] = True
        path = self.directory / f"kubeconfig-{proxy.port}"
        path.write_text(yaml.safe_dump(config))
        return proxy, path

    def client(self, kind: type[Any] = KubeClient, **arguments: Any) -> Any:
        """A client of the namespace, closed with the cluster."""
        client = kind(self.connection(), **arguments)
        self._clients.append(client)
        return client

    def map(self, name: str) -> dict[str, Any]:
        """A ConfigMap as it is."""
        answer: dict[str, Any] = self.request("GET", self.path("configmaps", name)).json()
        return answer

    def close(self) -> None:
        """Delete the namespace."""
        for client in self._clients:
            client.close()
        self.request("DELETE", f"/api/v1/namespaces/{self.namespace}")
        self.http.close()


def apply_manifest(
    cluster: KubernetesCluster, path: Path, change: Callable[[dict[str, Any]], None] = lambda document: None
) -> None:
    """Create the objects of a manifest, with the namespace replaced as its comment says."""
    bases = {"ServiceAccount": "/api/v1", "Role": RBAC, "RoleBinding": RBAC}
    plurals = {"ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings"}
    text = path.read_text().replace("my-namespace", cluster.namespace)
    for document in yaml.safe_load_all(text):
        change(document)
        kind = document["kind"]
        where = f"{bases[kind]}/namespaces/{cluster.namespace}/{plurals[kind]}"
        answer = cluster.request("POST", where, document, fieldValidation="Strict")
        assert answer.status_code == 201, answer.text


class HastyClock(SystemClock):
    """Does not sleep."""

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        return wake is not None and wake.is_set()


class StruckKubeClient(KubeClient):
    """A client whose next write of a ConfigMap goes wrong in a chosen way, or that pauses before a request.

    It raises what a request raises that failed so; the transactions above it are the real ones.

    Args:
        lasting: Whether the server stays away after a write without an answer, for the rest of the transaction.
    """

    def __init__(self, connection: KubernetesConnection, *, lasting: bool = False, **arguments: Any) -> None:
        super().__init__(connection, **arguments)
        self._lasting = lasting
        self._away = 0
        self.moment: FaultMoment | None = None
        self.after = 0
        self.interruption: Callable[[], None] | None = None

    def spare(self) -> None:
        self.moment, self.interruption, self._away = None, None, 0

    def get_config_map(self, name: str) -> KubernetesConfigMap | None:
        self._pause()
        if self._away > 0:
            self._away -= 1
            raise StorageError("The server is away.") from httpx2.ConnectError("away")
        return super().get_config_map(name)

    def _pause(self) -> None:
        if self.interruption is None:
            return
        if self.after > 0:
            self.after -= 1
            return
        action, self.interruption = self.interruption, None
        action()

    def replace_config_map(self, config_map: KubernetesConfigMap) -> KubernetesConfigMap:
        return self._write(super().replace_config_map, config_map)

    def create_config_map(self, config_map: KubernetesConfigMap) -> KubernetesConfigMap:
        return self._write(super().create_config_map, config_map)

    def _write(
        self, write: Callable[[KubernetesConfigMap], KubernetesConfigMap], config_map: KubernetesConfigMap
    ) -> KubernetesConfigMap:
        self._pause()
        moment = self.moment
        if moment is None:
            return write(config_map)
        if self.after > 0:
            self.after -= 1
            return write(config_map)
        self.moment = None
        if self._lasting and moment in (FaultMoment.SILENT, FaultMoment.LOST):
            self._away = self._max_retries
        match moment:
            case FaultMoment.REFUSED:
                request = httpx2.Request("PUT", "http://test")
                refusal = httpx2.HTTPStatusError("refused", request=request, response=httpx2.Response(403))
                raise StorageError("refused by a test") from refusal
            case FaultMoment.SILENT:
                raise PossibleInconsistentStateError("The connection broke.") from httpx2.ReadError("broke")
            case FaultMoment.LOST:
                write(config_map)
                raise PossibleInconsistentStateError("The connection broke.") from httpx2.ReadError("broke")
            case FaultMoment.DIED_BEFORE:
                raise ProcessDied
            case FaultMoment.DIED_AFTER:
                write(config_map)
                raise ProcessDied
