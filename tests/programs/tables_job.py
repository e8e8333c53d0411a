"""Payments into a Delta and an Iceberg table of an object store, on Spark, for stories that kill it.

The store is told by options alone, as tasks on other hosts have no variables of the driver's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.common import Row
from holdfast.datastream import KeyedProcessFunction
from tests.programs.session import session_of

PAYMENT = "payment bigint, account string, amount bigint"


def catalog(place: Path, lake: str) -> dict[str, str]:
    """Of the Iceberg table."""
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": lake}


class Same(KeyedProcessFunction):
    """Says what it gets."""

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        yield value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("lake")
    parser.add_argument("endpoint")
    arguments = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]

    from holdfast.datastream import StreamExecutionEnvironment
    from holdfast.datastream.connectors.delta import DeltaSink
    from holdfast.datastream.connectors.iceberg import IcebergSink

    spark = session_of()
    options = {
        "execution.checkpointing.dir": f"{arguments.lake}/checkpoints",
        "execution.trigger": "available-now",
        "parallelism.default": "2",
        "s3.endpoint": arguments.endpoint,
        "s3.access-key": "test",
        "s3.secret-key": "test",
        "s3.region": "us-east-1",
    }
    env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
    payments = spark.readStream.schema(PAYMENT).option("maxFilesPerTrigger", 1).parquet(str(arguments.place / "in"))
    rows = env.from_dataframe(payments).uid("payments").key_by("account").process(Same(), output_type=PAYMENT)
    rows = rows.uid("same")
    delta = DeltaSink(f"{arguments.lake}/delta", partition_by="account", create_table=True)
    rows.sink_to(delta).uid("delta")
    properties = catalog(arguments.place, arguments.lake)
    iceberg = IcebergSink("test", "db.t", properties=properties, key="payment", create_table=True)
    rows.sink_to(iceberg).uid("iceberg")
    env.execute("tables")


if __name__ == "__main__":
    main()
