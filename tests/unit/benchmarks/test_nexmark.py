"""Nexmark: the events are those of the published rules, and the queries give DuckDB's answers, killed or not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.nexmark import answers, windows
from benchmarks.nexmark.answers import ANSWERS
from benchmarks.nexmark.events import FIRST_ID, TYPES, Rules, chunk_of_events
from benchmarks.nexmark.files import events_on_disk
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.query import Query
from holdfast.common import Time
from holdfast.kernel.clock import ManualClock
from tests.stories import nexmark, process

RULES = Rules(rate=200, shuffled=100)
"""Slow enough for several windows, and out of order by up to half a second."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return events_on_disk(tmp_path_factory.mktemp("events"), 12_000, 2_000, RULES)


def test_there_is_a_program_and_an_answer_for_every_query() -> None:
    assert list(QUERIES) == list(ANSWERS) == [f"q{number}" for number in range(23)]


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if not query.needs_spark])
def test_a_query_gives_the_answer_of_duckdb(name: str, folder: Path, tmp_path: Path) -> None:
    query = QUERIES[name]
    program = nexmark.program_of(query, tmp_path / "out")
    inputs, clock = nexmark.inputs_of(query, folder), ManualClock(0)
    program.run(tmp_path / "job", inputs, clock=clock)
    clock.advance(10_000)  # windows of processing time end here, those of event time with the last event
    program.run(tmp_path / "job", [*inputs, dict.fromkeys(query.inputs, ())], clock=clock, is_bounded=True)
    nexmark.judge(query, folder, tmp_path / "out")


@pytest.mark.parametrize(("parallelism", "size", "slide"), [(1, 10, 2), (2, 10, 3), (3, 9, 2), (5, 4, 4)])
def test_hot_items_are_right_at_any_parallelism_size_and_slide(
    parallelism: int, size: int, slide: int, folder: Path, tmp_path: Path
) -> None:
    build = partial(windows.hot_items, size=Time.seconds(size), slide=Time.seconds(slide))
    run_to_its_end(replace(QUERIES["q5"], build=build), parallelism, folder, tmp_path)
    nexmark.judge(QUERIES["q5"], folder, tmp_path / "out", answers.hot_items(size * 1000, slide * 1000))


@pytest.mark.parametrize(("parallelism", "size"), [(1, 10), (2, 7), (3, 10), (5, 3)])
def test_the_highest_bid_is_right_at_any_parallelism_and_size(
    parallelism: int, size: int, folder: Path, tmp_path: Path
) -> None:
    build = partial(windows.highest_bid, size=Time.seconds(size))
    run_to_its_end(replace(QUERIES["q7"], build=build), parallelism, folder, tmp_path)
    nexmark.judge(QUERIES["q7"], folder, tmp_path / "out", answers.highest_bid(size * 1000))


def run_to_its_end(query: Query, parallelism: int, folder: Path, tmp_path: Path) -> None:
    program, inputs = nexmark.program_of(query, tmp_path / "out"), nexmark.inputs_of(query, folder)
    program.run(
        tmp_path / "job",
        inputs,
        clock=ManualClock(0),
        parallelism=parallelism,
        source_tasks=parallelism,
        is_bounded=True,
    )


KILLS = ("before:pointer.write:3=kill", "after:sink.stage:3=kill", "after:sink.commit:2=kill", "after:run.write:4=kill")
WITHOUT_SPARK = [name for name, query in QUERIES.items() if not query.needs_spark]


@pytest.mark.parametrize(("name", "fault"), [(name, KILLS[at % len(KILLS)]) for at, name in enumerate(WITHOUT_SPARK)])
def test_every_query_that_is_killed_gives_the_same_answer(name: str, fault: str, folder: Path, tmp_path: Path) -> None:
    places = tmp_path / "job", tmp_path / "out"
    assert process.run("nexmark_job.py", name, folder, *places, fault=fault).was_killed
    ended = process.run("nexmark_job.py", name, folder, *places)
    assert ended.code == 0, ended.output
    nexmark.judge(QUERIES[name], folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["q4", "q8"])
def test_a_query_that_is_killed_again_and_again_gives_the_same_answer(name: str, folder: Path, tmp_path: Path) -> None:
    places = tmp_path / "job", tmp_path / "out"
    for fault in ("before:pointer.write:3=kill", "after:sink.stage:3=kill", "after:sink.commit:2=kill"):
        killed = process.run("nexmark_job.py", name, folder, *places, fault=fault)
        assert killed.was_killed, killed.output
    ended = process.run("nexmark_job.py", name, folder, *places)
    assert ended.code == 0, ended.output
    nexmark.judge(QUERIES[name], folder, tmp_path / "out")


def test_events_are_those_of_the_published_rules() -> None:
    made = chunk_of_events(Rules(chunk=100_000), 1)
    person, auction, bid = made["person"], made["auction"], made["bid"]
    assert [len(person), len(auction), len(bid)] == [2_000, 6_000, 92_000]
    assert person["id"].to_pylist() == list(range(FIRST_ID + 2_000, FIRST_ID + 4_000))
    assert auction["id"].to_pylist() == list(range(FIRST_ID + 6_000, FIRST_ID + 12_000))
    hot = share(bid["auction"], lambda ids: (ids - FIRST_ID) % 100 == 0)
    assert 0.49 < hot < 0.52, "half of the bids are for hot auctions"
    assert 0.74 < share(bid["bidder"], lambda ids: (ids - FIRST_ID) % 100 == 1) < 0.77
    assert 0.74 < share(auction["seller"], lambda ids: (ids - FIRST_ID) % 100 == 0) < 0.77
    assert 0.49 < share(bid["price"], lambda prices: prices < 100_000) < 0.51, "prices are even by their logarithm"
    assert bid["price"].to_numpy().min() >= 100 and bid["price"].to_numpy().max() <= 100_000_000
    lengths = np.array([len(extra) for extra in bid["extra"].to_pylist()])
    assert lengths.min() >= 54 and lengths.max() <= 82
    open_for = auction["expires"].to_numpy() - auction["date_time"].to_numpy()
    assert open_for.min() >= 1 and 150 < open_for.mean() < 185, "twice as long as 1,666 events at most"


def test_folders_of_addresses_keep_their_underscores() -> None:
    """Java's `trim` takes blanks from the ends of a folder, of which it has none, and no underscores."""
    urls = pa.concat_arrays(chunk_of_events(Rules(chunk=100_000), 0)["bid"]["url"].chunks).unique().to_pylist()
    folders = [folder for url in urls for folder in url.split("/")[3:6]]
    assert {len(folder) for folder in folders} == {3, 4}
    for end in (0, -1):
        assert 0.07 < np.mean([folder[end] == "_" for folder in folders]) < 0.085, "one in thirteen"


def test_all_engines_read_the_same_row_groups(folder: Path) -> None:
    for kind in TYPES:
        epochs, whole = (row_groups(folder / place / kind) for place in ("epochs", "whole"))
        assert len(epochs) == 6 and sorted(epochs) == sorted(whole)
        rows = [pq.read_metadata(path).num_rows for path in sorted((folder / "whole" / kind).iterdir())]
        assert len(rows) == 2 and rows[0] == rows[1], "both readers have as much to read"


def row_groups(directory: Path) -> list[tuple[int, list[int]]]:
    """The bytes of each row group, and its event times."""
    files = [pq.ParquetFile(path) for path in sorted(directory.iterdir())]
    return [
        (file.metadata.row_group(at).total_byte_size, file.read_row_group(at, ["date_time"])["date_time"].to_pylist())
        for file in files
        for at in range(file.num_row_groups)
    ]


def test_the_same_seed_gives_the_same_events_and_another_one_others() -> None:
    small = Rules(chunk=1_000)
    assert chunk_of_events(small, 3) == chunk_of_events(small, 3)
    assert chunk_of_events(small, 3)["bid"] != chunk_of_events(Rules(seed=8, chunk=1_000), 3)["bid"]


def share(column: pa.ChunkedArray, condition: Any) -> float:
    return float(np.mean(condition(column.to_numpy())))
