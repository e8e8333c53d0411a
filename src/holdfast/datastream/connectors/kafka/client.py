"""`KafkaConnection`: creates Kafka clients from the properties of a source or sink, and translates their errors.

Properties have the names of librdkafka, and are passed to it unchanged. Unknown ones are rejected before anything is
sent.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.secret import get_logger

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
    from confluent_kafka.admin import AdminClient
except ImportError as error:
    raise ModuleNotFoundError(
        f"Kafka needs confluent-kafka, which is not installed ({error}): pip install 'holdfast[kafka]'."
    ) from error

logger = get_logger(__name__)
_client_logger = get_logger(f"{__name__}.librdkafka")
_client_logger.setLevel(logging.ERROR)

BOOTSTRAP: Final = "bootstrap.servers"
BATCH: Final = "batch.size"
PATIENCE: Final = "request.timeout.ms"
"""Milliseconds within which the cluster answers one request."""

_BATCH_BYTES: Final = 1_000_000
_PATIENCE_MS: Final = 30_000
_OF_ALL: Final = ("security.", "sasl.", "ssl.", "socket.", "client.", "broker.address.", "enable.ssl.", "api.version.")
"""Prefixes of the properties that every client gets: how to reach a broker."""

_POLL_SECONDS: Final = 2.0
"""Seconds after which a pending request is checked for errors of authentication."""

_WHO: Final = "They do not know who asks: correct sasl.username and sasl.password, or sasl.mechanism."
_REFUSALS: Final = {
    "SASL authentication error": _WHO,
    "Broker: Unsupported SASL mechanism": _WHO,
    "certificate verify failed": (
        "Their certificate is not trusted here: correct ssl.ca.location, or the name of the host in bootstrap.servers, "
        "for which the certificate must be."
    ),
    "alert unknown ca": "They do not trust the certificate of this client: correct ssl.certificate.location.",
    "certificate required": (
        "They ask for a certificate of this client: set ssl.certificate.location and ssl.key.location."
    ),
    "alert bad certificate": "They refuse the certificate of this client: correct ssl.certificate.location.",
    "alert certificate": "They refuse the certificate of this client: correct ssl.certificate.location.",
}
"""Messages of a client after a failed authentication that no retry can repair, with advice. Other failures may be
transient, such as a broker that goes away, or a token server that does not answer."""

_OF_REFUSALS: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._TRANSPORT)

NOT_ALLOWED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
"""Error codes of an authenticated client without the necessary permission."""

_RESERVED: Final = {
    "transactional.id": "set_transactional_id_prefix() makes it",
    "isolation.level": "sources read what is committed",
    "key.serializer": "set_key_serialization_schema() says it",
    "value.serializer": "set_value_serialization_schema() says it",
    "enable.auto.commit": "positions are in checkpoints",
    "enable.auto.offset.store": "positions are in checkpoints",
    "enable.partition.eof": "it is on",
}


_T = TypeVar("_T")


class KafkaConnection:
    """The connection settings of a cluster, and the last errors of its clients.

    Args:
        properties: Properties of librdkafka.

    Attributes:
        refusals: The last failed authentication, if any. A client reports it only when it is polled, and otherwise only
            a timeout.
        troubles: The last error of connecting to a broker, such as an unknown host. It may be transient, so it is only
            used in messages.

    Raises:
        ConfigurationError: The servers are missing, or a property is one that is not for users to set.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.properties: Final = {str(key): value for key, value in properties.items()}
        self.refusals: Final[deque[KafkaError]] = deque(maxlen=1)
        self.troubles: Final[deque[KafkaError]] = deque(maxlen=1)
        servers = self.properties.get(BOOTSTRAP)
        if not isinstance(servers, str) or not servers.strip():
            raise ConfigurationError(f"{BOOTSTRAP} must name the brokers, such as 'broker:9092', not {servers!r}.")
        for name, reason in _RESERVED.items():
            if name in self.properties:
                raise ConfigurationError(f"The Kafka property {name!r} cannot be set: {reason}.")
        patience = self.properties.pop(PATIENCE, _PATIENCE_MS)
        try:
            self.patience: Final = int(patience) / 1000
        except ValueError as error:
            raise ConfigurationError(f"{PATIENCE} is a number of milliseconds, not {patience!r}.") from error
        if self.patience <= 0:
            raise ConfigurationError(f"{PATIENCE} is a number of milliseconds above 0, not {patience!r}.")

    @property
    def servers(self) -> str:
        return str(self.properties[BOOTSTRAP])

    def limited_to(self, batch: int) -> KafkaConnection:
        """Return a connection whose producers send batches of at most `batch` bytes before compression."""
        if batch >= int(self.properties.get(BATCH, _BATCH_BYTES)):
            return self
        return KafkaConnection({**self.properties, PATIENCE: self.patience * 1000, BATCH: max(1, batch)})

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        """Create a producer.

        Args:
            settings: Properties that override those of the connection.

        Raises:
            ConfigurationError: A property is unknown, or has a value that it cannot have.
        """
        return self._create(Producer, {**self.properties, **settings})

    def consumer(self, settings: Mapping[str, Any], *, with_all: bool = False) -> Consumer:
        """Create a consumer; without `with_all` it gets only the properties that say how to reach a broker.

        Raises:
            ConfigurationError: As for `producer`.
        """
        properties = self.properties if with_all else self._common()
        return self._create(Consumer, {**properties, **settings})

    def admin(self) -> AdminClient:
        """Create an admin client.

        Raises:
            ConfigurationError: As for `producer`.
        """
        # Errors are reported by polls and requests in more detail than in its log.
        return self._create(AdminClient, {**self._common(), "log_level": 2})

    def answer(self, admin: AdminClient, request: Future[_T]) -> _T:
        """Wait for the answer to a request of an admin client. Blocks up to the request timeout.

        Raises:
            KafkaException: The request failed or timed out. After a failed authentication the client is closed.
        """
        admin.poll(0)
        self.refusals.clear()  # of an earlier time
        deadline = time.monotonic() + self.patience + 5
        while not self.refusals and time.monotonic() < deadline:
            try:
                return request.result(_POLL_SECONDS)
            except TimeoutError:
                admin.poll(0)
            except KafkaException:
                admin.poll(0)
                raise
        if not self.refusals:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        with admin:
            # Close the client now, because the request is still pending: its answer would arrive in a thread of the
            # client, and if the garbage collector finalizes the client in that thread, the process aborts.
            raise KafkaException(self.refusals[0])

    def is_lost(self, since: float) -> bool:
        """Return whether something without progress since a time has failed, by timeout or failed authentication."""
        return time.monotonic() - since > min(self.patience, _POLL_SECONDS if self.refusals else self.patience)

    def metadata(self, admin: AdminClient) -> Any:
        """Return all visible brokers and topics. Blocks.

        Raises:
            KafkaException: As for `answer`.
        """
        # `list_topics` waits without polling, so that a failed authentication would look like a timeout: check it
        # first.
        self.answer(admin, admin.describe_cluster(request_timeout=self.patience))
        return admin.list_topics(timeout=self.patience)

    def _common(self) -> dict[str, Any]:
        return {key: value for key, value in self.properties.items() if key == BOOTSTRAP or key.startswith(_OF_ALL)}

    def _create(self, kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
        # The callback refers to the deques alone: a client in a reference cycle would be left to garbage collection.
        own = {"log_level": 3, "error_cb": partial(_record_error, self.refusals, self.troubles)}
        try:
            return kind({**own, **settings}, logger=_client_logger)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Kafka's client does not take the properties that were set: {reason_of(error)}. Names are those of "
                "librdkafka, such as 'sasl.username' where the Java client has 'sasl.jaas.config'."
            ) from error


def _record_error(refusals: deque[KafkaError], troubles: deque[KafkaError], error: KafkaError) -> None:
    if error.code() in _OF_REFUSALS and _advice(error):
        refusals.append(error)
    elif error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says nothing of why
        troubles.append(error)


def _advice(refusal: KafkaError) -> str:
    return next((advice for words, advice in _REFUSALS.items() if words in refusal.str()), "")


def reason_of(error: BaseException | KafkaError | None) -> str:
    """Return the client's message for an error."""
    if isinstance(error, KafkaException) and error.args:
        error = error.args[0]
    if isinstance(error, KafkaError):
        return f"{error.str()} ({error.name()})"
    return str(error)


@contextmanager
def translated_errors(doing: str, connection: KafkaConnection) -> Iterator[None]:
    """Translate errors of the client into errors that name the operation and the brokers.

    Args:
        doing: The operation, such as "listing topics".
        connection: The connection of the client.

    Raises:
        StorageError: The client has failed.
        ConfigurationError: The cluster rejects the authentication or the operation.
    """
    connection.refusals.clear()
    connection.troubles.clear()
    try:
        yield
    except (KafkaException, BufferError) as error:
        refusal = connection.refusals[0] if connection.refusals else None
        what = f"{doing} has failed: {reason_of(refusal or error)}. The brokers are {connection.servers!r}."
        if refusal is not None:
            raise ConfigurationError(f"{what} {_advice(refusal)}") from error
        if isinstance(error, KafkaException) and error.args[0].code() in NOT_ALLOWED:
            raise ConfigurationError(f"{what} They know who asks, and do not allow it: grant it.") from error
        trouble = f" What the client met last: {reason_of(connection.troubles[0])}." if connection.troubles else ""
        raise StorageError(what + trouble) from error
