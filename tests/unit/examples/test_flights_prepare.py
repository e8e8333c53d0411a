"""The input of the flights demo: one Parquet file a day, in the order in which Spark's file source will read them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.flights import oracle, prepare


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return prepare.prepare(tmp_path_factory.mktemp("prepared") / "flights")


def test_the_year_has_a_file_a_day_and_every_flight_once(year: list[Path]) -> None:
    assert len(year) == 365
    assert (year[0].name, year[-1].name) == ("flights-2013-01-01.parquet", "flights-2013-12-31.parquet")
    flights = oracle.read_input(year[0].parent)
    assert flights.schema.equals(prepare.SCHEMA)
    assert sorted(flights["flight_id"].to_pylist()) == list(range(336_776))


def test_files_are_read_in_the_order_of_time(year: list[Path]) -> None:
    times = [path.stat().st_mtime for path in year]
    assert times == sorted(set(times))


def test_the_first_flight_of_the_source_has_id_0_and_integers_stay_integers(year: list[Path]) -> None:
    first = pq.read_table(year[0]).slice(0, 1).to_pylist()[0]
    assert (first["flight_id"], first["tailnum"], first["time_hour"]) == (0, "N14228", "2013-01-01T10:00:00Z")
    assert (first["sched_dep_time"], first["dep_time"]) == (515, 517.0)


def test_a_second_run_reuses_what_is_there(year: list[Path]) -> None:
    before = [path.stat().st_ino for path in year]
    assert prepare.prepare(year[0].parent) == year
    assert [path.stat().st_ino for path in year] == before


def test_a_run_that_was_interrupted_is_begun_anew(tmp_path: Path) -> None:
    half = tmp_path / "flights.unfinished"
    half.mkdir()
    (half / "flights-2013-01-01.parquet").write_bytes(b"half a file")
    assert len(prepare.prepare(tmp_path / "flights")) == 365
    assert not half.exists()


def test_the_expected_output_has_the_size_that_the_demo_promises(year: list[Path]) -> None:
    expected = oracle.expected_output(oracle.read_input(year[0].parent))
    assert expected.num_rows == 334_264
    assert expected.schema.equals(oracle.OUTPUT_SCHEMA)
    assert not pa.compute.any(pa.compute.is_null(expected["inherited"])).as_py()
