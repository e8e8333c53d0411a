"""A real-time job over topics of a real broker, without a JVM of Spark: each record is counted once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.datastream.connectors.kafka.topic_ranges import COLUMNS
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing import KafkaServer
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.kafka import make_topic, produce, running_broker
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS, RESTARTS, Count, Failing, Rows, each_once, until

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

PATIENCE = 120


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


def start(broker: KafkaServer, root: Path, found: dict[int, list[Any]], fails_at: int) -> JobClient:
    builder = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topics("numbers")
    program = RealTimeProgram()
    records = program.source("topic", builder.build().split_source(), COLUMNS)
    pairs = records.map(lambda record: (int(record.value) % KEYS, int(record.value)), "key bigint, n bigint").uid(
        "pairs"
    )
    checked = pairs.map(Failing(root / f"failed-{fails_at}", fails_at), "key bigint, n bigint").uid("checked")

    def take(frame: Any, epoch: int) -> None:
        found[epoch] = frame.to_pylist()  # an epoch may come again after a failure

    counts = checked.key_by("key").process(Count(), "key bigint, count bigint").uid("count")
    counts.for_each_epoch(take).uid("out")
    return JobClient(program.master(root / "checkpoints", RESTARTS))


def test_unread_records_are_counted_while_the_job_is_slow(broker: KafkaServer, tmp_path: Path) -> None:
    make_topic(broker.bootstrap_servers, "backlog", partitions=2)
    for partition in range(2):
        produce(broker.bootstrap_servers, "backlog", *map(str, range(1500)), partition=partition)
    builder = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topics("backlog")
    program, found = RealTimeProgram(), Rows()
    records = program.source("topic", builder.build().split_source(), COLUMNS)
    slow = records.map(slowly, "bigint").uid("slow")
    slow.map(lambda n: (n,), "n bigint").uid("rows").for_each_epoch(found.write).uid("out")
    client = JobClient(program.master(tmp_path))

    def behind() -> Any:
        sources = (client.last_progress or {}).get("sources")
        return sources[0]["behind"] if sources else None

    until(lambda: (waiting := behind()) and 500 < waiting <= 3000, PATIENCE)
    until(lambda: len(found) == 3000 and behind() == 0, PATIENCE)
    client.stop()
    client.await_termination()


def slowly(record: Any) -> int:
    time.sleep(0.002)
    return int(record.value)


def rows_of(found: dict[int, list[Any]]) -> list[Any]:
    return [row for rows in list(found.values()) for row in rows]


def test_each_record_is_counted_once_over_failures_and_restarts(broker: KafkaServer, tmp_path: Path) -> None:
    make_topic(broker.bootstrap_servers, "numbers", partitions=3)
    found: dict[int, list[Any]] = {}
    for run in range(2):
        client = start(broker, tmp_path, found, fails_at=1000 * run + 700)
        for part in range(10):
            begin = 1000 * run + 100 * part
            values = [str(n) for n in range(begin, begin + 100)]
            produce(broker.bootstrap_servers, "numbers", *values, partition=part % 3)
        until(lambda run=run: len(rows_of(found)) >= 1000 * (run + 1), PATIENCE)
        client.stop()
        client.await_termination()
        each_once(rows_of(found), 1000 * (run + 1))
        assert (tmp_path / f"failed-{1000 * run + 700}").exists()
