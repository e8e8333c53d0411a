"""Event time on Spark: timestamps cross exchanges and epoch jobs, and windows come out as in the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.test_shapes import environment, name, rows
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
