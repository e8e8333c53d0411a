"""The operations on ConfigMaps that high availability is made of.

The one that matters is `KubeClient.check_and_update_config_map`: read, change, write under the version that was read. A
request may fail in ways that leave its outcome open; how the transaction finds out::

    read (version v) --change--> write if still v --ok----------------------------------> done
      ^                              |
      |<---- conflict, not sent -----|           nothing happened: begin again
      |<---- no answer --------------'           it may have happened, and may still happen:
      |
      '-- version is no longer v                 it has happened or never will; the change looks at what is there
      '-- version is v still                     the same write again: only one of the two can succeed

So an outcome stays unknown only if the server does not answer until the retries are used up.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import httpx2
import lightkube
import yaml
from lightkube.config.client_adapter import Client as open_http_client
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import ConfigMap

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    ConflictError,
    HoldfastError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.ha.kubernetes.config_map import KubernetesConfigMap
from holdfast.ha.options import CONFIG_FILE, CONTEXT, MAX_RETRIES, NAMESPACE, REQUEST_TIMEOUT
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger

# The request was not sent at all.
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
Change = Callable[[KubernetesConfigMap], KubernetesConfigMap | None]
"""Gets a ConfigMap and returns what it is to become, or None to leave it. It may be called several times."""
_FIRST_DELAY: Final = 0.05
_LAST_DELAY: Final = 2.0


class KubernetesConnection:
    """Two HTTP clients of one API server: one for requests, one for watches, which keep their connection for long.

    The second one also sends the requests that lightkube has no form for.

    Args:
        config: Server and credentials.
        namespace: The namespace of all requests.
        request_seconds: The time limit of one request.
    """

    def __init__(self, config: SingleConfig, namespace: str, request_seconds: float) -> None:
        if config.user is None:
            config = config._replace(user=User())  # a server without authentication, behind a proxy for instance
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
        """Return the connection that the options name; nothing is sent.

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
            httpx2.HTTPError: The request failed; see `outcome_of`.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{name}"
        self.watches.request("DELETE", path, json=options).raise_for_status()

    def close(self) -> None:
        self.requests.close()
        self.watches.close()

    def __repr__(self) -> str:
        return f"KubernetesConnection({self.server!r}, namespace={self.namespace!r})"


class WriteOutcome(enum.Enum):
    """The state of a write whose request failed."""

    MISSING = "missing"
    """Nothing happened: there is no such object."""
    EXISTS = "exists"
    """Nothing happened: there is such an object already."""
    CONFLICT = "conflict"
    """Nothing happened: the object has another version."""
    NOT_SENT = "not sent"
    """Nothing happened: the server was not reached, or was too busy to begin."""
    REFUSED = "refused"
    """Nothing happened, and trying again is of no use."""
    UNKNOWN = "unknown"
    """It may have happened, and may still happen."""


def outcome_of(error: Exception) -> WriteOutcome:
    """Return what a failed request means for its write.

    A 5xx is of unknown outcome, because a server answers so also when its storage gave no answer in time.
    """
    if isinstance(error, _NOT_SENT):
        return WriteOutcome.NOT_SENT
    if not isinstance(error, httpx2.HTTPStatusError):
        return WriteOutcome.UNKNOWN
    code = error.response.status_code
    if code == 404:
        return WriteOutcome.MISSING
    if code == 409:
        exists = isinstance(error, ApiError) and error.status.reason == "AlreadyExists"
        return WriteOutcome.EXISTS if exists else WriteOutcome.CONFLICT
    if code == 429:
        return WriteOutcome.NOT_SENT
    if code == 408 or code >= 500:
        return WriteOutcome.UNKNOWN
    return WriteOutcome.REFUSED


def is_unauthorized(error: Exception) -> bool:
    """Return whether the server does not accept the credentials."""
    return isinstance(error, httpx2.HTTPStatusError) and error.response.status_code == 401


def is_forbidden(error: Exception) -> bool:
    """Return whether the server accepts the credentials but does not allow the request."""
    return isinstance(error, httpx2.HTTPStatusError) and error.response.status_code == 403


def describe(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return text or type(error).__name__


logger = get_logger(__name__)


class MissingConfigMapError(StorageError):
    """A ConfigMap that must exist does not; nothing was changed."""


class KubeClient:
    """ConfigMaps of one namespace. Safe to use from several threads; all methods block.

    Args:
        connection: The API server; closed with the client.
        max_retries: How often a transaction is retried.
        clock: Sleeps between two tries.
    """

    def __init__(
        self, connection: KubernetesConnection, *, max_retries: int = MAX_RETRIES.default, clock: Clock | None = None
    ) -> None:
        self._connection = connection
        self._max_retries = max_retries
        self._clock = clock or SystemClock()
        self._random = random.Random()  # noqa: S311 - spreads retries

    @classmethod
    def from_configuration(
        cls, configuration: Configuration, *, clock: Clock | None = None, request_seconds: float | None = None
    ) -> KubeClient:
        """Return the client that the options describe; nothing is sent.

        Args:
            configuration: The options.
            clock: Sleeps between two tries.
            request_seconds: A shorter time limit of one request than the option's.

        Raises:
            ConfigurationError: There is no usable kubeconfig and no service account.
        """
        seconds = configuration.get(REQUEST_TIMEOUT) / 1000
        if request_seconds is not None:
            seconds = min(seconds, request_seconds)
        connection = KubernetesConnection.from_configuration(configuration, seconds)
        return cls(connection, max_retries=configuration.get(MAX_RETRIES), clock=clock)

    @property
    def connection(self) -> KubernetesConnection:
        return self._connection

    @property
    def namespace(self) -> str:
        return self._connection.namespace

    def get_config_map(self, name: str) -> KubernetesConfigMap | None:
        """Read the newest version of a ConfigMap, None if there is none.

        Raises:
            StorageError: The server did not answer, or refused.
        """
        try:
            return KubernetesConfigMap.of(self._connection.requests.get(ConfigMap, name))
        except Exception as error:
            if outcome_of(error) is WriteOutcome.MISSING:
                return None
            raise self._failed("read", name, error) from error

    def create_config_map(self, config_map: KubernetesConfigMap) -> KubernetesConfigMap:
        """Create a ConfigMap.

        Raises:
            AlreadyExistError: There is one of this name.
            PossibleInconsistentStateError: It is not known whether it was created.
            StorageError: It was not created.
        """
        try:
            return KubernetesConfigMap.of(self._connection.requests.create(config_map.to_object()))
        except Exception as error:
            outcome = outcome_of(error)
            if outcome is WriteOutcome.EXISTS:
                raise AlreadyExistError(
                    f"ConfigMap {config_map.name!r} exists already in {self.namespace!r}."
                ) from error
            raise self._write_failed("create", config_map.name, outcome, error) from error

    def replace_config_map(self, config_map: KubernetesConfigMap) -> KubernetesConfigMap:
        """Write a new version of a ConfigMap, if it still has the version that was read. Tried once.

        Raises:
            ConflictError: It has another version, or is gone; nothing happened.
            PossibleInconsistentStateError: It is not known whether it was written.
            StorageError: It was not written.
        """
        try:
            return KubernetesConfigMap.of(self._connection.requests.replace(config_map.to_object()))
        except Exception as error:
            outcome = outcome_of(error)
            if outcome in (WriteOutcome.CONFLICT, WriteOutcome.MISSING):
                raise ConflictError(f"ConfigMap {config_map.name!r} was changed or deleted meanwhile.") from error
            raise self._write_failed("update", config_map.name, outcome, error) from error

    def delete_config_map(self, name: str) -> None:
        """Delete a ConfigMap; fine if there is none.

        Raises:
            StorageError: The server did not answer, or refused; the call can be repeated.
        """
        try:
            self._connection.requests.delete(ConfigMap, name)
        except Exception as error:
            if outcome_of(error) is not WriteOutcome.MISSING:
                raise self._failed("delete", name, error) from error

    def delete_version(self, config_map: KubernetesConfigMap) -> None:
        """Delete a ConfigMap if it is still of the version that was read; fine if there is none. Tried once.

        Raises:
            ConflictError: It was changed, or made anew; nothing happened.
            PossibleInconsistentStateError: It is not known whether it was deleted.
            StorageError: It was not deleted.
        """
        try:
            self._connection.delete_config_map(config_map.name, config_map.uid, config_map.resource_version)
        except Exception as error:
            outcome = outcome_of(error)
            if outcome is WriteOutcome.CONFLICT:
                raise ConflictError(f"ConfigMap {config_map.name!r} was changed meanwhile.") from error
            if outcome is not WriteOutcome.MISSING:
                raise self._write_failed("delete", config_map.name, outcome, error) from error

    def check_and_update_config_map(self, name: str, change: Change) -> bool:
        """Read a ConfigMap, change it, and write it if it still has the version that was read; again if it has not.

        Args:
            name: The ConfigMap.
            change: Returns the changed ConfigMap, or None to write nothing. After a write of unknown outcome it is
                called again, so it must accept what it itself wants to write. An error that it raises ends the
                transaction.

        Returns:
            Whether a changed ConfigMap was written; False if `change` returned None.

        Raises:
            StorageError: The ConfigMap does not exist, or the server refused; nothing was written.
            ConflictError: Others changed it at every try; nothing was written.
            PossibleInconsistentStateError: It is not known whether it was written.
        """
        return self.update_config_map(name, change) is not None

    def update_config_map(  # noqa: C901, PLR0912 - one loop, with a branch for each way in which a write may end
        self, name: str, change: Change, known: KubernetesConfigMap | None = None
    ) -> KubernetesConfigMap | None:
        """Do what `check_and_update_config_map` does and return what was written, None if nothing was.

        Args:
            name: The ConfigMap.
            change: As there.
            known: A version that may be the newest; saves the first read.
        """
        open_write: tuple[str | None, HoldfastError] | None = None
        last: HoldfastError | None = None
        for attempt in range(self._max_retries + 1):
            if attempt:
                self._clock.sleep(self._delay(attempt, last))
            try:
                current = known if known is not None and not attempt else self.get_config_map(name)
            except StorageError as error:
                if error.__cause__ is not None and _is_final(error.__cause__) and open_write is None:
                    raise
                last = error
                continue
            if current is None:
                raise self.missing(name)
            if open_write is not None and open_write[0] != current.resource_version:
                open_write = None  # written under a version that is over: it has happened, or never will
            try:
                changed = change(current)
            except Exception as error:
                if open_write is not None:
                    raise _unknown(name, open_write[1]) from error
                raise
            if changed is None:
                return None
            try:
                return self.replace_config_map(changed)
            except ConflictError as error:
                # The conflict may be with an earlier write of unknown outcome: only another read can show that.
                last = error
            except PossibleInconsistentStateError as error:
                open_write, last = (current.resource_version, error), error
            except StorageError as error:
                if error.__cause__ is not None and _is_final(error.__cause__):
                    if open_write is not None:
                        raise _unknown(name, open_write[1]) from error
                    raise
                last = error
        if open_write is not None:
            raise _unknown(name, open_write[1]) from open_write[1]
        tried = f"ConfigMap {name!r} could not be updated in {self._max_retries + 1} tries; nothing was written. "
        if isinstance(last, ConflictError):
            raise ConflictError(tried + "Others changed it every time.") from last
        raise StorageError(tried + f"The last failure: {last}") from last

    def is_allowed(self, verb: str, resource: str, name: str = "", group: str = "") -> bool | None:
        """Return whether the server allows this client a request; None if the server does not answer such questions.

        Raises:
            ConfigurationError: The server does not accept the credentials.
            StorageError: The server cannot be reached.
        """
        wanted = ResourceAttributes(verb=verb, resource=resource, group=group, name=name, namespace=self.namespace)
        review = SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=wanted))
        try:
            answer = self._connection.requests.create(review)
        except Exception as error:
            if is_unauthorized(error):
                raise ConfigurationError(
                    f"The Kubernetes API server {self._connection.server!r} does not accept this client's credentials: "
                    f"{describe(error)}. Renew the token or certificate of the kubeconfig."
                ) from error
            if isinstance(error, ApiError) and outcome_of(error) in (WriteOutcome.REFUSED, WriteOutcome.MISSING):
                return None
            raise self._failed("ask for the rights on", name or resource, error) from error
        return bool(answer.status is not None and answer.status.allowed)

    def close(self) -> None:
        self._connection.close()

    def missing(self, name: str) -> MissingConfigMapError:
        """Return the error of a ConfigMap that must exist and does not."""
        return MissingConfigMapError(
            f"ConfigMap {name!r} does not exist in namespace {self.namespace!r}. It may have been deleted by another "
            "client; nothing was changed."
        )

    def _delay(self, attempt: int, last: HoldfastError | None) -> float:
        if isinstance(last, ConflictError):
            # Another writer is at work and answers are quick: only step out of each other's way.
            return self._random.uniform(0, _FIRST_DELAY)
        return self._random.uniform(0.5, 1.0) * min(_LAST_DELAY, _FIRST_DELAY * 2.0**attempt)

    def _failed(self, what: str, name: str, error: Exception) -> StorageError:
        where = f"in namespace {self.namespace!r} of the Kubernetes API server {self._connection.server!r}"
        advice = ""
        if is_forbidden(error):
            advice = " Give this client the rights of deploy/kubernetes/rbac.yaml."
        elif is_unauthorized(error):
            advice = " The server does not accept this client's credentials; renew them."
        return StorageError(f"Could not {what} {name!r} {where}: {describe(error)}.{advice}")

    def _write_failed(self, what: str, name: str, outcome: WriteOutcome, error: Exception) -> HoldfastError:
        failed = self._failed(what, name, error)
        if outcome is WriteOutcome.UNKNOWN:
            return PossibleInconsistentStateError(f"{failed} It is not known whether it happened.")
        return failed


FlinkKubeClient = KubeClient


def _unknown(name: str, error: HoldfastError) -> PossibleInconsistentStateError:
    return PossibleInconsistentStateError(
        f"It is not known whether ConfigMap {name!r} was updated, so nothing may be discarded: {error}"
    )


def _is_final(cause: BaseException) -> bool:
    """Return whether a retry is useless."""
    return isinstance(cause, Exception) and outcome_of(cause) is WriteOutcome.REFUSED


@dataclass(frozen=True)
class Right:
    """A verb on the ConfigMaps of the namespace, or on one of them."""

    verb: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} configmaps" + (f" named {self.name!r}" if self.name else "")


def required_rights(cluster_config_map: str) -> list[Right]:
    """Return the rights that deploy/kubernetes/rbac.yaml grants."""
    everywhere = [Right(verb) for verb in ("create", "get", "update", "delete")]
    return everywhere + [Right(verb, cluster_config_map) for verb in ("list", "watch")]


def check_access(client: KubeClient, cluster_config_map: str, verbs: Collection[str] | None = None) -> None:
    """Ask the API server whether all requests will be allowed, before anything depends on them.

    Args:
        client: The client.
        cluster_config_map: The ConfigMap of the cluster.
        verbs: The verbs that are needed; None: all.

    Raises:
        ConfigurationError: The server does not accept the credentials, or rights are missing; the message names them
            all.
        StorageError: The server cannot be reached.
    """
    missing = []
    for right in required_rights(cluster_config_map):
        if verbs is not None and right.verb not in verbs:
            continue
        allowed = client.is_allowed(right.verb, "configmaps", right.name)
        if allowed is None:
            logger.warning("The API server does not report what is allowed; missing rights will cause errors later.")
            return
        if not allowed:
            missing.append(str(right))
    if missing:
        raise ConfigurationError(
            f"In namespace {client.namespace!r} of the Kubernetes API server {client.connection.server!r} this client "
            f"has no right to {', '.join(missing)}. Apply deploy/kubernetes/rbac.yaml there, and run with the service "
            "account that it makes."
        )
