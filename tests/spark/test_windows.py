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

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import CoGroupFunction, JoinFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.window import TumblingEventTimeWindows
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


class Pair(JoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        return first.origin, first.departs, second.departs


class Sums(CoGroupFunction):
    def co_group(self, first: list[Any], second: list[Any]) -> Any:
        yield (first or second)[0].origin, sum(one.delay for one in first), sum(one.delay for one in second)


def test_two_streams_meet_in_windows_over_three_runs_of_different_parallelism(spark: Any, tmp_path: Path) -> None:
    flights = departures()
    halves = {"left": flights[0:-1:2], "right": flights[1:-1:2]}
    over = [{"origin": "END", "tailnum": "END", "departs": 1000 * HOUR, "delay": 0}]
    for name in halves:
        (tmp_path / name).mkdir()

    def timed(env: StreamExecutionEnvironment, name: str) -> Any:
        frame = spark.readStream.schema("origin string, tailnum string, departs bigint, delay bigint")
        frame = frame.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / name))
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.hours(2))
        return (
            env.from_dataframe(frame)
            .uid(name)
            .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row, _: row.departs))
        )

    for number, parallelism in enumerate((2, 3, 1)):
        for name, half in halves.items():
            part = half[70 * number : 70 * (number + 1)]
            for at in (0, 35):
                written(part[at : at + 35], tmp_path / name, 10 * number + at // 35)
            if number == 2:
                written(over, tmp_path / name, 10 * number + 2)
        options = {"execution.trigger": "available-now", "execution.checkpointing.dir": str(tmp_path / "checkpoints")}
        env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
        env.set_parallelism(parallelism)
        left, right = timed(env, "left"), timed(env, "right")
        windows = TumblingEventTimeWindows.of(Time.hours(1))
        pairs, sums = (
            both.where("origin").equal_to("origin").window(windows) for both in (left.join(right), left.co_group(right))
        )
        joined = pairs.apply(Pair(), "origin string, first bigint, second bigint").uid("pairs")
        joined.sink_to(ParquetFileSink(str(tmp_path / "pairs"))).uid("pairs-out")
        grouped = sums.apply(Sums(), "origin string, first bigint, second bigint").uid("sums")
        grouped.sink_to(ParquetFileSink(str(tmp_path / "sums"))).uid("sums-out")
        env.execute("meet")

    both: dict[tuple[str, int], tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for side, half in enumerate(halves.values()):
        for flight in half:
            both[flight["origin"], flight["departs"] // HOUR][side].append(flight)
    assert read(tmp_path / "pairs") == sorted(
        (origin, one["departs"], other["departs"])
        for (origin, _), (firsts, seconds) in both.items()
        for one in firsts
        for other in seconds
    )
    found = [row for row in read(tmp_path / "sums") if row[0] != "END"]
    assert found == sorted(
        (origin, sum(one["delay"] for one in firsts), sum(one["delay"] for one in seconds))
        for (origin, _), (firsts, seconds) in both.items()
    )
