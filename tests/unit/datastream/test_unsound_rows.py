"""Values that are none of their types, as functions of batches make them: told before they are staged.

Who reads them again at the commit refuses them, when their epoch is promised already.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from holdfast.common import Types
from holdfast.datastream import OutputTag, ParquetFileSink, Sink
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.errors import InputError, JobExecutionError, OutputTypeError
from holdfast.testing import EpochProgram
from holdfast.types.arrow import batch_to_elements, check_values
from holdfast.types.type_parser import to_row_type
from tests.stories import journal, ledger
from tests.stories.journal import Journal

REFUSED = OutputTag("refused")
HOURS = [("kelp", 23), ("rock", 24), ("sand", 9)]
"""Of which the second is no hour of a day, nor a number with one digit before the point."""

TIME, PRICE = "at time", "price decimal(4,2)"


def with_time(batch: pa.RecordBatch, state: Any) -> pa.Table:
    """The hours as times of day: Arrow makes one of 24:00:00 as well."""
    at = pc.multiply(batch["n"], 3_600_000_000_000).cast(pa.time64("ns"))
    return pa.table({"word": batch["word"], "at": at})


def with_price(batch: pa.RecordBatch, state: Any) -> pa.Table:
    """The hours times 4.2, in decimals that are too short for a hundred; asked not to look, Arrow does not."""
    cents = pc.multiply(batch["n"].cast(pa.decimal128(19)), pa.scalar(Decimal("4.2")))
    return pa.table(
        {"word": batch["word"], "price": cents.cast(pa.decimal128(38, 2)).cast(pa.decimal128(4, 2), safe=False)}
    )


def with_bytes(batch: pa.RecordBatch, state: Any) -> pa.Table:
    """The words, of which one is not in UTF-8."""
    words = [b"r\xf6ck" if word == "rock" else word.encode() for word in batch["word"].to_pylist()]
    return pa.table({"word": batch["word"], "text": pa.array(words, pa.binary()).view(pa.string())})


def in_parts(batch: pa.RecordBatch, state: Any) -> pa.Table:
    """The times of day in lists of structs."""
    times = pa.StructArray.from_arrays([with_time(batch, state)["at"].combine_chunks()], ["at"])
    lists = pa.ListArray.from_arrays(pa.array(range(len(times) + 1), pa.int32()), times)
    return pa.table({"word": batch["word"], "parts": lists})


def into_sqlite(place: Path) -> Sink:
    return DatabaseSink(f"sqlite:///{place}/db", "out", create_table=True)


def into_sqlite_by_key(place: Path) -> Sink:
    return DatabaseSink(f"sqlite:///{place}/db", "out", key="word", create_table=True)


def into_files(place: Path) -> Sink:
    return ParquetFileSink(place / "out")


def into_a_sink_of_elements(place: Path) -> Sink:
    return Journal(place / "out")


def run(place: Path, function: Callable[..., Any], columns: str, sink: Sink, *, goes_aside: bool) -> None:
    program = EpochProgram()
    rows = program.source("in", "word string, n bigint").key_by("word")
    made = rows.process_batches(function, f"word string, {columns}").uid("made")
    out = made.sink_to(sink).uid("out")
    if goes_aside:
        letters = out.set_dead_letter_output(REFUSED).get_side_output(REFUSED)
        letters.sink_to(ParquetFileSink(place / "aside")).uid("letters")
    program.run(place / "job", [{"in": HOURS}], {"sink.committer.retries": 0}, parallelism=1)


@pytest.mark.parametrize("sink", [into_sqlite, into_sqlite_by_key, into_files, into_a_sink_of_elements])
@pytest.mark.parametrize(
    ("function", "columns", "reason"),
    [
        (with_time, TIME, "time64[ns] 86400000000000 is not within the acceptable range of [0, 86400000000000) ns"),
        (with_price, PRICE, "Decimal value 10080 does not fit in precision of decimal128(4, 2)"),
        (with_bytes, "text string", "Invalid UTF8 sequence"),
    ],
)
def test_a_value_that_is_none_of_its_type_goes_aside_or_stops_the_job_with_the_same_words(
    tmp_path: Path, sink: Callable[[Path], Sink], function: Callable[..., Any], columns: str, reason: str
) -> None:
    with pytest.raises(JobExecutionError) as caught:
        run(tmp_path, function, columns, sink(tmp_path), goes_aside=False)
    run(tmp_path, function, columns, sink(tmp_path), goes_aside=True)
    [(row, uid, epoch, words)] = ledger.read(tmp_path / "aside")
    name = columns.partition(" ")[0]
    assert (row, uid, epoch) == ({"word": "rock", name: None}, "out", 1), "a letter has no such value either"
    said = f"'out' got a row that cannot be written: the value of {name!r} is not of its type: {reason}"
    assert said in words and said in str(caught.value)


def test_the_rows_beside_it_are_written_whatever_their_columns_are_made_of(tmp_path: Path) -> None:
    run(tmp_path, with_time, TIME, into_sqlite(tmp_path), goes_aside=True)
    with closing(sqlite3.connect(tmp_path / "db")) as database:
        assert sorted(database.execute("select word, substr(at, 1, 8) from out")) == [
            ("kelp", "23:00:00"),
            ("sand", "09:00:00"),
        ]
    (tmp_path / "lists").mkdir()
    run(tmp_path / "lists", in_parts, "parts array<struct<at: time>>", into_files(tmp_path / "lists"), goes_aside=True)
    assert sorted(ledger.read(tmp_path / "lists" / "out")) == [
        ("kelp", [{"at": time(23)}]),
        ("sand", [{"at": time(9)}]),
    ]
    (tmp_path / "elements").mkdir()
    run(tmp_path / "elements", with_time, TIME, into_a_sink_of_elements(tmp_path / "elements"), goes_aside=True)
    written = journal.as_tuples(journal.read(tmp_path / "elements" / "out"))
    assert written == [("kelp", time(23)), ("sand", time(9))]
    [letter] = ledger.read(tmp_path / "lists" / "aside")
    assert letter[0] == {"word": "rock", "parts": None}


@pytest.mark.parametrize(
    ("columns", "kind", "number", "reason"),
    [
        (TIME, pa.time64("ns"), 86_400_000_000_000, "86400000000000 is not within the acceptable range"),
        (PRICE, pa.decimal128(4, 2), 12_345, "Decimal value 12345 does not fit in precision"),
    ],
)
def test_a_file_that_has_such_a_value_is_refused_with_the_value(
    tmp_path: Path, columns: str, kind: pa.DataType, number: int, reason: str
) -> None:
    values = pa.py_buffer(number.to_bytes(kind.bit_width // 8, "little"))
    column = pa.Array.from_buffers(kind, 1, [None, values])
    pq.write_table(pa.table({columns.partition(" ")[0]: column}), tmp_path / "in.parquet")
    splits = FileSplits(ParquetColumnarRowInputFormat(columns))
    [task] = splits.plan([str(tmp_path / "in.parquet")], None, 1).tasks
    with pytest.raises(InputError, match=rf"in\.parquet' cannot be read as Parquet: .*{reason}"):
        list(splits.read(task))


def same(row: Any) -> Any:
    return row


@pytest.mark.parametrize(
    ("function", "columns", "name"), [(with_time, TIME, "at"), (in_parts, "parts array<struct<at: time>>", "parts")]
)
@pytest.mark.parametrize("keyed", [False, True])
def test_a_function_of_elements_never_gets_midnight_for_the_end_of_the_day(
    tmp_path: Path, function: Callable[..., Any], columns: str, name: str, keyed: bool
) -> None:
    program = EpochProgram()
    rows = program.source("in", "word string, n bigint").key_by("word")
    made = rows.process_batches(function, f"word string, {columns}").uid("made")
    then = made.key_by(lambda row: row.word, Types.STRING()) if keyed else made
    then.map(same, f"word string, {columns}").uid("then").sink_to(into_files(tmp_path)).uid("out")
    said = (
        rf"\(uid 'made'\) produced a row whose value of '{name}' is not of its type: 86400000000000 nanoseconds after"
    )
    with pytest.raises(JobExecutionError, match=said):
        program.run(tmp_path / "job", [{"in": HOURS}], {"sink.committer.retries": 0}, parallelism=1)


def test_rows_are_not_to_blame_for_others_that_lie_beside_them_in_memory() -> None:
    times = pa.Array.from_buffers(pa.time64("ns"), 2, [None, pa.array([86_400_000_000_000, 5_000]).buffers()[1]])
    for column in (
        times,
        pa.ListArray.from_arrays([0, 1, 2], times),
        pa.StructArray.from_arrays([times], ["at"]),
        pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), times),
    ):
        batch = pa.RecordBatch.from_arrays([column], ["at"])
        check_values(batch.slice(1), "out")
        with pytest.raises(OutputTypeError, match="value of 'at' is not of its type"):
            check_values(batch, "out")
        rows = to_row_type(batch.schema)
        assert len(batch_to_elements(batch.slice(1), rows)) == 1
        with pytest.raises(OutputTypeError, match="value of 'at' is not of its type"):
            batch_to_elements(batch, rows)
