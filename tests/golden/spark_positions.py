"""The job of the golden archive `spark`: it has read files on Spark, some as a stream and some at once.

`python -m tests.golden.spark_positions DIRECTORY` writes the archive anew. It starts Spark; who reads the archive needs
none. Spark's log of a folder has the paths of its files, and who goes on from it must have them there again: so the
folder is one that any machine can have.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.state.descriptor import ValueStateDescriptor
from tests.golden.keeper import VERSION, pack

NAME = "golden"
FOLDER = Path("/tmp/holdfast-golden/words")
"""Where the words are when the archive is written, and when a job goes on from it."""
STREAMED = [["kelp", "rock"], ["kelp", "sand"]]
AT_ONCE = ["rock", "tide"]


class Counting(KeyedProcessFunction):
    """Counts the elements of a key."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint", 0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update(self.seen.value() + 1)
        yield value.word, self.seen.value()


@contextmanager
def folder_of(files: Iterable[list[str]]) -> Iterator[None]:
    """Has the folder, with a file for each list of words in the order in which Spark is to read them."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of other processes that do the same
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        try:
            for number, words in enumerate(files):
                path = FOLDER / f"{number:03}.parquet"
                pq.write_table(pa.table({"word": words}), path)
                os.utime(path, (1_000_000 + number, 1_000_000 + number))  # the file source goes by modification time
            yield
        finally:
            shutil.rmtree(FOLDER)


def count(spark: Any, root: Path, *others: Any) -> list[tuple[str, int]]:
    """Runs the job over a directory, with the words that are in the folder and in other frames; what it emits."""
    settings = {
        "execution.checkpointing.dir": str(root),
        "execution.trigger": "available-now",
        "restart-strategy.type": "none",
        "parallelism.default": 2,
    }
    told: list[tuple[str, int]] = []
    env = StreamExecutionEnvironment.get_execution_environment(settings, spark=spark)
    stream = spark.readStream.schema("word string").option("maxFilesPerTrigger", 1).parquet(str(FOLDER))
    at_once = spark.createDataFrame([(word,) for word in AT_ONCE], "word string")
    words = env.from_dataframe(stream).uid("streamed").union(env.from_dataframe(at_once).uid("at-once"))
    for number, other in enumerate(others):
        words = words.union(env.from_dataframe(other).uid(f"other-{number}"))
    counted = words.key_by("word").process(Counting(), "word string, n bigint").uid("count")
    counted.for_each_epoch(lambda frame, _: told.extend(map(tuple, frame.collect()))).uid("out")
    env.execute(NAME)
    return told


def write(spark: Any, target: Path) -> None:
    """Writes the archive."""
    hosts_name = patch("socket.gethostname", lambda: "golden")
    with tempfile.TemporaryDirectory() as place, hosts_name, folder_of(STREAMED):
        count(spark, Path(place))
        pack(Path(place), target)


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from holdfast.spark.java import ensure_java

    ensure_java()
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    write(session, Path(sys.argv[1]) / f"format-{VERSION}-spark.zip")
    session.stop()
