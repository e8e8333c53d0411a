"""The examples of PyFlink's wheel that need Kafka, with `pyflink` replaced by `holdfast` in their imports.

Beside that the broker's address is another one: they expect it at localhost:9092. What they read has no end there; here
the option `execution.trigger` is given from outside, as `holdfast run -D` does, so that they end.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Configuration
from holdfast.datastream.environment.launch import program_overrides
from holdfast.testing import KafkaServer
from tests.spark.test_pyflink_examples import example, printed, wheel
from tests.stories.kafka import make_topic, messages, running_broker

__all__ = ["wheel"]

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(600)]

GREETINGS = sorted(f"+I[{number},{'hi' if number % 2 else 'hello'}]" for number in (1, 2, 3, 4, 5, 6, 6))
COUNTRIES = [f'{{"id": {at}, "country": "{name}"}}' for at, name in enumerate(("USA", "Canada", "Germany"), 1)]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


def run(
    wheel: zipfile.ZipFile, name: str, broker: KafkaServer, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> list[str]:
    """The lines that an example prints."""
    text = example(wheel, f"connectors/{name}.py").replace("localhost:9092", broker.bootstrap_servers)
    with program_overrides(Configuration({"execution.trigger": "available-now"})):
        return printed(text, place, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("name", "topic", "expected"),
    [
        ("kafka_json_format", "test_json_topic", GREETINGS),
        ("kafka_csv_format", "test_csv_topic", GREETINGS),
        ("kafka_avro_format", "test_avro_topic", GREETINGS),
        ("kafka_bytearray_format", "test_bytearray_topic", COUNTRIES),
    ],
)
def test_an_example_reads_its_own_output(
    spark: Any,
    wheel: zipfile.ZipFile,
    broker: KafkaServer,
    name: str,
    topic: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_topic(broker.bootstrap_servers, topic)
    lines = run(wheel, name, broker, tmp_path, monkeypatch, capsys)
    assert sorted(line.partition("> ")[2] or line for line in lines if line[-1:] in "]}") == sorted(expected)


def test_fields_of_rows_are_key_and_value(
    spark: Any,
    wheel: zipfile.ZipFile,
    broker: KafkaServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_topic(broker.bootstrap_servers, "row-extractor-example", partitions=3)
    run(wheel, "kafka_row_field_extractor_example", broker, tmp_path, monkeypatch, capsys)
    found: list[Any] = messages(broker.bootstrap_servers, "row-extractor-example")
    assert sorted((record.key(), record.value()) for record in found) == [
        (b"user-001", b'{"type": "add_to_cart", "item": "mouse", "quantity": 2}'),
        (b"user-001", b'{"type": "purchase", "item": "laptop", "price": 999.99}'),
        (b"user-002", b'{"type": "view", "item": "phone", "timestamp": "2024-01-07T10:30:00"}'),
        (b"user-003", b'{"type": "purchase", "item": "keyboard", "price": 79.99}'),
    ]
