"""On Spark, which has no columns of times of day: they cross exchanges all the same, and frames have them as texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.state_processor import SavepointReader
from tests.spark.test_key_hash import SPARK
from tests.spark.test_shapes import environment, name
from tests.unit.runtime.test_times_of_day import COLUMNS, EARLY, LATE, PLAIN, ROWS, Before, plain

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
EXPECTED = sorted(PLAIN, key=lambda row: (row["at"], row["parts"] is None))


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "messages"])
def test_times_of_day_cross_exchanges_as_keys_and_in_parts(spark: Any, tmp_path: Path, packed: bool) -> None:
    env = environment(spark, tmp_path, execution_exchange_packed=packed)
    frames: list[list[Any]] = []
    given = env.from_collection(ROWS, COLUMNS).uid("given")
    kept = given.key_by("at").process(Before(), COLUMNS).uid("kept")
    again = kept.key_by(lambda row: row.at, "time").process(Before(), COLUMNS).uid("again")
    again.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
    again.for_each_epoch(lambda frame, epoch: frames.append(frame.select("at", "by").collect())).uid("frames")
    later = again.transform(lambda frame: frame.selectExpr("at", "get(parts.several, 0) as first"))
    later.union(again.map(lambda row: (str(row.at), "-"), "at string, first string")).sink_to(
        ParquetFileSink(tmp_path / "later")
    ).uid("later")
    beside = again.key_by("at").map(lambda row: row.at, "time").uid("beside")
    beside.key_by(lambda at: at, "time").map(lambda at: (at,), "at time").sink_to(ParquetFileSink(tmp_path / "one"))
    job = name()
    env.execute(job)

    written = pq.read_table(tmp_path / "out")
    assert written.schema.field("at").type == pa.time64("ns") and plain(written) == EXPECTED
    assert sorted(pq.read_table(tmp_path / "one").column("at").to_pylist()) == [EARLY, EARLY, LATE]
    [rows] = frames
    assert sorted((row.at, len(row.by or {})) for row in rows) == [
        ("00:00:00.000001", 0), ("00:00:00.000001", 2), ("23:59:59.999999", 0)
    ]  # fmt: skip
    found = sorted((row["at"], row["first"] or "") for row in pq.read_table(tmp_path / "later").to_pylist())
    assert [pair for pair in found if pair[1] != "-"] == [
        ("00:00:00.000001", ""), ("00:00:00.000001", "00:00:00.000001"), ("23:59:59.999999", "")
    ]  # fmt: skip

    [checkpoint] = (tmp_path / "checkpoints").rglob("chk-1")
    state = SavepointReader.read(spark, str(checkpoint)).read_keyed_state("kept", "seen")
    assert dict(state.dtypes)["key"] == "string"
    assert sorted(row.key for row in state.collect()) == ["00:00:00.000001", "23:59:59.999999"]
    read = SavepointReader.read(None, str(checkpoint)).read_keyed_state("kept", "seen")
    assert sorted(read.column("key").to_pylist()) == [EARLY, LATE]


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark has times of day since 4.1, where it is told to")
@pytest.mark.parametrize("to_python", [False, True], ids=["keyed", "python"])
def test_frames_of_a_session_that_has_them_bring_times_of_day(spark: Any, tmp_path: Path, to_python: bool) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.timeType.enabled", "true")
    columns = ["time'23:59:59.999999' as at", "array(time'00:00:00.000001', null) as more", "id"]
    env = environment(session, tmp_path)
    rows = env.from_dataframe(session.range(3).selectExpr(*columns))
    if to_python:
        rows = rows.filter(lambda row: row.at == LATE)
    numbered = rows.key_by("at").map(lambda row: (row.at, row.more), "at time, more array<time>")
    numbered.sink_to(ParquetFileSink(tmp_path / "out"))
    env.execute(name())
    assert pq.read_table(tmp_path / "out").to_pylist() == [{"at": LATE, "more": [EARLY, None]}] * 3
