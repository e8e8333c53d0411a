"""Reads what an engine of `realtime.py` writes, and records how old each event is when it can be read.

    python -m benchmarks.harness.realtime_reader RUN_AS_JSON

It reads the topic that the run names until its standard input ends. Without a topic it reads the lines that Flink's
connector `print` writes from standard input.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final

from benchmarks.harness.realtime_run import PARALLELISM, LatencyFile, RealTimeRun, input_ended

_AT_ONCE: Final = 5_000
_PIECE: Final = 1 << 16


def read_topic(run: RealTimeRun) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings = {"bootstrap.servers": run.servers, "group.id": "latency", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(run.target, partition, 0) for partition in range(PARALLELISM)])
    file = LatencyFile(run.latencies, "reader")
    is_over = input_ended()
    while not is_over.is_set():
        first = consumer.poll(0.1)
        if first is None:
            continue
        messages = [first, *consumer.consume(_AT_ONCE, 0)]
        seen = int(time.time() * 1e6)
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
        file.record_all([created_in(message.value()) for message in messages], seen)
    consumer.close()


def created_in(value: bytes) -> int:
    """Return the creation time in a JSON object, whose last field it is."""
    return int(value[value.rindex(b":") + 1 : -1])


def read_lines(run: RealTimeRun) -> None:
    file = LatencyFile(run.latencies, "reader")
    rest = b""
    while piece := os.read(sys.stdin.fileno(), _PIECE):
        seen = int(time.time() * 1e6)
        *lines, rest = (rest + piece).split(b"\n")
        found = [created_in_line(line) for line in lines]
        file.record_all([created for created in found if created is not None], seen)


def created_in_line(line: bytes) -> int | None:
    """Return the creation time in a line such as `2> +U[7, 12, 1796025600000000]`; None for other lines."""
    if not line.endswith(b"]") or not (b"+I[" in line or b"+U[" in line):
        return None
    return int(line[line.rindex(b",") + 1 : -1])


def main() -> None:
    run = RealTimeRun.from_json(sys.argv[1])
    (read_topic if run.target else read_lines)(run)


if __name__ == "__main__":
    main()
