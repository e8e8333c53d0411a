"""Split sources of elements that are known beforehand: collections and numbers."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.runtime.function.source import BoundedEnumerator, SourceReader, SourceSplit, SplitEnumerator, SplitSource
from holdfast.types.arrow import element_schema
from holdfast.types.types import Types


class SequentialReader(SourceReader):
    """Reads splits one after the other, each to its end."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}
        self._finished: list[str] = []

    @abstractmethod
    def read(self, split_id: str, state: Any) -> tuple[pa.RecordBatch | Sequence[Any], Any]:
        """Return the elements from a position on, and the position after them: None at the end of the split."""

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._open.update((split.split_id, split.state) for split in splits)

    def poll(self) -> pa.RecordBatch | Sequence[Any] | None:
        if not self._open:
            return None
        split_id, state = next(iter(self._open.items()))
        elements, following = self.read(split_id, state)
        if following is None:
            del self._open[split_id]
            self._finished.append(split_id)
        else:
            self._open[split_id] = following
        return elements

    def snapshot(self) -> Mapping[str, Any]:
        finished, self._finished = self._finished, []
        return {**dict.fromkeys(finished), **self._open}

    @property
    def ended_splits(self) -> Collection[str]:
        return self._finished

    @property
    def has_splits(self) -> bool:
        return bool(self._open)


class CollectionSource(SplitSource):
    """The elements of a collection, in order: one task reads them. The position is the number of elements read.

    Args:
        elements: The elements.
    """

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements = elements

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return BoundedEnumerator({"elements": 0} if position is None else position["splits"])

    def create_reader(self, task: int) -> SourceReader:
        return _CollectionReader(self._elements)


class _CollectionReader(SequentialReader):
    def __init__(self, elements: Sequence[Any]) -> None:
        super().__init__()
        self._elements = elements

    def read(self, split_id: str, state: Any) -> tuple[Sequence[Any], Any]:
        following = state + self.at_once
        return self._elements[state:following], following if following < len(self._elements) else None


class NumberSource(SplitSource):
    """The whole numbers from a first to a last one; each task reads a range of them, in order.

    Args:
        first: The first number.
        last: The last number.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        if position is not None:
            return BoundedEnumerator(position["splits"])
        count = self._last - self._first + 1
        cuts = [self._first + count * n // tasks for n in range(tasks + 1)]
        ranges = {f"range-{n}": [begin, end] for n, (begin, end) in enumerate(pairwise(cuts)) if end > begin}
        return BoundedEnumerator(ranges)

    def create_reader(self, task: int) -> SourceReader:
        return _NumberReader()


class _NumberReader(SequentialReader):
    def read(self, split_id: str, state: Any) -> tuple[pa.RecordBatch, Any]:
        begin, end = state
        following = min(begin + self.at_once, end)
        # The last number may be the greatest that fits, and then the end of the range does not.
        return _column(begin + np.arange(following - begin)), [following, end] if following < end else None


class RateSource(SplitSource):
    """The numbers 0, 1, 2 and so on, so many a second by the clocks of the tasks; each task has every n-th number.

    Args:
        rate: Numbers a second.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        if position is not None:
            return BoundedEnumerator(position["splits"])
        return BoundedEnumerator({f"every-{tasks}-{n}": [n, tasks] for n in range(tasks)})

    def create_reader(self, task: int) -> SourceReader:
        return RateReader(self._rate)


class RateReader(SourceReader):
    """Reads splits of a `RateSource`. A reader that was paused catches up.

    Args:
        rate: Numbers a second of all splits together.
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._open: dict[str, list[int]] = {}
        self._due: dict[str, float] = {}

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            following, step = split.state
            self._open[split.split_id] = [following, step]
            # The numbers of all splits are in turn, so that small rates do not come in bursts.
            self._due[split.split_id] = self._clock() + (following % step) / self._rate

    def poll(self) -> pa.RecordBatch | None:
        now = self._clock()
        for split_id, (following, step) in self._open.items():
            seconds = step / self._rate
            count = min(self.at_once, int((now - self._due[split_id]) / seconds) + 1)
            if now >= self._due[split_id] and count > 0:
                del self._open[split_id]  # behind the others, which are read first next time
                self._open[split_id] = [following + count * step, step]
                self._due[split_id] += count * seconds
                return _column(np.arange(following, following + count * step, step))
        return None

    @property
    def seconds_to_next(self) -> float:
        return max(0.0, min(self._due.values(), default=math.inf) - self._clock())

    def snapshot(self) -> Mapping[str, Any]:
        return {split_id: list(state) for split_id, state in self._open.items()}

    @property
    def has_splits(self) -> bool:
        return bool(self._open)


def _column(numbers: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=element_schema(Types.LONG()))
