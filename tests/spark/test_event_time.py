"""Event time on Spark: timestamps cross exchanges and epoch jobs, and windows come out as in the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.test_shapes import environment, name, rows
from tests.unit.runtime.realtime.test_real_time_jobs import until
from tests.unit.runtime.test_event_time import BATCHES, READING, late_by, model, windows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "messages"])
def test_windows_over_a_keyed_stream_and_over_a_united_stream(spark: Any, tmp_path: Path, packed: bool) -> None:
    """The second union gets some rows through a transform, and assigned again, the others staged with their times."""
    schema = pa.schema([("sensor", pa.string()), ("at", pa.int64()), ("n", pa.int64())])
    (tmp_path / "in").mkdir()
    for number, batch in enumerate(BATCHES):
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(pa.table(list(map(list, zip(*batch, strict=True))) or [[], [], []], schema=schema), path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    env = environment(spark, tmp_path, execution_trigger="available-now", execution_exchange_packed=packed)
    readings = spark.readStream.schema(READING).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    stamped = env.from_dataframe(readings).assign_timestamps_and_watermarks(late_by(5))
    windows(stamped, tmp_path, "direct")
    moved = stamped.transform(lambda df: df.where("n > 1")).assign_timestamps_and_watermarks(late_by(5))
    windows(moved.union(stamped.filter(lambda row: row.n == 1)), tmp_path, "around")
    env.execute(name())
    assert sorted(rows(tmp_path / "direct")) == model(BATCHES, 5)
    assert sorted(rows(tmp_path / "around")) == model(BATCHES, 5)


@pytest.mark.parametrize("trigger", ["available-now", "1 s"])
def test_windows_of_a_static_frame_fire_beside_a_stream_and_the_stream_does_not_wait_for_it(
    spark: Any, tmp_path: Path, trigger: str
) -> None:
    static = [("a", 3, 1), ("b", 4, 2), ("a", 500, 3)]
    stream = [[("a", 1000, 4), ("b", 1001, 5)], [("a", 1100, 6)]]
    schema = pa.schema([("sensor", pa.string()), ("at", pa.int64()), ("n", pa.int64())])
    (tmp_path / "in").mkdir()
    for number, batch in enumerate(stream):
        pq.write_table(
            pa.table(list(map(list, zip(*batch, strict=True))), schema=schema), tmp_path / f"in/{number}.parquet"
        )
        os.utime(tmp_path / f"in/{number}.parquet", (1_000_000 + number, 1_000_000 + number))
    env = environment(spark, tmp_path, execution_trigger=trigger)
    readings = spark.readStream.schema(READING).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    streamed = env.from_dataframe(readings).assign_timestamps_and_watermarks(late_by(0))
    read_once = env.from_dataframe(spark.createDataFrame(static, READING)).assign_timestamps_and_watermarks(late_by(0))
    windows(read_once, tmp_path, "alone")
    windows(streamed.union(read_once), tmp_path, "together")
    client = env.execute_async(name())
    try:
        until(lambda: len(rows(tmp_path / "alone")) == 3 and len(rows(tmp_path / "together")) == 5)
    finally:
        client.stop()
        client.await_termination()
    assert sorted(rows(tmp_path / "alone")) == model([static], 0, ends=True)
    fired = sorted(row[:3] for row in rows(tmp_path / "together"))
    assert fired == sorted(row[:3] for row in model([[*static, *stream[0]]], 0, ends=True))
