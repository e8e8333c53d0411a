"""Makes the history of a failing seed as short as it can be.

A history is the draws that were not 0. Some of them are left out, first many at a time, then fewer; what still fails is
kept. Every try is a whole history by itself, so the result replays like any seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.simulation.simulate import History


def shrunk(history: History, run: Callable[[Mapping[int, int]], History], tries: int = 400) -> History:
    """The shortest history that was found and still fails.

    Args:
        history: One that fails.
        run: Runs the history of some draws.
        tries: How many may be run.
    """
    best, drawn = history, dict(history.drawn)
    size = max(1, len(drawn) // 2)
    while tries > 0:
        removed = False
        for start in range(0, len(drawn), size):
            numbers = sorted(drawn, reverse=True)[start : start + size]
            fewer = {number: value for number, value in drawn.items() if number not in numbers}
            tries -= 1
            tried = run(fewer)
            if tried.failure is not None:
                # Draws behind its end say nothing any more.
                best, drawn, removed = tried, dict(tried.drawn), True
                break
            if tries <= 0:
                break
        if not removed:
            if size == 1:
                break
            size = max(1, size // 2)
        else:
            size = min(size, max(1, len(drawn) // 2))
    return best
