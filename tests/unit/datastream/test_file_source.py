"""Files as an input, without Spark: splits that miss nothing, formats, and what is told of files that changed."""

from __future__ import annotations

import codecs
import datetime
import gzip
import json
import os
import pickle
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, Encoder
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.formats import input_format as text_lines
from holdfast.datastream.formats.arrow import ArrowInputFormat
from holdfast.datastream.formats.csv import CsvReaderFormat
from holdfast.datastream.formats.input_format import InputFile, InputFormat
from holdfast.datastream.formats.json import JsonLinesFormat
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.errors import ConfigurationError, InputError, InputGoneError
from holdfast.types.arrow import batch_to_elements

COLUMNS = "key string, n bigint"
TABLE = pa.table({"key": [f"k{n % 7}" for n in range(1000)], "n": pa.array(range(1000), pa.int64())})

ROWS = TABLE.to_pylist()


def read(input_format: InputFormat, paths: Sequence[Path], tasks: int = 3) -> list[Any]:
    splits = pickle.loads(pickle.dumps(FileSplits(input_format)))
    plan = splits.plan([str(path) for path in paths], None, tasks)
    assert len(plan.tasks) <= tasks
    return [row for task in plan.tasks for batch in splits.read(task) for row in batch.to_pylist()]


def pieces(input_format: InputFormat, path: Path, cuts: Sequence[int]) -> list[Any]:
    file = InputFile.of(str(path))
    ends = [0, *sorted(min(cut, file.length) for cut in cuts), file.length]
    return [
        row
        for begin, end in pairwise(ends)
        for batch in input_format.read(file, begin, end)
        for row in batch.to_pylist()
    ]


@given(
    content=st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"bc", b"\xc3\xa4", b"\r"])).map(b"".join),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    block=st.integers(1, 20),
)
def test_every_line_belongs_to_one_split_however_a_text_is_cut(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int], block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "file.txt"
    path.write_bytes(content)
    before, text_lines.BLOCK = text_lines.BLOCK, block
    try:
        found = [row["value"] for row in pieces(StreamFormat.text_line_format(), path, cuts)]
    finally:
        text_lines.BLOCK = before
    lines = content.decode().split("\n")
    assert found == [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in a file of each format."""
    folder = tmp_path_factory.mktemp("rows")
    for name, rows in (("a", 37), ("one", 1000), ("two", 700), ("three", 340)):
        pq.write_table(TABLE, folder / f"{name}.parquet", row_group_size=rows)
    with pa.ipc.new_file(folder / "a.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=41)
    with pa.ipc.new_stream(folder / "a.arrows", TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=41)
    (folder / "a.json").write_text("\n".join(json.dumps({"more": 1, **row}) for row in ROWS))
    (folder / "a.csv").write_text("key,n\r\n" + "".join(f"{row['key']},{row['n']}\r\n" for row in ROWS))
    return folder


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=6))
def test_every_row_of_each_format_belongs_to_one_split(folder: Path, cuts: list[int]) -> None:
    formats = {
        **{f"{name}.parquet": ParquetColumnarRowInputFormat(COLUMNS) for name in ("a", "one", "two", "three")},
        "a.arrow": ArrowInputFormat(COLUMNS),
        "a.arrows": ArrowInputFormat(COLUMNS),
        "a.json": JsonLinesFormat(COLUMNS),
        "a.csv": CsvReaderFormat.for_schema(COLUMNS, header=True),
    }
    for name, input_format in formats.items():
        assert pieces(input_format, folder / name, cuts) == ROWS, name


@pytest.mark.parametrize(("name", "tasks"), [("one", 2), ("one", 4), ("two", 3), ("three", 2)])
def test_a_file_of_few_row_groups_is_read_by_several_tasks(folder: Path, name: str, tasks: int) -> None:
    file = InputFile.of(str(folder / f"{name}.parquet"))
    ends = [file.length * task // tasks for task in range(tasks + 1)]
    input_format = ParquetColumnarRowInputFormat(COLUMNS)
    counts = [sum(b.num_rows for b in input_format.read(file, begin, end)) for begin, end in pairwise(ends)]
    assert sum(counts) == len(ROWS)
    assert max(counts) < len(ROWS) * 0.55, counts
    assert min(counts) > 0, counts


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("x date", [datetime.date(2026, 11, 26), datetime.date(1, 1, 1), None]),
        ("x time", [datetime.time(7, 30, 0, 123456), datetime.time(), None]),
        ("x binary", [b"\xff\x00", b"", None]),
        ("x map<string, double>", [[("kelp", 0.5), ("", None)], [], None]),
        ("x timestamp", [datetime.datetime(2026, 11, 26, 7, 30, 0, 1, tzinfo=datetime.UTC), None]),
        ("x timestamp_ntz", [datetime.datetime(2026, 11, 26, 7, 30, 0, 1), None]),
        ("x decimal(38, 10)", [Decimal("1234567890123456789012345678.0123456789"), Decimal(0), None]),
        ("x array<struct<day: date, n: int>>", [[{"day": datetime.date(2026, 11, 26), "n": 1}, None], [], None]),
        ("x struct<a: array<bigint>, b: struct<c: string>>", [{"a": [1, None], "b": {"c": "é\n"}}, None]),
    ],
)
def test_what_the_encoder_writes_as_json_lines_is_read_again(tmp_path: Path, columns: str, values: list[Any]) -> None:
    input_format, path = JsonLinesFormat(f"n bigint, {columns}"), tmp_path / "a.json"
    rows = batch_to_elements(
        pa.RecordBatch.from_pylist([{"n": n, "x": x} for n, x in enumerate(values)], input_format.schema),
        input_format.element_type(),
    )
    text = b"".join(map(Encoder.json_encoder().encode, rows))
    path.write_bytes(codecs.BOM_UTF8 + text.replace(b"\n", b"\r\n") + b"\n")
    for cuts in ([], [1, 9, 30, 55]):
        assert [row["x"] for row in pieces(input_format, path, cuts)] == values


def test_a_large_batch_of_lists_is_read_in_parts(tmp_path: Path) -> None:
    table = pa.table({"list": pa.array([["a"] * (n % 3) for n in range(150_000)], pa.list_(pa.string()))})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    file = InputFile.of(str(tmp_path / "a.arrow"))
    batches = list(ArrowInputFormat("list array<string>").read(file, 0, file.length))
    assert [len(batch) for batch in batches] == [65_536, 65_536, 18_928]
    assert pa.Table.from_batches(batches).column("list").to_pylist() == table.column("list").to_pylist()


def test_compressed_and_quoted_text_is_read_whole_by_one_task(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(400_000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.txt").write_text(text)
    splits = FileSplits(StreamFormat.text_line_format())
    plan = splits.plan([str(tmp_path / "a.txt.gz"), str(tmp_path / "b.txt")], None, 4)
    cuts = {Path(path).name: len(at) - 1 for path, _, _, at in json.loads(plan.record)["files"]}
    assert cuts["a.txt.gz"] == 1
    assert cuts["b.txt"] > 2
    found = read(StreamFormat.text_line_format(), [tmp_path / "a.txt.gz", tmp_path / "b.txt"], tasks=4)
    assert sorted(row["value"] for row in found) == sorted(2 * text.splitlines())
    (tmp_path / "c.csv").write_text('"a\nb",1\n"c ""d""",2\n,\n')
    rows = read(CsvReaderFormat.for_schema(COLUMNS, multi_line=True), [tmp_path / "c.csv"])
    assert [tuple(row.values()) for row in rows] == [("a\nb", 1), ('c "d"', 2), ("", None)]
    (tmp_path / "d.txt").write_bytes("gr\u00fcn\nbl\u00e4u".encode("utf-16"))
    assert [row["value"] for row in read(StreamFormat.text_line_format("UTF-16"), [tmp_path / "d.txt"])] == [
        "gr\u00fcn",
        "bl\u00e4u",
    ]


@pytest.mark.parametrize("charset", ["UTF-8", "UTF-16", "latin-1"])
def test_a_file_without_text_has_no_lines(tmp_path: Path, charset: str) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b""))
    assert read(StreamFormat.text_line_format(charset), [tmp_path / "a.txt.gz"]) == []
    (tmp_path / "b.txt").write_bytes("".encode("UTF-16"))
    assert read(StreamFormat.text_line_format("UTF-16"), [tmp_path / "b.txt"]) == []


def test_the_work_is_shared_out_by_bytes(tmp_path: Path) -> None:
    for name, size in (("a", 6), ("b", 3), ("c", 2), ("d", 0)):
        (tmp_path / name).write_bytes(b"x" * (size << 20))
    plan = FileSplits(StreamFormat.text_line_format()).plan([str(path) for path in sorted(tmp_path.iterdir())], None, 2)
    shares = [sum(end - begin for *_, begin, end in json.loads(task)) for task in plan.tasks]
    assert sum(shares) == 11 << 20
    assert max(shares) <= 1.2 * min(shares)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"key": ["a"]}), "has no column 'n'"),
        (pa.table({"key": ["a"], "n": ["b"]}), "has the column 'n' of type string"),
        (pa.table({"key": ["a"], "n": pa.array([1], pa.uint64())}), "has the column 'n' of type uint64"),
    ],
)
def test_a_file_of_another_schema_is_told_by_its_name(tmp_path: Path, table: pa.Table, said: str) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(InputError, match=said) as told:
        read(ParquetColumnarRowInputFormat(COLUMNS), sorted(tmp_path.iterdir()))
    assert "b.parquet" in str(told.value)


def test_narrower_columns_in_another_order_are_read_as_declared(tmp_path: Path) -> None:
    table = pa.table({"x": [0], "n": pa.array([7], pa.int16()), "key": pa.array(["a"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(ParquetColumnarRowInputFormat(COLUMNS), [tmp_path / "a.parquet"]) == [{"key": "a", "n": 7}]


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")])
def test_times_of_day_are_read_with_as_many_digits_as_others_write(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"at": pa.array([datetime.time(7, 30)], kind)}), tmp_path / "a.parquet")
    assert read(ParquetColumnarRowInputFormat("at time"), [tmp_path / "a.parquet"]) == [{"at": datetime.time(7, 30)}]


@pytest.mark.parametrize(
    ("name", "content", "input_format"),
    [
        ("a.parquet", b"PAR1 and no more", ParquetColumnarRowInputFormat(COLUMNS)),
        ("a.arrow", b"ARROW1 and no more", ArrowInputFormat(COLUMNS)),
        ("a.csv", b"a,1\nb\n", CsvReaderFormat.for_schema(COLUMNS)),
        ("a.csv", b"a,b\n", CsvReaderFormat.for_schema(COLUMNS)),
        ("a.csv", b"n,key\n1,a\n", CsvReaderFormat.for_schema(COLUMNS, header=True)),
        ("a.json", b'{"key": "a", "n": 1}\n{"key"', JsonLinesFormat(COLUMNS)),
        ("a.json", b'{"key": "a", "n": "b"}\n', JsonLinesFormat(COLUMNS)),
        ("a.txt", b"\xff\xfe\n", StreamFormat.text_line_format()),
        ("a.txt.gz", gzip.compress(b"line\n" * 100_000)[:-20], StreamFormat.text_line_format()),
    ],
)
def test_a_damaged_file_is_told_by_its_name(
    tmp_path: Path, name: str, content: bytes, input_format: InputFormat
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read(input_format, [tmp_path / name])


@pytest.mark.parametrize(
    ("content", "said"), [(b"one\n", "truncated"), (b"one\ntwo\nthree\n", "appended to"), (b"eno\nowt\n", "changed")]
)
def test_a_file_that_changes_after_it_was_listed_is_told_by_its_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    splits = FileSplits(StreamFormat.text_line_format())
    plan = splits.plan([str(path)], None, 1)
    reading = splits.read(plan.tasks[0])
    next(reading)
    path.write_bytes(content)
    for read_on in (lambda: list(reading), lambda: list(splits.read(plan.tasks[0]))):
        with pytest.raises(InputError, match=f"a.txt' was {said} after it was listed"):
            read_on()
    with pytest.raises(InputGoneError, match=f"cannot be repeated: .*a.txt' was {said}"):
        splits.plan([], plan.record, 1)
    path.unlink()
    for plan_or_read in (lambda: list(splits.read(plan.tasks[0])), lambda: splits.plan([], plan.record, 1)):
        with pytest.raises(InputGoneError, match=r"a\.txt' is gone"):
            plan_or_read()


def test_an_epoch_that_is_planned_again_is_cut_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"line\n" * 1_000_000)
    splits = FileSplits(StreamFormat.text_line_format())
    plan = splits.plan([str(tmp_path / "a.txt")], None, 4)
    again = splits.plan([], plan.record, 2)
    assert again.record == plan.record
    cuts = [sorted(tuple(one) for task in each.tasks for one in json.loads(task)) for each in (plan, again)]
    assert cuts[0] == cuts[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileSource.for_record_stream_format(ParquetColumnarRowInputFormat(COLUMNS), "a"),
        lambda: FileSource.for_bulk_file_format(StreamFormat.text_line_format(), "a"),
        lambda: FileSource.for_record_stream_format(StreamFormat.text_line_format()),
        lambda: FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a", "a"),
        lambda: FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a").monitor_continuously(1),
        lambda: FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a").set_property("format", "x"),
        lambda: (
            FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a").set_max_files_per_epoch(2).build()
        ),
        lambda: FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a").set_max_bytes_per_epoch(0),
        lambda: (
            FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a")
            .monitor_continuously(Duration.of_seconds(1))
            .set_max_files_per_epoch(2)
            .set_max_bytes_per_epoch(2)
            .build()
        ),
        lambda: StreamFormat.text_line_format("no such encoding"),
        lambda: CsvReaderFormat.for_schema(COLUMNS, delimiter=";;"),
        lambda: CsvReaderFormat.for_schema(COLUMNS, delimiter="é"),
        lambda: CsvReaderFormat.for_schema("key string, list array<bigint>"),
        lambda: JsonLinesFormat("counts map<bigint, string>"),
        lambda: JsonLinesFormat("pause interval day to second"),
        lambda: ParquetColumnarRowInputFormat("string"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()
    assert FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a").monitor_continuously(
        Duration.of_seconds(1)
    )
