"""The rows of a batch by key, and what runs along the rows of each key, without a loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from decimal import Context, localcontext
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.state.hashmap.placement import Slots

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_LONG: Final = 64
_ALL_DIGITS: Final = Context(prec=100)


class Groups:
    """The rows of a batch, those of one key together in their order.

    Args:
        marks: Of each row what is equal for rows of one key.

    Attributes:
        order: The rows, key by key.
        group: Of each of these the number of its key.
        starts: Where each key begins among them.
    """

    def __init__(self, marks: Sequence[Any] | Positions) -> None:
        if isinstance(marks, np.ndarray):
            numbers = marks
        elif isinstance(marks, Slots):
            numbers = marks.array
        else:
            is_number = len(marks) > 0 and isinstance(marks[0], int)
            numbers = np.fromiter(marks, np.int64, len(marks)) if is_number else _numbered(marks)
        # Several times faster than a stable argsort; slots and rows are far below the limits.
        bits = max(1, len(numbers).bit_length())
        both = np.sort((numbers << bits) | np.arange(len(numbers)))
        self.order: Positions = both & ((1 << bits) - 1)
        ordered = both >> bits
        is_first = np.ones(len(ordered), bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        self.starts: Positions = np.flatnonzero(is_first)
        self.group: Positions = np.cumsum(is_first) - 1
        self.ends: Positions = np.append(self.starts[1:], len(ordered))[: len(self.starts)] - 1

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def first_rows(self) -> Positions:
        """The first row of each key."""
        return self.order[self.starts]

    @property
    def position(self) -> Positions:
        """Of each row, key by key, how many rows of its key are before it."""
        return np.arange(len(self.order)) - self.starts[self.group]

    def in_rows(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Bring what stands key by key into the order of the rows."""
        result = np.empty_like(values)
        result[self.order] = values
        return result

    def last(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the last of what stands key by key, for each key."""
        return values[self.ends]


def running(
    operation: np.ufunc, groups: Groups, values: npt.NDArray[Any], before: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Apply an operation along the rows of each key, one after the other as a loop would.

    Args:
        operation: Of two arguments: what came out so far, and the next value.
        groups: The keys.
        values: Of each row, key by key.
        before: What there is of each key before its first row.

    Returns:
        What came out with each row, key by key.
    """
    result = np.empty(len(values), before.dtype)
    sizes = groups.ends - groups.starts + 1
    long = np.flatnonzero(sizes > _LONG)
    for number in long.tolist():
        start, end = int(groups.starts[number]), int(groups.ends[number]) + 1
        joined = np.concatenate([before[number : number + 1], values[start:end].astype(before.dtype, copy=False)])
        result[start:end] = operation.accumulate(joined)[1:]
    reached = before.copy()
    short = np.flatnonzero(sizes <= _LONG)
    step = 0
    while len(short):
        rows = groups.starts[short] + step
        reached[short] = operation(reached[short], values[rows])
        result[rows] = reached[short]
        step += 1
        short = short[sizes[short] > step]
    return result


def exact_decimals() -> AbstractContextManager[Context]:
    """Inside, sums of decimals keep all their digits; Python's own default rounds them to 28."""
    return localcontext(_ALL_DIGITS)


def latest_marked(groups: Groups, marked: Mask) -> Positions:
    """Return for each row, key by key, the newest marked one of its key up to it; -1 if there is none."""
    at = np.where(marked, np.arange(len(marked)), -1)
    newest = np.maximum.accumulate(at) if len(at) else at
    return np.where(newest >= groups.starts[groups.group], newest, -1)


def _numbered(marks: Sequence[Any]) -> Positions:
    """Number objects: rows of one key have the very same object."""
    numbers: dict[int, int] = {}
    return np.fromiter((numbers.setdefault(id(mark), len(numbers)) for mark in marks), np.int64, len(marks))
