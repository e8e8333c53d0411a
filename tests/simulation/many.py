"""Histories of many seeds, in several processes."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, as_completed, wait
from math import inf

from tests.simulation import bugs
from tests.simulation.kind import KINDS, LIGHT, REAL, REAL_TIME, Kind
from tests.simulation.report import Totals
from tests.simulation.simulate import History, simulate

_BLOCK = 10
# A fork has no threads, and a process that has told a history keeps some for the next.
_FRESH = multiprocessing.get_context("spawn")


def history_of(
    seed: int, bug: str | None = None, recorded: Mapping[int, int] | None = None, kind: Kind = LIGHT
) -> History:
    """The history of a seed, perhaps with a bug."""
    return simulate(seed, recorded, None if bug is None else bugs.bug(bug), kind)


def run_seeds(seeds: Iterable[int], kind: str = "light") -> Totals:
    """The histories of some seeds, of a kind."""
    totals = Totals()
    for seed in seeds:
        totals.add(simulate(seed, kind=KINDS[kind]))
    return totals


def run_many(first: int, count: int, processes: int, minutes: float = inf, kind: str = "light") -> Totals:
    """The histories of many seeds, in several processes.

    Args:
        first: The first seed.
        count: How many.
        processes: How many at a time.
        minutes: After which no more are begun.
        kind: Their kind, by name.
    """
    totals, began, told = Totals(), time.monotonic(), 0
    blocks = [range(at, min(at + _BLOCK, first + count)) for at in range(first, first + count, _BLOCK)]
    with ProcessPoolExecutor(processes, _FRESH) as pool:
        waiting = {pool.submit(run_seeds, block, kind) for block in blocks}
        while waiting:
            done, waiting = wait(waiting, timeout=10, return_when=FIRST_COMPLETED)
            for block in done:
                totals = totals.plus(block.result())
            took = time.monotonic() - began
            if totals.histories >= told + 500 or any(block.result().failures for block in done):
                told = totals.histories
                print(f"{told} seeds in {took:.0f} s, failures: {totals.failures}", file=sys.stderr, flush=True)
            if took > 60 * minutes:
                running = list(pool._processes.values())
                pool.shutdown(wait=False, cancel_futures=True)
                for process in running:
                    process.kill()
                break
    return totals


def kind_of(bug: str) -> Kind:
    """The kind of histories that a bug shows in."""
    if bug in bugs.IN_REAL_TIME:
        return REAL_TIME
    return REAL if bug in bugs.WITH_REAL_TASKS else LIGHT


def seeds_for(bug: str, limit: int) -> int | None:
    """How many seeds it takes until a bug is found; None if that many do not find it."""
    kind = kind_of(bug)
    return next((seed + 1 for seed in range(limit) if history_of(seed, bug, kind=kind).failure is not None), None)


def seeds_for_all(names: Sequence[str], limit: int, processes: int) -> dict[str, int | None]:
    """How many seeds each bug takes, found in several processes."""
    found: dict[str, int | None] = {}
    with ProcessPoolExecutor(processes, _FRESH) as pool:
        asked = {pool.submit(seeds_for, name, limit): name for name in names}
        for answer in as_completed(asked):
            found[asked[answer]] = answer.result()
            print(f"{asked[answer]}: {answer.result()}", file=sys.stderr, flush=True)
    return {name: found[name] for name in names}
