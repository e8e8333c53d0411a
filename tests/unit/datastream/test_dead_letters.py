"""Rows that a sink cannot write: a task tells before it stages them, and they go aside or stop the job.

That they are aside once wherever a process ends is in the contract of sinks.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.own_sink import JsonLinesSink, JsonLinesWriter
from holdfast.common import Encoder, Row, RowKind, WatermarkStrategy
from holdfast.datastream import (
    OutputTag,
    ParquetFileSink,
    RefusedElementError,
    Sink,
    WriterContext,
    WriterInitContext,
)
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.runtime.function.sink import BatchSinkWriter
from holdfast.testing import EpochProgram
from tests.stories import ledger

COUNTS = "word string, n bigint"
REFUSED = OutputTag("refused")


def database(place: Path) -> str:
    with closing(sqlite3.connect(place / "db.sqlite")) as made:
        made.execute("create table counts (word text not null, n integer not null)")
        made.commit()
    return f"sqlite:///{place / 'db.sqlite'}"


def written(place: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(place / "db.sqlite")) as made:
        return sorted(made.execute("select word, n from counts"))


def put_aside(place: Path) -> list[tuple[Any, ...]]:
    return sorted((row[0]["word"], row[0]["n"], *row[1:]) for row in ledger.read(place / "refused"))


def run(place: Path, sink: Sink, *epochs: Sequence[Any], columns: str = COUNTS, **settings: Any) -> EpochProgram:
    program = EpochProgram()
    out = program.source("in", columns).sink_to(sink).uid("out").set_dead_letter_output(REFUSED)
    out.get_side_output(REFUSED).sink_to(ParquetFileSink(place / "refused")).uid("dead letters")
    program.run(place / "job", [{"in": rows} for rows in epochs], **settings)
    return program


def test_rows_go_aside_with_sink_epoch_and_the_words_that_would_have_stopped_the_job(tmp_path: Path) -> None:
    sink = DatabaseSink(database(tmp_path), "counts")
    run(tmp_path, sink, [("kelp", 1), ("rock", None), ("sand", 2)], [("silt", 3)], [("mud", None), ("mud", 4)])
    assert written(tmp_path) == [("kelp", 1), ("mud", 4), ("sand", 2), ("silt", 3)]
    [mud, rock] = put_aside(tmp_path)
    assert mud[:4] == ("mud", None, "out", 3) and rock[:4] == ("rock", None, "out", 1)

    (tmp_path / "strict").mkdir()
    program = EpochProgram()
    program.source("in", COUNTS).sink_to(DatabaseSink(database(tmp_path / "strict"), "counts")).uid("out")
    with pytest.raises(JobExecutionError) as caught:
        program.run(tmp_path / "strict" / "job", [{"in": [("rock", None)]}])
    assert rock[4] in str(caught.value)
    assert "'n' is null; the table requires it: {'word': 'rock', 'n': None}" in rock[4]
    assert written(tmp_path / "strict") == []


def test_of_changes_those_that_delete_need_only_their_key(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as made:
        made.execute("create table counts (word text primary key, n integer not null)")
        made.commit()
    sink = DatabaseSink(f"sqlite:///{tmp_path / 'db.sqlite'}", "counts", key="word")
    rows = [
        Row.of_kind(kind, word=word, n=n)
        for kind, word, n in [
            (RowKind.INSERT, "kelp", 1),
            (RowKind.INSERT, "rock", 1),
            (RowKind.DELETE, "rock", None),
            (RowKind.UPDATE_AFTER, "sand", None),
        ]
    ]
    program = EpochProgram()
    changes = program.source("in", "changelog<word: string, n: bigint>")
    out = changes.sink_to(sink).uid("out").set_dead_letter_output(REFUSED)
    kinds: list[Any] = []
    letters = out.get_side_output(REFUSED).map(lambda letter: (letter.row.word, letter.row.get_row_kind().value))
    letters.map(lambda letter: letter, "word string, kind tinyint").for_each_epoch(
        lambda rows, epoch: kinds.extend(rows.to_pylist())
    ).uid("kinds")
    program.run(tmp_path / "job", [{"in": rows}], source_tasks=1)
    assert written(tmp_path) == [("kelp", 1)]
    assert kinds == [{"word": "sand", "kind": RowKind.UPDATE_AFTER.value}]


def test_a_table_that_says_what_is_never_null(tmp_path: Path) -> None:
    schema = Schema.from_arrow(pa.schema([pa.field("word", pa.string()), pa.field("n", pa.int64(), nullable=False)]))
    DeltaTable.create(tmp_path / "table", schema)
    run(tmp_path, DeltaSink(tmp_path / "table"), [("kelp", 1), ("rock", None)], [("rock", None)])
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist() == [{"word": "kelp", "n": 1}]
    assert [row[:4] for row in put_aside(tmp_path)] == [("rock", None, "out", 1), ("rock", None, "out", 2)]


class Choosy(JsonLinesSink):
    """Takes words of at most four letters, element by element; its writer says so before it takes anything."""

    def create_writer(self, context: WriterInitContext) -> JsonLinesWriter:
        writer = super().create_writer(context)
        return _ChoosyWriter(writer.directory, writer.name)


class _ChoosyWriter(JsonLinesWriter):
    def write(self, element: Row, context: WriterContext) -> None:
        if element.word == "broken":
            raise ValueError("the writer is broken")
        if len(element.word) > 4:
            raise RefusedElementError(f"{element.word!r} is too long")
        super().write(element, context)


def test_a_sink_of_ones_own_refuses_elements_which_keep_their_event_time_and_may_be_keyed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    program = EpochProgram()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 1000 + row.n)
    timed = program.source("in", COUNTS).assign_timestamps_and_watermarks(strategy).uid("timed")
    out = timed.sink_to(Choosy(str(tmp_path / "out"))).uid("out").set_dead_letter_output(REFUSED)
    seen: list[Any] = []

    def timed_words(letter: Any, ctx: Any) -> Iterator[Any]:
        yield letter.row.word, ctx.timestamp(), letter.reason

    (
        out.get_side_output(REFUSED)
        .key_by(lambda letter: letter.row.word, "string")
        .process(timed_words, "word string, at bigint, reason string")
        .uid("keyed")
        .for_each_epoch(lambda rows, epoch: seen.extend(rows.to_pylist()))
        .uid("seen")
    )
    program.run(tmp_path / "job", [{"in": [("kelp", 1), ("seaweed", 2)]}, {"in": [("pebble", 3)]}])
    assert sorted(row["word"] for row in seen) == ["pebble", "seaweed"]
    assert {row["word"]: row["at"] for row in seen} == {"pebble": 1003, "seaweed": 1002}
    assert {row["reason"] for row in seen} == {"'pebble' is too long", "'seaweed' is too long"}
    with pytest.raises(JobExecutionError, match="the writer is broken"):
        run(tmp_path / "broken", Choosy(str(tmp_path / "out")), [("broken", 1)])


class Refusing(Sink):
    """Takes what is even; a batch with an odd number is refused as a whole."""

    def create_writer(self, context: WriterInitContext) -> Any:
        return _Even()


class _Even(BatchSinkWriter):
    taken: ClassVar[list[int]] = []

    def write_batch(self, batch: pa.RecordBatch) -> None:
        odd = pc.equal(pc.bit_wise_and(batch.column(0), 1), 1)
        if pc.any(odd).as_py():
            raise RefusedElementError(f"{batch.column(0)[pc.index(odd, True).as_py()]} is odd")
        self.taken.extend(batch.column(0).to_pylist())


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(numbers=st.lists(st.integers(0, 99), max_size=60))
def test_a_batch_is_taken_apart_until_those_rows_are_found_that_are_to_blame(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int]
) -> None:
    _Even.taken.clear()
    refused: list[Any] = []
    program = EpochProgram()
    out = program.source("in", "n bigint").sink_to(Refusing()).uid("out").set_dead_letter_output(REFUSED)
    letters = out.get_side_output(REFUSED)
    letters.for_each_epoch(lambda rows, epoch: refused.extend(rows.to_pylist())).uid("letters")
    program.run(tmp_path_factory.mktemp("job"), [{"in": [(n,) for n in numbers]}], source_tasks=1)
    assert _Even.taken == [n for n in numbers if n % 2 == 0]
    assert [(row["row"]["n"], row["reason"]) for row in refused] == [(n, f"{n} is odd") for n in numbers if n % 2]


def test_letters_that_nobody_reads_are_dropped_and_counted(tmp_path: Path) -> None:
    from holdfast.testing.epoch_runner import LocalEngine, run_job

    program = EpochProgram()
    program.source("in", COUNTS).sink_to(DatabaseSink(database(tmp_path), "counts")).uid("out").set_dead_letter_output(
        REFUSED
    )
    engine = LocalEngine([{"in": [("kelp", 1), ("rock", None), ("rock", None)]}])
    master = run_job(program.get_stream_graph(), tmp_path / "job", engine)
    master.run()
    numbers = master.metrics.numbers
    assert numbers.operators["out"].own["numRecordsSendErrors"][1] == 2
    assert (numbers.operators["out"].records_in, numbers.sinks["out"].records) == (3, 1)
    assert written(tmp_path) == [("kelp", 1)]


def test_a_tag_says_what_the_letters_are_and_a_sink_without_letters_says_so(tmp_path: Path) -> None:
    program = EpochProgram()
    out = program.source("in", COUNTS).sink_to(ParquetFileSink(tmp_path))
    with pytest.raises(ConfigurationError, match=r"has no side output 'refused': call set_dead_letter_output\(\)"):
        out.get_side_output(REFUSED)
    with pytest.raises(ConfigurationError, match="row struct<word: string, n: bigint>, sink string, epoch bigint"):
        out.set_dead_letter_output(OutputTag("refused", "word string"))
    with pytest.raises(ConfigurationError, match="not 'refused'"):
        out.set_dead_letter_output("refused")  # type: ignore[arg-type]
    typed = OutputTag("refused", "row struct<word: string, n: bigint>, sink string, epoch bigint, reason string")
    assert out.set_dead_letter_output(typed).get_side_output(typed).get_type() == typed.type_info
    assert Counter(program.get_stream_graph().sinks)[out._node] == 1


class Longest(Encoder):
    def encode(self, element: Any) -> bytes:
        if element.n < 0:
            raise ValueError("below nothing")
        return f"{element.word} {element.n}\n".encode() if element.n < 9 else f"{element.word}"  # type: ignore[return-value]


@pytest.mark.parametrize("column", ["", "word"])
def test_what_an_encoder_cannot_write_goes_aside_alone_or_stops_the_job_with_the_same_words(
    tmp_path: Path, column: str
) -> None:
    """Whichever of its rows are in the same batch, and in which directories these are."""

    def sink(place: Path) -> Sink:
        builder = FileSink.for_row_format(place, Longest())
        by = BucketAssigner.column_bucket_assigner(column) if column else BucketAssigner.base_path_bucket_assigner()
        return builder.with_bucket_assigner(by).build()

    rows = [("kelp", 1), ("rock", -1), ("kelp", 9), ("rock", 2), ("sand", 3)]
    run(tmp_path, sink(tmp_path / "out"), rows, [("kelp", -2)], [("kelp", 4)], source_tasks=1)
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file() and ".holdfast" not in file.parts]
    found = sorted(line for file in files for line in file.read_text().splitlines())
    assert found == ["kelp 1", "kelp 4", "rock 2", "sand 3"]
    letters = put_aside(tmp_path)
    assert [letter[:4] for letter in letters] == [
        ("kelp", -2, "out", 2), ("kelp", 9, "out", 1), ("rock", -1, "out", 1),
    ]  # fmt: skip
    assert letters[0][4] == "its bytes cannot be made: ValueError: below nothing"
    assert "its bytes cannot be made: " in letters[1][4] and "str found" in letters[1][4]
    program = EpochProgram()
    program.source("in", COUNTS).sink_to(sink(tmp_path / "other")).uid("out")
    with pytest.raises(JobExecutionError, match="ValueError: below nothing"):
        program.run(tmp_path / "other job", [{"in": rows}], {"restart-strategy.type": "none"})


def test_numbers_that_json_has_not_go_aside(tmp_path: Path) -> None:
    sink = FileSink.for_row_format(tmp_path / "out", Encoder.json_encoder()).build()
    run(tmp_path, sink, [("kelp", 1.5), ("rock", float("nan"))], columns="word string, n double")
    [letter] = put_aside(tmp_path)
    assert (letter[0], letter[4]) == (
        "rock",
        "its bytes cannot be made: ValueError: Out of range float values are not JSON compliant",
    )
