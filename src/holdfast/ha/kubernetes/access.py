"""What high availability must be allowed to do, and the check of it at the start."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.errors import ConfigurationError
from holdfast.ha.kubernetes.client import KubeClient
from holdfast.kernel.secret import get_logger

_logger = get_logger(__name__)


@dataclass(frozen=True)
class Right:
    """A verb on the ConfigMaps of the namespace, or on one of them."""

    verb: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} configmaps" + (f" named {self.name!r}" if self.name else "")


def required_rights(cluster_config_map: str) -> list[Right]:
    """What deploy/kubernetes/rbac.yaml allows, and no more."""
    everywhere = [Right(verb) for verb in ("create", "get", "update", "delete")]
    return everywhere + [Right(verb, cluster_config_map) for verb in ("list", "watch")]


def check_access(client: KubeClient, cluster_config_map: str, verbs: Collection[str] | None = None) -> None:
    """Ask the API server whether everything will be allowed, before anything depends on it.

    Args:
        client: Who asks.
        cluster_config_map: The ConfigMap of the cluster.
        verbs: The verbs that are needed, if not all are.

    Raises:
        ConfigurationError: The server does not accept the credentials, or rights are missing, all of which are named.
        StorageError: The server cannot be reached.
    """
    missing = []
    for right in required_rights(cluster_config_map):
        if verbs is not None and right.verb not in verbs:
            continue
        allowed = client.is_allowed(right.verb, "configmaps", right.name)
        if allowed is None:
            _logger.warning("The API server does not tell what is allowed; missing rights will show later.")
            return
        if not allowed:
            missing.append(str(right))
    if missing:
        raise ConfigurationError(
            f"In namespace {client.namespace!r} of the Kubernetes API server {client.connection.server!r} this client "
            f"has no right to {', '.join(missing)}. Apply deploy/kubernetes/rbac.yaml there, and run with the service "
            "account that it makes."
        )
