"""Programs of many shapes on one Spark session, each against plain Python."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import ConfigurationError, JobExecutionError, NullKeyError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
_names = itertools.count()


def environment(spark: Any, root: Path, **options: Any) -> StreamExecutionEnvironment:
    settings = {
        "execution.checkpointing.dir": str(root / "checkpoints"),
        "restart-strategy.type": "none",
        "parallelism.default": 2,
        **{key.replace("__", "-").replace("_", "."): value for key, value in options.items()},
    }
    return StreamExecutionEnvironment.get_execution_environment(settings, spark=spark)


def name() -> str:
    return f"shape-{next(_names)}"


class Numbered(KeyedProcessFunction):
    """Numbers the elements of a key."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        number = (self.seen.value() or 0) + 1
        self.seen.update(number)
        yield value.word, number


class Alarm(KeyedProcessFunction):
    """Answers each element a second later, without further input."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1000)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


def words(root: Path, *files: list[str]) -> Path:
    folder = root / "words"
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(files, start=len(list(folder.iterdir()))):
        pq.write_table(pa.table({"word": content}), root / "new")
        os.utime(root / "new", (1_000_000 + number, 1_000_000 + number))  # the file source goes by modification time
        (root / "new").rename(folder / f"{number:03d}.parquet")
    return folder


def stream(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema("word string").option("maxFilesPerTrigger", 1).parquet(str(folder))


def rows(folder: Path) -> list[tuple[Any, ...]]:
    files = [str(path) for path in folder.glob("*.parquet")]
    return [tuple(row.values()) for row in ds.dataset(files, format="parquet").to_table().to_pylist()] if files else []


def numbered(words: list[str]) -> Counter[tuple[str, int]]:
    seen: Counter[str] = Counter()
    result: Counter[tuple[str, int]] = Counter()
    for word in words:
        seen[word] += 1
        result[word, seen[word]] += 1
    return result


def test_a_collection_through_maps_filters_keys_and_a_reduce(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path)
    totals = (
        env.from_collection([("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", -5)], type_info="word string, n bigint")
        .filter(lambda row: row.n > 0)
        .map(lambda row: (row.word, row.n * 10), output_type="word string, n bigint")
        .key_by("word")
        .reduce(lambda left, right: (left.word, left.n + right.n))
    )
    with totals.execute_and_collect(name()) as found:
        assert Counter(map(tuple, found)) == Counter([("a", 10), ("b", 20), ("a", 40), ("c", 40)])


def test_streaming_and_static_inputs_meet_in_one_operator(spark: Any, tmp_path: Path) -> None:
    folder = words(tmp_path, ["a", "b"], ["a", "c"])
    env = environment(spark, tmp_path, execution_trigger="available-now")
    fixed = env.from_dataframe(spark.createDataFrame([("a",), ("z",)], "word string"))
    merged = env.from_dataframe(stream(spark, folder)).union(fixed)
    merged.key_by("word").process(Numbered(), output_type="word string, n bigint").uid("n").sink_to(
        ParquetFileSink(tmp_path / "out")
    )
    job = name()
    env.execute(job)
    assert Counter(rows(tmp_path / "out")) == numbered(["a", "b", "a", "c", "a", "z"])
    words(tmp_path, ["z", "z"])
    again = environment(spark, tmp_path, execution_trigger="available-now")
    fixed = again.from_dataframe(spark.createDataFrame([("a",), ("z",)], "word string"))
    merged = again.from_dataframe(stream(spark, folder)).union(fixed)
    merged.key_by("word").process(Numbered(), output_type="word string, n bigint").uid("n").sink_to(
        ParquetFileSink(tmp_path / "out")
    )
    again.execute(job)
    assert Counter(rows(tmp_path / "out")) == numbered(["a", "b", "a", "c", "a", "z", "z", "z"])


def test_one_stream_feeds_two_keyed_operators_and_a_union_with_the_output_of_one(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    source = env.from_dataframe(stream(spark, words(tmp_path, ["a", "b", "a"], ["b", "b"])))
    first = source.key_by("word").process(Numbered(), output_type="word string, n bigint").uid("first")
    first.sink_to(ParquetFileSink(tmp_path / "first")).uid("s1")
    again = first.map(lambda row: (row.word + "!",), output_type="word string")
    source.union(again).key_by("word").process(Numbered(), output_type="word string, n bigint").uid("second").sink_to(
        ParquetFileSink(tmp_path / "second")
    ).uid("s2")
    env.execute(name())
    everything = ["a", "b", "a", "b", "b"]
    assert Counter(rows(tmp_path / "first")) == numbered(everything)
    assert Counter(rows(tmp_path / "second")) == numbered(everything + [word + "!" for word in everything])


def test_stateless_streams_and_for_each_epoch(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    epochs: dict[int, list[str]] = {}
    upper = env.from_dataframe(stream(spark, words(tmp_path, ["a"], ["b", "c"]))).map(
        lambda row: (row.word.upper(),), output_type="word string"
    )
    upper.for_each_epoch(lambda df, epoch: epochs.update({epoch: sorted(row.word for row in df.collect())}))
    env.execute(name())
    assert epochs == {1: ["A"], 2: ["B", "C"]}


def test_an_epoch_in_which_every_row_is_filtered_out(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    source = env.from_dataframe(stream(spark, words(tmp_path, ["a"], ["drop", "drop"], ["a"])))
    kept = source.transform(lambda df: df.where("word <> 'drop'"))
    kept.key_by("word").process(Numbered(), output_type="word string, n bigint").sink_to(
        ParquetFileSink(tmp_path / "out")
    )
    env.execute(name())
    assert Counter(rows(tmp_path / "out")) == numbered(["a", "a"])


def test_a_timer_fires_and_a_checkpoint_completes_without_input(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path)
    source = env.from_dataframe(stream(spark, words(tmp_path, ["a", "b"])))
    source.key_by("word").process(Alarm(), output_type="word string, at bigint").sink_to(
        ParquetFileSink(tmp_path / "out")
    )
    job = env.execute_async(name())
    try:
        job.process_all_available()
        deadline = time.monotonic() + 60
        while len(rows(tmp_path / "out")) < 2:
            assert time.monotonic() < deadline, job.recent_progress
            assert job.exception() is None
            time.sleep(0.1)
        assert sorted(word for word, _ in rows(tmp_path / "out")) == ["a", "b"]
        newest = job.last_progress["checkpoint_id"]  # type: ignore[index]
        assert job.trigger_checkpoint().result(timeout=60) > newest
    finally:
        job.stop()
        job.await_termination(60)
    assert job.get_job_status().value == "SUSPENDED"


def test_process_all_available_waits_for_a_query_that_has_not_started_yet(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="1 s")
    source = env.from_dataframe(stream(spark, words(tmp_path, ["a", "b"], ["c"]))).uid("words")
    source.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
    job = env.execute_async(name())
    job.process_all_available()
    assert sorted(rows(tmp_path / "out")) == [("a",), ("b",), ("c",)]
    job.cancel()
    assert job.await_termination(60)


def test_stateful_operators_of_spark_are_rejected_by_name(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    source = env.from_dataframe(stream(spark, words(tmp_path, ["a"])).dropDuplicates(["word"]))
    source.key_by("word").process(Numbered(), output_type="word string, n bigint").sink_to(
        ParquetFileSink(tmp_path / "out")
    )
    with pytest.raises(ConfigurationError, match=r"dropDuplicates\(\)"):
        env.execute(name())


@pytest.mark.parametrize(
    "option",
    [
        "execution_checkpointing_interval",
        "execution_checkpointing_min__pause",
        "execution_checkpointing_tolerable__failed__checkpoints",
    ],
)
def test_a_source_that_deletes_its_input_is_rejected_if_the_job_may_replay_it(
    spark: Any, tmp_path: Path, option: str
) -> None:
    folder = words(tmp_path, ["a"])
    frame = spark.readStream.schema("word string").option("cleanSource", "delete").parquet(str(folder))
    env = environment(spark, tmp_path, execution_trigger="available-now", **{option: 1})
    env.from_dataframe(frame.where("word is not null")).sink_to(ParquetFileSink(tmp_path / "out"))
    with pytest.raises(ConfigurationError, match="cleanSource=delete, and a failure goes back"):
        env.execute(name())
    env = environment(spark, tmp_path, execution_trigger="available-now")
    env.from_dataframe(frame).sink_to(ParquetFileSink(tmp_path / "out"))
    env.execute(name())
    assert rows(tmp_path / "out") == [("a",)]


@pytest.mark.parametrize(
    ("columns", "why"),
    [("`a.b` string", "column 'a.b'"), ("`a``b` string", "backticks"), ("a int, A int", "cannot plan")],
)
def test_unsupported_column_names_fail_the_job_without_a_restart(
    spark: Any, tmp_path: Path, columns: str, why: str
) -> None:
    env = environment(spark, tmp_path, restart__strategy_type="exponential-delay")
    frame = spark.createDataFrame([("x",)] if "int" not in columns else [(1, 2)], columns)
    env.from_dataframe(frame).key_by(frame.columns[0]).map(len, "bigint").uid("m").print().uid("p")
    with pytest.raises(ConfigurationError, match=why):
        env.execute(name())


def test_a_null_key_is_rejected_with_the_name_of_its_operator(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path)
    source = env.from_collection([("a",), (None,)], type_info="word string")
    source.key_by("word").process(Numbered(), output_type="word string, n bigint").uid("numbered").sink_to(
        ParquetFileSink(tmp_path / "out")
    )
    with pytest.raises(JobExecutionError, match="numbered") as failed:
        env.execute(name())
    assert isinstance(failed.value.__cause__, NullKeyError) or isinstance(
        failed.value.__cause__.__cause__, NullKeyError
    )
    assert rows(tmp_path / "out") == []


def test_settings_of_the_users_session_stay_unchanged(spark: Any, tmp_path: Path) -> None:
    before = spark.conf.get("spark.sql.adaptive.enabled")
    env = environment(spark, tmp_path)
    env.from_collection([("a",)], type_info="word string").sink_to(ParquetFileSink(tmp_path / "out"))
    env.execute(name())
    assert spark.conf.get("spark.sql.adaptive.enabled") == before == "true"
    assert rows(tmp_path / "out") == [("a",)]


def test_a_running_job_is_rescaled_and_stopped_with_a_savepoint_that_starts_another_job(
    spark: Any, tmp_path: Path
) -> None:
    many = [f"word-{i % 50}" for i in range(400)]
    folder = words(tmp_path, many)

    def start(out: str, **options: Any) -> Any:
        env = environment(spark, tmp_path, **options)
        source = env.from_dataframe(stream(spark, folder))
        source.key_by("word").process(Numbered(), output_type="word string, n bigint").uid("n").sink_to(
            ParquetFileSink(tmp_path / out)
        ).uid("out")
        return env.execute_async(name())

    job = start("first")
    job.process_all_available()
    job.rescale(5).result(timeout=60)
    words(tmp_path, many)
    deadline = time.monotonic() + 60
    while len(rows(tmp_path / "first")) < 800:
        assert job.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(ConfigurationError, match="above the max parallelism"):
        job.rescale(1000).result(timeout=60)
    path = job.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(timeout=60)
    assert job.await_termination(60)
    assert job.get_job_status().value == "SUSPENDED"
    assert Counter(rows(tmp_path / "first")) == numbered(many + many)

    words(tmp_path, many)
    shutil.move(path, tmp_path / "moved")
    shutil.rmtree(tmp_path / "checkpoints")
    other = start("second", execution_trigger="available-now", execution_state__recovery_path=str(tmp_path / "moved"))
    assert other.await_termination(60)
    assert Counter(rows(tmp_path / "first")) + Counter(rows(tmp_path / "second")) == numbered(many * 3)
