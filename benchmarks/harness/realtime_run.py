"""What the processes of `realtime.py` share: a measurement, the file of latencies, and the life of an engine.

Only the standard library is imported here: engines that live in an environment of their own read it too.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

PARALLELISM: Final = 2
EVENTS: Final = "key bigint, created bigint"
COUNTED: Final = "key bigint, count bigint, created bigint"
_PAIR: Final = struct.Struct("=qq")
PAIR_BYTES: Final = _PAIR.size
_LOOK: Final = 0.5


@dataclass(frozen=True)
class RealTimeRun:
    """One measurement of one engine.

    Attributes:
        engine: Its name.
        input: `kafka`, `files` or `generator`.
        rate: Events a second.
        keys: Number of distinct keys.
        source: The topic, or the directory of files, that it reads.
        target: The topic that it writes; empty if it records latencies itself.
        workspace: The directory of its checkpoints.
        latencies: The directory of the files of latencies.
        servers: Of Kafka; empty if there is none.
        jars: Paths of the jars that it needs, separated by commas.
        batch: How long a batch of Spark's real-time mode is: the time between two of its checkpoints.
        checkpoints: The time between two checkpoints of other engines.
        parallelism: Tasks of each stage.
        is_exactly_once: Whether results become visible with the checkpoint.
        has_settings: Whether Spark's session has the settings of real time, as one that Holdfast creates.
        spark: Settings of Spark, which replace those of the engine.
    """

    engine: str
    input: str
    rate: int
    keys: int
    source: str
    target: str
    workspace: str
    latencies: str
    servers: str = ""
    jars: str = ""
    batch: str = "5 seconds"
    checkpoints: str = "1 s"
    parallelism: int = PARALLELISM
    is_exactly_once: bool = False
    has_settings: bool = True
    spark: dict[str, str] = field(default_factory=dict)

    @property
    def has_topics(self) -> bool:
        return self.input == "kafka"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> RealTimeRun:
        return RealTimeRun(**json.loads(text))


class LatencyFile:
    """A file of pairs of microseconds since 1970: when an event was created, and when it was seen.

    Each pair is written at once, so that nothing is lost when a process is ended.
    """

    def __init__(self, directory: str, name: str) -> None:
        path = Path(directory, f"{name}-{os.getpid()}-{threading.get_ident()}")
        self._file = path.open("ab", buffering=0)

    def record(self, created: int) -> None:
        self._file.write(_PAIR.pack(created, int(time.time() * 1e6)))

    def record_all(self, created: list[int], seen: int) -> None:
        self._file.write(b"".join(_PAIR.pack(each, seen) for each in created))

    def close(self) -> None:
        self._file.close()


class Latencies:
    """Records the latency of each row, as a target of `for_each()` and of Spark's `foreach()`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def open(self, partition: int, epoch: int) -> bool:
        self._file = LatencyFile(self._directory, f"task-{partition}")
        return True

    def process(self, row: Any) -> None:
        self._file.record(row.created)

    def close(self, error: Any) -> None:
        self._file.close()


@dataclass(frozen=True)
class RunningJob:
    """A job that has been started.

    Attributes:
        stop: Ends it.
        end: Returns why it has ended; None while it runs.
        rescale: Changes its parallelism, for engines that can.
        memory: Collects garbage, and returns the bytes that the JVM uses by kind, for engines that can.
        messages: Returns how many messages a second each stage sends to the next one, for engines that count them.
        slots: Returns the number of tasks that can run at once, for engines that can.
    """

    stop: Callable[[], object]
    end: Callable[[], str | None]
    rescale: Callable[[int], object] | None = None
    memory: Callable[[], dict[str, int]] | None = None
    messages: Callable[[], list[float]] | None = None
    slots: Callable[[], int] | None = None


def serve(start: Callable[[RealTimeRun], RunningJob]) -> None:
    """Run the job of the measurement that the command line names, until standard input ends.

    A number on standard input is a new parallelism. The lines `memory`, `messages` and `slots` are answered with a line
    of JSON.

    Raises:
        SystemExit: The job has ended by itself.
    """
    job = start(RealTimeRun.from_json(sys.argv[1]))

    def on_line(line: str) -> None:
        if line == "memory":
            assert job.memory is not None
            print(json.dumps(job.memory()), flush=True)
        elif line == "messages":
            print(json.dumps([] if job.messages is None else job.messages()), flush=True)
        elif line == "slots":
            assert job.slots is not None
            print(json.dumps(job.slots()), flush=True)
        else:
            assert job.rescale is not None
            job.rescale(int(line))

    is_over = input_ended(on_line)
    while not is_over.wait(_LOOK):
        ended = job.end()
        if ended is not None:
            raise SystemExit(f"the job has ended: {ended}")
    job.stop()


def input_ended(on_line: Callable[[str], object] = lambda line: None) -> threading.Event:
    """Return an event that is set when standard input ends, or a line fails. A thread passes lines to a function."""
    is_over = threading.Event()

    def read() -> None:
        try:
            for line in sys.stdin:
                on_line(line.strip())
        finally:
            is_over.set()

    threading.Thread(target=read, daemon=True).start()
    return is_over
