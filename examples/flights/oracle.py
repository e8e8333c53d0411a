"""Says what the flights job must have written, and whether it did.

The expected output is computed by DuckDB over all flights at once and shares no code with the job. The comparison reads
every Parquet file of the job's output and looks at every value of it.

    python examples/flights/oracle.py --input DIR --output DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

OUTPUT_SCHEMA = pa.schema(
    [
        ("flight_id", pa.int64()),
        ("tailnum", pa.string()),
        ("carrier", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("sched_dep", pa.timestamp("us")),
        ("dep_delay", pa.float64()),
        ("arr_delay", pa.float64()),
        ("seq", pa.int64()),
        ("prev_arr_delay", pa.float64()),
        ("total_arr_delay", pa.float64()),
        ("inherited", pa.bool_()),
    ]
)

_EXPECTED = """
    with placed as (
        select *, make_timestamp(year, month, day, sched_dep_time // 100, sched_dep_time % 100, 0) as sched_dep
        from flights
        where tailnum is not null
    ),
    told as (
        select *,
            row_number() over aircraft as seq,
            last_value(arr_delay ignore nulls) over (
                aircraft rows between unbounded preceding and 1 preceding
            ) as prev_arr_delay,
            coalesce(sum(arr_delay) over (
                aircraft rows between unbounded preceding and current row
            ), 0.0) as total_arr_delay
        from placed
        window aircraft as (partition by tailnum order by year, month, day, sched_dep_time, flight_id)
    )
    select flight_id, tailnum, carrier, origin, dest, sched_dep, dep_delay, arr_delay, seq, prev_arr_delay,
        total_arr_delay,
        coalesce(prev_arr_delay >= 15 and dep_delay >= 15, false) as inherited
    from told
    order by flight_id
"""


def expected_output(flights: pa.Table) -> pa.Table:
    """What the job must write for these flights, sorted by ``flight_id``."""
    with duckdb.connect() as connection:
        connection.register("flights", flights)
        return connection.sql(_EXPECTED).to_arrow_table().cast(OUTPUT_SCHEMA)


def read_files(directory: Path) -> list[tuple[Path, pa.Table]]:
    """Every Parquet file below a directory by name, as a reader with ``**/*.parquet`` sees them."""
    return [(path, pq.ParquetFile(path).read()) for path in sorted(directory.rglob("*.parquet"))]


def read_input(directory: Path) -> pa.Table:
    """All flights of a prepared directory."""
    return pa.concat_tables([table for _, table in read_files(directory)])


def schema_differences(path: Path, schema: pa.Schema) -> list[str]:
    """How the columns of one output file differ from those of the job."""
    found = {field.name: field.type for field in schema}
    wanted = {field.name: field.type for field in OUTPUT_SCHEMA}
    differences = [f"{path.name}: column {name!r} is missing" for name in wanted if name not in found]
    differences += [f"{path.name}: column {name!r} was not asked for" for name in found if name not in wanted]
    differences += [
        f"{path.name}: column {name!r} is {found[name]} instead of {wanted[name]}"
        for name in wanted
        if name in found and not _same_type(found[name], wanted[name])
    ]
    return differences


def differences(actual: pa.Table, expected: pa.Table) -> list[str]:
    """Every difference between two outputs with the columns of the job, as sentences; order of rows does not matter."""
    found = []
    actual, expected = (table.sort_by("flight_id") for table in (actual, expected))
    counts = actual.group_by("flight_id", use_threads=False).aggregate([([], "count_all")])
    for flight_id, count in zip(counts["flight_id"].to_pylist(), counts["count_all"].to_pylist(), strict=True):
        if count > 1:
            found.append(f"flight {flight_id} was written {count} times")
    absent = expected.filter(pc.invert(pc.is_in(expected["flight_id"], actual["flight_id"])))
    found += [f"flight {flight_id} is missing" for flight_id in absent["flight_id"].to_pylist()]
    unknown = actual.filter(pc.invert(pc.is_in(actual["flight_id"], expected["flight_id"])))
    found += [f"flight {flight_id} should not be there" for flight_id in unknown["flight_id"].to_pylist()]

    positions = pc.index_in(actual["flight_id"], expected["flight_id"])
    known = pc.is_valid(positions)
    actual, wanted = actual.filter(known), expected.take(positions.filter(known))
    for name in OUTPUT_SCHEMA.names:
        mine, theirs = (pc.fill_null(table[name], _sentinel(table[name].type)) for table in (actual, wanted))
        unequal = pc.or_(pc.not_equal(mine, theirs), pc.not_equal(pc.is_null(actual[name]), pc.is_null(wanted[name])))
        for row in pc.indices_nonzero(unequal).to_pylist():
            found.append(
                f"flight {actual['flight_id'][row]}: {name} is {actual[name][row].as_py()!r} "
                f"instead of {wanted[name][row].as_py()!r}"
            )
    return found


def compare(output: Path, expected: pa.Table) -> list[str]:
    """Compares the whole output directory of the job; returns the differences as sentences, none if all is well."""
    files = read_files(output)
    wrong_columns = [line for path, table in files for line in schema_differences(path, table.schema)]
    if wrong_columns:
        return wrong_columns
    tables = [table.select(OUTPUT_SCHEMA.names).cast(OUTPUT_SCHEMA) for _, table in files]
    return differences(pa.concat_tables(tables) if tables else OUTPUT_SCHEMA.empty_table(), expected)


def report(found: list[str], rows: int, shown: int = 10) -> str:
    """The verdict for people: one line if equal, otherwise the first differences and how many there are."""
    if not found:
        return f"equal: all {rows:,} rows, every value"
    lines = [f"NOT EQUAL: {len(found):,} differences, the first of them:", *(f"  {line}" for line in found[:shown])]
    return "\n".join(lines)


def main() -> int:
    """Compares an output directory with a prepared input; the exit code is 1 if one value differs."""
    parser = argparse.ArgumentParser(description="Compare the output of the flights job with a batch computation.")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    expected = expected_output(read_input(arguments.input))
    found = compare(arguments.output, expected)
    print(report(found, expected.num_rows))
    return 1 if found else 0


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    if pa.types.is_timestamp(wanted):
        # The unit is the file's affair; a time zone would make it another kind of value.
        return bool(pa.types.is_timestamp(found) and found.tz is None)
    return bool(found == wanted)


def _sentinel(kind: pa.DataType) -> pa.Scalar:
    # Stands for null in the comparison of values; that null and the sentinel itself differ is compared separately.
    if pa.types.is_string(kind):
        return pa.scalar("", kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(False, kind)
    return pa.scalar(0, pa.int64()).cast(kind)


if __name__ == "__main__":
    sys.exit(main())
