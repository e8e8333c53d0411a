"""Where many hashes stand in a long sorted column of them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# Below these a binary search is as fast.
_LONG: Final = 1 << 19
_MANY: Final = 1_000
_GUESSES: Final = 4
_STEPS: Final = 16


def lower_bounds(stored: Hashes, wanted: Hashes) -> Positions:
    """Return for each wanted hash the first position whose hash is not less, as `np.searchsorted` does.

    Hashes are spread evenly, so where one stands follows from how far it is from another: with five million a few
    guesses come closer than a binary search does with twenty looks, most of which the processor waits for. Where they
    are not (many rows of one key, or somebody has chosen the keys) what is not found near its place is searched for.

    Args:
        stored: Ascending, not empty.
        wanted: None of them below the first or above the last that is stored.
    """
    if len(stored) < _LONG or len(wanted) < _MANY:
        return np.searchsorted(stored, wanted)
    last = len(stored) - 1
    by_hash = last / max(1.0, float(stored[-1] - stored[0]))
    at: Positions = ((wanted - stored[0]) * by_hash).astype(np.int64)
    for _ in range(_GUESSES):
        at += ((wanted - stored.take(at, mode="clip")).view(np.int64) * by_hash).astype(np.int64)
    np.clip(at, 0, last, out=at)
    is_before = stored.take(at) < wanted
    missed = [_up(stored, wanted, at, np.flatnonzero(is_before)), _down(stored, wanted, at, np.flatnonzero(~is_before))]
    rest = np.concatenate(missed)
    at[rest] = np.searchsorted(stored, wanted[rest])
    return at


def _up(stored: Hashes, wanted: Hashes, at: Positions, rest: Positions) -> Positions:
    """Move positions whose hash is less on to the first whose is not; return those that are too far from it."""
    for _ in range(_STEPS):
        if not len(rest):
            break
        at[rest] += 1
        rest = rest[stored.take(at[rest]) < wanted[rest]]
    return rest


def _down(stored: Hashes, wanted: Hashes, at: Positions, rest: Positions) -> Positions:
    """Move positions back while the one before is not less, either; return those that are too far from their place."""
    for _ in range(_STEPS):
        before = at[rest] - 1
        rest = rest[(before >= 0) & (stored.take(before, mode="clip") >= wanted[rest])]
        if not len(rest):
            break
        at[rest] -= 1
    return rest
