"""Timers that fire one after the other, while those who are called set and delete others."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count
from typing import Final

from holdfast.state.layout.column_layout import Op
from holdfast.state.timer.timer_rows import Timer

_PUT: Final = Op.PUT


class Firing:
    """The timers of a queue that are due now, and those that come to them.

    Those that were due when it began are columns, and no objects are made of them unless somebody asks what there is,
    or has set or deleted anything.

    Args:
        times: When those are due that were due when it began, in order.
        make: Makes their objects.
        through: Up to which time timers fire.
        goes_back: Whether a timer fires too that is set for no later than the one that fires. If not, it waits: where
            time stands still meanwhile, one that sets itself again would never end.
        changes: What is said by element about timers: kept by the queue, and empty when it begins.

    Attributes:
        through: The time.
    """

    def __init__(
        self,
        times: list[int],
        make: Callable[[], list[Timer]],
        through: int,
        changes: dict[Timer, Op],
        *,
        goes_back: bool,
    ) -> None:
        self.through = through
        self._goes_back = goes_back
        self._now = through
        self._waiting: set[Timer] = set()
        self._times = times
        self._make = make
        self._changes = changes
        self._next = 0
        self._is_told = False
        self._added: list[tuple[int, int, Timer]] = []
        self._order = count()

    def __iter__(self) -> Iterator[tuple[int, int | Timer]]:
        """Remove and yield the least timer as long as there is one: its time, and itself.

        One of those that were due at the beginning is its place among them. Timers that are set between two of them
        fire too, and those that are deleted do not.
        """
        changes, added = self._changes, self._added
        for at, time in enumerate(self._times):
            if added:
                yield from self._take_added(time)
            self._next = at + 1
            if not changes or self._is_left(self.timers[at]):
                self._now = time
                yield time, at
        yield from self._take_added(self.through + 1)

    @cached_property
    def timers(self) -> list[Timer]:
        """Those that were due when it began."""
        return self._make()

    def add(self, timer: Timer) -> None:
        """A timer was set."""
        if not self._goes_back and timer[0] <= self._now:
            self._waiting.add(timer)
        elif timer[0] <= self.through:
            heapq.heappush(self._added, (timer[0], next(self._order), timer))

    def tell(self) -> None:
        """Say by element of what is left that it is set, for somebody who asks what there is."""
        if not self._is_told and self._next < len(self._times):
            self._is_told = True
            for timer in self.timers[self._next :]:
                self._changes.setdefault(timer, _PUT)

    def _is_left(self, timer: Timer) -> bool:
        op = self._changes.get(timer)
        if op is _PUT:
            del self._changes[timer]
        return op is _PUT or (op is None and not self._is_told)

    def _take_added(self, before: int) -> Iterator[tuple[int, Timer]]:
        changes, added = self._changes, self._added
        while added and added[0][0] < before:
            time, _, timer = heapq.heappop(added)
            if changes.get(timer) is _PUT and timer not in self._waiting:
                del changes[timer]
                self._now = time
                yield time, timer
