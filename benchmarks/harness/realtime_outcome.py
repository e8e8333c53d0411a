"""What the latencies of a measurement of `realtime.py` say, and whether the engine kept up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.realtime_run import PAIR_BYTES

QUANTILES: Final = (50, 99, 99.9, 100)
_STEP: Final = 10_000
_MOST_GROWTH: Final = 1.0
_MOST_BEHIND: Final = 10.0


@dataclass(frozen=True)
class Outcome:
    """What was seen of the events that were created between two times.

    Attributes:
        events: How many there were.
        quantiles: Of their latencies, in milliseconds, for `QUANTILES`; empty if there was no event.
        behind: How old the newest event was that had been seen at the end, in seconds.
        growth: By how many seconds more the engine was behind in the last third than in the first one. The least
            values of both thirds are compared, so it is 0 for batches of constant length.
    """

    events: int
    quantiles: tuple[float, ...]
    behind: float
    growth: float

    @property
    def kept_up(self) -> bool:
        return self.events > 0 and self.growth <= _MOST_GROWTH and self.behind <= _MOST_BEHIND


def read_pairs(directory: Path) -> np.ndarray:
    """Return all pairs of a directory, in no order: when an event was created, and when it was seen."""
    found = [np.empty((0, 2), np.int64)]
    for path in directory.iterdir():
        content = path.read_bytes()
        whole = len(content) // PAIR_BYTES * PAIR_BYTES  # the last one may be in the middle of a write
        found.append(np.frombuffer(content[:whole], np.int64).reshape(-1, 2))
    return np.concatenate(found)


def newest_created(directory: Path) -> int:
    """Return the creation time of one of the newest events that were seen; 0 if none was."""
    newest = 0
    for path in directory.iterdir():
        with path.open("rb") as file:
            pairs = file.seek(0, 2) // PAIR_BYTES
            if pairs:
                file.seek((pairs - 1) * PAIR_BYTES)
                newest = max(newest, int.from_bytes(file.read(PAIR_BYTES // 2), "little"))
    return newest


def judge(pairs: np.ndarray, begin: int, end: int) -> Outcome:
    """Judge the events that were created in a time, whose borders are microseconds since 1970."""
    created, seen = pairs[:, 0], pairs[:, 1]
    is_measured = (created >= begin) & (created < end)
    ages = (seen[is_measured] - created[is_measured]) / 1000
    quantiles = tuple(float(np.percentile(ages, share)) for share in QUANTILES) if len(ages) else ()
    lags = _lags(created, seen, begin, end)
    third = max(1, len(lags) // 3)
    growth = float(lags[-third:].min() - lags[:third].min())
    return Outcome(len(ages), quantiles, float(lags[-1]), growth)


def _lags(created: np.ndarray, seen: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Return by how many seconds the newest event that had been seen was old, at steps from the begin to the end."""
    order = np.argsort(seen, kind="stable")
    oldest = created.min() if len(created) else begin  # so old at least is what was seen before all of these
    newest = np.maximum.accumulate(np.concatenate([[oldest], created[order]]))
    times = np.arange(begin, end + 1, _STEP)
    return (times - newest[np.searchsorted(seen[order], times, side="right")]) / 1e6
