"""Rows of several runs put together, newest first, and sorted so that rows about the same thing stand together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.layout import OP
from holdfast.state.run import Segment

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_ROWS_AT_ONCE: Final = 256 * 1024


class Sorted:
    """Rows of one state from several runs.

    Attributes:
        table: The rows, sorted by all the named columns; of rows that agree in them, those of newer runs stand first.
        age: Of each row the number of its run: 0 for the newest.
    """

    def __init__(self, tables: Sequence[pa.Table], by: Sequence[str]) -> None:
        joined = pa.concat_tables(tables).combine_chunks()
        age = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
        codes = [_codes(joined.column(name)) for name in by]
        # lexsort is stable, and sorts by its last key first.
        order = np.lexsort(codes[::-1]) if len(codes) > 1 else np.argsort(codes[0], kind="stable")
        self.table: pa.Table = joined.take(pa.array(order))
        self.age: Positions = age[order]
        self._codes = {name: code[order] for name, code in zip(by, codes, strict=True)}

    def __len__(self) -> int:
        return len(self.age)

    def first_of(self, names: Sequence[str]) -> Mask:
        """Mark the first of the rows that agree in some columns, with which the columns of the order begin."""
        first = np.zeros(len(self), bool)
        first[:1] = True
        for name in names:
            code = self._codes[name]
            first[1:] |= code[1:] != code[:-1]
        return first

    def ops(self) -> npt.NDArray[np.int8]:
        """Return the operation of each row."""
        ops: npt.NDArray[np.int8] = self.table.column(OP).to_numpy()
        return ops


def _codes(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return numbers in the order of the values of a column, equal for equal ones; null stands first."""
    if pa.types.is_integer(column.type) and not column.null_count:
        numbers: npt.NDArray[Any] = column.to_numpy()
        return numbers
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order) + 1, np.int64)
    ranks[order] = np.arange(len(order))
    ranks[-1] = -1
    indices = encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
    codes: npt.NDArray[np.int64] = ranks[indices]
    return codes


def parts_by_hash(segments: Sequence[tuple[Segment, slice]]) -> Iterator[list[pa.Table]]:
    """Yield the rows of segments sorted by hash in parts of bounded size; rows of one hash are in one part.

    Args:
        segments: Segments and their rows, newest first.
    """
    total = sum(rows.stop - rows.start for _, rows in segments)
    hashes = [segment.hash[rows] for segment, rows in segments]
    longest = max(hashes, key=len)
    step = max(1, len(longest) * _ROWS_AT_ONCE // max(1, total))
    bounds = np.unique(longest[step::step])
    cuts = [np.concatenate([[0], np.searchsorted(part, bounds), [len(part)]]) for part in hashes]
    for at in range(len(bounds) + 1):
        yield [
            segment.table.slice(rows.start + int(cut[at]), int(cut[at + 1] - cut[at]))
            for (segment, rows), cut in zip(segments, cuts, strict=True)
        ]
