"""Queries of Nexmark on Spark, in a process of its own, for stories that kill it.

One query, as the benchmark runs it, or all that have no state: one job over one input, with an output for each.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.nexmark.engines.holdfast import start
from benchmarks.nexmark.events import BID
from benchmarks.nexmark.queries import QUERIES
from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment
from tests.programs.session import session_of

EVERY_EPOCH = {"execution.checkpointing.interval": "0 ms"}


def main() -> None:
    name, folder, checkpoints, output = sys.argv[1:]
    if name != "stateless":
        start(session_of(), QUERIES[name], Path(folder), Path(checkpoints), ParquetFileSink(output), EVERY_EPOCH)
        return
    spark = session_of()
    options = {
        "execution.trigger": "available-now",
        "execution.checkpointing.dir": checkpoints,
        "restart-strategy.type": "none",
        **EVERY_EPOCH,
    }
    environment = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
    frame = spark.readStream.schema(BID).option("maxFilesPerTrigger", 1).parquet(f"{folder}/epochs/bid")
    bids = environment.from_dataframe(frame).uid("bid")
    for query in QUERIES.values():
        if query.needs_spark:
            query.build({"bid": bids}).sink_to(ParquetFileSink(f"{output}/{query.name}")).uid(query.name)
    environment.execute("queries without state")


if __name__ == "__main__":
    main()
