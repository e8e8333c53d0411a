"""Three keyed operators that decide by chance, one below the other, in executors of which each may be killed."""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.common import Configuration
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.sinks import ParquetFileSink
from holdfast.datastream.state import ValueStateDescriptor
from tests.programs.ledger_job import Hazard
from tests.programs.session import session_of

LEVELS = 3
STRIKES = (500, 1300, 2100)
"""From which payment on each level strikes, once, in the middle of a task."""
ROUTES = 5
NOTHING = -1


class Dice(KeyedProcessFunction):
    """Numbers the elements of a key, dices for where each goes next, and says what it diced for the one before."""

    def __init__(self, hazard: Hazard, strikes: int) -> None:
        self.hazard, self.strikes = hazard, strikes

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
        self.route = runtime_context.get_state(ValueStateDescriptor("route", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.payment >= self.strikes:
            self.hazard.meet()
        before = NOTHING if self.route.value() is None else self.route.value()
        self.count.update((self.count.value() or 0) + 1)
        self.route.update(secrets.randbelow(ROUTES))  # a fork that begins again does not dice the same
        yield (*value, self.count.value(), before, self.route.value())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("hazard", choices=("none", "kill-executor", "kill-executor-late"))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)

    spark = session_of("local-cluster[2,1,1024]")
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(arguments.root / "checkpoints"))
    configuration.set_string("execution.trigger", "available-now")
    env = StreamExecutionEnvironment.get_execution_environment(configuration, spark=spark)
    env.set_parallelism(2)
    schema, key = "payment bigint, account string, amount bigint", "account"
    payments = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(arguments.root / "in"))
    stream: Any = env.from_dataframe(payments).uid("payments")
    for level, strikes in enumerate(STRIKES, 1):
        schema += f", count_{level} bigint, before_{level} bigint, route_{level} bigint"
        hazard = Hazard(arguments.hazard, str(arguments.root / f"struck-{level}"), 30)
        stream = stream.key_by(key).process(Dice(hazard, strikes), schema).uid(f"level-{level}")
        key = f"route_{level}"
    stream.sink_to(ParquetFileSink(str(arguments.root / "out"))).uid("out")
    env.execute("dice")


if __name__ == "__main__":
    main()
