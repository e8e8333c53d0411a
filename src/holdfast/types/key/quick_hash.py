"""XXH64 of a column by `polars-hash`, if it is installed (the extra `columns`): a tenth of the time of numpy."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_WORTH_IT: Final = 4096
"""With fewer values the calls are what takes time; and who never has more need not import it."""


def quick_hash(column: pa.Array, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64] | None:
    """Return the hash of each text (as UTF-8) or value of bytes of a column without nulls.

    Args:
        column: Of type string or binary.
        seeds: One for each.

    Returns:
        None if the values have different seeds, are few, or the package is missing.
    """
    if len(column) < _WORTH_IT or (seeds != seeds[0]).any():
        return None
    packages = _packages()
    if packages is None:
        return None
    polars, plugin = packages
    hashed = plugin.col("key").nchash.xxhash64(seed=int(seeds[0]))
    found: npt.NDArray[np.uint64] = polars.from_arrow(column).to_frame("key").select(hashed).to_series().to_numpy()
    return found


@cache
def _packages() -> tuple[Any, Any] | None:
    try:
        import polars
        import polars_hash
    except ImportError:
        return None
    return polars, polars_hash
