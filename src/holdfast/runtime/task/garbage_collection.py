"""When the cyclic garbage collector of a worker process runs.

Why the cyclic garbage collector is paused: a batch makes tens of thousands of tuples that die at its end. The
collector counts allocations, so it would run dozens of times a batch and find nothing: a third of the time of a task
(measured: 2.0 against 1.3 microseconds a row). Reference counting frees what a batch made; cycles that user functions
leave are collected between batches.

Why survivors are frozen: PySpark runs a full collection after each task. It traverses all modules, the job and all
state of the process: 45 ms with pyarrow and numpy alone (measured: 80 % of a worker's time in small epochs, and each
stage waits for it). Frozen objects are skipped, until the next full collection of our own is due.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_FULL_COLLECTION_SHARE: Final = 0.005
"""Share of the time of a process that full collections may take."""

_REAL_TIME_SHARE: Final = 0.001
_LEAST_SECONDS: Final = 10.0
"""Seconds between two full collections of a real-time task, at least."""

_lock = threading.Lock()
_holders = 0
_was_enabled = False
_next_full_collection = 0.0


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Turn automatic collection off inside; several threads may be inside at a time."""
    global _holders, _was_enabled
    with _lock:
        if _holders == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0 and _was_enabled:
                gc.enable()


def collect_young() -> None:
    """Collect the cycles of the last batches; cheap, because almost nothing outlives a batch."""
    gc.collect(0)


def collect_between_barriers() -> None:
    """Collect the cycles of what a real-time task had since the last barrier; call it before there is more.

    What lives on is not looked at again, except in full collections, which make elements wait: they take a thousandth
    of the time at most.
    """
    global _next_full_collection
    with _lock:
        began = time.monotonic()
        is_full = _next_full_collection and began >= _next_full_collection
        gc.collect(2 if is_full else 1)
        now = time.monotonic()
        if is_full or not _next_full_collection:
            _next_full_collection = now + max((now - began) / _REAL_TIME_SHARE, _LEAST_SECONDS)


def collect_after_task() -> None:
    """Collect the cycles of a task, and freeze what is alive, so that later collections skip it.

    Frozen objects that die in cycles are found by a full collection, at intervals that keep its cost at 0.5 % of the
    time.
    """
    global _next_full_collection
    with _lock:
        began = time.monotonic()
        if began < _next_full_collection:
            gc.collect()
        else:
            gc.unfreeze()
            gc.collect()
            now = time.monotonic()
            _next_full_collection = now + (now - began) / _FULL_COLLECTION_SHARE
        gc.freeze()
