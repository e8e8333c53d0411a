"""A job on Spark whose state changes for ever and does not grow; ended by SIGTERM."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.common import Configuration
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor
from tests.programs.session import session_of


class Steady(KeyedProcessFunction):
    """Keeps what came last for each key, with some text."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "string"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.last.update(f"{value.n:010d}" * 20)
        return ()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)

    spark = session_of()
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(arguments.root / "job"))
    configuration.set_string("execution.trigger", "continuous")
    configuration.set_string("execution.checkpointing.num-retained", "1")
    configuration.set_string("execution.checkpointing.cleaner.grace-period", "1 s")
    env = StreamExecutionEnvironment.get_execution_environment(configuration, spark=spark)
    env.set_parallelism(2)
    batches = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", arguments.rows)
    rows = batches.option("numPartitions", 2).load().selectExpr(f"value * 7 % {arguments.keys} AS key", "value AS n")
    env.from_dataframe(rows).uid("in").key_by("key").process(Steady(), "key bigint, n bigint").uid("steady").print()
    env.execute("steady")


if __name__ == "__main__":
    main()
