"""The clients of Kafka, configured from the properties of a source or a sink, and their errors in our words.

Properties have the names of Kafka's documentation, and are given to librdkafka as they are. What it does not know it
refuses, and so do we, before anything is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from holdfast.errors import ConfigurationError, StorageError

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
    from confluent_kafka.admin import AdminClient
except ImportError as error:
    raise ModuleNotFoundError(
        f"Kafka needs confluent-kafka, which is not installed ({error}): pip install 'holdfast[kafka]'."
    ) from error

logger = logging.getLogger(__name__)
_client_logger = logging.getLogger(f"{__name__}.librdkafka")
_client_logger.setLevel(logging.ERROR)

BOOTSTRAP: Final = "bootstrap.servers"
BATCH: Final = "batch.size"
PATIENCE: Final = "request.timeout.ms"
"""Milliseconds within which the cluster answers one request."""

_BATCH_BYTES: Final = 1_000_000
_PATIENCE_MS: Final = 30_000
_OF_ALL: Final = ("security.", "sasl.", "ssl.", "socket.", "client.", "broker.address.", "enable.ssl.", "api.version.")
"""The beginnings of properties that are told to every client: how a broker is reached."""

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


class KafkaConnection:
    """How a cluster is reached.

    Args:
        properties: By the names of Kafka's documentation.

    Raises:
        ConfigurationError: The servers are missing, or a property is one that is not for users to set.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.properties: Final = {str(key): value for key, value in properties.items()}
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
        return _made(Producer, {**self.properties, **settings})

    def consumer(self, settings: Mapping[str, Any], *, with_all: bool = False) -> Consumer:
        """A consumer; `with_all` gives it all properties, else only those that say how a broker is reached.

        Raises:
            ConfigurationError: As for `producer`.
        """
        properties = self.properties if with_all else self._common()
        return _made(Consumer, {**properties, **settings})

    def admin(self) -> AdminClient:
        """A client that asks about topics.

        Raises:
            ConfigurationError: As for `producer`.
        """
        return _made(AdminClient, self._common())

    def _common(self) -> dict[str, Any]:
        return {key: value for key, value in self.properties.items() if key == BOOTSTRAP or key.startswith(_OF_ALL)}


def _made(kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    try:
        return kind({"log_level": 3, **settings}, logger=_client_logger)
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Kafka's client does not take the properties that were set: {reason_of(error)}. Names are those of "
            "librdkafka, such as 'sasl.username' where the Java client has 'sasl.jaas.config'."
        ) from error


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
        ConfigurationError: The cluster does not allow it.
    """
    try:
        yield
    except (KafkaException, BufferError) as error:
        what = f"{doing} has failed: {reason_of(error)}. The brokers are {connection.servers!r}."
        if isinstance(error, KafkaException) and error.args[0].code() in NOT_ALLOWED:
            raise ConfigurationError(f"{what} They know who asks, and do not allow it: grant it.") from error
        raise StorageError(what) from error
