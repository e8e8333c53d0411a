"""Keeping Python's cyclic garbage collector out of the hot path.

A batch makes tens of thousands of tuples that die at its end. The collector counts allocations, so it would run dozens
of times a batch and find nothing: that is a third of the time of a task (measured: 2.0 against 1.3 microseconds a row).
Reference counting frees what a batch made; what user functions leave in cycles is collected between batches.

And PySpark collects everything each time that a worker has ended a task, before it takes the next one. That looks at
all modules, at the job and at all state that the process knows: 45 ms with pyarrow and numpy alone (measured: 80 % of a
worker's time in small epochs, and each stage waits for it). So what a task leaves behind is collected among what is
new, and what survives is frozen: nobody looks at it again, until it has become due.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SHARE: Final = 0.005
"""Of the time of a process that may go into looking at everything."""

_lock = threading.Lock()
_holders = 0
_was_enabled = False
_look_at_all = 0.0


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Automatic collection is off inside; several threads may be inside at a time."""
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
    """Collects what the last batch left in cycles; cheap, because almost nothing outlives a batch."""
    gc.collect(0)


def collect_after_task() -> None:
    """Collects what a task left in cycles, and freezes what is alive, so that nobody looks at it after each task.

    What dies later in a cycle is found when everything is looked at again: so seldom that it costs a two hundredth of
    the time, at most.
    """
    global _look_at_all
    with _lock:
        began = time.monotonic()
        if began < _look_at_all:
            gc.collect()
        else:
            gc.unfreeze()
            gc.collect()
            now = time.monotonic()
            _look_at_all = now + (now - began) / _SHARE
        gc.freeze()
