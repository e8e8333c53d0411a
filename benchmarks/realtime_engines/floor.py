"""The floor of `realtime.py`: Kafka's Python client and a dictionary, one thread, nothing that survives a failure."""

from __future__ import annotations

import json
import threading

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.harness.realtime_run import PARALLELISM, RealTimeRun, RunningJob, serve

_ROWS = 4096
_WAIT_SECONDS = 0.05


def start(run: RealTimeRun) -> RunningJob:
    consumer = Consumer(
        {
            "bootstrap.servers": run.servers,
            "group.id": "floor",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "socket.nagle.disable": True,
        }
    )
    producer = Producer({"bootstrap.servers": run.servers, "linger.ms": 1, "socket.nagle.disable": True})
    consumer.assign([TopicPartition(run.source, number, 0) for number in range(PARALLELISM)])
    is_over = threading.Event()
    counts: dict[int, int] = {}

    def work() -> None:
        while not is_over.is_set():
            messages = consumer.consume(1, _WAIT_SECONDS)
            if messages:
                messages += consumer.consume(_ROWS, 0)
            for message in messages:
                event = json.loads(message.value())
                key = event["key"]
                counts[key] = count = counts.get(key, 0) + 1
                value = json.dumps({"key": key, "count": count, "created": event["created"]})
                producer.produce(run.target, value)
            producer.poll(0)
        consumer.close()
        producer.flush()

    thread = threading.Thread(target=work)
    thread.start()

    def stop() -> None:
        is_over.set()
        thread.join()

    return RunningJob(stop, lambda: None if thread.is_alive() else "its thread has failed")


if __name__ == "__main__":
    serve(start)
