"""Makes the history of a failing seed as short as it can be.

A history is the draws that were not 0. Some of them are left out, first many at a time, then fewer; what still fails is
kept. Every try is a whole history by itself, so the result replays like any seed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tests.simulation.simulate import History

_CHANGING: Final = re.compile(r"[0-9a-f]{8,}|[0-9]+")


def shrunk(history: History, run: Callable[[Mapping[int, int]], History], tries: int = 600) -> History:
    """The shortest history that was found and still fails.

    Args:
        history: One that fails.
        run: Runs the history of some draws.
        tries: How many may be run.
    """
    best, wanted = history, _kind(history.failure or "")
    size = max(1, len(best.drawn) // 2)
    while True:
        at = 0
        while at < len(best.drawn):
            if not tries:
                return best
            tries -= 1
            # The last first: what comes after it says little.
            numbers = set(sorted(best.drawn, reverse=True)[at : at + size])
            tried = run({number: value for number, value in best.drawn.items() if number not in numbers})
            if tried.failure is not None and _kind(tried.failure) == wanted and len(tried.drawn) < len(best.drawn):
                best = tried
            else:
                at += size
        if size == 1:
            return best
        size //= 2


def _kind(failure: str) -> str:
    """What tells one finding from another, whatever its numbers and names are."""
    return _CHANGING.sub("#", failure)[:40]
