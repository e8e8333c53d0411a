"""Whole programs on the engine without a JVM: what users write comes out of the sinks as it should."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from holdfast.common import Duration
from holdfast.datastream import (
    CheckpointingMode,
    DataStream,
    ExternalizedCheckpointCleanup,
    KeyedProcessFunction,
    OutputTag,
    ParquetFileSink,
    ProcessFunction,
    RichFilterFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import JobExecutionError
from holdfast.runtime.job.control import JobStatus
from holdfast.testing.epoch_runner import LocalEngine, run_job

WORDS = [["kelp", "rock"], ["kelp", "sand", "kelp"], ["rock"]]
NO_RESTART = {"restart-strategy.type": "none"}


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield row.word, self.count.value()


class Program:
    """One program over the words, run by a new environment each time, as another process would."""

    def __init__(self, root: Path, **engine: Any) -> None:
        self.root = root
        self.engine = engine

    def run(self, build: Any, words: list[list[Any]] = WORDS, **options: Any) -> JobStatus:
        env = StreamExecutionEnvironment.get_execution_environment()
        build(env.from_collection([], "word string").uid("words"))
        engine = LocalEngine([{"words": [(word,) for word in epoch]} for epoch in words], **self.engine)
        return run_job(env.get_stream_graph(), self.root / "checkpoints", engine, NO_RESTART | options).run()


def counted(words: DataStream) -> DataStream:
    return words.key_by("word").process(Count(), output_type="word string, n bigint").uid("count")


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in ds.dataset(path, format="parquet").to_table().to_pylist())


EXPECTED = [("kelp", 1), ("kelp", 2), ("kelp", 3), ("rock", 1), ("rock", 2), ("sand", 1)]


@pytest.mark.parametrize("amnesia", [False, True])
def test_one_stream_may_end_in_several_sinks_of_every_kind(
    tmp_path: Path, amnesia: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[tuple[int, Any]] = []

    def build(words: DataStream) -> None:
        counts = counted(words)
        counts.sink_to(ParquetFileSink(tmp_path / "out")).uid("files")
        counts.for_each_epoch(lambda df, epoch: written.append((epoch, df.to_pylist()))).uid("epochs")
        counts.print().uid("lines")

    assert Program(tmp_path, amnesia=amnesia).run(build) is JobStatus.SUSPENDED

    assert rows_of(tmp_path / "out") == EXPECTED
    assert [epoch for epoch, _ in written] == [1, 2, 3]
    assert sorted((row["word"], row["n"]) for _, rows in written for row in rows) == EXPECTED
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_a_program_that_runs_again_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def build(words: DataStream) -> None:
        counted(words).sink_to(ParquetFileSink(tmp_path / "out")).uid("files")

    program = Program(tmp_path)
    for end in (1, 2, 3, 3):
        program.run(build, WORDS[:end])

    assert rows_of(tmp_path / "out") == EXPECTED


def test_for_each_epoch_sees_an_epoch_again_after_the_job_has_failed_in_it(tmp_path: Path) -> None:
    calls: list[tuple[int, list[Any]]] = []
    away = True

    def write(df: Any, epoch: int) -> None:
        calls.append((epoch, sorted(row["word"] for row in df.to_pylist())))
        if away and epoch == 2:
            raise ConnectionError("the database is away")

    def build(words: DataStream) -> None:
        counted(words).for_each_epoch(write).uid("epochs")

    program = Program(tmp_path)
    with pytest.raises(JobExecutionError, match="the database is away"):
        program.run(build, **{"sink.committer.retries": 1})
    away = False
    program.run(build)

    assert calls == [
        (1, ["kelp", "rock"]),
        *[(2, ["kelp", "kelp", "sand"])] * 3,
        (3, ["rock"]),
    ]


class FirstOnly(RichFilterFunction):
    """Lets each word pass once."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "boolean", False))

    def filter(self, value: Any) -> bool:
        if self.seen.value():
            return False
        self.seen.update(True)
        return True


class ByLength(ProcessFunction):
    SHORT = OutputTag("short", "word string")

    def process_element(self, row: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if len(row.word) > 3:
            yield row
        else:
            yield self.SHORT, row


def longer(a: Any, b: Any) -> Any:
    return max(a, b, key=lambda row: len(row.word))


def test_a_chain_of_narrow_and_keyed_operators_with_side_outputs_and_a_union(tmp_path: Path) -> None:
    def build(words: DataStream) -> None:
        parted = words.process(ByLength(), output_type="word string")
        short = parted.get_side_output(ByLength.SHORT).map(lambda row: (row.word * 2,), output_type="word string")
        firsts = parted.union(short).key_by(lambda row: row.word, "string").filter(FirstOnly()).uid("firsts")
        longest = firsts.key_by(lambda row: row.word[0]).reduce(longer).uid("longest")
        longest.sink_to(ParquetFileSink(tmp_path / "out")).uid("files")

    Program(tmp_path).run(build, [["kelp", "kin", "kelp", "rock"], ["kin", "roc"]])

    longest_so_far = [word for (word,) in rows_of(tmp_path / "out")]
    assert len(longest_so_far) == 4, "kelp, kinkin, rock and rocroc passed once each"
    assert {"kinkin", "rock", "rocroc"} <= set(longest_so_far) <= {"kelp", "kinkin", "rock", "rocroc"}


def test_an_epoch_of_which_nothing_remains_commits_nothing(tmp_path: Path) -> None:
    calls: list[int] = []

    def build(words: DataStream) -> None:
        words.filter(lambda row: False).for_each_epoch(lambda df, epoch: calls.append(epoch)).uid("epochs")

    assert Program(tmp_path).run(build) is JobStatus.SUSPENDED
    assert calls == []


def test_printed_once_although_the_job_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(words: DataStream) -> None:
        words.print("word").uid("lines")

    program = Program(tmp_path)
    program.run(build)
    program.run(build)

    assert len(capsys.readouterr().out.splitlines()) == 6


def test_a_program_sets_options_as_pyflink_programs_do(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1000, CheckpointingMode.EXACTLY_ONCE)
    config = env.get_checkpoint_config()
    config.enable_externalized_checkpoints(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION)
    config.set_aligned_checkpoint_timeout(Duration.of_seconds(30))
    env.configure({"execution.checkpointing.timeout": timedelta(minutes=5), "pipeline.jars": ["a", "b"]})
    counted(env.from_collection([], "word string").uid("words")).sink_to(ParquetFileSink(tmp_path / "out"))

    engine = LocalEngine([{"words": [(word,) for word in epoch]} for epoch in WORDS])
    options = env.get_configuration().to_dict() | NO_RESTART
    assert run_job(env.get_stream_graph(), tmp_path / "checkpoints", engine, options).run() is JobStatus.SUSPENDED
    assert rows_of(tmp_path / "out") == EXPECTED
