"""What a checkpoint says that a KafkaSink has staged: records of one file of the job go out, or none."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import cache
from typing import Any

import pyarrow as pa

from holdfast.datastream.connectors.kafka.client import KafkaConnection
from holdfast.datastream.connectors.kafka.kafka_committer import KafkaCommitter
from holdfast.datastream.connectors.kafka.markers import MarkerPartition, marker_key, marker_value
from holdfast.datastream.connectors.kafka.records import _SCHEMA, KafkaRecord
from tests.fuzz.document import directory
from tests.fuzz.output import STAGED_NAME, commit, committable_of, context, stage

ROOT = directory() / "kafka"
NAME = f"{STAGED_NAME}.records"


class Cluster:
    """Takes the part of producers, and of a topic of markers that has none yet."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def send(self, records: Iterable[KafkaRecord]) -> None:
        self.topics |= {record.topic for record in records}

    def send_epoch(
        self, records: Iterable[KafkaRecord], shard: Any, epoch: int, names: Any, place: MarkerPartition
    ) -> None:
        self.send(records)
        assert (
            marker_key(shard)
            and marker_value(epoch, "id", names)
            and place == MarkerPartition.from_json(place.to_json())
        )

    def commit(self) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def last_epoch(self, shard: Any) -> None:
        hash(shard)

    def record(self, shard: Any, epoch: int, names: Any) -> None:
        hash(shard)


class Committer(KafkaCommitter):
    """The committer as it is, but for the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        connection = KafkaConnection({"bootstrap.servers": "nowhere:9092"})
        super().__init__(connection, context("kafka"), None, "holdfast")
        self.cluster: Any = cluster
        self._plain._producer = self.cluster

    def _producer(self, transactional_id: str) -> Any:
        assert type(transactional_id) is str
        return self.cluster

    def _read(self, place: MarkerPartition) -> Any:
        return self.cluster


def records(topic: str) -> pa.Table:
    """Records for a topic, as tasks stage them."""
    record = {"topic": topic, "key": b"k", "value": b"v", "headers": [{"name": "h", "value": b"x"}]}
    return pa.Table.from_pylist([{**record, "partition": -1, "timestamp": -1}], schema=_SCHEMA)


@cache
def staged() -> None:
    """A file in the directory of the job, and one beside it that is somebody else's."""
    shutil.rmtree(ROOT, ignore_errors=True)
    stage(ROOT / "staging" / NAME, records("mine"))
    stage(ROOT / NAME, records("others"))


def parse(data: bytes) -> None:
    staged()
    try:
        committable = committable_of(data)
    except (ValueError, RecursionError):
        return
    cluster = Cluster()
    try:
        commit(Committer(cluster), committable)
    finally:
        assert cluster.topics <= {"mine"}, "records of another file went out"
