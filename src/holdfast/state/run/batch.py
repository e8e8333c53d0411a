"""How rows are cut into batches: text and bytes of one Arrow column can have 2 GiB, what a task writes may have more.

A segment is a list of batches, nearly always of one. Readers take each batch for a segment of its own, so that no
column that anybody holds, takes rows of, or puts together within a batch comes near that limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BATCH_BYTES = 512 * 1024 * 1024
"""About how many bytes a batch has at most. One row is never cut; tests lower it."""
COLUMN_BYTES: Final = 2**31 - 1
"""What Arrow can address in one column of text or bytes."""

Positions = npt.NDArray[np.int64]


def batches_of(table: pa.Table) -> list[pa.Table]:
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


def made_in_pieces(positions: Positions, size: float, make: Callable[[Positions], pa.Table]) -> pa.Table:
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
    pieces = [positions] if count <= 1 else np.array_split(positions, count)
    made = [table for piece in pieces for table in _made(piece, make)]
    return made[0] if len(made) == 1 else pa.concat_tables(made)


def _made(positions: Positions, make: Callable[[Positions], pa.Table]) -> Iterator[pa.Table]:
    table = None
    try:
        table = make(positions)
    except Exception:
        # What does not fit shows in many ways: Arrow refuses, or hands out several arrays where one is expected. A
        # value of the wrong type ends up as the only one, too.
        if len(positions) < 2:
            raise
    if table is not None and (len(positions) < 2 or all(column.num_chunks <= 1 for column in table.columns)):
        yield table
        return
    middle = len(positions) // 2
    del table
    yield from _made(positions[:middle], make)
    yield from _made(positions[middle:], make)


def taken(table: pa.Table, rows: Positions) -> pa.Table:
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
    return made_in_pieces(rows, share, some) if len(rows) else table.slice(0, 0)
