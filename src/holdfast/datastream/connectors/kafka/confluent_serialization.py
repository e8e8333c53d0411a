"""Serializers of confluent-kafka's own, those of a schema registry for instance, and what their errors mean.

They hold connections, which cannot be pickled, so each process makes one and keeps it: schemas are asked for once, and
not in every epoch. A record that cannot be written or read is told from a registry that is away, or that refuses: a
dead letter is only for the first.
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
"""By identity, what this process has made."""

_TRANSPORTS: Final = frozenset({"httpx", "httpx2", "httpcore", "authlib", "ssl"})
"""Packages by which confluent-kafka reaches a registry; which of them depends on its version."""

_PASSING: Final = frozenset({408, 425, 429})
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_A_MOMENT: Final = 0.2


class _Confluent:
    """A serializer or deserializer, and what it is told beside an element."""

    def __init__(self, make: Callable[[], Any], topic: str, *, is_key: bool = False, reads: bool = False) -> None:
        if not callable(make):
            kind = "ConfluentDeserialization" if reads else "ConfluentSerialization"
            raise ConfigurationError(f"{kind} takes a function that makes a serializer, not {make!r}.")
        self._reads = reads
        self.identity = uuid.uuid4().hex
        self._make = make
        self._topic = topic
        self._is_key = is_key
        self._context: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_context": None}

    def call(self, value: Any, *, is_again: bool = False) -> Any:
        """What it makes of a value.

        Args:
            value: The value.
            is_again: Whether the registry has told of a conflict already, which it may when two tasks register the
                same schema at once.

        Raises:
            StorageError: The registry is away.
            ConfigurationError: It refuses what is asked for.
            Exception: The value is to blame.
        """
        serializer = self.opened()
        try:
            return serializer(value, self._context)
        except Exception as error:
            if not is_again and getattr(error, "http_status_code", None) == _CONFLICT:
                time.sleep(_A_MOMENT)
                return self.call(value, is_again=True)
            told = _told(error, self._topic, reads=self._reads)
            if told is None:
                raise
            raise told from error

    def opened(self) -> Any:
        """The one of this process.

        Raises:
            StorageError: It needs a registry that is away.
            ConfigurationError: It cannot be made.
        """
        from confluent_kafka.serialization import MessageField, SerializationContext

        if self._context is None:
            self._context = SerializationContext(self._topic, MessageField.KEY if self._is_key else MessageField.VALUE)
        if self.identity not in _made:
            try:
                made = self._make()
                avro = sys.modules.get("confluent_kafka.schema_registry.avro")
                # A field of its own, which another version may not have; our test says of a new one whether it has.
                if avro and isinstance(made, avro.AvroDeserializer) and hasattr(made, "_parsed_schemas"):
                    made._parsed_schemas = _BoundedSchemas(made._parsed_schemas)
                _made[self.identity] = made
            except Exception as error:
                raise _told(error, self._topic) or ConfigurationError(
                    f"The serializer for the topic {self._topic!r} could not be made: {type(error).__name__}: {error}. "
                    "Those of a schema registry need pip install 'holdfast[schema-registry]'."
                ) from error
        return _made[self.identity]


class ConfluentSerialization(SerializationSchema):
    """A serializer of confluent-kafka, for instance that of Avro with a schema registry.

    Args:
        make: Called once in each process; returns the serializer, because it holds connections, which cannot be
            pickled: `lambda: AvroSerializer(SchemaRegistryClient({"url": url}), schema)`.
        topic: The topic that it is told of.
        is_key: Whether it is told to write keys.
        convert: What it is given of an element; the element without it. That of Protobuf takes messages.
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
    """A deserializer of confluent-kafka, for instance that of Avro with a schema registry.

    Args:
        make: Called once in each process; returns the deserializer:
            `lambda: AvroDeserializer(SchemaRegistryClient({"url": url}))`.
        produced_type: Type of the elements, as `output_type` takes it. Of a row, what the deserializer returns are its
            columns by name; what the type has not is left out, and what is missing is null.
        topic: The topic that it is told of.
        convert: What becomes an element of what it returns, for instance of a message of Protobuf.
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

    def deserialize(self, message: bytes) -> Any:
        """The element that the bytes of a value stand for.

        Raises:
            ValueError: They stand for none of the type.
            StorageError: The registry is away.
        """
        try:
            found = self._confluent.call(message)
        except (HoldfastError, ValueError):
            raise
        except Exception as error:  # whatever a reader trips over in bytes of others
            said = f"{type(error).__name__}: {error!s:.1000}"
            raise ValueError(f"it does not have the form of its schema: {said}") from error
        if found is None:
            return None
        if self._convert is not None:
            found = self._convert(found)
        if isinstance(self._type, RowTypeInformation) and isinstance(found, Mapping):
            found = {name: found.get(name) for name in self._type.names}
        try:
            return self._type.adopt(found)
        except OutputTypeError as error:
            raise ValueError(str(error)) from None

    def get_produced_type(self) -> TypeInformation:
        return self._type


class _BoundedSchemas:
    """Where a deserializer of Avro looks for a schema before it parses it, and puts it before it reads by it.

    Whoever writes messages chooses among all schemas that are registered. Its own reader looks at none of them, and a
    message of one without bounds ends the process.

    Args:
        parsed: Where it does that otherwise.
    """

    def __init__(self, parsed: Any) -> None:
        self._parsed = parsed

    def get_parsed_schema(self, schema: Any) -> Any:
        """The schema as it was parsed; None if it was not.

        Raises:
            ValueError: It was not, and has no bounds.
        """
        known = self._parsed.get_parsed_schema(schema)
        if known is None:
            _require_bounded(json.loads(schema.schema_str))
        return known

    def set(self, schema: Any, parsed_schema: Any) -> None:
        """Keeps a schema, which has in it now those to which it refers.

        Raises:
            ValueError: It has no bounds.
        """
        _require_bounded(parsed_schema)
        self._parsed.set(schema, parsed_schema)


def _require_bounded(schema: Any) -> None:
    try:
        check_bounded_schema(schema)
    except PARSE_ERRORS as error:
        raise ValueError(f"its schema of Avro is refused: {error}") from error


def _told(error: Exception, topic: str, *, reads: bool = False) -> Exception | None:
    """The error that says that a registry is to blame, or who has set it up; None if it is the value."""
    known = sys.modules.get("confluent_kafka.schema_registry.error")
    said = f"{type(error).__name__}: {error}"
    is_of_registry = known is not None and isinstance(error, known.SchemaRegistryError)
    if is_of_registry:
        status = error.http_status_code  # type: ignore[attr-defined]
        if reads and status == _NOT_FOUND:
            return ValueError(f"the schema registry does not know its schema: {said}")
        if 400 <= status < 500 and status not in _PASSING:
            return ConfigurationError(
                f"The schema registry refuses what the topic {topic!r} needs: {said}. Change the schema, the "
                "compatibility of its subject, or the credentials."
            )
    if is_of_registry or isinstance(error, OSError) or _is_of_transport(error):
        return StorageError(f"The schema registry for the topic {topic!r} does not answer: {said}")
    return None


def _is_of_transport(error: Exception) -> bool:
    return any(kind.__module__.partition(".")[0] in _TRANSPORTS for kind in type(error).__mro__)
