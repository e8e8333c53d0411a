"""Spark's own Kafka source, which needs a jar that there is not for every Spark: inputs keep their positions by uid."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.testing import KafkaServer
from tests.documentation import ROOT
from tests.spark.test_kafka_source import PATIENCE, produce
from tests.stories import ledger
from tests.stories.kafka import make_topic, running_broker

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.long, pytest.mark.timeout(900)]

JAR = (
    "https://repo1.maven.org/maven2/org/apache/spark/spark-sql-kafka-0-10_2.13/"
    f"{pyspark.__version__}/spark-sql-kafka-0-10_2.13-{pyspark.__version__}.pom"
)
IGNORING = "execution.state-recovery.ignore-unclaimed-state"


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    try:
        urllib.request.urlopen(JAR, timeout=30).close()
    except (urllib.error.HTTPError, OSError) as error:
        pytest.skip(f"there is no Kafka source for Spark {pyspark.__version__}: {error}")
    yield from running_broker()


class Job:
    """Runs of one job, each a program of its own.

    Attributes:
        place: Of its checkpoints and its output.
    """

    def __init__(self, broker: KafkaServer, place: Path) -> None:
        self._broker = broker
        self.place = place

    def run(self, *inputs: str, drop: bool = False, go_on: bool = False) -> subprocess.CompletedProcess[str]:
        """Reads what there is of some inputs, `UID=TOPIC`, and ends."""
        script = ROOT / "tests" / "programs" / "sparks_kafka_job.py"
        command = [sys.executable, "-c", "from holdfast.cli import main; main()", "run", *(["-n"] if drop else [])]
        given = [self._broker.bootstrap_servers, str(self.place), *inputs, *(["--go-on"] if go_on else [])]
        return subprocess.run(
            [*command, *(["-D", f"{IGNORING}=true"] if drop else []), str(script), "--", *given],
            capture_output=True,
            text=True,
            timeout=280,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            check=False,
        )

    def words(self) -> Counter[str]:
        """What the output has, and how often."""
        return Counter(row[0] for row in ledger.read(self.place / "out"))


def words(topic: str, count: int, start: int = 0) -> list[str]:
    return [f"{topic}-{number}" for number in range(start, start + count)]


def test_topics_are_united_in_any_order_and_can_be_added_and_removed(broker: KafkaServer, tmp_path: Path) -> None:
    for topic in ("a", "b", "c"):
        make_topic(broker.bootstrap_servers, topic)
        produce(broker, topic, words(topic, 100))
    job = Job(broker, tmp_path)
    expected = Counter(words("a", 100) + words("b", 100))
    ran = job.run("a=a", "b=b")
    assert (ran.returncode, job.words()) == (0, expected), ran.stderr[-3000:]
    ran = job.run("b=b", "a=a")
    assert (ran.returncode, job.words()) == (0, expected), ran.stderr[-3000:]
    ran = job.run("c=c", "b=b", "a=a")
    expected += Counter(words("c", 100))
    assert (ran.returncode, job.words()) == (0, expected), ran.stderr[-3000:]

    refused = job.run("c=c", "a=a")
    assert refused.returncode == 4 and "'b'" in refused.stderr, refused.stderr[-3000:]
    refused = job.run("a=a", "b=c", "c=b")
    assert refused.returncode == 4 and "'b'" in refused.stderr, refused.stderr[-3000:]
    assert "topic" in refused.stderr.lower() or "subscribe" in refused.stderr.lower()
    produce(broker, "a", words("a", 10, 100))
    ran = job.run("c=c", "a=a", drop=True)
    assert (ran.returncode, job.words()) == (0, expected + Counter(words("a", 10, 100))), ran.stderr[-3000:]


def test_deleted_records_fail_the_job_by_name(broker: KafkaServer, tmp_path: Path) -> None:
    make_topic(broker.bootstrap_servers, "gap", 1)
    produce(broker, "gap", words("gap", 10))
    job = Job(broker, tmp_path)
    assert job.run("gap=gap").returncode == 0
    produce(broker, "gap", words("gap", 10, 10))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for deleted in admin.delete_records([TopicPartition("gap", 0, 15)]).values():
        deleted.result(PATIENCE)
    ended = job.run("gap=gap")
    assert ended.returncode == 1 and "failOnDataLoss" in ended.stderr, ended.stderr[-3000:]
    assert ended.stderr.count("RESTARTING") <= 1, "what cannot get better is not tried again"
    assert job.words() == Counter(words("gap", 10))
    ran = job.run("gap=gap", go_on=True)
    assert (ran.returncode, job.words()) == (0, Counter(words("gap", 10) + words("gap", 5, 15))), ran.stderr[-3000:]
