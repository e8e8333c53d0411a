"""Sources of real-time jobs on Spark: what they read, and that epoch jobs go on where they stopped and back."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import time as time_of_day
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import DataStream, ParquetFileSink
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import ConfigurationError, RestoreError
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import EpochJob, JobPlan, SourcePlan
from holdfast.spark.input.real_time import describe_inputs
from holdfast.spark.input.source import JobFrames
from tests.spark.test_shapes import Numbered, environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NONE = WatermarkStrategy.no_watermarks()
OUTPUT = "word string, n bigint"
PATIENCE = 300


class Words:
    """A job that numbers each word, by epochs or in real time, from one checkpoint to the next."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.words: Counter[str] = Counter()
        (root / "in").mkdir()

    def put(self, name: str, *words: str) -> None:
        new = self.root / "new"
        new.write_text("".join(f"{word}\n" for word in words))
        (self.root / "in" / name).parent.mkdir(exist_ok=True)
        new.rename(self.root / "in" / name)
        self.words.update(words)

    def found(self) -> list[tuple[str, int]]:
        if not (self.root / "out").exists():
            return []
        return sorted((row["word"], row["n"]) for row in pq.read_table(str(self.root / "out")).to_pylist())

    def wanted(self) -> list[tuple[str, int]]:
        return sorted((word, n) for word, count in self.words.items() for n in range(1, count + 1))

    def start(self, trigger: str, **options: Any) -> Any:
        env = environment(self.spark, self.root, execution_trigger=trigger, parallelism_default=1, **options)
        source = (
            FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(self.root / "in"))
            .monitor_continuously(Duration.of_millis(100))
            .build()
        )
        lines = env.from_source(source, NONE, "lines").uid("lines").map(lambda line: (line,), "word string")
        lines.key_by("word").process(Numbered(), OUTPUT).uid("count").sink_to(
            ParquetFileSink(str(self.root / "out"))
        ).uid("out")
        return env.execute_async("words")

    def by_epochs(self) -> None:
        self.start("available-now").await_termination(PATIENCE)
        assert self.found() == self.wanted()

    def in_real_time(self) -> None:
        client = self.start("real-time")
        wait_until(lambda: self.found() == self.wanted(), client)
        client.stop()

    def positions(self) -> Any:
        [job] = (self.root / "checkpoints").iterdir()
        newest = max(job.glob("chk-*"), key=lambda path: int(path.name[4:]))
        return json.loads((newest / "_metadata").read_text())["source_positions"]


def wait_until(holds: Callable[[], bool], client: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "what was expected did not come"
        assert not client.get_job_status().is_terminal_state(), client.exception()
        time.sleep(0.1)


def test_epoch_jobs_and_real_time_jobs_continue_each_other_over_files(spark: Any, tmp_path: Path) -> None:
    job = Words(spark, tmp_path)
    job.put("first", "a", "b", "a")
    job.by_epochs()
    job.put("with space é%41+", "c", "a")
    job.in_real_time()
    positions = job.positions()
    assert "splits" not in positions and list(positions["streaming"]["sources"]) == ["0/0", "0/1"]
    job.put("deep/er", "b")
    job.by_epochs()
    for n in range(12):
        job.put(f"many-{n}", "d")
    job.in_real_time()
    job.by_epochs()
    job.put("last", "e", "a")
    job.by_epochs()


def test_files_that_are_ahead_wait_for_those_of_another_source(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    env = environment(spark, tmp_path, execution_trigger="real-time", parallelism_default=1)
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda line, _: int(line))
    aligned = in_order.with_watermark_alignment("files", Duration.of_seconds(1), Duration.of_millis(100))

    def times_in(name: str) -> DataStream:
        (tmp_path / name).mkdir()
        files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / name))
        return env.from_source(files.monitor_continuously(Duration.of_millis(100)).build(), aligned, name).uid(name)

    def put(name: str, at: int) -> None:
        (tmp_path / "new").write_text(f"{at}\n")
        (tmp_path / "new").rename(tmp_path / name / str(at))

    def found() -> set[int]:
        return {row["at"] for row in pq.read_table(str(out)).to_pylist()} if out.exists() else set()

    times = times_in("behind").union(times_in("ahead")).map(lambda line: (int(line),), "at bigint")
    times.uid("times").sink_to(ParquetFileSink(str(out))).uid("out")
    client = env.execute_async("aligned")
    put("behind", 1)
    put("ahead", 1_000_000)
    wait_until(lambda: found() == {1, 1_000_000}, client)
    put("ahead", 1_000_001)
    for at in (2, 3):
        put("behind", at)
        wait_until(lambda at=at: at in found(), client)  # type: ignore[misc]
    assert 1_000_001 not in found()
    put("behind", 999_999)
    wait_until(lambda: 1_000_001 in found(), client)
    client.stop()


def plan_of(*streams: Any) -> JobPlan:
    nodes = [stream._node for stream in streams]
    while any(node.inputs for node in nodes):
        nodes = [node.inputs[0] if node.inputs else node for node in nodes]
    for number, node in enumerate(nodes):
        node.uid = f"input-{number}"
    sources = tuple(SourcePlan(node.identity, node, node.element_type) for node in nodes)
    return JobPlan((EpochJob(0, sources, ()),), ())


def test_inputs_are_described_as_by_epoch_jobs(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    env = environment(spark, tmp_path)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "in"))
    plan = plan_of(
        env.from_source(NumberSequenceSource(1, 3), NONE, "numbers"),
        env.from_collection([("a", time_of_day(1))], "word string, at time"),
        env.from_source(source.monitor_continuously(Duration.of_seconds(1)).build(), NONE, "files"),
        env.from_dataframe(spark.range(3)),
    )
    inputs, epochs = describe_inputs(plan, spark), JobFrames(plan, spark).identities
    assert (inputs.lines, inputs.static) == (epochs.lines, epochs.static)
    assert len(inputs.lines) == 1 and len(inputs.static) == 3


def test_static_frames_are_read_once_in_real_time(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="real-time", parallelism_default=1)
    frame = spark.sql("select cast(id % 3 as string) as word, id from range(1000)").repartition(3)
    sums = frame.groupBy("word").count().selectExpr("concat('sum ', word) as word", "count as id")
    words = env.from_dataframe(frame).uid("frame").union(env.from_dataframe(sums).uid("sums"))
    numbered = words.key_by("word").process(Numbered(), OUTPUT).uid("count")
    numbered.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    env.execute("frames")
    found = sorted((row["word"], row["n"]) for row in pq.read_table(str(tmp_path / "out")).to_pylist())
    counts = {"0": 334, "1": 333, "2": 333, "sum 0": 1, "sum 1": 1, "sum 2": 1}
    assert found == sorted((word, n) for word, count in counts.items() for n in range(1, count + 1))


def test_a_streaming_frame_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="real-time", parallelism_default=1)
    frame = spark.readStream.format("rate").load().selectExpr("cast(value as string) as word")
    env.from_dataframe(frame).uid("ticks").key_by("word").process(Numbered(), OUTPUT).uid("count").print()
    with pytest.raises(ConfigurationError, match=r"input 'ticks' reads rate.*KafkaSource or FileSource"):
        env.execute("ticks")


def test_an_input_read_in_part_is_refused_by_epochs(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path)
    plan = plan_of(env.from_source(NumberSequenceSource(1, 3), NONE, "numbers"))
    identities = JobFrames(plan, spark).identities
    [leaf] = identities.static
    splits = [{"leaves": [{**leaf.to_json(), "streaming": False}], "positions": {"input-0": {"splits": {}}}}]
    with pytest.raises(RestoreError, match=r"'input-0'.*was read in part by a real-time job.*trigger=real-time"):
        identities.begin({"static_consumed": False, "static": [], "splits": splits}, InputRules())
