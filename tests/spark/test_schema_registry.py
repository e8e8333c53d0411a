"""The example with a schema registry: Avro in, Avro out, and what is no such record in a topic of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from holdfast.testing import KafkaServer
from tests.stories.kafka import PATIENCE, make_topic, messages, running_broker
from tests.stories.registry import SchemaRegistry, running_registry

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
SALE = """{"type": "record", "name": "Sale", "fields": [
    {"name": "item", "type": "string"}, {"name": "n", "type": "long"}, {"name": "till", "type": "int"}]}"""


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    yield from running_registry()


def test_avro_in_and_out_and_what_is_none_is_kept(
    broker: KafkaServer, registry: SchemaRegistry, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    for topic in ("sales", "sold", "refused"):
        make_topic(servers, topic)
    client = SchemaRegistryClient({"url": registry.url})
    write, context = AvroSerializer(client, SALE), SerializationContext("sales", MessageField.VALUE)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(20):
        sale = {"item": ("kelp", "rock")[number % 2], "n": number, "till": 7}
        producer.produce("sales", write(sale, context), partition=number % 2)
    producer.produce("sales", b"no such record", partition=0)
    assert producer.flush(PATIENCE) == 0
    arguments = [servers, registry.url, "sales", "sold", "refused", str(tmp_path / "job")]
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "registry_counts.py"), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    read, counted = AvroDeserializer(client), SerializationContext("sold", MessageField.VALUE)
    counts = [read(message.value(), counted) for message in messages(servers, "sold")]
    last = {count["item"]: count["sold"] for count in sorted(counts, key=lambda count: count["sold"])}
    assert last == {"kelp": sum(range(0, 20, 2)), "rock": sum(range(1, 20, 2))}
    [letter] = messages(servers, "refused")
    assert letter.value().startswith(b"it does not")
    assert letter.value().endswith(b"nvalid magic byte")
