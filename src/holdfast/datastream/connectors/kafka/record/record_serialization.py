"""What becomes of an element on its way into Kafka: topic, key, value, headers, partition, timestamp."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.errors import ConfigurationError
from holdfast.types.serialization_schema import SerializationSchema

Headers = Iterable[tuple[str, bytes | None]]
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class KafkaRecord(NamedTuple):
    """One record as it is sent. `partition` -1 leaves it to the key, `timestamp` -1 to the time of sending."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    timestamp: int


class _Function(SerializationSchema):
    """A function that makes bytes, or text, which is written as UTF-8."""

    def __init__(self, function: Callable[[Any], bytes | str | None]) -> None:
        self._function = function

    def serialize(self, element: Any) -> bytes | None:
        written = self._function(element)
        return written.encode() if isinstance(written, str) else written


class KafkaRecordSerializationSchema:
    """Makes records of elements; `KafkaRecordSerializationSchema.builder()` begins one.

    Its functions and schemas run in the tasks, when an element is staged.
    """

    def __init__(
        self,
        topic: str | Callable[[Any], str],
        key: SerializationSchema | None,
        value: SerializationSchema | None,
        headers: Callable[[Any], Headers] | None,
        partitioner: Callable[[Any], int] | None,
    ) -> None:
        self._topic = topic
        self._key = key
        self._value = value
        self._headers = headers
        self._partitioner = partitioner

    @property
    def topic(self) -> str | None:
        """The topic that all records go to; None if each element chooses."""
        return self._topic if isinstance(self._topic, str) else None

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        """A builder of a schema."""
        return KafkaRecordSerializationSchemaBuilder()

    def open(self) -> None:
        """Opens the schemas of key and value, in a task."""
        for schema in (self._key, self._value):
            if schema is not None:
                schema.open()

    def serialize(self, element: Any, timestamp: int | None) -> KafkaRecord:
        """The record of an element.

        Args:
            element: An element of the stream.
            timestamp: Its event time in milliseconds, None if it has none.

        Raises:
            ValueError: The record cannot be sent.
            TypeError: Key, value or a header is not bytes.
        """
        topic = self._topic if isinstance(self._topic, str) else self._topic(element)
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise ValueError(f"{topic!r} is no name of a Kafka topic")
        key = None if self._key is None else self._key.serialize(element)
        value = None if self._value is None else self._value.serialize(element)
        for name, written in (("key", key), ("value", value)):
            if written is not None and not isinstance(written, bytes):
                raise TypeError(f"the {name} of a Kafka record is bytes or None, not {type(written).__name__}")
        headers = () if self._headers is None else _checked(self._headers(element))
        partition = -1 if self._partitioner is None else self._partitioner(element)
        if isinstance(partition, bool) or not isinstance(partition, int) or not -1 <= partition < 2**31:
            raise ValueError(f"{partition!r} is no partition of a Kafka topic")
        at = timestamp if timestamp is not None and timestamp >= 0 else -1
        return KafkaRecord(topic, key, value, headers, partition, at)


class KafkaRecordSerializationSchemaBuilder:
    """Builds a `KafkaRecordSerializationSchema`; the names are PyFlink's.

    A value that cannot be is refused with a `ConfigurationError` where it is given.
    """

    def __init__(self) -> None:
        self._topic: str | Callable[[Any], str] | None = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None
        self._headers: Callable[[Any], Headers] | None = None
        self._partitioner: Callable[[Any], int] | None = None

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder:
        """All records go to one topic."""
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise ConfigurationError(f"set_topic() takes the name of a Kafka topic, not {topic!r}.")
        self._topic = topic
        return self

    def set_topic_selector(self, topic_selector: Callable[[Any], str]) -> KafkaRecordSerializationSchemaBuilder:
        """A function from an element to the topic that it goes to."""
        self._topic = _callable("set_topic_selector", topic_selector)
        return self

    def set_key_serialization_schema(self, key_serialization_schema: Any) -> KafkaRecordSerializationSchemaBuilder:
        """How the key is made: a `SerializationSchema`, or a function from an element to bytes, text or None."""
        self._key = _schema("set_key_serialization_schema", key_serialization_schema)
        return self

    def set_value_serialization_schema(self, value_serialization_schema: Any) -> KafkaRecordSerializationSchemaBuilder:
        """How the value is made, as the key is; None is a tombstone."""
        self._value = _schema("set_value_serialization_schema", value_serialization_schema)
        return self

    def set_header_provider(self, header_provider: Callable[[Any], Any]) -> KafkaRecordSerializationSchemaBuilder:
        """A function from an element to its headers: a mapping, or pairs of a name and bytes or None."""
        self._headers = _callable("set_header_provider", header_provider)
        return self

    def set_partitioner(self, partitioner: Callable[[Any], int]) -> KafkaRecordSerializationSchemaBuilder:
        """A function from an element to its partition; without one the key decides, as in the Java client."""
        self._partitioner = _callable("set_partitioner", partitioner)
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        """The schema.

        Raises:
            ConfigurationError: It has no topic, or neither key nor value.
        """
        if self._topic is None:
            raise ConfigurationError("A KafkaRecordSerializationSchema needs set_topic() or set_topic_selector().")
        if self._value is None:
            raise ConfigurationError("A KafkaRecordSerializationSchema needs set_value_serialization_schema().")
        return KafkaRecordSerializationSchema(self._topic, self._key, self._value, self._headers, self._partitioner)


def _schema(method: str, given: Any) -> SerializationSchema:
    if isinstance(given, SerializationSchema):
        return given
    if callable(given) and not isinstance(given, type):
        return _Function(given)
    raise ConfigurationError(f"{method}() takes a SerializationSchema or a function, not {given!r}.")


def _callable(method: str, given: Any) -> Any:
    if not callable(given) or isinstance(given, type):
        raise ConfigurationError(f"{method}() takes a function, not {given!r}.")
    return given


def _checked(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for name, value in pairs:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"a header of a Kafka record is text and bytes or None, not {name!r} and {value!r:.80}")
    return pairs
