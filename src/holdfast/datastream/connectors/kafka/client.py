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

BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
BATCH_SIZE: Final = "batch.size"
REQUEST_TIMEOUT: Final = "request.timeout.ms"
"""The property with the timeout of a request, in milliseconds."""

_BATCH_BYTES: Final = 1_000_000
_REQUEST_TIMEOUT_MS: Final = 30_000
_CONNECTION_PREFIXES: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "client.",
    "broker.address.",
    "enable.ssl.",
    "api.version.",
)
"""Prefixes of the properties that every client gets: how to reach a broker."""

_POLL_SECONDS: Final = 2.0
"""Seconds after which a pending request is checked for errors of authentication."""

_BAD_CREDENTIALS: Final = "They reject the credentials: correct sasl.username and sasl.password, or sasl.mechanism."
_AUTHENTICATION_ADVICE: Final = {
    "SASL authentication error": _BAD_CREDENTIALS,
    "Broker: Unsupported SASL mechanism": _BAD_CREDENTIALS,
    "certificate verify failed": (
        "The client does not trust their certificate: correct ssl.ca.location, or the host in bootstrap.servers, which "
        "must be in the certificate."
    ),
    "alert unknown ca": "They do not trust the certificate of this client: correct ssl.certificate.location.",
    "certificate required": (
        "They require a certificate of this client: set ssl.certificate.location and ssl.key.location."
    ),
    "alert bad certificate": "They reject the certificate of this client: correct ssl.certificate.location.",
    "alert certificate": "They reject the certificate of this client: correct ssl.certificate.location.",
}
"""Messages of a client after a failed authentication that no retry can repair, with advice. Other failures may be
transient, such as a broker that goes away, or a token server that does not answer."""

_AUTHENTICATION_CODES: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._TRANSPORT)

AUTHORIZATION_CODES: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
"""Error codes of an authenticated client without the necessary permission."""

_RESERVED: Final = {
    "transactional.id": "call set_transactional_id_prefix()",
    "isolation.level": "it applies to sources only",
    "key.serializer": "call set_key_serialization_schema()",
    "value.serializer": "call set_value_serialization_schema()",
    "enable.auto.commit": "positions are in checkpoints",
    "enable.auto.offset.store": "positions are in checkpoints",
    "enable.partition.eof": "it is always true",
}


_T = TypeVar("_T")


class KafkaConnection:
    """The connection settings of a cluster, and the last errors of its clients.

    Args:
        properties: Properties of librdkafka.

    Attributes:
        authentication_errors: The last failed authentication, if any. A client reports it only when it is polled, and
            otherwise only a timeout.
        connection_errors: The last error of connecting to a broker, such as an unknown host. It may be transient, so it
            is only used in messages.

    Raises:
        ConfigurationError: The servers are missing, or a property is reserved.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.properties: Final = {str(key): value for key, value in properties.items()}
        self.authentication_errors: Final[deque[KafkaError]] = deque(maxlen=1)
        self.connection_errors: Final[deque[KafkaError]] = deque(maxlen=1)
        servers = self.properties.get(BOOTSTRAP_SERVERS)
        if not isinstance(servers, str) or not servers.strip():
            raise ConfigurationError(
                f"{BOOTSTRAP_SERVERS} must name the brokers, such as 'broker:9092', not {servers!r}."
            )
        for name, reason in _RESERVED.items():
            if name in self.properties:
                raise ConfigurationError(f"The Kafka property {name!r} cannot be set: {reason}.")
        timeout = self.properties.pop(REQUEST_TIMEOUT, _REQUEST_TIMEOUT_MS)
        try:
            self.request_timeout: Final = int(timeout) / 1000
        except ValueError as error:
            raise ConfigurationError(f"{REQUEST_TIMEOUT} must be a number of milliseconds, not {timeout!r}.") from error
        if self.request_timeout <= 0:
            raise ConfigurationError(f"{REQUEST_TIMEOUT} must be a number of milliseconds above 0, not {timeout!r}.")

    @property
    def servers(self) -> str:
        return str(self.properties[BOOTSTRAP_SERVERS])

    def with_batch_size(self, batch: int) -> KafkaConnection:
        """Return a connection whose producers send batches of at most `batch` bytes before compression."""
        if batch >= int(self.properties.get(BATCH_SIZE, _BATCH_BYTES)):
            return self
        return KafkaConnection(
            {**self.properties, REQUEST_TIMEOUT: self.request_timeout * 1000, BATCH_SIZE: max(1, batch)}
        )

    def create_producer(self, settings: Mapping[str, Any]) -> Producer:
        """Create a producer.

        Args:
            settings: Properties that override those of the connection.

        Raises:
            ConfigurationError: A property is unknown, or its value is invalid.
        """
        return self._create(Producer, {**self.properties, **settings})

    def create_consumer(self, settings: Mapping[str, Any], *, with_all: bool = False) -> Consumer:
        """Create a consumer; without `with_all` it gets only the properties for connecting to a broker.

        Raises:
            ConfigurationError: As for `producer`.
        """
        properties = self.properties if with_all else self._common()
        return self._create(Consumer, {**properties, **settings})

    def create_admin(self) -> AdminClient:
        """Create an admin client.

        Raises:
            ConfigurationError: As for `producer`.
        """
        # Errors are reported by polls and requests in more detail than in its log.
        return self._create(AdminClient, {**self._common(), "log_level": 2})

    def wait_for(self, admin: AdminClient, request: Future[_T]) -> _T:
        """Return the result of an admin client's request. Blocks up to the request timeout.

        Raises:
            KafkaException: The request failed or timed out. After a failed authentication the client is closed.
        """
        admin.poll(0)
        self.authentication_errors.clear()  # they are of earlier requests
        deadline = time.monotonic() + self.request_timeout + 5
        while not self.authentication_errors and time.monotonic() < deadline:
            try:
                return request.result(_POLL_SECONDS)
            except TimeoutError:
                admin.poll(0)
            except KafkaException:
                admin.poll(0)
                raise
        if not self.authentication_errors:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        with admin:
            # Close the client now, because the request is still pending: its response would arrive in a thread of the
            # client, and if the garbage collector finalizes the client in that thread, the process aborts.
            raise KafkaException(self.authentication_errors[0])

    def forget_errors(self) -> None:
        """Forget the errors of earlier operations."""
        self.authentication_errors.clear()
        self.connection_errors.clear()

    def has_timed_out(self, last_progress: float) -> bool:
        """Return whether an operation has timed out; after a failed authentication it does so earlier.

        Args:
            last_progress: The time of the last progress, as of `time.monotonic`.
        """
        timeout = min(self.request_timeout, _POLL_SECONDS) if self.authentication_errors else self.request_timeout
        return time.monotonic() - last_progress > timeout

    def fetch_metadata(self, admin: AdminClient) -> Any:
        """Return all visible brokers and topics. Blocks.

        Raises:
            KafkaException: As for `wait_for`.
        """
        # `list_topics` waits without polling, so that a failed authentication would look like a timeout: check it
        # first.
        self.wait_for(admin, admin.describe_cluster(request_timeout=self.request_timeout))
        return admin.list_topics(timeout=self.request_timeout)

    def _common(self) -> dict[str, Any]:
        return {
            key: value
            for key, value in self.properties.items()
            if key == BOOTSTRAP_SERVERS or key.startswith(_CONNECTION_PREFIXES)
        }

    def _create(self, kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
        # The callback refers to the deques alone: a client in a reference cycle would be left to garbage collection.
        own = {"log_level": 3, "error_cb": partial(_record_error, self.authentication_errors, self.connection_errors)}
        try:
            return kind({**own, **settings}, logger=_client_logger)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Kafka's client rejects the properties: {error_text(error)}. Use the names of librdkafka, such as "
                "'sasl.username' instead of the Java client's 'sasl.jaas.config'."
            ) from error


def _record_error(authentication: deque[KafkaError], connection: deque[KafkaError], error: KafkaError) -> None:
    if error.code() in _AUTHENTICATION_CODES and _advice(error):
        authentication.append(error)
    elif error.code() != KafkaError._ALL_BROKERS_DOWN:  # has no reason
        connection.append(error)


def _advice(error: KafkaError) -> str:
    return next((advice for text, advice in _AUTHENTICATION_ADVICE.items() if text in error.str()), "")


def error_text(error: BaseException | KafkaError | None) -> str:
    """Return the client's message for an error."""
    if isinstance(error, KafkaException) and error.args:
        error = error.args[0]
    if isinstance(error, KafkaError):
        return f"{error.str()} ({error.name()})"
    return str(error)


CLIENT_ERRORS: Final = (KafkaException, BufferError)
"""The exceptions of the client."""


@contextmanager
def translate_errors(operation: str, connection: KafkaConnection) -> Iterator[None]:
    """Translate errors of the client into errors that name the operation and the brokers.

    Args:
        operation: The operation, such as "listing topics".
        connection: The connection of the client.

    Raises:
        StorageError: The client has failed.
        ConfigurationError: The cluster rejects the authentication or the operation.
    """
    connection.forget_errors()
    try:
        yield
    except CLIENT_ERRORS as error:
        raise translated_error(error, operation, connection) from error


def translated_error(
    error: KafkaException | BufferError, operation: str, connection: KafkaConnection
) -> StorageError | ConfigurationError:
    """Return the error that `translate_errors` raises, with what the client has reported since `forget_errors`."""
    rejection = connection.authentication_errors[0] if connection.authentication_errors else None
    text = f"{operation[0].upper()}{operation[1:]} failed: {error_text(rejection or error)}. "
    text += f"The brokers are {connection.servers!r}."
    if rejection is not None:
        return ConfigurationError(f"{text} {_advice(rejection)}")
    if isinstance(error, KafkaException) and error.args[0].code() in AUTHORIZATION_CODES:
        return ConfigurationError(f"{text} They do not allow this user to do that: grant it.")
    if connection.connection_errors:
        text += f" The client's last error: {error_text(connection.connection_errors[0])}."
    return StorageError(text)
