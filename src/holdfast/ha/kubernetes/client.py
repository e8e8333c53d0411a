"""The operations on ConfigMaps that high availability is made of.

The one that matters is `KubeClient.check_and_update_config_map`: read, change, write under the version that was read.
A request may fail in ways that leave its outcome open; how the transaction finds out::

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

import random
from collections.abc import Callable
from typing import Final

from lightkube.core.exceptions import ApiError
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
from holdfast.ha.kubernetes.connection import KubernetesConnection
from holdfast.ha.kubernetes.failure import WriteOutcome, describe, is_forbidden, is_unauthorized, outcome_of
from holdfast.ha.services.kubernetes_options import MAX_RETRIES, REQUEST_TIMEOUT
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger

_logger = get_logger(__name__)

Change = Callable[[KubernetesConfigMap], KubernetesConfigMap | None]
"""Gets a ConfigMap and returns what it is to become, or None to leave it. It may be called several times."""

_FIRST_DELAY: Final = 0.05
_LAST_DELAY: Final = 2.0


class MissingConfigMapError(StorageError):
    """A ConfigMap that must be there is not; nothing was changed."""


class KubeClient:
    """ConfigMaps of one namespace. Safe to use from several threads; all methods block.

    Args:
        connection: The API server; closed with the client.
        max_retries: How often a transaction is tried again.
        clock: Sleeps between two tries.
    """

    def __init__(
        self, connection: KubernetesConnection, *, max_retries: int = MAX_RETRIES.default, clock: Clock | None = None
    ) -> None:
        self._connection = connection
        self._max_retries = max_retries
        self._clock = clock or SystemClock()
        self._random = random.Random()

    @classmethod
    def from_configuration(
        cls, configuration: Configuration, *, clock: Clock | None = None, request_seconds: float | None = None
    ) -> KubeClient:
        """Connect as the options say; nothing is sent.

        Args:
            configuration: The options.
            clock: Sleeps between two tries.
            request_seconds: A shorter limit for one request than the option's.

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
        """The API server."""
        return self._connection

    @property
    def namespace(self) -> str:
        """The namespace of all ConfigMaps."""
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
        """Delete a ConfigMap if it still is what was read; fine if there is none. Tried once.

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

    def update_config_map(
        self, name: str, change: Change, known: KubernetesConfigMap | None = None
    ) -> KubernetesConfigMap | None:
        """Do what `check_and_update_config_map` does and return what was written, None if nothing was.

        Args:
            name: The ConfigMap.
            change: As there.
            known: What may be its newest version; saves the first read.
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
                # An earlier write of unknown outcome may be what it was in conflict with: only another look can tell.
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
        """Ask the server whether it would let this client do something; None if it does not answer such questions.

        Raises:
            ConfigurationError: The server does not know who is asking.
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
        """Close all connections."""
        self._connection.close()

    def missing(self, name: str) -> MissingConfigMapError:
        """The error that a ConfigMap that must be there is not."""
        return MissingConfigMapError(
            f"ConfigMap {name!r} does not exist in namespace {self.namespace!r}. It may have been deleted by somebody "
            "else; nothing was changed."
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
    """Whether trying again is of no use."""
    return isinstance(cause, Exception) and outcome_of(cause) is WriteOutcome.REFUSED
