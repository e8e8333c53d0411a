"""Spark expressions after Python operators, each against plain Python."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from holdfast.common import Row
from holdfast.datastream import ParquetFileSink
from holdfast.errors import ConfigurationError, JobExecutionError
from tests.spark.test_shapes import Numbered, environment, name, rows, stream, words

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WORDS = [["kelp", "a"], ["drop"], ["a", "kelp", "b", "a"], ["b"]]


def test_filter_transform_key_by_process_with_a_join_and_an_aggregation_of_each_epoch(
    spark: Any, tmp_path: Path
) -> None:
    """Python, then Spark (join, aggregation), state, then Spark once more (explode), and state; then an epoch's count.

    An epoch in which the filter leaves nothing has its row of the global count all the same.
    """
    env = environment(spark, tmp_path, execution_trigger="available-now")
    prices = spark.createDataFrame([("a", 2), ("b", 3), ("kelp", 5)], "word string, price int")
    kept = env.from_dataframe(stream(spark, words(tmp_path, *WORDS))).filter(lambda row: row.word != "drop")
    kept.transform(lambda df: df.agg(F.count("*").alias("n"))).sink_to(ParquetFileSink(tmp_path / "counts"))
    priced = kept.transform(
        lambda df: prices.join(df, "word").groupBy("word").agg(F.sum("price").cast("int").alias("price"))
    )
    assert priced.get_type().schema_ddl == "word string, price int"  # type: ignore[attr-defined]
    numbered = priced.key_by("word").process(Numbered(), output_type="word string, n bigint").uid("first")
    letters = numbered.transform(lambda df: df.selectExpr("explode(split(word, '')) as word"))
    both = letters.union(kept).key_by("word").process(Numbered(), output_type="word string, n bigint").uid("second")
    both.sink_to(ParquetFileSink(tmp_path / "out"))
    numbered.sink_to(ParquetFileSink(tmp_path / "first"))
    priced.sink_to(ParquetFileSink(tmp_path / "priced"))
    env.execute(name())

    epochs = [Counter(word for word in epoch if word != "drop") for epoch in WORDS]
    cost = {"a": 2, "b": 3, "kelp": 5}
    assert Counter(rows(tmp_path / "priced")) == Counter(
        (word, n * cost[word]) for epoch in epochs for word, n in epoch.items()
    )
    assert sorted(rows(tmp_path / "counts")) == sorted((sum(epoch.values()),) for epoch in epochs)
    times = Counter(word for epoch in epochs for word in epoch)
    assert sorted(rows(tmp_path / "first")) == sorted((word, n + 1) for word in times for n in range(times[word]))
    seen = Counter(word for epoch in epochs for word in epoch.elements())
    seen.update(letter for word, n in times.items() for letter in list(word) * n)
    assert sorted(rows(tmp_path / "out")) == sorted((word, n + 1) for word in seen for n in range(seen[word]))


KINDS: dict[str, Any] = {
    "string": "kelp \u6d77",
    "char(3)": "ab ",
    "tinyint": -1,
    "smallint": 2,
    "int": 3,
    "bigint": 2**62,
    "float": 0.5,
    "double": 0.1,
    "decimal(10, 2)": Decimal("-1.50"),
    "decimal(38, 10)": Decimal("12345678901234567890.0000000001"),
    "boolean": True,
    "binary": b"\x00\xff",
    "date": dt.date(1582, 10, 4),
    "timestamp": dt.datetime(1899, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
    "timestamp_ntz": dt.datetime(2026, 3, 29, 2, 30, 0, 1),
    "interval day to second": dt.timedelta(days=-1, microseconds=7),
    "array<bigint>": [1, None],
    "map<string, array<int>>": {"a": [1], "b": None},
    "struct<a: int, b: struct<c: string>>": Row(a=1, b=Row(c="x")),
}


def test_values_of_every_type_pass_a_transform_unchanged(spark: Any, tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(len(KINDS))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, KINDS, strict=True))
    env = environment(spark, tmp_path)
    given = [tuple(KINDS.values()), (None,) * len(KINDS)]
    before = env.from_collection(given, columns).filter(lambda row: True)
    after = before.transform(lambda df: df.withColumnRenamed("c0", "d0"))
    with after.map(lambda row: tuple(row), output_type=columns).execute_and_collect(name()) as found:
        assert Counter(map(repr, map(tuple, found))) == Counter(map(repr, map(tuple, given)))


def test_a_frame_of_an_epoch_has_the_types_of_the_stream(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.inferTimestampNTZ.enabled", "false")
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(KINDS))
    declared = session.createDataFrame([], columns.replace("char(3)", "string")).dtypes
    env = environment(session, tmp_path)
    frames: list[Any] = []
    given = env.from_collection([tuple(KINDS.values())], columns)
    given.for_each_epoch(lambda frame, epoch: frames.append((frame.dtypes, frame.select("c14", "c15").collect())))
    env.execute(name())
    assert frames == [(declared, [(KINDS["timestamp_ntz"], KINDS["interval day to second"])])]


def test_a_transform_must_always_return_the_same_columns(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path)
    numbers = env.from_collection([1, 2, 3], "bigint").filter(lambda n: n > 0)
    with pytest.raises(ConfigurationError, match="takes a function DataFrame -> DataFrame"):
        numbers.transform(lambda df: df.count())
    with numbers.transform(lambda df: df.agg(F.sum("value").alias("n"))).execute_and_collect(name()) as found:
        assert list(found) == [(6,)]
    pivoted = numbers.transform(lambda df: df.groupBy().pivot("value").count())
    pivoted.transform(lambda df: df.select(F.lit(1).alias("n"))).sink_to(ParquetFileSink(tmp_path / "ok"))
    env.execute(name())
    assert pa.table({"n": [n for (n,) in rows(tmp_path / "ok")]}).num_rows == 1
    by_day = numbers.transform(lambda df: df.selectExpr("1 as n" if df.isEmpty() else "'x' as n"))
    by_day.sink_to(ParquetFileSink(tmp_path / "changing"))
    with pytest.raises(JobExecutionError, match=r"returned the columns 'n string' in epoch 1"):
        env.execute(name())
