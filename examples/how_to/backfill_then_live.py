"""Sum a history of orders from Parquet files, then continue from these sums with new orders from CSV files."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream import StreamExecutionEnvironment

HISTORY = pa.table({"item": ["kelp", "rock", "kelp"], "pieces": [3, 1, 4]})
ORDER = "item string, pieces bigint"


def start(phase):
    env = StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.dir": f"{place}/checkpoints", "execution.trigger": "available-now"}
    )
    reader = env.spark.readStream.schema(ORDER).option("maxFilesPerTrigger", 100)
    orders = env.from_dataframe(reader.parquet(f"{place}/history")).uid("history")
    if phase == "live":
        orders = orders.union(env.from_dataframe(reader.csv(f"{place}/live")).uid("live"))
    sums = orders.key_by("item").sum("pieces").set_parallelism(1).uid("sums")
    sums.print(phase).uid("out")
    env.execute("orders")


with tempfile.TemporaryDirectory() as place:
    for name in ("history", "live"):
        Path(place, name).mkdir()
    pq.write_table(HISTORY, f"{place}/history/2025.parquet")
    start("backfill")
    Path(place, "live", "1.csv").write_text("kelp,10\nsand,2\n")
    start("live")
