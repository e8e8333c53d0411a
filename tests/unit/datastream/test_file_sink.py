"""Jobs whose rows go into files of every format, directories and size."""

from __future__ import annotations

import datetime
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.common import Encoder, Row, RowKind
from holdfast.datastream import ParquetFileSink
from holdfast.datastream.connectors.file_system import (
    BucketAssigner,
    BulkWriterFactory,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)
from holdfast.errors import ConfigurationError
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.function.sink import Sink
from holdfast.testing import EpochProgram
from holdfast.testing.sink_contract import SinkStage

COUNTS = "word string, n bigint"
ROWS = [("kelp", 1), ("rock", 2)], [('kelp, "wet"\n', 3), (None, None)]
HALF_PAST_SEVEN = int(datetime.datetime(2026, 11, 24, 7, 30, tzinfo=datetime.UTC).timestamp() * 1000)


def run(sink: Sink, place: Path, columns: Any, *epochs: list[Any], **settings: Any) -> None:
    program = EpochProgram()
    program.source("in", columns).sink_to(sink).uid("out")
    program.run(place / "job", [{"in": rows} for rows in epochs], source_tasks=1, **settings)


def files_of(path: Path, pattern: str = "**/*") -> list[Path]:
    return sorted(file for file in path.glob(pattern) if file.is_file() and ".holdfast" not in file.parts)


def flat(builder: Any, suffix: str = "") -> FileSink:
    builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    config = OutputFileConfig.builder().with_part_prefix("words").with_part_suffix(suffix).build()
    return builder.with_output_file_config(config).build()  # type: ignore[no-any-return]


def test_lines_of_text_as_pyflink_writes_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(
        flat(FileSink.for_row_format(out, Encoder.simple_string_encoder()), ".txt"),
        tmp_path,
        "string",
        ["a", "b"],
        ["c"],
    )
    assert [file.read_text() for file in files_of(out)] == ["a\nb\n", "c\n"]
    assert all(file.name.startswith("words-00000000") and file.suffix == ".txt" for file in files_of(out))


def test_rows_are_written_as_flink_shows_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(flat(FileSink.for_row_format(out, Encoder.simple_string_encoder())), tmp_path, COUNTS, [("a", None), ("b", 2)])
    assert [file.read_text() for file in files_of(out)] == ["+I[a, null]\n+I[b, 2]\n"]


def test_json_lines_of_every_type_packed_or_not(tmp_path: Path) -> None:
    columns = "a decimal(10, 2), b binary, c date, d timestamp, e array<string>, f struct<x: bigint>, g boolean"
    moment = datetime.datetime(2026, 11, 24, 7, 30, tzinfo=datetime.UTC)
    row = (Decimal("1.50"), b"\xff\x00", moment.date(), moment, ["é", None], {"x": 1}, None)
    expected = {
        "a": "1.50", "b": "/wA=", "c": "2026-11-24", "d": moment.isoformat(), "e": ["é", None], "f": {"x": 1}, "g": None
    }  # fmt: skip
    for compression, opened in (("none", open), ("gzip", gzip.open)):
        builder = FileSink.for_row_format(tmp_path / compression / "out", Encoder.json_encoder())
        run(flat(builder.with_compression(compression)), tmp_path / compression, columns, [row, row])
        [file] = files_of(tmp_path / compression / "out")
        with opened(file, "rt", encoding="utf-8") as lines:
            assert [json.loads(line) for line in lines] == [expected, expected]


def test_json_lines_of_changes_say_what_each_row_does(tmp_path: Path) -> None:
    """As files of columns do: a row that is deleted is none that is there."""
    changes = [Row.of_kind(RowKind.DELETE, id=1, at=None), Row.of_kind(RowKind.INSERT, id=2, at=[Row(x=1)])]
    sink = flat(FileSink.for_row_format(tmp_path / "out", Encoder.json_encoder()))
    run(sink, tmp_path, "changelog<id: bigint, at: array<struct<x: bigint>>>", changes)
    [file] = files_of(tmp_path / "out")
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"id": 1, "at": None, "row_kind": 3},
        {"id": 2, "at": [{"x": 1}], "row_kind": 0},
    ]


@pytest.mark.parametrize(("compression", "opened"), [("none", open), ("gzip", gzip.open)])
def test_csv_comes_back(tmp_path: Path, compression: str, opened: Any) -> None:
    out = tmp_path / "out"
    factory = BulkWriterFactory.csv(delimiter=";", compression=compression)
    run(flat(FileSink.for_bulk_format(out, factory), ".csv"), tmp_path, COUNTS, *ROWS)
    tables = []
    for file in files_of(out):
        with opened(file, "rb") as content:
            tables.append(polars.read_csv(content.read(), separator=";").rows())
    assert [row for table in tables for row in table] == [row for rows in ROWS for row in rows]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_arrow_files_come_back(tmp_path: Path, compression: str) -> None:
    out = tmp_path / "out"
    run(flat(FileSink.for_bulk_format(out, BulkWriterFactory.arrow(compression))), tmp_path, COUNTS, *ROWS)
    tables = [pa.ipc.open_file(file).read_all() for file in files_of(out)]
    assert [tuple(row.values()) for row in pa.concat_tables(tables).to_pylist()] == [
        row for rows in ROWS for row in rows
    ]


def test_parquet_in_directories_of_columns_is_read_by_everybody(tmp_path: Path) -> None:
    columns = "day date, word string, n bigint"
    days = [datetime.date(2026, 11, day) for day in (1, 2)]
    rows = [(days[0], "kelp", 1), (days[1], "a/b =%é..", 2), (None, None, 3), (days[0], "kelp", 4)]
    sinks = {
        "ours": ParquetFileSink(tmp_path / "ours" / "out", partition_by=["day", "word"]),
        "flink": FileSink.for_bulk_format(tmp_path / "flink" / "out", BulkWriterFactory.parquet())
        .with_bucket_assigner(BucketAssigner.column_bucket_assigner(["day", "word"]))
        .with_output_file_config(OutputFileConfig("part", ".parquet"))
        .build(),
    }
    for name, sink in sinks.items():
        run(sink, tmp_path / name, columns, rows)
        out = tmp_path / name / "out"
        assert [file.parent.relative_to(out).as_posix() for file in files_of(out)][:1] == ["day=2026-11-01/word=kelp"]
        # Spark takes each "%" and two digits for one character, which in UTF-8 only those of ASCII are.
        assert {folder.name for folder in out.glob("*/word=a*")} == {"word=a%2Fb %3D%25é.."}
        assert {tuple(pq.read_schema(file).names) for file in files_of(out)} == {("n",)}
        found = duckdb.sql(
            f"select day, word, n from read_parquet('{out}/*/*/*.parquet', hive_partitioning = true) order by n"
        ).fetchall()
        assert [(str(day) if day else None, word, n) for day, word, n in found] == [
            (str(day) if day else None, word, n) for day, word, n in rows
        ]
        lazy = polars.scan_parquet(f"{out}/*/*/*.parquet", hive_partitioning=True).sort("n").collect()
        assert lazy["word"].to_list() == [row[1] for row in rows]


def test_a_file_ends_when_it_is_large_enough(tmp_path: Path) -> None:
    rows = [(f"word {number}", number) for number in range(3000)]
    builder = FileSink.for_row_format(tmp_path / "out", Encoder.json_encoder())
    builder.with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=1, rollover_interval=5))
    run(flat(builder), tmp_path, COUNTS, rows[:2000], rows[2000:])
    lines = [line for file in files_of(tmp_path / "out") for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(3000))
    run(ParquetFileSink(tmp_path / "parquet", part_size=1), tmp_path / "p", COUNTS, rows)
    assert pq.read_table(tmp_path / "parquet").num_rows == 3000


def test_each_batch_that_fills_a_file_ends_it(tmp_path: Path) -> None:
    stage = SinkStage(ParquetFileSink(tmp_path / "out", part_size=1), tmp_path, COUNTS, incarnation="1" * 12)
    stage.prepare()
    entries = stage.write(1, [("kelp", 1), ("rock", 2), ("sand", 3)])
    assert len(entries) == 3
    stage.commit(entries)
    assert sorted(pq.ParquetFile(file).read().num_rows for file in files_of(tmp_path / "out")) == [1, 1, 1]


def test_a_directory_for_each_hour_is_the_default(tmp_path: Path) -> None:
    clock = ManualClock(HALF_PAST_SEVEN)
    run(
        FileSink.for_row_format(tmp_path / "out", Encoder.json_encoder()).build(),
        tmp_path,
        COUNTS,
        ROWS[0],
        clock=clock,
    )
    assert [file.parent.name for file in files_of(tmp_path / "out")] == ["2026-11-24--07"]
    assigner = BucketAssigner.date_time_bucket_assigner("yyyy/MM/'day' dd", "Pacific/Auckland")
    assert assigner.buckets.directory(HALF_PAST_SEVEN + 4 * 3_600_000) == "2026/11/day 25"  # type: ignore[attr-defined]


def test_a_stream_of_no_declared_type_is_written_by_an_encoder(tmp_path: Path) -> None:
    run(flat(FileSink.for_row_format(tmp_path / "out", Encoder.simple_string_encoder())), tmp_path, None, [{"a": 1}, 2])
    assert files_of(tmp_path / "out")[0].read_text() == "{'a': 1}\n2\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FileSink.for_row_format("x", str), "takes an Encoder"),  # type: ignore[arg-type]
        (lambda: FileSink.for_bulk_format("x", "parquet"), "takes a BulkWriterFactory"),  # type: ignore[arg-type]
        (lambda: FileSink.for_bulk_format("gs://b/x", BulkWriterFactory.csv()).build(), "No file system for scheme"),
        (
            lambda: FileSink.for_bulk_format("x", BulkWriterFactory.csv()).with_compression("gzip"),
            "of its writer factory",
        ),
        (lambda: BulkWriterFactory.arrow("snappy"), "none, lz4, zstd, not 'snappy'"),
        (lambda: BulkWriterFactory.csv(delimiter="ab"), "one character"),
        (lambda: BulkWriterFactory.csv(delimiter="é"), "of ASCII, not 'é'"),
        (lambda: Encoder.simple_string_encoder("klingon"), "'klingon'"),
        (lambda: OutputFileConfig("a/b", ""), "contain no '/'"),
        (lambda: OutputFileConfig("_x", ""), "readers skip"),
        (lambda: RollingPolicy.default_rolling_policy(part_size=0), "above 0"),
        (lambda: BucketAssigner.date_time_bucket_assigner("yyyy-QQ"), "'QQ'"),
        (lambda: BucketAssigner.date_time_bucket_assigner("'../'yyyy"), "cannot be a directory"),
        (lambda: BucketAssigner.date_time_bucket_assigner(timezone_id="Sea/Kelp"), "no time zone 'Sea/Kelp'"),
        (lambda: ParquetFileSink("x", part_size=-1), "not -1"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("columns", "sink", "message"),
    [
        (COUNTS, ParquetFileSink("x", partition_by="day"), "'day', which is no column of the stream"),
        (COUNTS, ParquetFileSink("x", partition_by=["word", "n"]), "no column is left for its files"),
        ("a array<bigint>", flat(FileSink.for_bulk_format("x", BulkWriterFactory.csv())), r"no lists.*\['a'\]"),
        ("a binary", flat(FileSink.for_bulk_format("x", BulkWriterFactory.csv())), r"or bytes, but \['a'\]"),
        (None, flat(FileSink.for_bulk_format("x", BulkWriterFactory.parquet())), "was not declared"),
    ],
)
def test_a_stream_that_does_not_go_with_the_sink_is_refused(columns: Any, sink: Sink, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EpochProgram().source("in", columns).sink_to(sink)
