"""Latency of real-time jobs beside epoch jobs: one command, all kinds in one run.

    python benchmarks/realtime.py [--rates 1000,10000,50000] [--seconds 30] [--keys 50000] [--kinds real-time,epochs]

A generator makes events in the tasks at a rate. A keyed function reads and updates one value state for each,
and `for_each` writes the latency from the creation of the event to the sink. Checkpoints are taken each second. A kind
runs in a process of its own. The clock is one machine's.

Prints, for each kind and rate: the events of the last two thirds, and their p50, p99, p99.9 and largest latency.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRIGGERS = {"real-time": "real-time", "epochs": "continuous"}
_START_SECONDS = 120.0


def run_job(kind: str, rate: int, seconds: float, keys: int, place: Path) -> None:
    """Run one job, whose tasks write their latencies into files of a folder."""
    from holdfast.common import WatermarkStrategy
    from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
    from holdfast.datastream.connectors.datagen import DataGeneratorSource
    from holdfast.datastream.state import ValueStateDescriptor

    env = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.trigger": TRIGGERS[kind],
            "execution.checkpointing.dir": str(place / "checkpoints"),
            "execution.checkpointing.interval": "1 s",
            "parallelism.default": 2,
            "spark.master": "local[8]",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "rest.enable": "false",
        }
    )

    class Count(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

        def process_element(self, row: Any, ctx: Any) -> Any:
            count = (self.count.value() or 0) + 1
            self.count.update(count)
            yield row.key, count, row.created

    class Latencies:
        """Writes the time and the latency of each element into a file of its own."""

        def open(self, partition: int, epoch: int) -> None:
            self.file = (place / f"latencies-{os.getpid()}-{partition}").open("a")

        def process(self, row: Any) -> None:
            now = time.time()
            self.file.write(f"{now:.4f} {1000 * (now - row.created):.2f}\n")

        def close(self, error: Any) -> None:
            self.file.close()

    def event(number: int) -> tuple[int, float]:
        return number * 2_654_435_761 % keys, time.time()

    source = DataGeneratorSource(event, rows_per_second=rate, type_info="key bigint, created double")
    events = env.from_source(source, WatermarkStrategy.no_watermarks(), "events").uid("events")
    counted = events.key_by("key").process(Count(), "key bigint, count bigint, created double").uid("count")
    counted.for_each(Latencies()).uid("latencies")
    client = env.execute_async("latency")
    deadline = time.monotonic() + _START_SECONDS
    while not any(place.glob("latencies-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(seconds)
    client.stop()
    client.await_termination()


def measured(kind: str, rate: int, seconds: float, keys: int) -> str:
    """Run a job in a process of its own, and return a line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--job", kind, str(rate), str(seconds), str(keys), folder]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if ended.returncode:
            return f"| {kind} | {rate:,} | failed: {ended.stderr.strip().splitlines()[-1][:200]} |"
        found = [
            (float(at), float(latency))
            for file in Path(folder).glob("latencies-*")
            for at, latency in (line.split() for line in file.read_text().splitlines() if line.count(" ") == 1)
        ]
    found.sort()
    begin = found[0][0] + (found[-1][0] - found[0][0]) / 3
    steady = sorted(latency for at, latency in found if at > begin)
    at = [steady[min(int(len(steady) * share), len(steady) - 1)] for share in (0.5, 0.99, 0.999)]
    numbers = " | ".join(f"{number:.1f}" for number in (*at, steady[-1]))
    return f"| {kind} | {rate:,} | {len(steady):,} | {numbers} |"


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        kind, rate, seconds, keys, folder = sys.argv[2:]
        run_job(kind, int(rate), float(seconds), int(keys), Path(folder))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1000,10000,50000", help="events a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--kinds", default="real-time,epochs")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print("| kind | events/s | events measured | p50 ms | p99 ms | p99.9 ms | max ms |")
    print("|---|---|---|---|---|---|---|")
    for rate in map(int, arguments.rates.split(",")):
        for kind in arguments.kinds.split(","):
            print(measured(kind, rate, arguments.seconds, arguments.keys), flush=True)


if __name__ == "__main__":
    main()
