"""`ConfluentSerialization` and `ConfluentDeserialization`: serializers of confluent-kafka, with or without a registry.

They have connections, which cannot be pickled, so each process creates one and keeps it; schemas are not requested
again in every epoch. Errors of the record are distinguished from errors of the registry, because only the former are
dead letters.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.errors import ConfigurationError, HoldfastError, OutputTypeError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.types.avro import check_bounded_schema
from holdfast.types.composite import RowTypeInformation
from holdfast.types.serialization import DeserializationSchema, SerializationSchema
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

_made: Final[dict[str, Any]] = {}
"""The serializers of this process, by identity."""

_TRANSPORTS: Final = frozenset({"httpx", "httpx2", "httpcore", "authlib", "ssl"})
"""Packages with which versions of confluent-kafka connect to a registry; their errors are transport errors."""

_TRANSIENT: Final = frozenset({408, 425, 429})
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_CONFLICT_PAUSE: Final = 0.2


class _Confluent:
    """A serializer or deserializer with its serialization context."""

    def __init__(self, make: Callable[[], Any], topic: str, *, is_key: bool = False, reads: bool = False) -> None:
        if not callable(make):
            kind = "ConfluentDeserialization" if reads else "ConfluentSerialization"
            raise ConfigurationError(f"{kind} takes a function that returns a serializer, not {make!r}.")
        self._reads = reads
        self.identity = uuid.uuid4().hex
        self._make = make
        self._topic = topic
        self._is_key = is_key
        self._context: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_context": None}

    def call(self, value: Any, *, is_retry: bool = False) -> Any:
        """Serialize or deserialize a value.

        Args:
            value: The value.
            is_retry: Whether this is the retry after a conflict, which occurs when two tasks register a schema at once.

        Raises:
            StorageError: The registry is unavailable.
            ConfigurationError: The registry rejects the request.
            Exception: The value is invalid.
        """
        serializer = self._open()
        try:
            return serializer(value, self._context)
        except Exception as error:
            if not is_retry and getattr(error, "http_status_code", None) == _CONFLICT:
                time.sleep(_CONFLICT_PAUSE)
                return self.call(value, is_retry=True)
            translated = _registry_error(error, self._topic, reads=self._reads)
            if translated is None:
                raise
            raise translated from error

    def _open(self) -> Any:
        """Return the serializer of this process; create it at the first call.

        Raises:
            StorageError: The registry is unavailable.
            ConfigurationError: The serializer cannot be created.
        """
        from confluent_kafka.serialization import MessageField, SerializationContext

        if self._context is None:
            self._context = SerializationContext(self._topic, MessageField.KEY if self._is_key else MessageField.VALUE)
        if self.identity not in _made:
            try:
                made = self._make()
                avro = sys.modules.get("confluent_kafka.schema_registry.avro")
                # A private field that other versions may lack; a test fails if a new version has none.
                if avro and isinstance(made, avro.AvroDeserializer) and hasattr(made, "_parsed_schemas"):
                    made._parsed_schemas = _BoundedSchemas(made._parsed_schemas)
                _made[self.identity] = made
            except Exception as error:
                raise _registry_error(error, self._topic) or ConfigurationError(
                    f"The serializer for the topic {self._topic!r} could not be created: {type(error).__name__}: "
                    f"{error}. Serializers of a schema registry need pip install 'holdfast[schema-registry]'."
                ) from error
        return _made[self.identity]


class ConfluentSerialization(SerializationSchema):
    """Serializes with a serializer of confluent-kafka, for instance that of Avro with a schema registry.

    Args:
        make: Called once in each process; returns the serializer, whose connections cannot be pickled:
            `lambda: AvroSerializer(SchemaRegistryClient({"url": url}), schema)`.
        topic: The topic in the serialization context, from which subjects are derived.
        is_key: Whether the serialization context is that of keys.
        convert: Converts an element to what the serializer takes, such as a Protobuf message; by default unchanged.

    Example:
        >>> from confluent_kafka.serialization import IntegerSerializer
        >>> from holdfast.datastream.connectors.kafka import ConfluentSerialization
        >>> schema = ConfluentSerialization(lambda: IntegerSerializer(), "counts", convert=lambda row: row[1])
        >>> list(schema.serialize(("kelp", 7)))
        [0, 0, 0, 7]
    """

    def __init__(
        self,
        make: Callable[[], Any],
        topic: str,
        *,
        is_key: bool = False,
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        self._confluent = _Confluent(make, topic, is_key=is_key)
        self._convert = convert

    def serialize(self, element: Any) -> bytes | None:
        written: bytes | None = self._confluent.call(element if self._convert is None else self._convert(element))
        return written


class ConfluentDeserialization(DeserializationSchema):
    """Deserializes with a deserializer of confluent-kafka, for instance that of Avro with a schema registry.

    Args:
        make: Called once in each process; returns the deserializer:
            `lambda: AvroDeserializer(SchemaRegistryClient({"url": url}))`.
        produced_type: The type of the elements, as `output_type` takes it. For a row, the deserializer returns a
            mapping of its columns; other keys are ignored, and missing ones are null.
        topic: The topic in the serialization context.
        convert: Converts what the deserializer returns, such as a Protobuf message; by default unchanged.

    Example:
        >>> from confluent_kafka.serialization import IntegerDeserializer
        >>> from holdfast.datastream.connectors.kafka import ConfluentDeserialization
        >>> ConfluentDeserialization(lambda: IntegerDeserializer(), "int", "counts").deserialize(bytes([0, 0, 0, 7]))
        7
    """

    def __init__(
        self,
        make: Callable[[], Any],
        produced_type: Any,
        topic: str,
        *,
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        self._confluent = _Confluent(make, topic, reads=True)
        self._type = to_type(produced_type)
        self._convert = convert
        self._has_uuids = False

    def deserialize(self, message: bytes) -> Any:
        """Deserialize the bytes of a record.

        Raises:
            ValueError: They cannot be read as this type.
            StorageError: The registry is unavailable.
        """
        try:
            found = self._confluent.call(message)
        except (HoldfastError, ValueError):
            raise
        except Exception as error:  # a deserializer may raise anything for malformed bytes
            reason = f"{type(error).__name__}: {error!s:.1000}"
            raise ValueError(f"it does not match its schema: {reason}") from error
        if found is None:
            return None
        if self._convert is not None:
            found = self._convert(found)
        if isinstance(self._type, RowTypeInformation) and isinstance(found, Mapping):
            found = {name: found.get(name) for name in self._type.names}
        if self._has_uuids:
            found = _with_uuid_texts(found)
        try:
            return self._type.adopt(found)
        except OutputTypeError as error:
            # Avro's deserializers return UUID objects, whose only type is text.
            plain = None if self._has_uuids else _with_uuid_texts(found)
            if plain is None or plain == found:
                raise ValueError(str(error)) from None
        self._has_uuids = True
        try:
            return self._type.adopt(plain)
        except OutputTypeError as error:
            raise ValueError(str(error)) from None

    def get_produced_type(self) -> TypeInformation:
        return self._type


def _with_uuid_texts(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _with_uuid_texts(part) for name, part in value.items()}
    return list(map(_with_uuid_texts, value)) if isinstance(value, list) else value


class _BoundedSchemas:
    """The schema cache of an Avro deserializer, which rejects schemas without bounds.

    The writer of a message chooses any registered schema. With a schema such as an array of nulls, a short message
    would exhaust the memory of the process, and the deserializer does not check that.

    Args:
        parsed: The deserializer's own cache.
    """

    def __init__(self, parsed: Any) -> None:
        self._parsed = parsed

    def get_parsed_schema(self, schema: Any) -> Any:
        """Return the parsed schema; None if it is unknown.

        Raises:
            ValueError: It is unknown, and has no bounds.
        """
        known = self._parsed.get_parsed_schema(schema)
        if known is None:
            _require_bounded(json.loads(schema.schema_str))
        return known

    def set(self, schema: Any, parsed_schema: Any) -> None:
        """Keep a schema with all referenced schemas resolved.

        Raises:
            ValueError: It has no bounds.
        """
        _require_bounded(parsed_schema)
        self._parsed.set(schema, parsed_schema)


def _require_bounded(schema: Any) -> None:
    try:
        check_bounded_schema(schema)
    except PARSE_ERRORS as error:
        raise ValueError(f"its Avro schema is rejected: {error}") from error


def _registry_error(error: Exception, topic: str, *, reads: bool = False) -> Exception | None:
    """Translate an error of the registry or of its configuration; return None for an error of the value."""
    known = sys.modules.get("confluent_kafka.schema_registry.error")
    reason = f"{type(error).__name__}: {error}"
    is_of_registry = known is not None and isinstance(error, known.SchemaRegistryError)
    if is_of_registry:
        status = error.http_status_code  # type: ignore[attr-defined]
        if reads and status == _NOT_FOUND:
            return ValueError(f"the schema registry does not know its schema: {reason}")
        if 400 <= status < 500 and status not in _TRANSIENT:
            return ConfigurationError(
                f"The schema registry rejects a request for the topic {topic!r}: {reason}. Change the schema, the "
                "compatibility of its subject, or the credentials."
            )
    if is_of_registry or isinstance(error, OSError) or _is_of_transport(error):
        return StorageError(f"The schema registry for the topic {topic!r} does not answer: {reason}")
    return None


def _is_of_transport(error: Exception) -> bool:
    return any(kind.__module__.partition(".")[0] in _TRANSPORTS for kind in type(error).__mro__)
