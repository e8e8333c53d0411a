"""`KafkaSource` on Spark in a cluster that does not let everybody do everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from holdfast.common import WatermarkStrategy
from holdfast.common.serialization import SimpleStringSchema
from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.errors import ConfigurationError, JobExecutionError
from tests.stories import ledger
from tests.stories.kafka import make_topic, produce
from tests.stories.kafka_rights import ADA, Cluster, guarded_cluster

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(300)]

FOR_EVER = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "1 ms",
    "restart-strategy.identical-failures": "0",
    "restart-strategy.identical-unknown-failures": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    yield from guarded_cluster()


def run(spark: Any, cluster: Cluster, place: Path, **wrong: str) -> list[str]:
    """Reads as Ada what is there, and ends; what the output has then."""
    builder = KafkaSource.builder().set_bootstrap_servers(cluster.adas).set_topics("words").set_group_id("hers")
    for key, value in {**ADA, **wrong}.items():
        builder.set_property(key.replace("_", "."), value)
    built = builder.set_value_only_deserializer(SimpleStringSchema()).build()
    options = {"execution.trigger": "available-now", "execution.checkpointing.dir": str(place / "job"), **FOR_EVER}
    env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
    words = env.from_source(built, WatermarkStrategy.no_watermarks(), "words").uid("words")
    words.map(lambda word: (word,), "word string").uid("rows").sink_to(ParquetFileSink(place / "out")).uid("out")
    env.execute("words")
    return sorted(row[0] for row in ledger.read(place / "out"))


def test_a_missing_or_revoked_permission_fails_a_job_without_restarts_and_loses_nothing(
    spark: Any, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That the driver plans epochs needs one right, that tasks read them another; a group that it tells need not be."""

    def ends_with(words: str, **wrong: str) -> None:
        with pytest.raises((ConfigurationError, JobExecutionError)) as caught:
            run(spark, cluster, tmp_path, **wrong)
        error = caught.value.__cause__ if isinstance(caught.value, JobExecutionError) else caught.value
        assert isinstance(error, ConfigurationError) and words in str(error)

    make_topic(cluster.servers, "words", partitions=1)
    produce(cluster.servers, "words", "kelp")
    ends_with("SASL authentication error: Authentication failed: Invalid username or password", sasl_password="s3crets")
    ends_with("Describing the topics of Kafka failed: Broker: Topic authorization failed")
    cluster.grant(ResourceType.TOPIC, "words", AclOperation.DESCRIBE)
    ends_with("Reading 'words', partition 0, from 0 to 1 failed")
    cluster.grant(ResourceType.TOPIC, "words", AclOperation.READ)
    assert run(spark, cluster, tmp_path) == ["kelp"]
    assert "not committed to the group 'hers'" in caplog.text
    produce(cluster.servers, "words", "rock")
    cluster.deny(ResourceType.TOPIC, "words", AclOperation.READ)
    ends_with("They do not allow this user to do that: grant it.")
    cluster.take_back_denials()
    assert run(spark, cluster, tmp_path) == ["kelp", "rock"]
    assert "restarts in" not in caplog.text
