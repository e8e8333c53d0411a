"""Rows of several runs put together, newest first, and sorted so that rows about the same thing stand together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.layout.column_layout import OP
from holdfast.state.run import batch
from holdfast.state.run.order import ranks
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, Segment

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_ROWS_AT_ONCE: Final = 256 * 1024


class Sorted:
    """Rows of one state from several runs, sorted by all the named columns; of rows that agree, newer ones stand first.

    Different keys hardly ever have the same hash. Where none have, keys are not sorted: their hashes tell them apart.

    Attributes:
        age: Of each row the number of its run: 0 for the newest.
    """

    def __init__(self, tables: Sequence[pa.Table], by: Sequence[str]) -> None:
        joined = pa.concat_tables(tables)
        # What one key has may be too much for one array, and is not cut.
        self._joined = joined.combine_chunks() if joined.nbytes <= batch.BATCH_BYTES else joined
        age = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
        names = [name for name in by if not (name == KEY and by[0] == HASH and self._hashes_tell_keys())]
        codes = [ranks(self._joined.column(name)) for name in names]
        # lexsort is stable, and sorts by its last key first.
        order = np.lexsort(codes[::-1]) if len(codes) > 1 else np.argsort(codes[0], kind="stable")
        self._order: Positions = order
        self.age: Positions = age[order]
        self._codes = {name: code[order] for name, code in zip(names, codes, strict=True)}

    def __len__(self) -> int:
        return len(self.age)

    def _hashes_tell_keys(self) -> bool:
        hashes = self._joined.column(HASH).to_numpy()
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        keys = self._joined.column(KEY)
        same = pc.equal(keys.take(pa.array(order[again])), keys.take(pa.array(order[again + 1])))
        return pc.all(same, min_count=0).as_py() is True

    def first_of(self, names: Sequence[str]) -> Mask:
        """Mark the first of the rows that agree in some columns, with which the columns of the order begin."""
        first = np.zeros(len(self), bool)
        first[:1] = True
        for name in names:
            if name == KEY and KEY not in self._codes:
                continue  # the hash, which stands before it, tells as much
            code = self._codes[name]
            first[1:] |= code[1:] != code[:-1]
        return first

    def ops(self) -> npt.NDArray[np.int8]:
        """Return the operation of each row."""
        ops: npt.NDArray[np.int8] = self._joined.column(OP).to_numpy()
        return ops[self._order]

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of all rows."""
        return self._joined.column(name).take(pa.array(self._order))

    def table(self, keep: Mask | None = None) -> pa.Table:
        """Return the rows, or those that are marked."""
        return batch.taken(self._joined, self._order if keep is None else self._order[keep])


def parts_by_hash(segments: Sequence[tuple[Segment, slice]]) -> Iterator[list[pa.Table]]:
    """Yield the rows of segments sorted by hash in parts of bounded size; rows of one hash are in one part.

    Args:
        segments: Segments and their rows, newest first.
    """
    total = sum(rows.stop - rows.start for _, rows in segments)
    tables = [segment.table for segment, _ in segments]  # whole first: all of their columns are needed
    hashes = [segment.hash[rows] for segment, rows in segments]
    longest = max(hashes, key=len)
    size = max(1, sum(table.nbytes for table in tables))
    rows_at_once = min(_ROWS_AT_ONCE, total * (batch.BATCH_BYTES // 2) // size)
    step = max(1, len(longest) * rows_at_once // max(1, total))
    bounds = np.unique(longest[step::step])
    cuts = [np.concatenate([[0], np.searchsorted(part, bounds), [len(part)]]) for part in hashes]
    for at in range(len(bounds) + 1):
        yield from _small(
            [
                table.slice(rows.start + int(cut[at]), int(cut[at + 1] - cut[at]))
                for table, (_, rows), cut in zip(tables, segments, cuts, strict=True)
            ]
        )


def _small(tables: list[pa.Table]) -> Iterator[list[pa.Table]]:
    """Cut rows again where they are much larger than others."""
    if sum(table.nbytes for table in tables) <= batch.BATCH_BYTES:
        yield tables
        return
    hashes = [table.column(HASH).to_numpy() for table in tables]
    distinct = np.unique(np.concatenate(hashes))
    if len(distinct) < 2:
        yield tables
        return
    cuts = [int(np.searchsorted(part, distinct[len(distinct) // 2])) for part in hashes]
    yield from _small([table.slice(0, cut) for table, cut in zip(tables, cuts, strict=True)])
    yield from _small([table.slice(cut) for table, cut in zip(tables, cuts, strict=True)])
