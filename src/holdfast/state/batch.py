"""How rows are cut into batches: text and bytes of one Arrow column can have 2 GiB, what a task writes may have more.

A segment is a list of batches, nearly always of one. Readers take each batch for a segment of its own, so that no
column that anybody holds, takes rows of, or puts together within a batch comes near that limit.
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
"""About how many bytes a batch has at most. One row is never cut; tests lower it."""
COLUMN_BYTES: Final = 2**31 - 1
"""What Arrow can address in one column of text or bytes."""

Positions = npt.NDArray[np.int64]
T = TypeVar("T")


def split_into_batches(table: pa.Table) -> list[pa.Table]:
    """Cut rows into tables of one chunk each, in order."""
    if table.nbytes <= BATCH_BYTES:
        return [table.combine_chunks()]
    return [piece.combine_chunks() for piece in _halved(table)]


def _halved(table: pa.Table) -> Iterator[pa.Table]:
    # Rows may differ in size by any factor, and only the bytes of a whole stretch are known without looking at each.
    if table.num_rows < 2 or table.nbytes <= BATCH_BYTES:
        yield table
        return
    middle = table.num_rows // 2
    yield from _halved(table.slice(0, middle))
    yield from _halved(table.slice(middle))


def build_in_pieces(positions: Positions, size: float, make: Callable[[Positions], pa.Table]) -> pa.Table:
    """Make the rows for some positions, so many at once that each column of them fits into an Arrow array.

    Args:
        positions: What the rows are made for.
        size: About how many bytes all rows have; it decides how many are tried first.
        make: Makes the rows of some of the positions. It may fail where their columns would be too long.

    Returns:
        The rows in order, in one chunk or several.

    Raises:
        Exception: Whatever `make` raises for one position alone.
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
    """Make something of a stretch of elements, of each of its halves where what is made of it whole is too long.

    Args:
        first: The first element.
        last: The one after the last.
        make: Makes it of the elements from one until before another. It may fail where there are too many.
        fits: Whether what was made is short enough. One element is never cut.

    Yields:
        How many elements, and what was made of them, in order.

    Raises:
        Exception: Whatever `make` raises for one element alone.
    """
    made, is_one = None, last - first < 2
    try:
        made = make(first, last)
    except Exception:
        # What does not fit shows in many ways: Arrow refuses, or hands out several arrays where one is expected. A
        # value of the wrong type ends up as the only one, too.
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
    """Return some rows of a table whose columns may be too long for one array, in the order that is asked for.

    Arrow puts the chunks of a column together before it takes rows of it.
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


# The order of rows: numbers that stand for the values of a column.


def ranks(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return numbers in the order of the values of a column, equal for equal ones; null stands first."""
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
