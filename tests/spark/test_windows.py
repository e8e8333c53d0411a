"""Windows on Spark: the example, over departures in several files and two runs, against plain Python."""

from __future__ import annotations

import os
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.spark.test_examples import EXAMPLES, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

HOUR = 3_600_000
NOON = 1_700_000_000
COLUMNS = ["origin", "tailnum", "departs", "delay"]


def departures() -> list[dict[str, Any]]:
    """Three days of them, out of order by less than two hours; the last one brings all windows to their end."""
    chance = random.Random(7)
    flights = []
    for _ in range(400):
        departs = chance.randrange(0, 72 * HOUR, 60_000) + 1
        flights.append(
            {
                "origin": chance.choice(["SEA", "PDX", "OAK"]),
                "tailnum": f"N{chance.randrange(12)}",
                "departs": departs,
                "delay": chance.randrange(-5, 60),
                "known": departs + chance.randrange(0, 2 * HOUR),
            }
        )
    flights.sort(key=lambda flight: flight["known"])
    flights.append({"origin": "END", "tailnum": "END", "departs": 1000 * HOUR, "delay": 0})
    return flights


def written(flights: list[dict[str, Any]], directory: Path, number: int) -> None:
    """A file that is a second younger than the one before: Spark reads them in the order of their times."""
    columns = [[flight[column] for flight in flights] for column in COLUMNS]
    path = directory / f"{number}.parquet"
    pq.write_table(pa.table(columns, names=COLUMNS), path)
    os.utime(path, (NOON + number, NOON + number))


def read(directory: Path) -> list[tuple[Any, ...]]:
    table = ds.dataset(directory, format="parquet").to_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_departures_in_windows_are_as_in_plain_python(tmp_path: Path) -> None:
    flights = departures()
    source, output, checkpoints = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoints"
    source.mkdir()
    program = [sys.executable, EXAMPLES / "windows.py", source, output, checkpoints]
    written(flights[:90], source, 0)
    written(flights[90:200], source, 1)
    run(*program)
    written(flights[200:], source, 2)
    run(*program)

    known = [flight for flight in flights if flight["origin"] != "END"]
    hours: dict[tuple[str, int], list[int]] = defaultdict(list)
    for flight in known:
        hours[flight["origin"], flight["departs"] // HOUR * HOUR].append(flight["delay"])
    expected = sorted((origin, starts, len(all_), sum(all_)) for (origin, starts), all_ in hours.items())
    assert read(output / "hours") == expected
    best: dict[int, tuple[int, str]] = {}
    for origin, starts, _, delay in expected:
        best[starts] = max(best.get(starts, (-(10**9), "")), (delay, origin))
    found = read(output / "worst")
    assert {starts: (delay, origin) for origin, starts, _, delay in found} == best
    assert len(found) == len(best)
    sessions = []
    for tailnum in {flight["tailnum"] for flight in known}:
        times = sorted(flight["departs"] for flight in known if flight["tailnum"] == tailnum)
        session = [times[0]]
        for at in [*times[1:], 10**15]:
            if at > session[-1] + 6 * HOUR:
                sessions.append((tailnum, session[0], session[-1] + 6 * HOUR, len(session)))
                session = []
            session.append(at)
    assert read(output / "busy") == sorted(sessions)
    assert not (output / "late").exists() or read(output / "late") == []
