"""Schemas of what goes in and out, under their PyFlink names."""

from holdfast.types.encoder import Encoder
from holdfast.types.serialization_schema import DeserializationSchema, SerializationSchema, SimpleStringSchema

__all__ = ["DeserializationSchema", "Encoder", "SerializationSchema", "SimpleStringSchema"]
