"""What one engine of `latency.py` is to do, and the paced events that it reads: files, or records of a topic."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEYS = 10_000


@dataclass(frozen=True)
class LatencyRun:
    """One run of one engine.

    Attributes:
        engine: Its name.
        source: The directory of files that it reads, or a topic.
        output: The directory that its files go to.
        workspace: Its checkpoints.
        servers: Of Kafka; empty if it reads files.
        connector: Version of Spark's own Kafka source; empty if there is none.
        times: The directory for what `stopwatch` sees; empty if it does not look.
    """

    engine: str
    source: str
    output: str
    workspace: str
    servers: str = ""
    connector: str = ""
    times: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> LatencyRun:
        return LatencyRun(**json.loads(text))


class Pacer(threading.Thread, ABC):
    """Hands out the events of a short time when it is over, again and again until it is stopped.

    Args:
        rate: Events a second.
        every: Seconds between two times.

    Attributes:
        late: How many seconds it was late at most.
    """

    def __init__(self, rate: int, every: float) -> None:
        super().__init__(daemon=True)
        self._every = every
        self._rows = max(1, round(rate * every))
        self._random = np.random.default_rng(7)
        self._stopped = threading.Event()
        self.late = 0.0

    def run(self) -> None:
        due = time.time() + self._every
        number = 0
        while not self._stopped.wait(max(0.0, due - time.time())):
            since = due - self._every + self._every * np.arange(self._rows) / self._rows
            keys = [f"key-{key:06d}" for key in self._random.integers(0, KEYS, self._rows).tolist()]
            self.hand_out(number, keys, (since * 1e6).astype(np.int64))
            self.late = max(self.late, time.time() - due)
            number += 1
            due += self._every

    @abstractmethod
    def hand_out(self, number: int, keys: Sequence[str], created: np.ndarray) -> None:
        """Makes events readable."""

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class FilePacer(Pacer):
    """A file every 50 ms."""

    EVERY = 0.05

    def __init__(self, directory: Path, rate: int) -> None:
        super().__init__(rate, self.EVERY)
        self._directory = directory

    def hand_out(self, number: int, keys: Sequence[str], created: np.ndarray) -> None:
        unfinished = self._directory.parent / "unfinished"
        pq.write_table(pa.table({"key": keys, "created": created}), unfinished)
        unfinished.rename(self._directory / f"{number:08d}.parquet")


class TopicPacer(Pacer):
    """Records every 10 ms, JSON objects."""

    EVERY = 0.01
    PARTITIONS = 2
    PATIENCE = 60

    def __init__(self, servers: str, topic: str, rate: int) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        super().__init__(rate, self.EVERY)
        self._topic = topic
        admin = AdminClient({"bootstrap.servers": servers})  # it has to live until the topic is there
        admin.create_topics([NewTopic(topic, self.PARTITIONS)])[topic].result(self.PATIENCE)
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})

    def hand_out(self, number: int, keys: Sequence[str], created: np.ndarray) -> None:
        for key, at in zip(keys, created.tolist(), strict=True):
            self._producer.produce(self._topic, f'{{"key":"{key}","created":{at}}}', key)
        self._producer.poll(0)

    def stop(self) -> None:
        super().stop()
        self._producer.flush(self.PATIENCE)
