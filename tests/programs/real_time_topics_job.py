"""A real-time job without a JVM from topic to topic of Kafka, until readers see all that it has to write."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.datastream.connectors.kafka import DeliveryGuarantee
from holdfast.runtime.master.job_client import JobClient
from tests.stories.topics import Topics
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS

ROWS = 600


def paced(row: Any) -> Any:
    """Pass an element on, slowly enough that the job has several checkpoints."""
    time.sleep(0.02)
    return row.key, row.n


def main() -> None:
    place, servers, name, guarantee = sys.argv[1:]
    topics = Topics(servers, name, DeliveryGuarantee(guarantee))
    topics.numbers = ROWS
    options = {**RESTARTS, "execution.checkpointing.interval": "100 ms"}
    client = JobClient(topics.job(paced).master(Path(place), options))
    while not topics.has_all():
        if client.get_job_status().is_terminal_state():
            break
        time.sleep(0.05)
    else:
        client.stop()
    client.await_termination()


if __name__ == "__main__":
    main()
