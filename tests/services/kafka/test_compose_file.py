"""The broker of the Compose file, started with the settings that its image would be given; there is no Docker here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from holdfast.testing import KafkaServer
from tests.documentation import ROOT
from tests.stories.kafka import require_jars

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]

FILE = ROOT / "examples/payments/docker-compose.yaml"


def service() -> dict[str, Any]:
    [found] = yaml.safe_load(FILE.read_text())["services"].values()
    return found  # type: ignore[no-any-return]


def settings() -> dict[str, str]:
    """As the image makes `server.properties` of its environment."""
    environment = service()["environment"]
    return {name.removeprefix("KAFKA_").lower().replace("_", "."): str(environment[name]) for name in environment}


def test_the_port_that_is_shown_is_the_one_by_which_the_broker_names_itself() -> None:
    [port] = service()["ports"]
    assert port == "9092:9092"
    assert settings()["advertised.listeners"] == "PLAINTEXT://localhost:9092"
    assert "--broker localhost:9092" in FILE.read_text()


def test_a_broker_with_its_settings_takes_transactions(tmp_path: Path) -> None:
    require_jars()
    kafka = KafkaServer(tmp_path)
    ports = {"9092": str(kafka.port), "9093": kafka.controller.rpartition(":")[2]}
    given = settings()
    for shown, free in ports.items():
        given = {name: value.replace(f":{shown}", f":{free}") for name, value in given.items()}
    # What a broker takes where nothing is said, as there.
    kafka._settings = {**given, "inter.broker.listener.name": "PLAINTEXT"}
    with kafka:
        written = (tmp_path / "server.properties").read_text().splitlines()
        assert {f"{name}={value}" for name, value in given.items()} <= set(written)
        producer = Producer({"bootstrap.servers": f"localhost:{kafka.port}", "transactional.id": "t"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("payments", b"one")
        producer.commit_transaction(60)
        where = {"bootstrap.servers": f"localhost:{kafka.port}", "isolation.level": "read_committed", "group.id": "g"}
        consumer = Consumer({**where, "auto.offset.reset": "earliest"})
        consumer.subscribe(["payments"])
        try:
            record = consumer.poll(60)
        finally:
            consumer.close()
    assert record is not None and record.value() == b"one"
