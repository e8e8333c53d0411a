"""A topic that was just created: not all brokers know it, and its partitions have no leader for a moment."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.datastream.connectors.kafka.client import KafkaConnection
from holdfast.datastream.connectors.kafka.topic_ranges import TopicOffsets
from holdfast.errors import StorageError


class NewTopic:
    """An admin client whose first answers are errors."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    def poll(self, timeout: float) -> int:
        return 0

    def describe_cluster(self, **settings: Any) -> Future[Any]:
        return self._answer(None)

    def list_topics(self, timeout: float) -> None:
        """Here the client reads the metadata again."""

    def list_offsets(self, wanted: Any, **settings: Any) -> Any:
        code = self._codes.pop(0) if self._codes else None
        return {place: self._answer(code) for place in wanted}

    def _answer(self, code: int | None) -> Future[Any]:
        answer: Future[Any] = Future()
        if code is None:
            answer.set_result(SimpleNamespace(offset=7))
        else:
            answer.set_exception(KafkaException(KafkaError(code)))
        return answer


def offsets_of(admin: NewTopic, monkeypatch: pytest.MonkeyPatch) -> TopicOffsets:
    connection = KafkaConnection({"bootstrap.servers": "broker:9092", "request.timeout.ms": 5000})
    monkeypatch.setattr(connection, "create_admin", lambda: admin)
    return TopicOffsets(connection, reads_committed=True)


@pytest.mark.parametrize("code", [KafkaError._NOENT, KafkaError.LEADER_NOT_AVAILABLE])
def test_a_partition_without_a_leader_is_looked_for_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = offsets_of(NewTopic(code, code), monkeypatch)
    assert offsets.end_offsets([("new", 0)]) == {("new", 0): 7}


def test_another_error_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = offsets_of(NewTopic(KafkaError.INVALID_MSG), monkeypatch)
    with pytest.raises(StorageError, match="beginnings and ends"):
        offsets.end_offsets([("new", 0)])
