"""A producer whose transaction has failed: the error names the record that the cluster rejected."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.datastream.connectors.kafka.client import KafkaConnection
from holdfast.datastream.connectors.kafka.kafka_committer import RecordRejectedError, ShardProducer
from holdfast.datastream.connectors.kafka.records import KafkaRecord

RECORDS = [KafkaRecord("words", None, b"kelp", (), -1, -1)] * 2


class LateReport:
    """A client whose transaction fails at the second record, before it reports that the first one was rejected."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._report = settings["on_delivery"]
        self._waiting = 0

    def init_transactions(self, timeout: float) -> None: ...

    def produce(self, *arguments: Any, **named: Any) -> None:
        if self._waiting:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._waiting += 1

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        self._waiting = 0
        self._report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), Message())
        return 0

    def commit_transaction(self, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    def __len__(self) -> int:
        return self._waiting


class Message:
    def topic(self) -> str:
        return "words"


def test_a_rejected_record_is_named_even_if_its_report_arrives_after_the_transaction_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KafkaConnection, "create_producer", lambda self, settings: LateReport(settings))
    producer = ShardProducer(KafkaConnection({"bootstrap.servers": "localhost:1"}), "holdfast-1-out-0")
    with pytest.raises(RecordRejectedError, match="'words'") as caught:
        producer.send(RECORDS)
    assert caught.value.is_too_large, "so the next attempt sends smaller batches"
