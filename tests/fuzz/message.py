"""A message of a topic as a job reads it: elements, or a dead letter that says why not, and no other end."""

from __future__ import annotations

from typing import Any, Final

from holdfast.datastream import OutputTag
from holdfast.datastream.connectors.kafka import DEAD_LETTER, KafkaSource
from holdfast.errors import HoldfastError
from holdfast.types.arrow import elements_to_batch
from holdfast.types.row import Row
from holdfast.types.serialization import DeserializationSchema
from holdfast.types.type_parser import to_type

UNREADABLE: Final = OutputTag("unreadable", DEAD_LETTER)
NOWHERE: Final[Any] = None
"""The topics of a source that is never asked for them."""


class _Aside:
    """Takes what a function sends aside."""

    def __init__(self) -> None:
        self.unreadable: list[Any] = []

    def output(self, tag: OutputTag, element: Any) -> None:
        assert tag is UNREADABLE
        self.unreadable.append(element)


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
    context = _Aside()
    [*found] = function.process_element(record, context)  # type: ignore[union-attr, arg-type]
    if context.unreadable:
        elements_to_batch(context.unreadable, to_type(DEAD_LETTER))
        try:
            schema.deserialize_all(data)
        except ValueError as error:
            raise HoldfastError(str(error)) from error
    elements_to_batch(found, kind)
