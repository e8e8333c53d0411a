"""Schemas of what goes in and out, under their PyFlink names."""

from holdfast.types.encoder import Encoder
from holdfast.types.serialization_schema import (
    ByteArraySchema,
    DeserializationSchema,
    SerializationSchema,
    SimpleStringSchema,
)

__all__ = ["ByteArraySchema", "DeserializationSchema", "Encoder", "SerializationSchema", "SimpleStringSchema"]
