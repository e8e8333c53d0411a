"""A message in Avro's binary form, without a container: lengths and counts in it are believed by nobody."""

import json

from holdfast.datastream.formats.avro import AvroRowDeserializationSchema
from tests.fuzz.message import read

FIELDS = {
    "whole": "long",
    "small": "int",
    "real": "double",
    "float": "float",
    "flag": "boolean",
    "word": "string",
    "bytes": "bytes",
    "maybe": ["null", "string"],
    "fixed": {"type": "fixed", "name": "four", "size": 4},
    "kind": {"type": "enum", "name": "kind", "symbols": ["a", "b"]},
    "list": {"type": "array", "items": "int"},
    "map": {"type": "map", "values": "long"},
    "day": {"type": "int", "logicalType": "date"},
    "instant": {"type": "long", "logicalType": "timestamp-micros"},
    "exact": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    "inner": {"type": "record", "name": "inner", "fields": [{"name": "n", "type": "long"}]},
}
RECORD = {"type": "record", "name": "all", "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()]}
SCHEMA = AvroRowDeserializationSchema(avro_schema_string=json.dumps(RECORD))


def parse(data: bytes) -> None:
    read(data, SCHEMA)
