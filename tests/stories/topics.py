"""A real-time job without a JVM from topic to topic of a real broker, and what readers of its output see."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast.datastream.connectors.kafka import (
    DeliveryGuarantee,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from holdfast.datastream.connectors.kafka.topic_ranges import COLUMNS
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.kafka import make_topic, messages, produce
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS, Count

PARTITIONS = 2


class Topics:
    """A topic of numbers, and one with the count of each key: a count that is missing or repeated shows.

    Args:
        servers: The broker.
        name: Prefix of the topics.
        guarantee: How the job writes.
    """

    def __init__(self, servers: str, name: str, guarantee: DeliveryGuarantee) -> None:
        self.servers, self.name, self.guarantee = servers, name, guarantee
        self.numbers = 0

    def create(self) -> Topics:
        for name in ("in", "out"):
            make_topic(self.servers, f"{self.name}-{name}", PARTITIONS)
        return self

    def put(self, count: int) -> None:
        """Write the next numbers, half of them into each partition."""
        new = range(self.numbers, self.numbers + count)
        for partition in range(PARTITIONS):
            values = [str(n) for n in new if n % PARTITIONS == partition]
            produce(self.servers, f"{self.name}-in", *values, partition=partition)
        self.numbers += count

    def counts(self) -> list[tuple[int, int]]:
        """What a reader of committed records sees."""
        found: list[Any] = messages(self.servers, f"{self.name}-out")
        return sorted((key, count) for key, count in (json.loads(message.value()) for message in found))

    def expected(self) -> list[tuple[int, int]]:
        return sorted((n % KEYS, n // KEYS + 1) for n in range(self.numbers))

    def has_all(self) -> bool:
        return {*self.counts()} == {*self.expected()}

    def require(self) -> int:
        """Each count is there, and with exactly-once output it is there once; return how many are there again."""
        seen = self.counts()
        assert {*seen} == {*self.expected()}, "a count is missing, or nobody expects it"
        repeated = len(seen) - len({*seen})
        if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            assert not repeated, "a count was committed twice"
        return repeated

    def job(
        self,
        before: Callable[[Any], Any],
        *,
        count: Any = None,
        source: str = "",
        sink: str = "",
        timeout_ms: int = 20_000,
    ) -> RealTimeProgram:
        """Return the job.

        Args:
            before: Called with each element before the exchange.
            count: Counts behind it.
            source: Address by which sources reach the broker; the broker's own by default.
            sink: Address by which sinks reach it.
            timeout_ms: For how long sinks wait for an answer.
        """
        topic = KafkaSource.builder().set_bootstrap_servers(source or self.servers).set_topics(f"{self.name}-in")
        schema = KafkaRecordSerializationSchema.builder().set_topic(f"{self.name}-out")
        schema.set_key_serialization_schema(lambda row: str(row[0]))
        schema.set_value_serialization_schema(lambda row: json.dumps([row[0], row[1]]))
        writer = KafkaSink.builder().set_bootstrap_servers(sink or self.servers).set_record_serializer(schema.build())
        writer.set_delivery_guarantee(self.guarantee).set_marker_topic(f"commits-{self.name}")
        writer.set_property("request.timeout.ms", timeout_ms).set_property("reconnect.backoff.max.ms", 500)
        program = RealTimeProgram()
        records = program.source("topic", topic.build().split_source(), COLUMNS)
        pairs = records.map(lambda record: (int(record.value) % KEYS, int(record.value)), "key bigint, n bigint")
        checked = pairs.uid("pairs").map(before, "key bigint, n bigint").uid("checked")
        counts = checked.key_by("key").process(count or Count(), "key bigint, count bigint").uid("count")
        counts.sink_to(writer.build()).uid("out")
        return program
