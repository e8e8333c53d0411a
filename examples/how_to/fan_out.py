"""Write one stream to three sinks: all orders to Parquet, totals to SQLite, large orders to JSON lines."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds

from holdfast.common import Encoder
from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink

ORDERS = [(1, "ada", 120), (2, "bob", 900), (3, "ada", 30), (4, "cid", 700)]

with tempfile.TemporaryDirectory() as place:
    database = Path(place, "totals.db")
    env = StreamExecutionEnvironment.get_execution_environment()
    orders = env.from_collection(ORDERS, "id bigint, customer string, cents bigint").uid("orders")

    orders.sink_to(ParquetFileSink(f"{place}/orders")).uid("parquet")

    totals = orders.key_by("customer").sum("cents").uid("totals").project(1, 2)
    totals.sink_to(DatabaseSink(f"sqlite:///{database}", "totals", key="customer", create_table=True)).uid("database")

    json_lines = FileSink.for_row_format(f"{place}/large", Encoder.json_encoder())
    json_lines.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    orders.filter(lambda order: order.cents > 500).sink_to(json_lines.build()).uid("json")

    env.execute("fan out")

    print("orders:", sorted(ds.dataset(f"{place}/orders", format="parquet").to_table()["id"].to_pylist()))
    with closing(sqlite3.connect(database)) as connection:
        print("totals:", connection.execute("select * from totals order by customer").fetchall())
    lines = [file.read_text() for file in Path(place, "large").glob("part-*")]
    print("large:", *sorted("".join(lines).splitlines()), sep="\n")
