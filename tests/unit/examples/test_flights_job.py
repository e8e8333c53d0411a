"""The function of the flights job, row by row against the batch computation, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from examples.flights import job, oracle, prepare
from holdfast.common import Row
from holdfast.testing import OperatorHarness

AIRCRAFT = 25


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    """All flights of a few aircraft."""
    table = prepare.read_flights()
    chosen = table["tailnum"].dropna().unique()[:AIRCRAFT]
    rows = table[table["tailnum"].isin(chosen)]
    return pa.Table.from_pandas(rows, schema=prepare.SCHEMA, preserve_index=False).replace_schema_metadata(None)


def in_epochs(flights: pa.Table, epochs: int) -> Iterator[list[Row]]:
    """The rows that the function sees, epoch by epoch: days in order, and in each epoch ordered by departure."""
    expected = oracle.expected_output(flights)
    departure = dict(zip(expected["flight_id"].to_pylist(), expected["sched_dep"].to_pylist(), strict=True))
    rows = []
    for flight in flights.to_pylist():
        seen = {name: flight.get(name) for name in job.COLUMNS}
        seen["sched_dep"] = departure[flight["flight_id"]]
        rows.append(Row(**seen))
    rows.sort(key=lambda row: (row.sched_dep, row.flight_id))
    size = -(-len(rows) // epochs)
    yield from (rows[start : start + size] for start in range(0, len(rows), size))


@pytest.mark.parametrize("amnesia", [False, True])
def test_the_function_writes_what_the_batch_computation_says(flights: pa.Table, amnesia: bool) -> None:
    options: dict[str, Any] = {"key_by": "tailnum", "key_type": "string", "output_type": job.OUTPUT}
    with OperatorHarness(job.AircraftHistory(), amnesia=amnesia, **options) as harness:
        for checkpoint_id, rows in enumerate(in_epochs(flights, 12), start=1):
            harness.process_elements(rows)
            harness.snapshot(checkpoint_id)
        written = pa.Table.from_pylist([row.as_dict() for row in harness.output], schema=oracle.OUTPUT_SCHEMA)

    assert written.num_rows > 1_000
    assert oracle.differences(written, oracle.expected_output(flights)) == []


def test_the_columns_are_those_that_the_oracle_expects() -> None:
    from holdfast.types.type_parser import to_row_type

    declared = to_row_type(job.OUTPUT).arrow_schema
    assert declared.names == oracle.OUTPUT_SCHEMA.names
    assert declared.types == oracle.OUTPUT_SCHEMA.types
