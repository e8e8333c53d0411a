"""A job that reads topics by Spark's own Kafka source, each an input of its own, and writes what they have.

python sparks_kafka_job.py SERVERS DIRECTORY UID=TOPIC... [--go-on]
"""

from __future__ import annotations

import argparse
from functools import reduce

import pyspark
from pyspark.sql import SparkSession

from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment

PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("directory")
    parser.add_argument("inputs", nargs="+", help="UID=TOPIC")
    parser.add_argument("--go-on", action="store_true", help="without rows that Kafka has no more")
    arguments = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.jars.packages", PACKAGE).getOrCreate()
    env = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.trigger": "available-now",
            "execution.checkpointing.dir": f"{arguments.directory}/job",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 20,
            "restart-strategy.fixed-delay.delay": "0 ms",
        },
        spark=spark,
    )
    streams = []
    for uid, topic in (text.split("=") for text in arguments.inputs):
        frame = spark.readStream.format("kafka").options(
            **{"kafka.bootstrap.servers": arguments.servers, "subscribe": topic, "startingOffsets": "earliest"},
            failOnDataLoss=str(not arguments.go_on).lower(),
        )
        streams.append(env.from_dataframe(frame.load().selectExpr("cast(value as string) word")).uid(uid))
    words = reduce(lambda left, right: left.union(right), streams)
    words.map(lambda row: (row.word,), "word string").uid("rows").sink_to(
        ParquetFileSink(f"{arguments.directory}/out")
    ).uid("out")
    env.execute("topics")


main()
