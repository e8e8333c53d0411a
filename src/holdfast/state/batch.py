"""Batches of bounded size: an Arrow array of text or bytes is limited to 2 GiB, but a task may write more.

A segment is a list of batches, nearly always of one. Readers treat each batch as a segment of its own, so that no array
exceeds the limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BATCH_BYTES = 512 * 1024 * 1024
"""Approximate limit of a batch in bytes. A single row is never cut. Tests lower it."""
COLUMN_BYTES: Final = 2**31 - 1
"""Arrow's limit for one array of text or bytes."""

Positions = npt.NDArray[np.int64]
T = TypeVar("T")


def split_into_batches(table: pa.Table) -> list[pa.Table]:
    """Return consecutive tables of one chunk each."""
    if table.nbytes <= BATCH_BYTES:
        return [table.combine_chunks()]
    return [piece.combine_chunks() for piece in _halved(table)]


def _halved(table: pa.Table) -> Iterator[pa.Table]:
    # The size of single rows is not known without looking at each, only that of a slice.
    if table.num_rows < 2 or table.nbytes <= BATCH_BYTES:
        yield table
        return
    middle = table.num_rows // 2
    yield from _halved(table.slice(0, middle))
    yield from _halved(table.slice(middle))


def build_in_pieces(positions: Positions, size: float, make: Callable[[Positions], pa.Table]) -> pa.Table:
    """Build the rows for some positions, in pieces whose columns fit into Arrow arrays.

    Args:
        positions: Positions to build rows for.
        size: Estimated size of all rows in bytes; it determines the size of the first pieces.
        make: Builds the rows of some positions. It may fail if a column is too long.

    Returns:
        The rows in order, in one chunk or several.

    Raises:
        Exception: Any error that `make` raises for a single position.
    """
    count = min(len(positions), 1 + int(size) // BATCH_BYTES)
    ends = np.linspace(0, len(positions), max(1, count) + 1).astype(np.int64).tolist()
    made = [
        table
        for first, last in itertools.pairwise(ends)
        for _, table in build_by_halves(first, last, lambda a, b: make(positions[a:b]), _is_in_one_chunk)
    ]
    return made[0] if len(made) == 1 else pa.concat_tables(made)


def build_by_halves(
    first: int, last: int, make: Callable[[int, int], T], fits: Callable[[T], bool]
) -> Iterator[tuple[int, T]]:
    """Build something from a range of elements, or from each of its halves if the result is too large.

    Args:
        first: The first element.
        last: The element after the last.
        make: Builds the result of a range. It may fail if the range is too long.
        fits: Returns whether a result is small enough. A single element is never cut.

    Yields:
        The number of elements and their result, in order.

    Raises:
        Exception: Any error that `make` raises for a single element.
    """
    made, is_one = None, last - first < 2
    try:
        made = make(first, last)
    except Exception:
        # Arrow reports an overflow in several ways: it raises, or returns several arrays instead of one. A value of
        # the wrong type raises as well, and is found by halving, too.
        if is_one:
            raise
    if made is not None and (is_one or fits(made)):
        yield last - first, made
        return
    del made
    middle = (first + last) // 2
    yield from build_by_halves(first, middle, make, fits)
    yield from build_by_halves(middle, last, make, fits)


def _is_in_one_chunk(table: pa.Table) -> bool:
    return all(column.num_chunks <= 1 for column in table.columns)


def take_rows(table: pa.Table, rows: Positions) -> pa.Table:
    """Return rows of a table whose columns may exceed one array, in the requested order.

    `pa.Table.take` would combine the chunks of each column first.
    """
    if table.nbytes <= BATCH_BYTES:
        return table.take(pa.array(rows))
    chunks = [pa.Table.from_batches([batch]) for batch in table.to_batches()]
    starts = np.cumsum([0, *(chunk.num_rows for chunk in chunks)])

    def some(wanted: Positions) -> pa.Table:
        owner = np.searchsorted(starts, wanted, side="right") - 1
        found = [chunks[one].take(pa.array(wanted[owner == one] - starts[one])) for one in np.unique(owner).tolist()]
        back = np.argsort(np.argsort(owner, kind="stable"), kind="stable")
        return pa.concat_tables(found).combine_chunks().take(pa.array(back))

    share = table.nbytes * len(rows) / max(1, table.num_rows)
    return build_in_pieces(rows, share, some) if len(rows) else table.slice(0, 0)


def ranks(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return integers that sort like the values of a column, equal for equal values; null comes first."""
    if pa.types.is_integer(column.type) and not column.null_count:
        numbers: npt.NDArray[Any] = column.to_numpy()
        return numbers
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    places = np.empty(len(order) + 1, np.int64)
    places[order] = np.arange(len(order))
    places[-1] = -1
    indices = encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
    codes: npt.NDArray[np.int64] = places[indices]
    return codes
