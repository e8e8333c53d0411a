"""Serializers of confluent-kafka with its registry in memory: what they write and read, and who is to blame."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import UUID

import cloudpickle
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from holdfast.common import Row
from holdfast.datastream.connectors.kafka import ConfluentDeserialization, ConfluentSerialization
from holdfast.errors import ConfigurationError, StorageError

AVRO = """{"type": "record", "name": "Price", "fields": [
    {"name": "currency_code", "type": "string"}, {"name": "units", "type": "long"}]}"""
JSON = """{"title": "Price", "type": "object", "required": ["currency_code"],
    "properties": {"currency_code": {"type": "string"}, "units": {"type": "integer"}}}"""
PRICE = "currency_code string, units bigint"


def chain(length: int, *, twice: bool = False) -> list[tuple[str, Any]]:
    """Fields of records, each of which has the one before it inside, once or twice."""
    links: list[tuple[str, Any]] = [("f0", {"type": "record", "name": "A0", "fields": [{"name": "x", "type": "int"}]})]
    for position in range(1, length):
        inner = [{"name": name, "type": f"A{position - 1}"} for name in ("xy" if twice else "x")]
        links.append((f"f{position}", {"type": "record", "name": f"A{position}", "fields": inner}))
    return links


def _price_message() -> Any:
    """The class that protoc would make of `message Price { string currency_code = 1; int64 units = 2; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="price.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Price")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="currency_code", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="units", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Price"))


Price = _price_message()


def as_message(row: Any) -> Any:
    return Price(**row.as_dict())


def message_writer(registry: Any) -> Any:
    return ProtobufSerializer(Price, registry, {"use.deprecated.format": False})


def as_dict(row: Any, context: Any) -> Any:
    return row.as_dict()


@pytest.fixture
def registry() -> Any:
    """Confluent's own registry in memory, in this process."""
    return SchemaRegistryClient.new_client({"url": "mock://"})


def pair(registry: Any, kind: str) -> tuple[ConfluentSerialization, ConfluentDeserialization]:
    if kind == "avro":
        return (
            ConfluentSerialization(lambda: AvroSerializer(registry, AVRO, as_dict), "prices"),
            ConfluentDeserialization(lambda: AvroDeserializer(registry), PRICE, "prices"),
        )
    if kind == "json":
        return (
            ConfluentSerialization(lambda: JSONSerializer(JSON, registry, as_dict), "prices"),
            ConfluentDeserialization(lambda: JSONDeserializer(JSON, schema_registry_client=registry), PRICE, "prices"),
        )
    return (
        ConfluentSerialization(lambda: message_writer(registry), "prices", convert=as_message),
        ConfluentDeserialization(
            lambda: ProtobufDeserializer(Price, {"use.deprecated.format": False}, registry),
            PRICE,
            "prices",
            convert=lambda price: (price.currency_code, price.units),
        ),
    )


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_what_is_written_is_read_and_carries_the_id_of_its_schema(registry: Any, kind: str) -> None:
    writes, reads = pair(registry, kind)
    written = writes.serialize(Row(currency_code="CHF", units=3))
    assert written is not None and written[:5] == b"\0\0\0\0\1"
    read = reads.deserialize(written)
    assert (read.currency_code, read.units) == ("CHF", 3)


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_a_record_that_is_to_blame_is_told_from_a_registry(registry: Any, kind: str) -> None:
    writes, reads = pair(registry, kind)
    written = writes.serialize(Row(currency_code="CHF", units=3)) or b""
    for damaged in (b"no magic", written[:4], b"\0\0\0\0\x09" + written[5:]):
        with pytest.raises(Exception) as caught:
            reads.deserialize(damaged)
        assert not isinstance(caught.value, StorageError | ConfigurationError)
    if kind != "protobuf":
        with pytest.raises(Exception) as caught:
            writes.serialize(Row(currency_code=7, units=3))
        assert not isinstance(caught.value, StorageError | ConfigurationError)


def test_columns_are_found_by_their_names_and_what_is_missing_is_null(registry: Any) -> None:
    writes, _ = pair(registry, "avro")
    written = writes.serialize(Row(currency_code="CHF", units=3)) or b""
    reads = ConfluentDeserialization(lambda: AvroDeserializer(registry), "units int, colour string", "prices")
    assert tuple(reads.deserialize(written)) == (3, None)
    with pytest.raises(ValueError, match="of the declared type bigint"):
        ConfluentDeserialization(lambda: AvroDeserializer(registry), "currency_code bigint", "prices").deserialize(
            written
        )


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


TREE = record("Tree", ("inner", {"type": "array", "items": "Tree"}))


def register(registry: Any, schema: Any, *references: SchemaReference, subject: str = "others") -> bytes:
    """What a message of a schema begins with."""
    number = registry.register_schema(subject, Schema(json.dumps(schema), "AVRO", list(references)))
    return b"\0" + int(number).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("schema", "message", "reason"),
    [
        (TREE, b"\2" * 50_000, "'Tree' contains itself"),
        (record("All", *chain(2000)), b"\0" * 4000, "it is nested more than 100 times"),
        (record("All", *chain(60, twice=True)), b"\0", "it has more than 20000 parts"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\0", "'null' takes no bytes"),
        (
            record("All", ("n", {"type": "array", "items": record("Nil", ("n", "null"))})),
            b"\xfe\xff\0",
            "'Nil' takes no",
        ),
    ],
)
def test_a_message_with_an_unbounded_schema_is_rejected(
    registry: Any, schema: Any, message: bytes, reason: str
) -> None:
    """Without bounds, some kilobytes, or six bytes, end the process."""
    reads = ConfluentDeserialization(lambda: AvroDeserializer(registry), "i string", "prices")
    for _ in range(2):
        with pytest.raises(ValueError, match=f"its Avro schema is rejected: {reason}"):
            reads.deserialize(register(registry, schema) + message)


def test_a_schema_that_is_recursive_by_what_it_refers_to_is_refused(registry: Any) -> None:
    leaf, first = record("Node", ("n", "int")), SchemaReference("Node", "node", 1)
    register(registry, leaf, subject="node")
    register(registry, record("Wrap", ("node", "Node")), first, subject="wrap")
    node = record("Node", ("wraps", {"type": "array", "items": "Wrap"}))
    head = register(registry, node, SchemaReference("Wrap", "wrap", 1), subject="node")
    reads = ConfluentDeserialization(lambda: AvroDeserializer(registry), "i string", "prices")
    with pytest.raises(ValueError, match=r"itself inside it|does not match its schema"):
        reads.deserialize(head + b"\2" * 50_000)


def test_a_schema_that_uses_a_name_again_and_refers_to_another_one_is_read(registry: Any) -> None:
    register(registry, record("Node", ("n", "int")), subject="node")
    pair_of = record("Pair", ("a", "Node"), ("b", {"type": "array", "items": ["null", "Node"]}))
    head = register(registry, pair_of, SchemaReference("Node", "node", 1))
    reads = ConfluentDeserialization(
        lambda: AvroDeserializer(registry), "n int, m int", "prices", convert=lambda two: (two["a"]["n"], len(two["b"]))
    )
    assert tuple(reads.deserialize(head + b"\6\2\0\0")) == (3, 1)


def test_a_process_makes_one_and_keeps_it_from_epoch_to_epoch() -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(1)
        return lambda value, context: f"{context.topic} {context.field} {value}".encode()

    schema = ConfluentSerialization(make, "prices", is_key=True)
    for _ in range(3):
        again = pickle.loads(cloudpickle.dumps(schema)) if made else schema
        again.open()
        assert again.serialize("x") == b"prices key x"
    assert len(made) == 1


class Answers(BaseHTTPRequestHandler):
    """A registry that gives one documented error to whatever it is asked for."""

    status, code = 409, 409
    refused = ("GET", "POST")

    def do_POST(self) -> None:
        self._answer(b'{"id": 1, "schema": "{}"}')

    def do_GET(self) -> None:
        self._answer(b"[]")

    def _answer(self, good: bytes) -> None:
        is_refused = self.command in self.refused
        body = b'{"error_code": %d, "message": "no"}' % self.code if is_refused else good
        self.send_response(self.status if is_refused else 200)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.refused == ("POST",) == (self.command,):
            type(self).refused = ()

    def log_message(self, format: str, *arguments: Any) -> None:
        return


@pytest.fixture
def answering() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "writing", "reading"),
    [
        (409, 409, ConfigurationError, ConfigurationError),
        (401, 401, ConfigurationError, ConfigurationError),
        (404, 40403, ConfigurationError, ValueError),
        (429, 429, StorageError, StorageError),
        (503, 50301, StorageError, StorageError),
    ],
)
def test_a_registry_that_refuses_or_is_away_puts_nothing_aside(
    answering: str,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: int,
    writing: type[Exception],
    reading: type[Exception],
) -> None:
    monkeypatch.setattr(Answers, "status", status)
    monkeypatch.setattr(Answers, "code", code)

    def client() -> Any:
        return SchemaRegistryClient({"url": answering, "max.retries": 0})

    with pytest.raises(writing):
        ConfluentSerialization(lambda: AvroSerializer(client(), AVRO, as_dict), "prices").serialize(
            Row(currency_code="CHF", units=3)
        )
    with pytest.raises(reading):
        ConfluentDeserialization(lambda: AvroDeserializer(client()), PRICE, "prices").deserialize(b"\0\0\0\0\1\2\2")


def test_two_tasks_may_register_one_schema_at_the_same_time(answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some registries tell one of them that the subject is there already, and answer when they are asked again."""
    monkeypatch.setattr(Answers, "refused", ("POST",))
    client = SchemaRegistryClient({"url": answering, "max.retries": 0})
    schema = ConfluentSerialization(lambda: AvroSerializer(client, AVRO, as_dict), "prices")
    assert schema.serialize(Row(currency_code="CHF", units=3))


def test_nobody_at_the_address_is_a_registry_that_is_away() -> None:
    def make() -> Any:
        return AvroDeserializer(SchemaRegistryClient({"url": "http://127.0.0.1:1", "max.retries": 0}))

    with pytest.raises(StorageError, match="The schema registry for the topic 'prices' does not answer"):
        ConfluentDeserialization(make, PRICE, "prices").deserialize(b"\0\0\0\0\1\2\2")
    with pytest.raises(ConfigurationError, match="could not be created"):
        ConfluentSerialization(lambda: AvroSerializer(None, "no schema"), "prices").serialize(Row())


def test_logical_types_of_avro_come_back_by_a_registry(registry: Any) -> None:
    uuid_text = {"type": "string", "logicalType": "uuid"}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    kinds: dict[str, tuple[Any, str, Any]] = {
        "day": ({"type": "int", "logicalType": "date"}, "date", date(1969, 12, 31)),
        "clock": ({"type": "long", "logicalType": "time-micros"}, "time", time(7, 30)),
        "at": ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", datetime(1969, 12, 31, 1, tzinfo=UTC)),
        "local": ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz", datetime(2026, 11, 29)),
        "nanos": ({"type": "long", "logicalType": "timestamp-nanos"}, "bigint", -1500),
        "price": (price, "decimal(9,2)", Decimal("-0.01")),
        "id": (uuid_text, "string", str(UUID(int=5))),
        "ids": ({"type": "array", "items": ["null", uuid_text]}, "array<string>", [str(UUID(int=6)), None]),
        "raw": ({"type": "fixed", "name": "Raw", "size": 16, "logicalType": "uuid"}, "binary", UUID(int=5).bytes),
    }
    fields = [{"name": name, "type": kind} for name, (kind, _, _) in kinds.items()]
    schema = json.dumps({"type": "record", "name": "All", "fields": fields})
    writes = ConfluentSerialization(lambda: AvroSerializer(registry, schema, as_dict), "all")
    columns = ", ".join(f"{name} {column}" for name, (_, column, _) in kinds.items())
    reads = ConfluentDeserialization(lambda: AvroDeserializer(registry), columns, "all")
    row = Row(**{name: value for name, (_, _, value) in kinds.items()})
    message = writes.serialize(row)
    assert message is not None
    assert [reads.deserialize(message) for _ in range(2)] == [row, row]
    wrong = ConfluentDeserialization(lambda: AvroDeserializer(registry), "id bigint", "all")
    for _ in range(2):
        with pytest.raises(ValueError, match="bigint"):
            wrong.deserialize(message)
