"""Sources of real-time jobs on Spark: what they read, also when a worker is killed, and how epochs continue them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from tests.stories.process import ROOT
from tests.stories.spark import needs_real_time

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


@needs_real_time
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


@needs_real_time
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


@needs_real_time
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


@needs_real_time
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


BOUNDED = """
import json, os, signal, sys, time
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors import RealTimeSource, SourceReader, SourceSplit, SplitEnumerator
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.state import ValueStateDescriptor

COUNT = 300
NUMBERED = "word string, n bigint"


class Steps(RealTimeSource):
    def create_enumerator(self, position, tasks):
        return StepsEnumerator({"even": 0, "odd": 1} if position is None else position)

    def create_reader(self, task):
        return StepsReader()

    def element_type(self):
        return Types.LONG()

    def is_bounded(self):
        return True


class StepsEnumerator(SplitEnumerator):
    def __init__(self, following):
        self.following = following
        self.is_discovered = False

    def discover(self):
        self.is_discovered = True
        return [SourceSplit(name, at) for name, at in self.following.items()]

    def is_exhausted(self):
        return self.is_discovered

    def snapshot(self, splits):
        return dict(splits)


class StepsReader(SourceReader):
    def __init__(self):
        self.following = {}

    def add_splits(self, splits):
        self.following.update((split.split_id, split.state) for split in splits)

    def poll(self):
        for name, at in self.following.items():
            if at < COUNT:
                self.following[name] = at + 2
                return [at]

    def snapshot(self):
        states = {name: at if at < COUNT else None for name, at in self.following.items()}
        self.following = {name: at for name, at in self.following.items() if at < COUNT}
        return states

    @property
    def has_splits(self):
        return any(at < COUNT for at in self.following.values())


class Numbered(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint", 0))

    def process_element(self, row, ctx):
        self.seen.update(self.seen.value() + 1)
        yield row.word, row.n, self.seen.value(), os.getpid()


def slowly(row):
    time.sleep(0.01)
    return row.word, row.n


env = StreamExecutionEnvironment.get_execution_environment({
    "execution.trigger": "real-time",
    "execution.checkpointing.dir": sys.argv[1],
    "execution.checkpointing.interval": "200 ms",
    "parallelism.default": 2,
    "spark.master": "local[6]",  # one for collect()
    "spark.ui.enabled": "false",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 5,
    "restart-strategy.fixed-delay.delay": "0 ms",
})
none = WatermarkStrategy.no_watermarks()
own = env.from_source(Steps(), none, "steps").uid("steps").map(lambda n: ("own", n), NUMBERED).uid("own")
numbers = env.from_source(NumberSequenceSource(0, COUNT - 1), none, "sequence").uid("sequence")
numbers = numbers.map(lambda n: ("number", n), NUMBERED).uid("number")
listed = env.from_collection([("listed", n) for n in range(COUNT)], NUMBERED).uid("listed")
rows = own.union(numbers, listed).map(slowly, NUMBERED).uid("slowly")
numbered = rows.key_by("word").process(Numbered(), "word string, n bigint, seen bigint, process bigint").uid("numbered")
found, epochs, killed = [], set(), []


def write(frame, epoch):
    if epoch not in epochs:  # after a failure it may be called with one again
        epochs.add(epoch)
        found.extend(tuple(row) for row in frame.collect())
        if len({word for word, *_ in found}) == 3 and not killed:
            killed.append(len(found))
            os.kill(found[-1][-1], signal.SIGKILL)


numbered.for_each_epoch(write).uid("out")
env.execute("bounded")
print("FOUND", json.dumps([killed, [row[:3] for row in found]]))
"""


@needs_real_time
@pytest.mark.parametrize("parallelism", [2, 1])
def test_bounded_sources_give_each_element_once_although_a_worker_is_killed(tmp_path: Path, parallelism: int) -> None:
    script = tmp_path / "job.py"
    script.write_text(BOUNDED.replace('"parallelism.default": 2', f'"parallelism.default": {parallelism}'))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(script), str(tmp_path / "checkpoints")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
    [line] = [text for text in ended.stdout.splitlines() if "FOUND " in text] or [None]
    assert line is not None, ended.stderr[-4000:]
    killed, found = json.loads(line.partition("FOUND ")[2])
    words, elements = ("listed", "number", "own"), range(300)
    assert killed and killed[0] < len(words) * len(elements), "a worker was killed while they were read"
    assert sorted((word, n) for word, n, _ in found) == [(word, n) for word in words for n in elements]
    assert sorted((word, seen) for word, _, seen in found) == [(word, n + 1) for word in words for n in elements]
