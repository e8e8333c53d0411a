"""The events of `realtime.py`, sent at a rate: records of a topic, or files.

    python -m benchmarks.harness.realtime_traffic RUN_AS_JSON

It sends a few events a second until it reads the line `go`, and then the rate of the run, until its standard input
ends. Then it prints how many events of the rate it has sent, and by how much it was late at most since the line
`measure`.

The creation time of an event in a topic is the moment when it is due, not when the program gets to it. So a machine
that is too busy to send in time shows in the latencies. All events of a file are created when the file is written.
"""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.realtime_run import PARALLELISM, RealTimeRun, input_ended

FEW: Final = 100
"""Events a second until the line `go`."""

FILE_SECONDS: Final = 0.1
_TOPIC_SECONDS: Final = 0.001
_DRAWN: Final = 1 << 20
_PATIENCE: Final = 60


class Traffic(ABC):
    """Sends events that are due, again and again.

    Args:
        run: The measurement.
        pause: Seconds between two times.

    Attributes:
        sent: Events at the current rate.
        late: Seconds by which an event was late at most.
    """

    def __init__(self, run: RealTimeRun, pause: float) -> None:
        self._keys = np.random.default_rng(7).integers(0, run.keys, _DRAWN).tolist()
        self._pause = pause
        self._number = 0
        self._rate = FEW
        self._wanted = FEW
        self._full = run.rate
        self._begun = 0.0
        self.sent = 0
        self.late = 0.0

    def on_line(self, line: str) -> None:
        if line == "go":
            self._wanted = self._full
        elif line == "measure":
            self.late = 0.0

    def run(self) -> None:
        is_over = input_ended(self.on_line)
        self._begun = time.time()
        while not is_over.wait(self._pause):
            now = time.time()
            if self._wanted != self._rate:
                self._rate, self._begun, self.sent = self._wanted, now, 0
            due = int((now - self._begun) * self._rate)
            if due > self.sent:
                self.late = max(self.late, now - self._begun - self.sent / self._rate)
                self.send(due - self.sent)
                self.sent = due
        self.close()

    def created(self, place: int) -> int:
        """Return when one of the next events is due, in microseconds since 1970."""
        return int((self._begun + (self.sent + place) / self._rate) * 1e6)

    def next_key(self) -> int:
        self._number += 1
        return self._keys[self._number % _DRAWN]

    @abstractmethod
    def send(self, events: int) -> None:
        """Send the next events."""

    def close(self) -> None:  # noqa: B027 - files are there when they are sent
        """Wait until all events are sent."""


class TopicTraffic(Traffic):
    """Records with a JSON object, every millisecond. A key is always in the same partition."""

    def __init__(self, run: RealTimeRun) -> None:
        from confluent_kafka import Producer

        super().__init__(run, _TOPIC_SECONDS)
        self._topic = run.source
        self._producer = Producer(
            {
                "bootstrap.servers": run.servers,
                "linger.ms": 1,
                "queue.buffering.max.messages": 2_000_000,
                "log_level": 3,
            }
        )

    def send(self, events: int) -> None:
        produce, topic = self._producer.produce, self._topic
        for place in range(events):
            key = self.next_key()
            value = b'{"key":%d,"created":%d}' % (key, self.created(place))
            while True:
                try:
                    produce(topic, value, partition=key % PARALLELISM)
                    break
                except BufferError:  # the queue is full
                    self._producer.poll(0.01)
        self._producer.poll(0)

    def close(self) -> None:
        self._producer.flush(_PATIENCE)


class FileTraffic(Traffic):
    """A file of JSON lines every 100 ms."""

    def __init__(self, run: RealTimeRun) -> None:
        super().__init__(run, FILE_SECONDS)
        self._directory = Path(run.source)
        self._files = 0

    def send(self, events: int) -> None:
        now = int(time.time() * 1e6)
        lines = b"".join(b'{"key":%d,"created":%d}\n' % (self.next_key(), now) for _ in range(events))
        unfinished = self._directory.parent / "unfinished"
        unfinished.write_bytes(lines)
        unfinished.rename(self._directory / f"{self._files:09d}.json")
        self._files += 1


def main() -> None:
    run = RealTimeRun.from_json(sys.argv[1])
    traffic = TopicTraffic(run) if run.has_topics else FileTraffic(run)
    traffic.run()
    print(json.dumps({"sent": traffic.sent, "late_ms": round(1000 * traffic.late, 1)}), flush=True)


if __name__ == "__main__":
    main()
