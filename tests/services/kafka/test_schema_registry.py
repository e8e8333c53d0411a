"""Records with the schemas of a real registry, through a real broker, read by confluent-kafka's own deserializers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from holdfast.datastream import OutputTag
from holdfast.datastream.connectors.kafka import ConfluentSerialization, KafkaRecordSerializationSchema, KafkaSink
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.testing import EpochProgram, KafkaServer
from tests.stories.kafka import make_topic, messages, running_broker
from tests.stories.registry import SchemaRegistry, running_registry
from tests.unit.datastream.test_confluent_serialization import (
    AVRO,
    JSON,
    PRICE,
    Price,
    as_dict,
    as_message,
    message_writer,
)

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

NEW_FORMAT = {"use.deprecated.format": False}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    yield from running_registry()


def run(broker: KafkaServer, topic: str, make: Any, place: Path, *prices: Any, **settings: Any) -> list[Any]:
    """Writes prices, and what the sink refused."""
    record = KafkaRecordSerializationSchema.builder().set_topic(topic)
    record.set_value_serialization_schema(ConfluentSerialization(make, topic, **settings))
    sink = KafkaSink.builder().set_bootstrap_servers(broker.bootstrap_servers).set_record_serializer(record.build())
    refused: list[Any] = []
    program = EpochProgram()
    tag = OutputTag("refused")
    out = program.source("in", PRICE).sink_to(sink.build()).uid("out").set_dead_letter_output(tag)
    out.get_side_output(tag).for_each_epoch(lambda rows, epoch: refused.extend(rows.to_pylist())).uid("refused")
    program.run(place, [{"in": [price]} for price in prices], source_tasks=1)
    return refused


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_readers_of_every_format_find_the_schema_by_its_id(
    broker: KafkaServer, registry: SchemaRegistry, tmp_path: Path, kind: str
) -> None:
    topic, url = f"prices-{kind}", registry.url
    make_topic(broker.bootstrap_servers, topic, partitions=1)

    def client() -> SchemaRegistryClient:
        return SchemaRegistryClient({"url": url})

    writers: dict[str, Any] = {
        "avro": lambda: AvroSerializer(client(), AVRO, as_dict),
        "json": lambda: JSONSerializer(JSON, client(), as_dict),
        "protobuf": lambda: message_writer(client()),
    }
    readers: dict[str, Any] = {
        "avro": lambda: AvroDeserializer(client()),
        "json": lambda: JSONDeserializer(JSON, schema_registry_client=client()),
        "protobuf": lambda: ProtobufDeserializer(Price, NEW_FORMAT, client()),
    }
    settings = {"convert": as_message} if kind == "protobuf" else {}
    assert run(broker, topic, writers[kind], tmp_path, ("CHF", 3), ("EUR", 4), **settings) == []
    assert client().get_subjects() and f"{topic}-value" in client().get_subjects()
    read, context = readers[kind](), SerializationContext(topic, MessageField.VALUE)
    found = [read(message.value(), context) for message in messages(broker.bootstrap_servers, topic)]
    if kind == "protobuf":
        found = [{"currency_code": price.currency_code, "units": price.units} for price in found]
    assert found == [{"currency_code": "CHF", "units": 3}, {"currency_code": "EUR", "units": 4}]


def test_a_row_that_does_not_fit_its_schema_goes_aside_and_a_schema_that_does_not_fit_its_subject_stops_the_job(
    broker: KafkaServer, registry: SchemaRegistry, tmp_path: Path
) -> None:
    make_topic(broker.bootstrap_servers, "strict", partitions=1)
    url = registry.url

    def writer(schema: str) -> Any:
        return lambda: AvroSerializer(SchemaRegistryClient({"url": url}), schema, as_dict)

    [letter] = run(broker, "strict", writer(AVRO), tmp_path / "first", ("CHF", 3), (None, 4), ("EUR", 5))
    assert letter["row"] == {"currency_code": None, "units": 4} and letter["epoch"] == 2
    assert len(messages(broker.bootstrap_servers, "strict")) == 2

    SchemaRegistryClient({"url": url}).set_compatibility("strict-value", "BACKWARD")
    incompatible = AVRO.replace('"name": "units", "type": "long"', '"name": "colour", "type": "string"')
    with pytest.raises((JobExecutionError, ConfigurationError), match="The schema registry rejects"):
        run(broker, "strict", writer(incompatible), tmp_path / "second", ("CHF", 3))
    assert len(messages(broker.bootstrap_servers, "strict")) == 2
