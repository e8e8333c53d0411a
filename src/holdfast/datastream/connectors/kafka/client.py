"""The clients of Kafka, configured from the properties of a source or a sink, and their errors in our words.

Properties have the names of Kafka's documentation, and are given to librdkafka as they are. What it does not know it
refuses, and so do we, before anything is sent.
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
"""The beginnings of properties that are told to every client: how a broker is reached."""

_LOOK: Final = 2.0
"""Seconds after which it is looked why there is no answer."""

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
"""What a client says where a broker and it have found out that one does not know the other, and what to do. Other
failures of authentication may pass, such as a broker that goes away meanwhile, or a server of tokens or tickets that
does not answer."""

_OF_REFUSALS: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._TRANSPORT)

NOT_ALLOWED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
"""What a cluster answers that knows who asks, and does not let him."""

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
    """How a cluster is reached.

    Args:
        properties: By the names of Kafka's documentation.

    Attributes:
        refusals: The last time that a broker did not know who asks, or was not known itself, if there was one. A client
            tells it where it is polled, and otherwise only that its time is up.
        troubles: The last that a client has said of why it does not reach a broker, such as a host that has no address.
            That may pass, so it is told and no more.

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
        """Where clients begin."""
        return str(self.properties[BOOTSTRAP])

    def limited_to(self, batch: int) -> KafkaConnection:
        """The same, or one whose producers send fewer bytes at a time.

        Args:
            batch: Bytes that a batch of several records may have before it is compressed.
        """
        if batch >= int(self.properties.get(BATCH, _BATCH_BYTES)):
            return self
        return KafkaConnection({**self.properties, PATIENCE: self.patience * 1000, BATCH: max(1, batch)})

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        """A producer.

        Args:
            settings: Over the properties.

        Raises:
            ConfigurationError: A property is unknown, or has a value that it cannot have.
        """
        return self._made(Producer, {**self.properties, **settings})

    def consumer(self, settings: Mapping[str, Any], *, with_all: bool = False) -> Consumer:
        """A consumer; `with_all` gives it all properties, else only those that say how a broker is reached.

        Raises:
            ConfigurationError: As for `producer`.
        """
        properties = self.properties if with_all else self._common()
        return self._made(Consumer, {**properties, **settings})

    def admin(self) -> AdminClient:
        """A client that asks about topics.

        Raises:
            ConfigurationError: As for `producer`.
        """
        # What it logs comes with a poll as well, and is less than what is told of a request.
        return self._made(AdminClient, {**self._common(), "log_level": 2})

    def answer(self, admin: AdminClient, request: Future[_T]) -> _T:
        """What the cluster answers to a request that was sent by a client. Blocks.

        Raises:
            KafkaException: It does not answer, or refuses. If a broker does not know who asks, the client has ended.
        """
        admin.poll(0)
        self.refusals.clear()  # of an earlier time
        deadline = time.monotonic() + self.patience + 5
        while not self.refusals and time.monotonic() < deadline:
            try:
                return request.result(_LOOK)
            except TimeoutError:
                admin.poll(0)
            except KafkaException:
                admin.poll(0)
                raise
        if not self.refusals:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        with admin:
            # It ends here and now, because the request has not: the answer would come in a thread of the client, and if
            # that is where the garbage collector finds a client that nobody needs, the process is aborted.
            raise KafkaException(self.refusals[0])

    def is_lost(self, since: float) -> bool:
        """Whether what has not moved since a moment will not: the time is up, or a broker does not know who asks."""
        return time.monotonic() - since > min(self.patience, _LOOK if self.refusals else self.patience)

    def metadata(self, admin: AdminClient) -> Any:
        """All brokers and topics that the cluster lets be seen. Blocks.

        Raises:
            KafkaException: As for `answer`.
        """
        # The client waits for them in a way in which it cannot be polled; so they are asked for when it is known.
        self.answer(admin, admin.describe_cluster(request_timeout=self.patience))
        return admin.list_topics(timeout=self.patience)

    def _common(self) -> dict[str, Any]:
        return {key: value for key, value in self.properties.items() if key == BOOTSTRAP or key.startswith(_OF_ALL)}

    def _made(self, kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
        # The callback knows the lists alone: a client that is in a cycle of references is left to garbage collection.
        own = {"log_level": 3, "error_cb": partial(_note, self.refusals, self.troubles)}
        try:
            return kind({**own, **settings}, logger=_client_logger)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Kafka's client does not take the properties that were set: {reason_of(error)}. Names are those of "
                "librdkafka, such as 'sasl.username' where the Java client has 'sasl.jaas.config'."
            ) from error


def _note(refusals: deque[KafkaError], troubles: deque[KafkaError], error: KafkaError) -> None:
    if error.code() in _OF_REFUSALS and _advice(error):
        refusals.append(error)
    elif error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says nothing of why
        troubles.append(error)


def _advice(refusal: KafkaError) -> str:
    return next((advice for words, advice in _REFUSALS.items() if words in refusal.str()), "")


def reason_of(error: BaseException | KafkaError | None) -> str:
    """What is wrong, in the words of the client."""
    if isinstance(error, KafkaException) and error.args:
        error = error.args[0]
    if isinstance(error, KafkaError):
        return f"{error.str()} ({error.name()})"
    return str(error)


@contextmanager
def told(doing: str, connection: KafkaConnection) -> Iterator[None]:
    """Turns an error of the client into one that says what was being done, and with which brokers.

    Raises:
        StorageError: The client has failed.
        ConfigurationError: The cluster does not allow it, or does not know who asks.
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
