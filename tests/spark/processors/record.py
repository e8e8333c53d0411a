"""Records what Spark makes of the programs: ``python -m tests.spark.processors.record`` (several minutes)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

from tests.spark.processors.further_programs import FURTHER
from tests.spark.processors.programs import INPUT, PROGRAMS, Program, at

ALL = PROGRAMS | FURTHER
RECORDING = Path(__file__).with_name("recording.json")
PATIENCE = 60.0


def recorded(spark: Any, program: Program) -> list[list[list[Any]]]:
    """What Spark has emitted after each batch and the batch without data that may follow it, sorted."""
    with tempfile.TemporaryDirectory() as directory:
        source, parts = Path(directory) / "source", []
        source.mkdir()
        stream = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).parquet(str(source))
        if program.delay is not None:
            stream = stream.withWatermark("at", program.delay)
        initial = None
        if program.initial is not None:
            initial = spark.createDataFrame(program.initial, "key string, value bigint").groupBy("key")
        mode, transformed, step = "update" if program.then is None else "append", stream, program
        while step is not None:
            grouped = transformed.groupBy(*step.keys)
            transform = grouped.transformWithStateInPandas if step.in_pandas else grouped.transformWithState
            transformed = transform(step.processor(), step.output, mode, step.mode, initial, step.ended)
            step = step.then
        emitted: list[list[Any]] = []
        read: dict[int, int] = {}
        query = (
            transformed.writeStream.outputMode(mode)
            .option("checkpointLocation", f"{directory}/checkpoint")
            .foreachBatch(lambda frame, _: emitted.extend(list(row) for row in frame.collect()))
            .start()
        )
        try:
            begun, passed = time.monotonic(), list(accumulate(program.pauses))
            for number, batch in enumerate(program.batches):
                frame = spark.createDataFrame([(key, at(second), value) for key, second, value in batch], INPUT)
                staged = f"{directory}/staged-{number}"
                frame.coalesce(1).write.parquet(staged)
                [file] = Path(staged).glob("*.parquet")
                if not number:
                    begun = time.monotonic()
                elif passed:
                    time.sleep(max(0, begun + passed[number] - time.monotonic()))
                file.rename(source / f"{number}.parquet")
                _wait(query, program, sum(map(len, program.batches[: number + 1])), read)
                parts.append(sorted((_plain(row) for row in emitted), key=str))
                emitted.clear()
        finally:
            query.stop()
    return parts


def _wait(query: Any, program: Program, rows: int, read: dict[int, int]) -> None:
    """Until so many rows have been read, and the batches without data have run that these call for.

    Spark remembers the progress of a hundred batches, so what each has read is kept in `read`.
    """
    if program.mode != "ProcessingTime":
        query.processAllAvailable()
    deadline, last = time.monotonic() + PATIENCE, -1
    while program.mode != "None" and time.monotonic() < deadline:
        # A trigger that finds nothing to do is told too, by the number of the batch that comes next.
        told = [p for p in query.recentProgress if p["batchId"] > last or p["numInputRows"] > read.get(p["batchId"], 0)]
        if told:
            last = told[-1]["batchId"]
            read.update({progress["batchId"]: progress["numInputRows"] for progress in told})
            # With timers of processing time there is a batch whenever one has ended, with event time there is one.
            known = sum(read.values())
            if known >= rows and told[-1]["numInputRows"] == 0 and program.mode == "ProcessingTime":
                return
            deadline = time.monotonic() + (PATIENCE if known < rows else 4)
        time.sleep(0.2)


def _plain(row: list[Any]) -> list[Any]:
    return [value.isoformat() if hasattr(value, "isoformat") else value for value in row]


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["TZ"] = "UTC"
    from pyspark.sql import SparkSession

    from holdfast.spark.java import ensure_java

    ensure_java()
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    # Names on the command line record these anew and leave the others.
    found: dict[str, Any] = json.loads(RECORDING.read_text())["programs"] if sys.argv[1:] else {}
    for name in sys.argv[1:] or ALL:
        found[name] = recorded(spark, ALL[name])
        print(name, found[name], file=sys.stderr, flush=True)
        programs = [f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in ALL if name in found]
        RECORDING.write_text(
            "{\n" + f' "spark": {json.dumps(spark.version)},\n "programs": {{\n' + ",\n".join(programs) + "\n }\n}\n"
        )


if __name__ == "__main__":
    main()
