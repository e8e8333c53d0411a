"""The oracle of the flights demo is itself judged: against a plain loop, and by outputs that were tampered with."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.flights import oracle, prepare

DELAYS = st.none() | st.sampled_from([-5.0, 0.0, 14.0, 15.0, 16.0, 120.0])


def flight(flight_id: int, tailnum: str | None, day: int, sched: int, dep: float | None, arr: float | None) -> dict:
    row: dict[str, Any] = dict.fromkeys(prepare.SCHEMA.names)
    row.update(flight_id=flight_id, year=2013, month=1, day=day, sched_dep_time=sched, dep_delay=dep, arr_delay=arr)
    row.update(tailnum=tailnum, carrier="UA", origin="EWR", dest="IAH")
    return row


def table(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=prepare.SCHEMA)


def told_by_a_loop(rows: list[dict]) -> list[dict]:
    """The output as a person would compute it with one dictionary."""
    aircraft: dict[str, dict] = {}
    output = []
    for row in sorted(rows, key=lambda r: (r["year"], r["month"], r["day"], r["sched_dep_time"], r["flight_id"])):
        if row["tailnum"] is None:
            continue
        known = aircraft.setdefault(row["tailnum"], {"seq": 0, "last": None, "total": 0.0})
        known["seq"] += 1
        previous = known["last"]
        if row["arr_delay"] is not None:
            known["last"] = row["arr_delay"]
            known["total"] += row["arr_delay"]
        copied = {name: row[name] for name in ("flight_id", "tailnum", "carrier", "origin", "dest")}
        hour, minute = divmod(row["sched_dep_time"], 100)
        late = row["dep_delay"] is not None and row["dep_delay"] >= 15
        output.append(
            copied
            | {
                "sched_dep": dt.datetime(row["year"], row["month"], row["day"], hour, minute),
                "dep_delay": row["dep_delay"],
                "arr_delay": row["arr_delay"],
                "seq": known["seq"],
                "prev_arr_delay": previous,
                "total_arr_delay": known["total"],
                "inherited": previous is not None and previous >= 15 and late,
            }
        )
    return sorted(output, key=lambda r: r["flight_id"])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["N1", "N2", "ñ", None]),
            st.integers(1, 3),
            st.sampled_from([5, 515, 2359]),
            DELAYS,
            DELAYS,
        ),
        max_size=30,
    )
)
def test_the_batch_computation_tells_the_same_story_as_a_plain_loop(drawn: list[tuple]) -> None:
    rows = [flight(flight_id, *values) for flight_id, values in enumerate(drawn)]
    assert oracle.expected_output(table(rows)).to_pylist() == told_by_a_loop(rows)


YEAR = [
    flight(0, "N1", 2, 900, 20.0, 30.0),
    flight(1, "N1", 1, 515, None, None),
    flight(2, "N1", 2, 1200, 15.0, 0.0),
    flight(3, None, 2, 1300, 1.0, 1.0),
    flight(4, "N2", 2, 900, 0.0, -3.0),
    flight(5, "N1", 2, 1200, 40.0, None),
]


def write(directory: Path, rows: list[dict], schema: pa.Schema = oracle.OUTPUT_SCHEMA) -> Path:
    """An output as a job leaves it: files in several directories, in no order, and one that is staged."""
    for part, chosen in enumerate((rows[::2], rows[1::2])):
        (directory / f"epoch={part}").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(chosen[::-1], schema=schema), directory / f"epoch={part}" / "p.parquet")
    (directory / ".staged").write_bytes(b"a file that no reader of Parquet files looks at")
    return directory


def test_a_right_output_is_equal(tmp_path: Path) -> None:
    expected = oracle.expected_output(table(YEAR))
    assert oracle.compare(write(tmp_path, expected.to_pylist()), expected) == []
    assert oracle.report([], expected.num_rows) == "equal: all 5 rows, every value"


@pytest.mark.parametrize("name", oracle.OUTPUT_SCHEMA.names[1:])
@pytest.mark.parametrize("row", range(5))
def test_any_single_changed_value_is_found(tmp_path: Path, name: str, row: int) -> None:
    expected = oracle.expected_output(table(YEAR))
    rows = expected.to_pylist()
    before = rows[row][name]
    changed = {str: "X", bool: not before, int: 99, float: 0.5, dt.datetime: dt.datetime(1999, 1, 1)}
    rows[row][name] = 0.0 if before is None else changed[type(before)]
    [line] = oracle.compare(write(tmp_path, rows), expected)
    assert line == f"flight {rows[row]['flight_id']}: {name} is {rows[row][name]!r} instead of {before!r}"


def test_a_null_is_not_a_zero(tmp_path: Path) -> None:
    expected = oracle.expected_output(table(YEAR))
    rows = expected.to_pylist()
    rows[2]["arr_delay"] = None
    assert rows[2]["flight_id"] == 2
    assert oracle.compare(write(tmp_path, rows), expected) == ["flight 2: arr_delay is None instead of 0.0"]


def test_lost_doubled_and_invented_rows_are_found(tmp_path: Path) -> None:
    expected = oracle.expected_output(table(YEAR))
    rows = expected.to_pylist()
    tampered = [*rows[1:], rows[2], rows[3] | {"flight_id": 77}]
    assert oracle.compare(write(tmp_path, tampered), expected) == [
        "flight 2 was written 2 times",
        "flight 0 is missing",
        "flight 77 should not be there",
    ]


def test_an_output_without_any_file_misses_every_row(tmp_path: Path) -> None:
    found = oracle.compare(tmp_path, oracle.expected_output(table(YEAR)))
    assert len(found) == 5
    assert oracle.report(found, 5, shown=2).splitlines() == [
        "NOT EQUAL: 5 differences, the first of them:",
        "  flight 0 is missing",
        "  flight 1 is missing",
    ]


def test_a_column_of_another_type_is_a_difference(tmp_path: Path) -> None:
    expected = oracle.expected_output(table(YEAR))
    place = oracle.OUTPUT_SCHEMA.get_field_index("seq")
    other = oracle.OUTPUT_SCHEMA.set(place, pa.field("seq", pa.int32()))
    found = oracle.compare(write(tmp_path, expected.to_pylist(), other), expected)
    assert found == ["p.parquet: column 'seq' is int32 instead of int64"] * 2


def test_missing_and_extra_columns_are_differences(tmp_path: Path) -> None:
    expected = oracle.expected_output(table(YEAR))
    other = oracle.OUTPUT_SCHEMA.remove(1).append(pa.field("barrier", pa.binary()))
    assert set(oracle.compare(write(tmp_path, expected.to_pylist(), other), expected)) == {
        "p.parquet: column 'tailnum' is missing",
        "p.parquet: column 'barrier' was not asked for",
    }
