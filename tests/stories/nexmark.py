"""Nexmark over few events: its queries on the epoch runner, and their results against DuckDB's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.nexmark.answers import connect, difference
from benchmarks.nexmark.query import Input, Query
from holdfast.datastream import ParquetFileSink
from holdfast.testing import EpochProgram


def program_of(query: Query, output: Path) -> EpochProgram:
    """The query between sources that a test feeds and Parquet files."""
    program = EpochProgram()
    streams = {uid: program.source(uid, read.columns) for uid, read in query.inputs.items()}
    query.build(streams).sink_to(ParquetFileSink(output)).uid("out")
    return program


def inputs_of(query: Query, folder: Path) -> list[Mapping[str, Sequence[Any]]]:
    """What the query reads of a directory of events, epoch by epoch."""
    epochs = sorted(path.name for path in (folder / "epochs" / "bid").glob("*.parquet"))
    return [
        {uid: _rows(read, folder / "epochs" / read.kind / name) for uid, read in query.inputs.items()}
        for name in epochs
    ]


def _rows(read: Input, path: Path) -> list[tuple[Any, ...]]:
    [batch] = pq.read_table(path).combine_chunks().to_batches()
    return list(zip(*(column.to_pylist() for column in read.of_file(batch).columns), strict=True))


def judge(query: Query, folder: Path, output: Path, answer: str | None = None) -> None:
    """Fail unless the rows in a directory of output are the answer: that of the query, or another one in SQL."""
    connection = connect(folder)
    files = f"'{output}/part-*.parquet', filename = true, file_row_number = true"
    number = "cast(regexp_extract(filename, 'part-([0-9]+)-', 1) as bigint)"
    connection.execute(
        f"create view result as select * exclude (filename, file_row_number), {number} as epoch_, "
        f"file_row_number as row_ from read_parquet({files})"
    )
    problem = difference(connection, query.name, query.keys, answer)
    assert problem is None, problem
    assert connection.execute("select count(*) from result").fetchone()[0] > 0, f"{query.name}: there is no result"
