"""The contract of sinks over `KafkaSink`, on a real broker whose readers read what is committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
from holdfast.runtime.function.sink import Sink
from holdfast.testing import KafkaServer, SinkBackend, SinkContract
from tests.stories.kafka import make_topic, messages, running_broker

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


def word(row: Any) -> str:
    return str(row[0])


def both(row: Any) -> str:
    if row[1] is None:
        raise ValueError("there is no number")
    return json.dumps([row[0], row[1]])


class Topic(SinkBackend):
    """A topic of its own on the broker, behind a proxy that can be cut."""

    steps = 8

    def __init__(self, server: KafkaServer) -> None:
        self.direct = server.bootstrap_servers
        self.proxied = server.proxy.address
        self.topic = f"words-{next(numbers)}"
        self.marker_topic = f"commits-{self.topic}"
        self.server: KafkaServer | None = server
        make_topic(self.direct, self.topic)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "server": None}

    def new_sink(self) -> Sink:
        schema = (
            KafkaRecordSerializationSchema.builder()
            .set_topic(self.topic)
            .set_key_serialization_schema(word)
            .set_value_serialization_schema(both)
            .build()
        )
        return (
            KafkaSink.builder()
            .set_bootstrap_servers(self.proxied)
            .set_property("request.timeout.ms", 4000)
            .set_record_serializer(schema)
            .set_marker_topic(self.marker_topic)
            .build()
        )

    def rows(self) -> list[tuple[str, int]]:
        return [tuple(json.loads(message.value())) for message in messages(self.direct, self.topic)]

    def refused_row(self) -> tuple[str, None]:
        return "rock", None

    @contextmanager
    def away(self) -> Iterator[None]:
        assert self.server is not None
        self.server.proxy.cut()
        try:
            yield
        finally:
            self.server.proxy.mend()


class TestKafkaSink(SinkContract):
    @pytest.fixture
    def sink_backend(self, broker: KafkaServer) -> SinkBackend:
        return Topic(broker)
