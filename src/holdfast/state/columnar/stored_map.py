"""A map of which single entries are read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, ItemsView, Iterator, Sequence, ValuesView
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.state.layout.column_layout import MAP_KEY, OP, Op, StateLayout
from holdfast.state.run.run_file import Segment

GONE: Final = object()


class MapPart:
    """The entries of one map in one run, in the order of their map keys.

    Args:
        segment: Of the state.
        start: Their first row; a clear is none of them.
        end: The row behind the last one.
    """

    def __init__(self, segment: Segment, start: int, end: int) -> None:
        self._segment = segment
        self._table = segment.table
        self._start = start
        self._end = end
        self._keys = self._table.column(MAP_KEY).chunk(0)

    def __len__(self) -> int:
        return self._end - self._start

    @cached_property
    def puts(self) -> int:
        """How many of the rows put an entry."""
        ops = self._table.column(OP).to_numpy()[self._start : self._end]
        return int(np.count_nonzero(ops == Op.PUT))

    def get(self, stored_key: Any, layout: StateLayout) -> Any:
        """Return the stored value of an entry, GONE if it was deleted here, None if nothing is said about it."""
        at = bisect_left(range(self._end), stored_key, self._start, self._end, key=self._key)
        if at == self._end or self._key(at) != stored_key:
            return None
        row = pa.array([at])
        if self._table.column(OP).chunk(0)[at].as_py() == Op.DELETE:
            return GONE
        return layout.decode(self._segment, row)

    def _key(self, row: int) -> Any:
        return self._keys[row].as_py()


class StoredMap:
    """What a cell of map state has: entries in runs, and what was changed since.

    It is used in the place of a dict. Asking for one entry reads that one; asking for all reads all, once.

    Args:
        layout: Of the state.
        parts: What runs say, newest first; the oldest says all that there is.
        read: Reads all entries.
    """

    def __init__(self, layout: StateLayout, parts: Sequence[MapPart], read: Callable[[], dict[Any, Any]]) -> None:
        assert layout.map_key is not None
        self._layout = layout
        self._codec = layout.map_key
        self._parts = parts
        self._read = read
        self._changed: dict[Any, Any] = {}
        self._whole: dict[Any, Any] | None = None

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the stored value of an entry."""
        found = self._find(key)
        return default if found is GONE else found

    def __contains__(self, key: Any) -> bool:
        return self._find(key) is not GONE

    def __setitem__(self, key: Any, value: Any) -> None:
        (self._changed if self._whole is None else self._whole)[key] = value

    def __delitem__(self, key: Any) -> None:
        if self._whole is None:
            self._changed[key] = GONE
        else:
            del self._whole[key]

    def __bool__(self) -> bool:
        if self._whole is None:
            if any(value is not GONE for value in self._changed.values()):
                return True
            newer = len(self._changed)
            for part in self._parts:
                # Each row above hides one entry of this run at most.
                if part.puts > newer:
                    return True
                newer += len(part)
        return bool(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())

    def keys(self) -> Iterator[Any]:
        """Return the key of each entry."""
        return iter(self._all())

    def items(self) -> ItemsView[Any, Any]:
        """Return key and stored value of each entry."""
        return self._all().items()

    def values(self) -> ValuesView[Any]:
        """Return the stored value of each entry."""
        return self._all().values()

    def _find(self, key: Any) -> Any:
        if self._whole is not None:
            return self._whole.get(key, GONE)
        if key in self._changed:
            return self._changed[key]
        stored_key = self._codec.storage_array([key])[0].as_py()
        for part in self._parts:
            found = part.get(stored_key, self._layout)
            if found is not None:
                return found if found is GONE else found[0]
        return GONE

    def _all(self) -> dict[Any, Any]:
        if self._whole is None:
            whole = self._read()
            for key, value in self._changed.items():
                if value is GONE:
                    whole.pop(key, None)
                else:
                    whole[key] = value
            self._whole = whole
        return self._whole
