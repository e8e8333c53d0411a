"""Settings of a user's session: each type passes the job unchanged, and its transforms see the declared types."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.spark.frame import staged_frame
from holdfast.types.type_parser import to_row_type
from tests.spark.test_shapes import environment, name

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COLUMNS = (
    "`Key` string, at timestamp, local timestamp_ntz, day date, amount decimal(12,2), long interval day to second, "
    "flag boolean, tiny tinyint, small smallint, whole int, n bigint, single float, number double, raw binary, "
    "many array<timestamp>, by map<string, timestamp>, "
    "`value` struct<`order`: timestamp, `user`: array<int>, `a`: string>"
)
AT = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
SUMMER = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


def row(key: str, at: datetime) -> tuple[Any, ...]:
    return (
        key, at, datetime(2026, 3, 29, 2, 30), date(1, 1, 2), Decimal("-0.05"), timedelta(microseconds=-1),
        True, -128, -(2**15), 2**31 - 1, -(2**63), 0.5, 1e300, b"\x00\xff",
        [at, None], {"first": at}, (at, [1, None], "ü"),
    )  # fmt: skip


ROWS = [row("a", AT), row("A", SUMMER), ("none", *[None] * 16)]
"""Two keys that differ in case, times before 1970 and in the hour that Europe's clocks skip, and nothing at all."""

SETTINGS = [
    "spark.sql.timestampType=TIMESTAMP_NTZ spark.sql.session.timeZone=America/New_York",
    "spark.sql.ansi.enabled=true spark.sql.ansi.enforceReservedKeywords=true",
    "spark.sql.ansi.enabled=false spark.sql.caseSensitive=true",
]
FURTHER = [
    "",
    "spark.sql.timestampType=TIMESTAMP_NTZ",
    "spark.sql.ansi.enabled=false",
    "spark.sql.ansi.enabled=true spark.sql.ansi.doubleQuotedIdentifiers=true spark.sql.ansi.relationPrecedence=true",
    "spark.sql.caseSensitive=true",
    "spark.sql.session.timeZone=Asia/Kathmandu",
    "spark.sql.session.timeZone=Europe/Berlin spark.sql.legacy.timeParserPolicy=LEGACY",
    "spark.sql.datetime.java8API.enabled=true",
    "spark.sql.parser.quotedRegexColumnNames=true",
    "spark.sql.parser.escapedStringLiterals=true",
    "spark.sql.files.ignoreMissingFiles=true spark.sql.files.ignoreCorruptFiles=true",
    "spark.sql.parquet.enableVectorizedReader=false",
    "spark.sql.parquet.binaryAsString=true spark.sql.parquet.inferTimestampNTZ.enabled=false",
    "spark.sql.parquet.outputTimestampType=TIMESTAMP_MILLIS spark.sql.parquet.datetimeRebaseModeInRead=LEGACY",
    "spark.sql.execution.arrow.useLargeVarTypes=true",
    "spark.sql.execution.arrow.maxRecordsPerBatch=1",
    "spark.sql.execution.arrow.pyspark.enabled=false",
    "spark.sql.execution.pandas.structHandlingMode=dict",
    "spark.sql.mapKeyDedupPolicy=LAST_WIN spark.sql.legacy.createEmptyCollectionUsingStringType=true",
    "spark.sql.preserveCharVarcharTypeInfo=true",
    "spark.sql.storeAssignmentPolicy=STRICT",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.variable.substitute=false spark.sql.groupByOrdinal=false spark.sql.orderByOrdinal=false",
    "spark.sql.timeType.enabled=true",
]
"""Each a case of a long test."""


ROW = to_row_type(COLUMNS)


class Before(KeyedProcessFunction):
    """Returns each row as the state has it."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", ROW))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.last.update(value)
        yield self.last.value()


def session_with(spark: Any, settings: str) -> Any:
    session = spark.newSession()
    for setting in settings.split():
        session.conf.set(*setting.split("="))
    return session


def seen(frame: Any) -> list[tuple[Any, ...]]:
    """What SQL sees in the frame of a transform or of `for_each_epoch`."""
    inner = F.col("value").getField("order")
    times = [F.unix_micros("at"), F.unix_micros(inner), F.unix_micros(F.col("many")[0])]
    return [tuple(found) for found in frame.select("Key", *times, F.col("local").cast("string")).collect()]


def test_a_missing_staged_file_fails_in_a_session_that_skips_such_files(spark: Any, tmp_path: Path) -> None:
    session = session_with(spark, "spark.sql.files.ignoreMissingFiles=true spark.sql.files.ignoreCorruptFiles=true")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"n": [2]}), tmp_path / "1.parquet")
    frame = staged_frame(session, [str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")])
    assert frame.count() == 2
    (tmp_path / "1.parquet").write_bytes(b"damaged")
    with pytest.raises(Exception, match=r"1\.parquet"):
        frame.select("n").collect()
    (tmp_path / "1.parquet").unlink()
    with pytest.raises(Exception, match=r"1\.parquet"):
        frame.select("n").collect()


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_type_passes_a_job_under_settings_of_the_session(spark: Any, tmp_path: Path, settings: str) -> None:
    run_under(settings, spark, tmp_path)


@pytest.mark.parametrize("settings", FURTHER)
def test_each_type_passes_a_job_under_further_settings(spark: Any, tmp_path: Path, settings: str) -> None:
    run_under(settings, spark, tmp_path)


def run_under(settings: str, spark: Any, tmp_path: Path) -> None:
    session = session_with(spark, settings)
    files = ParquetFileSink(tmp_path / "in")
    env = environment(session, tmp_path / "before")
    env.from_collection(ROWS, COLUMNS).sink_to(files)
    env.execute(name())

    env = environment(session, tmp_path, execution_trigger="available-now")
    source = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(COLUMNS), str(tmp_path / "in"))
    read = env.from_source(source.monitor_continuously(Duration.of_millis(50)).build(), NO_WATERMARKS, "files")
    given = env.from_collection(ROWS, COLUMNS).uid("given")
    kept = given.union(read).key_by("Key").process(Before(), COLUMNS).uid("kept")
    again = kept.key_by(lambda row: row.at or AT, "timestamp").process(Before(), COLUMNS).uid("again")
    frames: list[Any] = []
    again.for_each_epoch(lambda frame, epoch: frames.append((frame.schema.simpleString(), seen(frame)))).uid("frames")
    types: list[str] = []

    def described(frame: Any) -> Any:
        types.append(frame.schema.simpleString())
        return frame.filter(F.col("Key") != "none").withColumn("at", F.col("at") + F.expr("interval 1 day"))

    later = again.transform(described).uid("later")
    later.sink_to(ParquetFileSink(tmp_path / "later")).uid("later files")
    again.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
    env.execute(name())

    assert rows_in(tmp_path / "out") == sorted([*map(plain, ROWS), *map(plain, ROWS)], key=str)
    moved = [plain((one[0], one[1] + timedelta(days=1), *one[2:])) for one in ROWS if one[0] != "none"]
    assert rows_in(tmp_path / "later") == sorted([*moved, *moved], key=str)
    assert set(types) == {DECLARED} == {schema for schema, _ in frames}
    assert sorted((found for _, some in frames for found in some), key=str) == sorted([*SEEN, *SEEN], key=str)


DECLARED = (
    "struct<Key:string,at:timestamp,local:timestamp_ntz,day:date,amount:decimal(12,2),long:interval day to second,"
    "flag:boolean,tiny:tinyint,small:smallint,whole:int,n:bigint,single:float,number:double,raw:binary,"
    "many:array<timestamp>,by:map<string,timestamp>,value:struct<order:timestamp,user:array<int>,a:string>>"
)
SEEN = [
    ("a", -1, -1, -1, "2026-03-29 02:30:00"),
    ("A", *[round(SUMMER.timestamp()) * 1_000_000] * 3, "2026-03-29 02:30:00"),
    ("none", None, None, None, None),
]
NO_WATERMARKS = WatermarkStrategy.no_watermarks()


def plain(values: tuple[Any, ...]) -> dict[str, Any]:
    found = dict(zip(NAMES, values, strict=True))
    if found["value"] is not None:
        found["value"] = dict(zip(("order", "user", "a"), found["value"], strict=True))
    return found


NAMES = ROW.names


def rows_in(folder: Path) -> list[dict[str, Any]]:
    found = pq.read_table(folder).to_pylist()
    for one in found:
        one["by"] = None if one["by"] is None else dict(one["by"])
    return sorted(found, key=str)
