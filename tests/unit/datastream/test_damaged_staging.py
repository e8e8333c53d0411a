"""Rows that wait to be committed, and a bit of them that is another one by then: refused by name, never committed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.sinks.driver_sinks import PrintSink
from holdfast.errors import CorruptFileError, JobExecutionError
from holdfast.kernel import fault
from holdfast.runtime.function.sink import Sink
from holdfast.testing import EpochProgram
from holdfast.testing.sink_contract import SinkStage
from holdfast.types.type_parser import to_type
from tests.fuzz.target import kafka_committable
from tests.fuzz.targets import CORPUS
from tests.stories.databases import sqlite_in

COLUMNS = "word string, n bigint"
ROWS = [("kelp", 1), ("rock", 2)]
STEP = 7
"""A prime to eight: so all bits of a byte have their turn."""


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


def flipped(whole: bytes, bit: int) -> bytes:
    place, worth = divmod(bit, 8)
    return whole[:place] + bytes([whole[place] ^ 1 << worth]) + whole[place + 1 :]


def test_a_flipped_bit_anywhere_in_staged_rows_is_rejected_with_the_file_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staging = SinkStage(PrintSink(to_type(COLUMNS)), tmp_path)
    committables = staging.write(1, ROWS)
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    for bit in (*range(0, 8 * len(whole), STEP), 8 * len(whole) - 1):
        path.write_bytes(flipped(whole, bit))
        with pytest.raises(CorruptFileError, match=f"'{path}' is damaged.*sink 'out' has not committed epoch 1"):
            staging.commit(committables)
    for other in (whole[:-1], whole + b"\0", b""):
        path.write_bytes(other)
        with pytest.raises(CorruptFileError, match=str(path)):
            staging.commit(committables)
    assert capsys.readouterr().out == ""
    path.write_bytes(whole)
    staging.commit(committables)
    assert capsys.readouterr().out == "1> +I[kelp,1]\n1> +I[rock,2]\n"


def test_what_an_older_version_has_staged_has_no_checksum_and_is_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staging = SinkStage(PrintSink(to_type(COLUMNS)), tmp_path)
    [committable] = staging.write(1, ROWS)
    del committable["value"]["checksum"]
    staging.commit([committable])
    assert capsys.readouterr().out == "1> +I[kelp,1]\n1> +I[rock,2]\n"


def database(place: Path) -> Sink:
    return DatabaseSink(sqlite_in(place).uri, "seen", create_table=True)


def put(place: Path) -> Sink:
    return DatabaseSink(sqlite_in(place).uri, "seen", key="n", create_table=True)


def merged(place: Path) -> Sink:
    return DeltaSink(place / "delta", key="n", create_table=True)


def in_database(place: Path) -> list[Any]:
    return sqlite_in(place).ask("select word, n from seen")


def in_delta(place: Path) -> list[Any]:
    from deltalake import DeltaTable

    return [tuple(row.values()) for row in DeltaTable(place / "delta").to_pyarrow_table().to_pylist()]


@pytest.mark.parametrize(("sink", "seen"), [(database, in_database), (put, in_database), (merged, in_delta)])
def test_a_job_whose_staged_rows_are_damaged_ends_and_says_from_where_they_can_be_made_again(
    tmp_path: Path, sink: Callable[[Path], Sink], seen: Callable[[Path], list[Any]]
) -> None:
    def run(**options: str) -> None:
        program = EpochProgram()
        program.source("in", COLUMNS).sink_to(sink(tmp_path)).uid("out")
        program.run(tmp_path / "job", [{"in": [("kelp", n)]} for n in (1, 2, 3)], options, source_tasks=1)

    fault.install("before:sink.commit:2=raise")
    with pytest.raises(JobExecutionError):
        run()
    fault.clear()
    [path] = (tmp_path / "job").rglob("taskowned/*-000000002-*.parquet")
    whole = path.read_bytes()
    path.write_bytes(flipped(whole, 4 * len(whole)))
    with pytest.raises(CorruptFileError, match=str(path)) as told:
        run()
    assert seen(tmp_path) == [("kelp", 1)]
    found = re.search(r"start with -s (/\S+/chk-\d+)", str(told.value))
    assert found is not None, told.value
    run(**{"execution.state-recovery.path": found[1]})
    assert sorted(seen(tmp_path)) == [("kelp", 1), ("kelp", 2), ("kelp", 3)]


@pytest.mark.parametrize("guarantee", ["plain", "at-least-once"])
def test_damaged_records_do_not_go_to_kafka(guarantee: str) -> None:
    committable = (CORPUS / "kafka_committable" / guarantee).read_bytes()
    kafka_committable.parse(committable)
    path = kafka_committable.ROOT / "staging" / kafka_committable.NAME
    with pytest.raises(CorruptFileError, match=str(path)):
        kafka_committable.parse(committable.replace(b'"rows":1', b'"rows":1,"checksum":"0123456789abcdef"'))


def test_pages_of_output_have_checksums_for_readers_that_look_at_them(tmp_path: Path) -> None:
    staging = SinkStage(ParquetFileSink(tmp_path / "out", compression="none"), tmp_path)
    staging.commit(staging.write(1, ROWS))
    [path] = (tmp_path / "out").glob("*.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"\4\0\0\0kelp", b"\4\0\0\0help"))
    assert pq.read_table(path)["word"].to_pylist() == ["help", "rock"]
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, page_checksum_verification=True)
