"""From Kafka to Kafka on Spark: the driver is killed in a transaction, the broker too, and each count is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast.testing import KafkaCluster, KafkaServer
from tests.stories.kafka import PATIENCE, make_topic, messages, require_jars, running_broker

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "examples" / "kafka_counts.py")
WORDS = [word for n in range(90) for word in ("kelp", "rock", "kelp", f"w{n % 7}")]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    yield from running_broker()


def start(servers: str, place: Path, transaction: int = 0) -> int:
    arguments = [PROGRAM, servers, "words", "counts", str(place / "job")]
    if transaction:
        arguments = ["-m", "tests.programs.killed_in_transaction", str(transaction), *arguments]
    with (place / "log").open("ab") as log:
        return subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, stdout=log, stderr=log, check=False, env={**os.environ}
        ).returncode


def produce(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number, word in enumerate(WORDS):
        producer.produce("words", word, partition=number % 2)
    assert producer.flush(PATIENCE) == 0


def require_each_count_once(servers: str) -> None:
    seen = sorted((message.key().decode(), int(message.value())) for message in messages(servers, "counts"))
    assert seen == sorted((word, n) for word in set(WORDS) for n in range(1, WORDS.count(word) + 1))


def test_a_driver_killed_in_a_transaction_and_then_a_broker_leave_each_count_once(
    broker: KafkaServer, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    make_topic(servers, "words")
    make_topic(servers, "counts")
    produce(servers)
    assert start(servers, tmp_path, transaction=3) == -signal.SIGKILL, (tmp_path / "log").read_text()
    broker.restart()
    assert start(servers, tmp_path) == 0, (tmp_path / "log").read_text()
    require_each_count_once(servers)
    everything = len(messages(servers, "counts", "read_uncommitted"))
    assert everything > len(WORDS), "what the driver had sent when it died was aborted, and is there for others"


@pytest.mark.soak
def test_killing_one_of_three_brokers_at_a_time_leaves_each_count_once(tmp_path: Path) -> None:
    require_jars()
    with KafkaCluster() as cluster:
        servers = cluster.bootstrap_servers
        make_topic(servers, "words", copies=3)
        make_topic(servers, "counts", copies=3)
        produce(servers)
        # The topic of commits is made while all three are there. One that is made while a broker is away has two
        # copies, of which both must be there for a commit: the job then waits when one of these dies.
        assert start(servers, tmp_path, transaction=1) == -signal.SIGKILL, (tmp_path / "log").read_text()
        for transaction, victim in ((2, 0), (4, 1)):
            cluster.servers[victim].kill()
            assert start(servers, tmp_path, transaction) == -signal.SIGKILL, (tmp_path / "log").read_text()
            cluster.servers[victim].start()
        assert start(servers, tmp_path) == 0, (tmp_path / "log").read_text()
        require_each_count_once(servers)
