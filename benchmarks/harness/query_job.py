"""A job on Spark that serves its state and paces its epochs; for benchmarks/query.py.

It first runs as fast as it can to find its rate. Then it is given the rows of one epoch in every second slot of that
length: half its maximum input rate. It prints each epoch as JSON, and ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment  # noqa: E402
from holdfast.datastream.state import ValueStateDescriptor  # noqa: E402

ROW = "key string, n bigint"
KEYS = 20_000
ROWS = 50_000
WARM_UP = 4
FULL_SPEED = 10  # epochs, with those of the warm-up


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        descriptor: ValueStateDescriptor[int] = ValueStateDescriptor("count", "bigint", 0)
        descriptor.set_queryable("counts")
        self.count = runtime_context.get_state(descriptor)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        count = self.count.value() + row.n
        self.count.update(count)
        yield row.key, count


class Feed:
    """The directory that the job reads: the same rows again and again, an epoch a file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._rows = directory.with_name("rows.parquet")
        directory.mkdir(parents=True)
        keys = [f"key-{i % KEYS:08d}" for i in range(ROWS)]
        pq.write_table(pa.table({"key": keys, "n": pa.array([1] * ROWS, pa.int64())}), self._rows)
        self._count = 0

    def give(self) -> None:
        """One more epoch."""
        self._count += 1
        os.link(self._rows, self.directory / f"{self._count:08d}.parquet")


def main() -> None:
    root, port = Path(sys.argv[1]), sys.argv[2]
    feed = Feed(root / "input")
    for _ in range(FULL_SPEED):
        feed.give()
    env = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.checkpointing.dir": str(root / "checkpoints"),
            "queryable-state.enable": "true",
            "queryable-state.proxy.ports": port,
        }
    )
    rows = env.spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1).parquet(str(feed.directory))
    counted = env.from_dataframe(rows).key_by("key").process(Count(), output_type=ROW).uid("count")
    counted.sink_to(ParquetFileSink(str(root / "output"))).uid("output")
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    client = env.execute_async("paced")
    seen: list[float] = []
    slot, due = 0.0, 0.0
    while not ended.wait(0.01) and client.exception() is None:
        for record in client.recent_progress:
            if record["epoch"] > len(seen) and record["rows"]:
                seen.append(record["duration_ms"] / 1000)
                line = {"at": time.time(), "seconds": seen[-1], "paced": len(seen) > FULL_SPEED}
                print(json.dumps(line), flush=True)
        if len(seen) < FULL_SPEED:
            continue
        if not slot:
            slot = 2 * statistics.median(seen[WARM_UP:])
            due = time.monotonic()
        if time.monotonic() >= due:
            due = max(due + slot, time.monotonic())
            feed.give()
    client.stop()
    client.await_termination()


if __name__ == "__main__":
    main()
