"""The ledger as a Spark program, with hazards: what the stories in tests/spark start, kill and start again.

A hazard strikes once: it leaves a marker file before it strikes, and does nothing where the marker is.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.stories.ledger import Ledger, Parity, Thirds

ENTRY = "payment bigint, account string, seq bigint, total bigint, distinct_amounts bigint, last_three bigint"
HAZARDS = (
    "none",
    "kill-worker",
    "kill-executor",
    "kill-executor-late",
    "kill-group",
    "raise",
    "slow",
    "linger",
    "straggle",
)


class Hazard:
    """Strikes in the user function, at the `at`-th element that this process handles once the marker is absent."""

    def __init__(self, kind: str, marker: str, at: int) -> None:
        self.kind, self.marker, self.at, self.count = kind, marker, at, 0

    def meet(self) -> None:
        if self.kind == "none":
            return
        self.count += 1
        if self.kind == "slow":
            time.sleep(0.002)
        if self.kind == "straggle" and self.count == self.at:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            Path(f"{self.marker}.attempt-{context.attemptNumber()}").touch()
        if self.count < self.at or self.kind == "slow" or not self._first():
            return
        if self.kind == "raise":
            raise ValueError("a hazard")
        if self.kind == "linger":
            time.sleep(3)
        if self.kind == "straggle":
            time.sleep(25)
        if self.kind == "kill-group":
            os.killpg(0, signal.SIGKILL)
        if self.kind == "kill-worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind.startswith("kill-executor"):
            if self.kind == "kill-executor-late":
                time.sleep(5)  # the other tasks of this stage have ended by then
            os.kill(_executor(), signal.SIGKILL)
            time.sleep(30)

    def _first(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False


def _executor() -> int:
    """The JVM above this Python worker: worker, daemon, executor."""
    pid = os.getppid()
    while True:
        stat = Path(f"/proc/{pid}/stat").read_text()
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        if name == "java":
            return pid
        pid = int(stat[stat.rindex(")") + 2 :].split()[1])


class HazardousLedger(Ledger):
    def __init__(self, hazard: Hazard) -> None:
        self.hazard = hazard

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.hazard.meet()
        yield from super().process_element(value, ctx)


class HazardousThirds(Thirds):
    def __init__(self, hazard: Hazard) -> None:
        self.hazard = hazard

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.hazard.meet()
        yield from super().process_element(value, ctx)


class HazardousParity(Parity):
    def __init__(self, hazard: Hazard) -> None:
        self.hazard = hazard

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.hazard.meet()
        yield from super().process_element(value, ctx)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--hazard", choices=HAZARDS, default="none")
    parser.add_argument("--where", choices=("ledger", "transform", "parity", "thirds"), default="ledger")
    parser.add_argument("--transform", action="store_true", help="an aggregation in Spark after the ledger")
    parser.add_argument("--at", type=int, default=1)
    parser.add_argument("--marker", default="/dev/null")
    parser.add_argument("--trigger", default="available-now")
    parser.add_argument("--spark", dest="settings", action="append", default=[])
    parser.add_argument("-D", dest="options", action="append", default=[])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)

    from holdfast.common import Configuration
    from holdfast.datastream import StreamExecutionEnvironment
    from holdfast.datastream.sinks import ParquetFileSink
    from tests.programs.session import session_of

    spark = session_of(arguments.master, dict(setting.split("=", 1) for setting in arguments.settings))
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", arguments.checkpoints)
    configuration.set_string("execution.trigger", arguments.trigger)
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_string("restart-strategy.fixed-delay.attempts", "3")
    configuration.set_string("restart-strategy.fixed-delay.delay", "100 ms")
    for option in arguments.options:
        key, _, value = option.partition("=")
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration, spark=spark)
    env.set_parallelism(arguments.parallelism)
    hazard = Hazard(arguments.hazard, arguments.marker, arguments.at)
    quiet = Hazard("none", "", 0)
    payments = spark.readStream.schema("payment bigint, account string, amount bigint")
    stream = env.from_dataframe(payments.option("maxFilesPerTrigger", 1).parquet(arguments.input)).uid("payments")
    entries = (
        stream.key_by("account", order_by=["payment"])
        .process(
            HazardousLedger(hazard if arguments.where == "ledger" else quiet),
            output_type=ENTRY,
        )
        .uid("ledger")
    )
    if arguments.transform:
        strike = hazard if arguments.where == "transform" else quiet

        def distinct(frame: Any) -> Any:
            strike.meet()
            return frame.distinct()

        entries = entries.filter(lambda entry: entry.seq > 0).transform(distinct)
    if arguments.stages >= 2:
        entries = (
            entries.key_by(lambda entry: entry.total % 2, key_type="bigint")
            .process(
                HazardousParity(hazard if arguments.where == "parity" else quiet),
                output_type=f"{ENTRY}, parity_seq bigint",
            )
            .uid("parity")
        )
    if arguments.stages == 3:
        entries = (
            entries.key_by(lambda entry: entry.payment % 3, key_type="bigint")
            .process(
                HazardousThirds(hazard if arguments.where == "thirds" else quiet),
                output_type=f"{ENTRY}, parity_seq bigint, third_seq bigint",
            )
            .uid("thirds")
        )
    entries.sink_to(ParquetFileSink(arguments.output)).uid("out")
    env.execute("ledger")


if __name__ == "__main__":
    main()
