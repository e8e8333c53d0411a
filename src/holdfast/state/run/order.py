"""The order of rows: numbers that stand for the values of a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


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
