"""A message in the form of a schema registry: a zero, the number of a schema, and what the schema describes.

Who writes messages chooses the number among the schemas that are registered. One of Avro is recursive: its reader has
no bound then, so it must not get a message of it.
"""

import base64
import json
from functools import cache
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from holdfast.datastream.connectors.kafka import ConfluentDeserialization
from holdfast.errors import HoldfastError
from tests.fuzz.message import read

LEAF: dict[str, Any] = {
    "type": "record",
    "name": "Leaf",
    "fields": [{"name": "word", "type": "string"}, {"name": "n", "type": ["null", "long"]}],
}
TREE: dict[str, Any] = {
    "type": "record",
    "name": "Tree",
    "fields": [
        *LEAF["fields"],
        {"name": "inner", "type": {"type": "array", "items": LEAF}},
    ],
}
ENDLESS: dict[str, Any] = {
    "type": "record",
    "name": "Endless",
    "fields": [{"name": "inner", "type": {"type": "array", "items": "Endless"}}],
}
PRICE = {"title": "Price", "type": "object", "properties": {"word": {"type": "string"}, "n": {"type": "integer"}}}
FILE = descriptor_pb2.FileDescriptorProto(name="tree.proto", package="fuzz", syntax="proto3")


@cache
def tree() -> Any:
    """The class of `message Tree { string word = 1; int64 n = 2; repeated Tree inner = 3; }`."""
    kinds, message = descriptor_pb2.FieldDescriptorProto, FILE.message_type.add(name="Tree")
    message.field.add(name="word", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="n", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    inner = message.field.add(name="inner", number=3, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED)
    inner.type_name = ".fuzz.Tree"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(FILE)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fuzz.Tree"))


@cache
def registry() -> Any:
    """Confluent's own registry in memory: schemas 1 and 4 are of Avro, 2 of JSON, 3 of Protobuf."""
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    client.register_schema("trees-value", Schema(json.dumps(TREE), "AVRO"))
    client.register_schema("prices-value", Schema(json.dumps(PRICE), "JSON"))
    assert tree().DESCRIPTOR.file.name == FILE.name
    described = base64.b64encode(FILE.SerializeToString()).decode()
    client.register_schema("messages-value", Schema(described, "PROTOBUF"))
    client.register_schema("others-value", Schema(json.dumps(ENDLESS), "AVRO"))
    return client


@cache
def schemas() -> tuple[ConfluentDeserialization, ...]:
    """What reads each form."""
    rows = "word string, n bigint"
    return (
        ConfluentDeserialization(lambda: AvroDeserializer(registry()), rows, "prices"),
        ConfluentDeserialization(
            lambda: JSONDeserializer(json.dumps(PRICE), schema_registry_client=registry()), rows, "prices"
        ),
        ConfluentDeserialization(
            lambda: ProtobufDeserializer(tree(), {"use.deprecated.format": False}, registry()),
            rows,
            "prices",
            convert=lambda value: (value.word, value.n),
        ),
    )


def parse(data: bytes) -> None:
    refused = []
    for schema in schemas():
        try:
            read(data, schema)
        except HoldfastError as error:
            refused.append(error)
    if len(refused) == len(schemas()):
        raise refused[0]
