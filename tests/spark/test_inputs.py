"""Inputs have names: a changed program goes on where each of them stood, or is refused."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.formats.json import JsonLinesFormat
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.errors import ConfigurationError, RestoreError
from holdfast.spark.input.description import description_of
from tests.spark.test_shapes import environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ANEW = "execution.state-recovery.changed-inputs.anew"
KEEP = "execution.state-recovery.changed-inputs.keep"
DROP = {"execution.state-recovery.ignore-unclaimed-state": True}


class Files:
    """Folders of text files that a job counts the lines of, and what it has counted."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark = spark
        self.root = root
        self._written = count(int(time.time()) - 3600)

    def put(self, folder: str, *names: str) -> None:
        """New files with one line each, which is the file's name; Spark reads them in the order of their times."""
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            (self.root / folder / name).write_text(name + "\n")
            written = next(self._written)
            os.utime(self.root / folder / name, (written, written))

    def stream(self, folder: str) -> Any:
        return self.spark.readStream.option("maxFilesPerTrigger", 2).text(str(self.root / folder))

    def static(self, *lines: str) -> Any:
        return self.spark.createDataFrame([(line,) for line in lines], "value string")

    def run(
        self,
        *frames: tuple[str | None, Any],
        options: Mapping[str, Any] | None = None,
        change: Callable[[DataStream], DataStream] = lambda stream: stream,
    ) -> Counter[str]:
        """Runs a job over the union of these frames, each with its uid, and returns how often each line came out."""
        settings = {
            "execution.checkpointing.dir": str(self.root / "checkpoints"),
            "execution.trigger": "available-now",
            "restart-strategy.type": "none",
            "parallelism.default": 1,
            **(options or {}),
        }
        env = StreamExecutionEnvironment.get_execution_environment(settings, spark=self.spark)
        streams = [change(_named(self._read(env, frame), uid)) for uid, frame in frames]
        union = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        out = self.root / "out"
        union.key_by("value").count().uid("count").sink_to(ParquetFileSink(str(out))).uid("out")
        env.execute("inputs")
        rows = self.spark.read.parquet(str(out)).collect() if any(out.glob("*.parquet")) else []
        return Counter(row.value for row in rows)

    @staticmethod
    def _read(env: StreamExecutionEnvironment, frame: Any) -> DataStream:
        if isinstance(frame, list):
            return env.from_collection([(line,) for line in frame], "value string")
        return env.from_dataframe(frame)


def _named(stream: DataStream, uid: str | None) -> DataStream:
    return stream if uid is None else stream.uid(uid)


def once(*lines: str) -> Counter[str]:
    return Counter(lines)


@pytest.fixture
def files(spark: Any, tmp_path: Path) -> Files:
    found = Files(spark, tmp_path)
    found.put("a", "a1", "a2", "a3")
    found.put("b", "b1")
    return found


@pytest.mark.parametrize("named", [True, False], ids=["uids", "derived uids"])
def test_inputs_are_matched_in_any_order(files: Files, named: bool) -> None:
    a, b = ("a", "b") if named else (None, None)
    assert files.run((a, files.stream("a")), (b, files.stream("b"))) == once("a1", "a2", "a3", "b1")
    files.put("a", "a4")
    files.put("b", "b2")

    counted = files.run((b, files.stream("b")), (a, files.stream("a")))

    assert counted == once("a1", "a2", "a3", "a4", "b1", "b2"), "nothing is read again, and what is new is read"


def test_a_new_input_begins_at_its_start_at_any_place_in_the_program(files: Files) -> None:
    files.run(("a", files.stream("a")), ("b", files.stream("b")))
    files.put("c", "c1", "c2", "c3")
    files.put("b", "b2")

    counted = files.run(("c", files.stream("c")), ("a", files.stream("a")), ("b", files.stream("b")))
    assert counted == once("a1", "a2", "a3", "b1", "b2", "c1", "c2", "c3")

    files.put("c", "c4")
    counted = files.run(("b", files.stream("b")), ("c", files.stream("c")), ("a", files.stream("a")))
    assert counted == once("a1", "a2", "a3", "b1", "b2", "c1", "c2", "c3", "c4")


def test_a_removed_input_is_rejected_by_name_unless_it_is_dropped(files: Files) -> None:
    files.run(("a", files.stream("a")), ("b", files.stream("b")))
    files.put("b", "b2")

    with pytest.raises(RestoreError, match=r"'a'.* -n ") as caught:
        files.run(("b", files.stream("b")))
    assert caught.value.missing_uids == ("a",)

    assert files.run(("b", files.stream("b")), options=DROP) == once("a1", "a2", "a3", "b1", "b2")
    files.put("b", "b3")
    assert files.run(("b", files.stream("b"))) == once("a1", "a2", "a3", "b1", "b2", "b3"), "it is forgotten"
    assert files.run(("b", files.stream("b")), ("a", files.stream("a")))["a1"] == 2, "and would be read anew"


def test_a_changed_input_is_rejected_with_both_descriptions(files: Files) -> None:
    files.run(("a", files.stream("a")), ("b", files.stream("b")))
    files.put("c", "c1")
    changed = [("a", files.stream("c")), ("b", files.stream("b"))]

    with pytest.raises(RestoreError) as caught:
        files.run(*changed)
    for part in ("'a'", f"{files.root}/a", f"{files.root}/c", KEEP, ANEW):
        assert part in str(caught.value)

    anew = files.run(*changed, options={ANEW: "a"})
    assert anew == once("a1", "a2", "a3", "b1", "c1")
    files.put("c", "c2")
    assert files.run(*changed, options={ANEW: "a"})["c1"] == 1, "it counts once, though it is still asked for"


def test_a_changed_input_keeps_its_position_if_requested(files: Files) -> None:
    def by_name(folder: str) -> Any:
        return files.spark.readStream.option("fileNameOnly", "true").text(str(files.root / folder))

    files.run(("a", by_name("a")), ("b", files.stream("b")))
    (files.root / "a").rename(files.root / "moved")
    files.put("moved", "a4")

    counted = files.run(("b", files.stream("b")), ("a", by_name("moved")), options={KEEP: "a"})
    assert counted == once("a1", "a2", "a3", "a4", "b1")
    assert files.run(("a", by_name("moved")), ("b", files.stream("b"))) == counted, "without being told again"


def test_a_changed_file_format_is_rejected_unless_the_position_is_kept(spark: Any, tmp_path: Path) -> None:
    """As it was found: lines of text, and then the columns of JSON, under one uid, without a word."""

    def run(told: StreamFormat, **options: Any) -> None:
        source = FileSource.for_record_stream_format(told, str(tmp_path / "in"))
        env = environment(spark, tmp_path, execution_trigger="available-now", **options)
        stream = source.monitor_continuously(Duration.of_millis(50)).build()
        rows = env.from_source(stream, WatermarkStrategy.no_watermarks(), "in").uid("in")
        rows.map(lambda row: (str(row),), "value string").sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
        env.execute("lines")

    def put(name: str, line: str) -> None:
        (tmp_path / "in" / name).write_text(line)

    (tmp_path / "in").mkdir()
    put("a", '{"x": 1}')
    run(StreamFormat.text_line_format())
    put("b", '{"x": 2}')
    run(StreamFormat.text_line_format("latin-1"))
    put("c", '{"x": 3}')
    for other in (JsonLinesFormat("x bigint"), JsonLinesFormat("x bigint, y string")):
        with pytest.raises(RestoreError, match=r"then .*/in', read as text of string, now .*read as JSON lines of str"):
            run(other)
    run(JsonLinesFormat("x bigint"), execution_state__recovery_changed__inputs_keep="in")
    put("d", '{"x": 4}')
    with pytest.raises(RestoreError, match=r"read as JSON lines of struct<x: bigint>, now .*<x: bigint, y: string>"):
        run(JsonLinesFormat("x bigint, y string"))
    run(JsonLinesFormat("x bigint"))
    lines = [row["value"] for row in pq.read_table(str(tmp_path / "out")).to_pylist()]
    assert sorted(lines) == ["Row(x=3)", "Row(x=4)", '{"x": 1}', '{"x": 2}']


def test_one_frame_in_two_inputs_has_one_position(files: Files) -> None:
    a = files.stream("a")
    twice = once("a1", "a2", "a3") + once("a1", "a2", "a3") + once("b1")
    assert files.run(("a", a), ("b", files.stream("b")), ("also-a", a)) == twice
    files.put("a", "a4")
    again = files.stream("a")
    counted = files.run(("also-a", again), ("a", again), ("b", files.stream("b")))
    assert counted == twice + once("a4", "a4")

    files.put("a", "a5")
    counted = files.run(("b", files.stream("b")), ("a", files.stream("a")), ("also-a", files.stream("a")))
    assert counted == twice + once("a4", "a4", "a5", "a5"), "two frames go on where the one stood"
    again = files.stream("a")
    with pytest.raises(RestoreError, match="one frame"):
        files.run(("b", files.stream("b")), ("a", again), ("also-a", again), ("new", again))


def test_static_inputs_are_consumed_one_by_one(files: Files) -> None:
    a = ("a", files.stream("a"))
    assert files.run(("s", files.static("s1")), a) == once("s1", "a1", "a2", "a3")

    both = [("t", files.static("t1")), ("s", files.static("s1")), ("a", files.stream("a"))]
    assert files.run(*both) == once("s1", "t1", "a1", "a2", "a3"), "also where the stream brings nothing"
    files.put("a", "a4")
    assert files.run(*both) == once("s1", "t1", "a1", "a2", "a3", "a4")

    files.put("u", "u1")
    elsewhere = files.spark.read.text(str(files.root / "u"))
    with pytest.raises(RestoreError, match="'t'"):
        files.run(("t", elsewhere), ("s", files.static("s1")), ("a", files.stream("a")))


def test_an_edited_collection_is_reported_and_read_again_on_request(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        found = [line.getMessage() for line in caplog.records if "from_collection()" in line.getMessage()]
        caplog.clear()
        return found

    stream = ("b", files.stream("b"))
    assert files.run(("c", ["c1", "c2"]), stream) == once("c1", "c2", "b1")
    assert files.run(("c", ["c1", "c2"]), stream) == once("c1", "c2", "b1")
    assert warnings() == []
    assert files.run(("c", ["c1", "c3"]), stream) == once("c1", "c2", "b1"), "the job goes on where it was"
    [warning] = warnings()
    assert "the elements of input 'c', a from_collection(), have changed" in warning
    assert f"{ANEW}: c, or start with --fresh" in warning
    again = {ANEW: ["c"]}
    assert files.run(("c", ["c1", "c4"]), stream, options=again) == once("c1", "c2", "b1", "c1", "c4")
    assert files.run(("c", ["c1", "c4"]), stream, options=again) == once("c1", "c2", "b1", "c1", "c4"), "once"
    assert warnings() == []


def test_a_step_before_the_first_operator_keeps_the_position(files: Files) -> None:
    files.run(("a", files.stream("a")), ("b", files.stream("b")))
    files.put("a", "a4")
    counted = files.run(
        ("b", files.stream("b")),
        ("a", files.stream("a")),
        change=lambda stream: stream.transform(lambda df: df.where("value <> 'nothing'")),
    )
    assert counted == once("a1", "a2", "a3", "a4", "b1")


def test_an_input_begins_anew_again_after_a_crash_before_its_checkpoint(files: Files) -> None:
    files.run(("a", files.stream("a")), ("b", files.stream("b")))
    files.put("c", "c1")
    died = files.root / "died"

    def die_once(row: Any) -> Any:
        if not died.exists():
            died.touch()
            raise RuntimeError("the first attempt dies")
        return row

    retried = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1,
        "restart-strategy.fixed-delay.delay": "0 ms",
    }
    counted = files.run(
        ("b", files.stream("b")),
        ("new", files.static("s1")),
        ("a", files.stream("c")),
        options={ANEW: "a", **retried},
        change=lambda stream: stream.map(die_once, "value string"),
    )
    assert died.exists()
    assert counted == once("a1", "a2", "a3", "b1", "c1", "s1")


def test_a_description_names_the_place_and_no_secret(spark: Any) -> None:
    frame = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 3)
        .option("Subscribe", "b, a")
        .option("kafka.sasl.jaas.config", "password=secret")
        .option("url", "jdbc:postgresql://me:secret@host/db?password=secret")
        .load()
    )
    assert description_of(frame) == "rate-micro-batch of subscribe 'a,b', url 'jdbc:postgresql://host/db'"


def test_an_option_for_an_unknown_input_is_rejected(files: Files) -> None:
    with pytest.raises(ConfigurationError, match="'nobody'"):
        files.run(("a", files.stream("a")), options={ANEW: "nobody"})


def test_sources_that_spark_names_are_refused(files: Files) -> None:
    files.spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    try:
        named = files.spark.readStream.name("a").text(str(files.root / "a"))
        with pytest.raises(ConfigurationError, match="enableSourceEvolution"):
            files.run(("a", named))
    finally:
        files.spark.conf.unset("spark.sql.streaming.queryEvolution.enableSourceEvolution")
