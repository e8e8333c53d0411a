"""Readings of sensors in windows, and programs over them that run epoch by epoch in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import ParquetFileSink
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.window import TimeWindow
from tests.stories import ledger
from tests.stories.local import Program, epochs, run

READING = "sensor string, at bigint, n bigint"
RESULT = "sensor string, starts bigint, ends bigint, n bigint, count bigint"
Reading = tuple[str, int, int]
Windows = Callable[[DataStream], DataStream]


def late_by(milliseconds: int) -> WatermarkStrategy:
    """Watermarks for readings that are out of order by so much at most."""
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(milliseconds))
    return bounded.with_timestamp_assigner(lambda reading, before: reading.at)


def summed(sensor: str, window: TimeWindow, readings: Sequence[Any]) -> list[tuple[Any, ...]]:
    """A window function: the window, the sum and the number of its readings."""
    return [(sensor, window.start, window.end, sum(one.n for one in readings), len(readings))]


def job(windows: Windows, bound: int, place: Path, *, stamped: bool = True, program: Any = None) -> Any:
    """A program, by epochs or the given one, that writes what comes of windows to the directory `out` of a place."""
    program = Program() if program is None else program
    stream = program.source("readings", READING)
    if stamped:
        stream = stream.assign_timestamps_and_watermarks(late_by(bound))
    windows(stream).uid("windows").sink_to(ParquetFileSink(place / "out")).uid("out")
    return program


def results(
    windows: Windows, batches: Sequence[Sequence[Reading]], place: Path, *, bound: int = 0, **settings: Any
) -> list[tuple[Any, ...]]:
    """What a program emits for readings, one batch an epoch; a bounded input ends with the last of them."""
    settings.setdefault("is_bounded", True)
    stamped = settings.pop("stamped", True)
    run(job(windows, bound, place, stamped=stamped), place / "job", epochs("readings", batches), **settings)
    return sorted(ledger.read(place / "out"))
