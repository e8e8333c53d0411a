"""Finding the API server: from a kubeconfig file, or from the service account of the pod."""

from __future__ import annotations

import httpx2
import lightkube
import yaml
from lightkube.config.client_adapter import Client as open_http_client
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from holdfast.errors import ConfigurationError
from holdfast.ha.services.kubernetes_options import CONFIG_FILE, CONTEXT, NAMESPACE
from holdfast.kernel.configuration import Configuration


class KubernetesConnection:
    """Two HTTP clients of one API server: one for requests, one for watches, which keep their connection for long.

    The second also sends what lightkube has no form for.

    Args:
        config: Where the server is and who asks.
        namespace: The namespace of all requests.
        request_seconds: How long one request may take.
    """

    def __init__(self, config: SingleConfig, namespace: str, request_seconds: float) -> None:
        if config.user is None:
            config = config._replace(user=User())  # a server that asks nobody who he is, behind a proxy for instance
        timeout = httpx2.Timeout(request_seconds)
        try:
            self.requests = lightkube.Client(config, namespace=namespace, timeout=timeout)
            self.watches = open_http_client(config, ConnectionParams(timeout=timeout))
        except (ConfigError, OSError, ValueError) as error:
            raise ConfigurationError(
                f"Cannot connect to the Kubernetes API server {config.cluster.server!r} with the context "
                f"{config.context_name!r}: {error}"
            ) from error
        self.namespace = namespace
        self.server = config.cluster.server
        self.request_seconds = request_seconds

    @classmethod
    def from_configuration(cls, configuration: Configuration, request_seconds: float) -> KubernetesConnection:
        """Find the server; nothing is sent to it.

        Raises:
            ConfigurationError: There is no usable kubeconfig and no service account.
        """
        path, context = configuration.get(CONFIG_FILE), configuration.get(CONTEXT)
        try:
            found = KubeConfig.from_file(path) if path else KubeConfig.from_env()
            config = found.get(context)
        except (ConfigError, OSError, AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
            where = f"the kubeconfig {path!r}" if path else "a service account of a pod, $KUBECONFIG or ~/.kube/config"
            raise ConfigurationError(
                f"Cannot find a Kubernetes API server by {where}: {error!r}. Set {CONFIG_FILE.key!r} (and, if it has "
                f"several contexts, {CONTEXT.key!r}) to a kubeconfig that `kubectl` works with."
            ) from error
        if config is None:
            raise ConfigurationError(f"The kubeconfig {path!r} has no current context; set {CONTEXT.key!r}.")
        return cls(config, configuration.get(NAMESPACE) or config.namespace, request_seconds)

    def delete_config_map(self, name: str, uid: str | None, resource_version: str | None) -> None:
        """Delete a ConfigMap if it is of this version; lightkube's own form of the request has no preconditions.

        Raises:
            httpx2.HTTPError: The request failed; `failure.outcome_of` says what that means.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{name}"
        self.watches.request("DELETE", path, json=options).raise_for_status()

    def close(self) -> None:
        """Close all connections."""
        self.requests.close()
        self.watches.close()

    def __repr__(self) -> str:
        return f"KubernetesConnection({self.server!r}, namespace={self.namespace!r})"
