"""A message of a topic as a job reads it: elements, or a dead letter that says why not, and no other end."""

from __future__ import annotations

from typing import Any, Final

from holdfast.datastream import OutputTag
from holdfast.datastream.connectors.kafka import DEAD_LETTER, KafkaSource
from holdfast.errors import HoldfastError
from holdfast.types.conversion.arrow import elements_to_batch
from holdfast.types.conversion.convert import to_type
from holdfast.types.row import Row
from holdfast.types.serialization_schema import DeserializationSchema

UNREADABLE: Final = OutputTag("unreadable", DEAD_LETTER)
NOWHERE: Final[Any] = None
"""The topics of a source that is never asked for them."""


def read(data: bytes, schema: DeserializationSchema, lenient: DeserializationSchema | None = None) -> None:
    """Reads a message, and hands on what it stands for as a task does.

    Args:
        data: The message.
        schema: What reads it.
        lenient: The same, told to leave out what it cannot read.

    Raises:
        HoldfastError: It cannot be read.
    """
    if lenient is not None:
        elements_to_batch(lenient.deserialize_all(data), lenient.get_produced_type())
    decoder = KafkaSource(NOWHERE, False, schema, UNREADABLE, False).decoder()
    assert decoder is not None
    function, kind = decoder
    record = Row(key=None, value=data, topic="t", partition=0, offset=7, timestamp=None, headers=None)
    [*found] = function.process_element(record, None)  # type: ignore[union-attr]
    if len(found) == 1 and found[0][0] is UNREADABLE:
        elements_to_batch([found[0][1]], to_type(DEAD_LETTER))
        try:
            schema.deserialize_all(data)
        except ValueError as error:
            raise HoldfastError(str(error)) from error
    elements_to_batch(found, kind)
