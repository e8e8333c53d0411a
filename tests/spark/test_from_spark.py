"""A query of Spark is stopped, and a job goes on with its state exactly where its sources stand."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", minversion="4.3", reason="the readers of state are as here since Spark 4.3")

import pandas as pd
from click.testing import CliRunner
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import holdfast.spark
from examples.flights import oracle, prepare
from holdfast.checkpoint.completed_checkpoint import read_by_path
from holdfast.cli import main
from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment
from holdfast.errors import ConfigurationError, CorruptFileError, HoldfastError, NotExistError, StateError
from holdfast.state_processor import SavepointReader, SavepointWriter, SparkQueryReader
from holdfast.testing import EpochProgram
from tests.documentation import ROOT, blocks
from tests.spark.processors.aircraft import INPUT, OUTPUT, AircraftHistories, by_spark, flights

pytestmark = pytest.mark.spark
DAYS = 6
YEAR = 365
HOUR = 3_600_000
FAR = 4_102_444_800_000
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def theirs(spark: Any) -> Any:
    """A session as it is needed for `transformWithState`; what reads the state is another one."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


def stop_after_a_batch(frame: Any, checkpoint: str, mode: str = "update") -> None:
    query = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", checkpoint).start()
    try:
        deadline = time.monotonic() + 300
        while not query.recentProgress and time.monotonic() < deadline and query.isActive:
            time.sleep(0.1)
    finally:
        query.stop()
    assert query.exception() is None


def remembered(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    n = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((n,))
    if key[0] == "a":
        state.setTimeoutDuration(HOUR)
    yield pd.DataFrame({"key": [key[0]], "n": [n]})


def written(directory: Path) -> list[tuple[Any, ...]]:
    tables = [pq.ParquetFile(path).read() for path in directory.rglob("*.parquet")]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def environment(spark: Any, checkpoints: str, savepoint: str, **more: str) -> StreamExecutionEnvironment:
    options = {
        **more,
        "execution.trigger": "available-now",
        "execution.checkpointing.dir": checkpoints,
        "execution.state-recovery.path": savepoint,
        "restart-strategy.type": "none",
    }
    return StreamExecutionEnvironment.get_execution_environment(options, spark=spark)


def first_days(directory: Path, count: int) -> list[Path]:
    year = prepare.read_flights()
    directory.mkdir()
    return prepare.write_days(year[pd.to_datetime(year[["year", "month", "day"]]).dt.dayofyear <= count], directory)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("count", [DAYS, pytest.param(YEAR, marks=pytest.mark.soak)])
def test_spark_runs_half_of_the_flights_and_a_job_the_other_half(
    spark: Any, theirs: Any, tmp_path: Path, count: int
) -> None:
    days = first_days(tmp_path / "days", count)
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()

    def arrive(some: list[Path]) -> None:
        for day in some:
            shutil.copy2(day, source / day.name)

    arrive(days[: count // 2])
    by_spark(theirs, str(source), f"{output}/spark", f"{tmp_path}/query")

    query = SparkQueryReader.read(spark, f"{tmp_path}/query")
    inputs = {"flights": spark.readStream.schema(INPUT).parquet(str(source))}
    writer = SavepointWriter.new_savepoint(spark, max_parallelism=128)
    writer.with_operator("histories", query.transformation(processor=AircraftHistories()))
    writer.with_source_positions(query.source_positions(inputs))
    savepoint = writer.write(f"{tmp_path}/savepoint")
    shutil.rmtree(tmp_path / "query")

    arrive(days[count // 2 :])
    env = environment(spark, f"{tmp_path}/checkpoints", savepoint)
    rows = flights(spark, str(source), 2).groupBy("tailnum")
    histories = holdfast.spark.transform_with_state(
        rows, AircraftHistories(), OUTPUT, "Append", "None", env=env, input_uid="flights"
    )
    histories.uid("histories").sink_to(ParquetFileSink(f"{output}/holdfast")).uid("output")
    env.execute("flights")

    expected = oracle.expected_output(oracle.read_input(tmp_path / "days"))
    assert oracle.report(oracle.compare(output, expected), expected.num_rows) == (
        f"equal: all {expected.num_rows:,} rows, every value"
    )
    assert len(oracle.read_files(output / "holdfast")) > 0


def test_the_program_of_the_page_on_the_state_processor_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    monkeypatch.chdir(tmp_path)
    [block] = blocks(ROOT / "docs" / "state-processor.md", "python spark")
    try:
        exec(compile(block.padded, str(block.page), "exec"), {"__name__": "__main__"})
    finally:
        spark.conf.set(provider, before)


class EveryKind(StatefulProcessor):
    """Has a state of each kind, with and without a time to live, and a timer."""

    form = "n bigint, word string"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", self.form)
        self.listed = handle.getListState("listed", "n bigint")
        self.mapped = handle.getMapState("mapped", "word string", "n bigint, half double")
        self.last = handle.getValueState("last", "n bigint", HOUR)
        self.recent = handle.getListState("recent", "n bigint", HOUR)
        self.known = handle.getMapState("known", "word string", "n bigint", HOUR)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in rows:
            self.value.update((row.n, f"w{row.n}"))
            self.listed.appendValue((row.n,))
            self.mapped.updateValue((f"w{row.n}",), (row.n, row.n / 2))
            self.last.update((row.n,))
            self.recent.appendValue((row.n,))
            self.known.updateValue((f"w{row.n}",), (row.n,))
            self.handle.registerTimer(FAR + row.n)
        yield Row(part=key[0], value=key[1])

    def close(self) -> None:
        pass


class AnotherForm(EveryKind):
    form = "n string"


def rows_of(frame: Any) -> list[Any]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=str)


def test_every_kind_of_state_is_imported_with_types_ages_and_timers(spark: Any, theirs: Any, tmp_path: Path) -> None:
    spark.createDataFrame([(1, "a", 5), (1, "a", 7), (2, "b", 6)], "part int, value string, n bigint").coalesce(
        1
    ).write.parquet(f"{tmp_path}/in")
    stream = theirs.readStream.schema("part int, value string, n bigint").parquet(f"{tmp_path}/in")
    # A column of the key has the name that a state's values have.
    grouped = stream.groupBy("part", "value")
    transformed = grouped.transformWithState(EveryKind(), "part int, value string", "Update", "ProcessingTime")
    stop_after_a_batch(transformed, f"{tmp_path}/query")

    query = SparkQueryReader.read(spark, f"{tmp_path}/query")
    told = {row["state"]: (row["kind"], row["has_ttl"]) for row in query.metadata().to_pylist()}
    assert told == {
        "value": ("value", False), "listed": ("list", False), "mapped": ("map", False), "last": ("value", True),
        "recent": ("list", True), "known": ("map", True), "timers": ("timers", False),
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"Spark does not keep how long it is: say it with time_to_live="):
        query.transformation()
    with pytest.raises(StateError, match=r"State 'value' is a value of .* but the processor declares"):
        query.transformation(processor=AnotherForm())

    path = (
        SavepointWriter.new_savepoint(spark, 16)
        .with_operator("op", query.transformation(processor=EveryKind()))
        .write(f"{tmp_path}/savepoint")
    )
    reader = SavepointReader.read(None, path)
    a, b = {"part": 1, "value": "a"}, {"part": 2, "value": "b"}

    def state(name: str, *columns: str) -> list[Any]:
        return sorted(reader.read_keyed_state("op", name, columns=["key", *columns]).to_pylist(), key=str)

    assert state("value", "value") == [
        {"key": a, "value": {"n": 7, "word": "w7"}}, {"key": b, "value": {"n": 6, "word": "w6"}}
    ]  # fmt: skip
    assert state("listed", "value") == [{"key": a, "value": [{"n": 5}, {"n": 7}]}, {"key": b, "value": [{"n": 6}]}]
    assert [(row["map_key"]["word"], row["value"]["half"]) for row in state("mapped", "map_key", "value")] == [
        ("w5", 2.5), ("w7", 3.5), ("w6", 3.0)
    ]  # fmt: skip
    [last, *_] = rows_of(query.read_state("last"))
    assert [(row["value"]["n"], row["stamp"]) for row in state("last", "value", "stamp")] == [
        (7, last["expires"] - HOUR), (6, last["expires"] - HOUR)
    ]  # fmt: skip
    assert [row["stamp"] for row in state("recent", "stamp")] == [
        [last["expires"] - HOUR] * 2,
        [last["expires"] - HOUR],
    ]
    assert [row["value"]["n"] for row in state("known", "value")] == [5, 7, 6]
    timers = reader.read_timers("op").to_pylist()
    assert sorted((row["key"]["value"], row["domain"], row["timestamp"]) for row in timers) == [
        ("a", "processing", FAR + 5), ("a", "processing", FAR + 7), ("b", "processing", FAR + 6)
    ]  # fmt: skip


class InPandas(StatefulProcessor):
    """Counts, and keeps the last words."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint")
        self.words = handle.getListState("words", "word string")
        self.seen = handle.getMapState("seen", "word string", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n = self.count.get()[0] if self.count.exists() else 0
        for frame in rows:
            n += len(frame)
            for word in frame["word"]:
                self.words.appendValue((word,))
                self.seen.updateValue((word,), (n,))
        self.count.update((n,))
        self.handle.registerTimer(FAR)
        yield pd.DataFrame({"key": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


def test_state_of_a_pandas_processor_is_imported_and_continues_in_pandas(
    spark: Any, theirs: Any, tmp_path: Path
) -> None:
    spark.createDataFrame([("a", "x"), ("a", "y"), ("b", "z")], "key string, word string").coalesce(1).write.parquet(
        f"{tmp_path}/in"
    )
    theirs.conf.set("spark.sql.streaming.stateStore.rocksdb.formatVersion", "3")
    grouped = theirs.readStream.schema("key string, word string").parquet(f"{tmp_path}/in").groupBy("key")
    output = "key string, n bigint"
    transformed = grouped.transformWithStateInPandas(InPandas(), output, "Update", "ProcessingTime")
    stop_after_a_batch(transformed, f"{tmp_path}/query")

    query = SparkQueryReader.read(spark, f"{tmp_path}/query")
    writer = SavepointWriter.new_savepoint(spark, 16)
    writer.with_operator("op", query.transformation(processor=InPandas()))
    writer.with_source_positions(query.source_positions(["words"]))
    savepoint = writer.write(f"{tmp_path}/savepoint")
    reader = SavepointReader.read(None, savepoint)
    counts = reader.read_keyed_state("op", "count").to_pylist()
    assert {row["key"]: row["value"]["n"] for row in counts} == {"a": 2, "b": 1}
    words = {row["key"]: row["value"] for row in reader.read_keyed_state("op", "words").to_pylist()}
    assert words == {"a": [{"word": "x"}, {"word": "y"}], "b": [{"word": "z"}]}
    assert reader.read_timers("op").column("timestamp").to_pylist() == [FAR, FAR]

    spark.createDataFrame([("a", "w"), ("c", "v")], "key string, word string").coalesce(1).write.mode("append").parquet(
        f"{tmp_path}/in"
    )
    kept = {"execution.state-recovery.changed-inputs.keep": "words"}
    env = environment(spark, f"{tmp_path}/checkpoints", savepoint, **kept)
    rows = spark.readStream.schema("key string, word string").parquet(f"{tmp_path}/in").groupBy("key")
    told = holdfast.spark.transform_with_state_in_pandas(
        rows, InPandas(), output, "Update", "ProcessingTime", env=env, input_uid="words"
    )
    told.uid("op").sink_to(ParquetFileSink(f"{tmp_path}/out")).uid("out")
    env.execute("pandas")
    assert written(tmp_path / "out") == [("a", 3), ("c", 1)]


def test_state_without_a_key_is_read_and_reported_separately(spark: Any, theirs: Any, tmp_path: Path) -> None:
    spark.createDataFrame([(1,), (2,), (3,)], "n bigint").coalesce(1).write.parquet(f"{tmp_path}/in")
    stream = theirs.readStream.schema("n bigint").parquet(f"{tmp_path}/in")
    stop_after_a_batch(stream.agg(F.sum("n")), f"{tmp_path}/query")
    query = SparkQueryReader.read(spark, f"{tmp_path}/query")
    assert [row["value"] for row in rows_of(query.read_state("sum"))] == [6]
    with pytest.raises(StateError, match="groups by no column, so its state belongs to no key"):
        query.transformation()


def test_counts_and_deduplication_of_spark_continue_in_built_in_reductions(
    spark: Any, theirs: Any, tmp_path: Path
) -> None:
    spark.createDataFrame([("a", 5), ("a", 7), ("b", 6), ("c", None)], "key string, n bigint").coalesce(
        1
    ).write.parquet(f"{tmp_path}/in")
    stream = theirs.readStream.schema("key string, n bigint").parquet(f"{tmp_path}/in")
    sums = stream.groupBy("key").agg(F.count("*"), F.sum("n"), F.avg("n"))
    stop_after_a_batch(sums, f"{tmp_path}/sums")
    stop_after_a_batch(stream.dropDuplicates(["key"]), f"{tmp_path}/seen", mode="append")
    paired = stream.alias("l").join(stream.alias("r"), F.expr("l.key = r.key")).select("l.key")
    shutil.copytree(tmp_path / "seen", tmp_path / "lost")
    stop_after_a_batch(paired, f"{tmp_path}/paired", mode="append")
    grouped = stream.groupBy("key").applyInPandasWithState(
        remembered, "key string, n bigint", "n bigint", "update", "ProcessingTimeTimeout"
    )
    stop_after_a_batch(grouped, f"{tmp_path}/grouped")

    query = SparkQueryReader.read(spark, f"{tmp_path}/sums")
    assert [row["state"] for row in query.metadata().to_pylist()] == ["count", "sum", "sum_2", "count_2"]
    assert [(row["key"]["key"], row["value"]) for row in rows_of(query.read_state("sum"))] == [("a", 12), ("b", 6)]
    with pytest.raises(StateError, match="is a join of two streams"):
        SparkQueryReader.read(spark, f"{tmp_path}/paired").transformation()
    groups = SparkQueryReader.read(spark, f"{tmp_path}/grouped")
    lost = SparkQueryReader.read(spark, f"{tmp_path}/lost").transformation()
    shutil.rmtree(tmp_path / "lost" / "state" / "0" / "1")
    with pytest.raises(StateError, match="has no folder 1, but the state is in 2 partitions"):
        SparkQueryReader.read(spark, f"{tmp_path}/lost").transformation()
    shutil.rmtree(tmp_path / "lost" / "state" / "0" / "0")
    with pytest.raises(HoldfastError, match="while reading the rows of a DataFrame and writing them as state"):
        SavepointWriter.new_savepoint(spark).with_operator("seen", lost).write(f"{tmp_path}/none")
    assert not (tmp_path / "none" / "_metadata").exists()
    with pytest.raises(ConfigurationError, match="say timers='processing' or timers='event'"):
        groups.transformation()
    path = (
        SavepointWriter.new_savepoint(spark, 16)
        .with_operator("sums", query.transformation())
        .with_operator("seen", SparkQueryReader.read(spark, f"{tmp_path}/seen").transformation())
        .with_operator("groups", groups.transformation(timers="processing"))
        .write(f"{tmp_path}/savepoint")
    )
    reader = SavepointReader.read(None, path)
    assert sorted(row["value"]["n"] for row in reader.read_keyed_state("groups", "state").to_pylist()) == [1, 1, 2]
    assert [row["key"] for row in reader.read_timers("groups").to_pylist()] == ["a"]

    asked = ["state", "from-spark", f"{tmp_path}/sums", "--uid", "sums", "--to", f"{tmp_path}/told", "--input", "words"]
    told = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert told.output.splitlines()[-1] == f"{tmp_path}/told"
    assert SavepointReader.read(None, f"{tmp_path}/told").states("sums").keys() == reader.states("sums").keys()
    [line] = read_by_path(f"{tmp_path}/told").metadata.source_positions["streaming"]["inputs"]
    assert line["uid"] == "words"
    assert line["reads"].startswith("source 0 of the query ")

    program = EpochProgram()
    words = program.source("words", "key string, n bigint")
    words.key_by("key").deduplicate().uid("seen").sink_to(ParquetFileSink(f"{tmp_path}/new")).uid("new")
    words.key_by("key").count().uid("sums").sink_to(ParquetFileSink(f"{tmp_path}/counts")).uid("counts")
    later = {"words": [("a", 1), ("c", 2), ("d", 3)]}
    options = {"execution.state-recovery.path": path, "execution.state-recovery.ignore-unclaimed-state": True}
    program.run(tmp_path / "job", [later], options)
    assert written(tmp_path / "new") == [("d", 3)]
    assert written(tmp_path / "counts") == [("a", 1, 3), ("c", 2, 2), ("d", 3, 1)]


@dataclass
class Logs:
    """The checkpoint directory of a query that reads files, made by hand."""

    path: Path

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def batch(self, number: int, *offsets: str, commit: bool = True) -> None:
        self.write(f"offsets/{number}", "\n".join(["v1", '{"batchWatermarkMs":7,"batchTimestampMs":9}', *offsets]))
        if commit:
            self.write(f"commits/{number}", "v1\n{}")

    def read_file(self, source: int, number: int, name: str, suffix: str = "") -> None:
        told = json.dumps({"path": f"file://{self.path.parent}/in/{name}", "timestamp": 1, "batchId": number})
        self.write(f"sources/{source}/{number}{suffix}", f"v1\n{told}")


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    made = Logs(tmp_path / "query")
    made.write("metadata", '{"id":"0b1c"}')
    for number in range(3):
        made.batch(number, f'{{"logOffset":{number}}}')
        made.read_file(0, number, f"{number}.parquet")
    (tmp_path / "in").mkdir()
    return made


def test_an_uncommitted_batch_is_named_and_not_imported(spark: Any, logs: Logs) -> None:
    logs.batch(3, '{"logOffset":3}', commit=False)
    logs.read_file(0, 3, "3.parquet")
    with pytest.raises(StateError, match=r"Batch 3 .* has read rows and was not committed.*batch_id=2"):
        SparkQueryReader.read(spark, str(logs.path))
    with pytest.raises(StateError, match=r"Batch 3 .* was begun and not committed"):
        SparkQueryReader.read(spark, str(logs.path), batch_id=3)
    with pytest.raises(NotExistError, match=r"do not have batch 17: there are 0 to 2"):
        SparkQueryReader.read(spark, str(logs.path), batch_id=17)
    query = SparkQueryReader.read(spark, str(logs.path), batch_id=2)
    found = query.source_positions(["days"])
    assert sorted(found.files) == ["0/0", "0/1", "0/2"]
    assert found.streaming["offsets"]["2"].endswith('\n{"logOffset":2}')

    # Spark puts entries together: those before may be gone then, and one of a later batch tells of later files.
    for entry in ("0", "1", "3"):
        (logs.path / "sources" / "0" / entry).unlink()
    logs.read_file(0, 1, "1.parquet", suffix=".compact")
    logs.read_file(0, 3, "3.parquet", suffix=".compact")
    assert sorted(query.source_positions(["days"]).files) == ["0/1.compact", "0/2"]

    logs.batch(3, '{"logOffset":2}', commit=False)  # a batch for timers alone
    assert SparkQueryReader.read(spark, str(logs.path)).batch_id == 2


def test_mismatched_sources_are_rejected(spark: Any, logs: Logs, tmp_path: Path) -> None:
    query = SparkQueryReader.read(spark, str(logs.path))
    there, elsewhere = (
        spark.readStream.schema("n bigint").parquet(str(tmp_path / name)) for name in ("in", "query/sources/0")
    )
    leaf = query.source_positions({"days": there}).streaming["inputs"]
    assert [(one["uid"], one["source"], one["schema"]) for one in leaf] == [("days", 0, "struct<n:bigint>")]
    with pytest.raises(ConfigurationError, match=r"has 1 sources, but .* read from 2"):
        query.source_positions({"days": there, "more": elsewhere})
    with pytest.raises(ConfigurationError, match=r"has read .*in/0.parquet.*in the order"):
        query.source_positions({"days": elsewhere})
    with pytest.raises(ConfigurationError, match="is a streaming DataFrame"):
        query.source_positions({"days": spark.range(1)})
    (logs.path / "sources/0/1").unlink()
    with pytest.raises(StateError, match="has no entry 1"):
        query.source_positions({"days": there})
    logs.read_file(0, 1, "1.parquet")
    (logs.path / "offsets/1").unlink()
    with pytest.raises(StateError, match="has batch 2 and not the one before"):
        SparkQueryReader.read(spark, str(logs.path)).source_positions({"days": there})


def test_a_directory_without_a_query_is_reported(spark: Any, logs: Logs, tmp_path: Path) -> None:
    with pytest.raises(NotExistError, match="is no checkpoint directory of a query"):
        SparkQueryReader.read(spark, str(tmp_path))
    with pytest.raises(ConfigurationError, match="by a Spark session, not by None"):
        SparkQueryReader.read(None, str(logs.path))
    logs.write("offsets/2", "v2\n{}\n{}")
    with pytest.raises(ConfigurationError, match=r"'v2'.*sources have names"):
        SparkQueryReader.read(spark, str(logs.path))
    logs.write("offsets/2", "v1\nnonsense\n{}")
    with pytest.raises(CorruptFileError, match="offsets/2"):
        SparkQueryReader.read(spark, str(logs.path))
    logs.write("metadata", "nonsense")
    with pytest.raises(CorruptFileError, match="metadata"):
        SparkQueryReader.read(spark, str(logs.path), batch_id=1)
    (logs.path / "commits/2").unlink()
    (logs.path / "commits/1").unlink()
    (logs.path / "commits/0").unlink()
    with pytest.raises(StateError, match="No batch"):
        SparkQueryReader.read(spark, str(logs.path))
