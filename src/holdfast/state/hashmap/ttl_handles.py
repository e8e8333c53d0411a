"""Handles of state with a time to live. Each stored value, element or entry is paired with the time of its last use.

`last_expired_stamp` of descriptors says what has expired at the processing time of the epoch. The timestamps are part
of the state, so time while the job is down counts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast.state.api import iter_entries
from holdfast.state.descriptor import StateDescriptor, StateTtlConfig, last_expired_stamp
from holdfast.state.hashmap.columns import REWRITTEN
from holdfast.state.hashmap.handles import (
    AggregatingHandle,
    CellHandle,
    FoldingHandle,
    ListHandle,
    MapHandle,
    ReducingHandle,
    ValueHandle,
)

_DEFAULT_CELLS_A_SNAPSHOT: Final = 10_000


class ExpiringHandle(CellHandle[Any]):
    """Base of all handles with a time to live."""

    def __init__(self, backend: Any, descriptor: StateDescriptor[Any], namespace_serializer: Any = None) -> None:
        super().__init__(backend, descriptor, namespace_serializer)
        config = descriptor.ttl_config
        self._on_read = config.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
        self._returns_expired = config.state_visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        self._cleanup = config.cleanup_strategies
        self._ttl = config.ttl
        self.set_processing_time(backend.processing_time)

    def set_processing_time(self, now: int) -> None:
        """Set the time by which entries expire, in milliseconds since 1970."""
        self._now = now
        self._last_expired = last_expired_stamp(now, self._ttl)

    def has_expired(self, pair: tuple[Any, int]) -> bool:
        return pair[1] <= self._last_expired

    def clean_up(self, touched: int) -> None:
        """Remove expired content from the next part of the loaded cells.

        Args:
            touched: Number of cells that were written since the last call.
        """
        cleanup, cells = self._cleanup, len(self._values)
        if cleanup.incremental_size is not None:
            count = cleanup.incremental_size * touched
        else:
            count = _DEFAULT_CELLS_A_SNAPSHOT if cleanup.in_background else 0
        start = self.column.cleaned_to % cells if cells else 0
        for cell in range(start, min(start + count, cells)):
            if self._values[cell] is not None:
                self._clean(cell)
        self.column.cleaned_to = start + count

    @abstractmethod
    def _clean(self, cell: int) -> None:
        """Remove expired content of a cell that is not empty."""


class ExpiringScalarHandle(ExpiringHandle):
    """Cells with one pair."""

    def _read(self) -> Any:
        """Return the stored value that a user may see, None if there is none; counts as a use."""
        slot = self._cursor.slot
        pair = self._values[slot]
        if pair is None:
            return None
        if self.has_expired(pair):
            self.clear()
            return pair[0] if self._returns_expired else None
        if self._on_read and pair[1] != self._now:
            self._stamp(slot, pair[0])
        return pair[0]

    def _unexpired(self) -> Any:
        """Return the stored value unless it has expired."""
        pair = self._values[self._cursor.slot]
        return None if pair is None or self.has_expired(pair) else pair[0]

    def _write(self, value: Any) -> None:
        stored = self.adopt(value)
        if stored is None:
            self.clear()
        else:
            self._stamp(self._cursor.slot, stored)

    def _stamp(self, slot: int, stored: Any) -> None:
        self._values[slot] = (stored, self._now)
        self._dirty[slot] = 1

    def _clean(self, cell: int) -> None:
        if self.has_expired(self._values[cell]):
            self._values[cell] = None
            self._dirty[cell] = 1


class ExpiringValueHandle(ExpiringScalarHandle, ValueHandle):
    def value(self) -> Any:
        stored = self._read()
        return self.descriptor.get_default_value() if stored is None else self._expose(stored)

    def update(self, value: Any) -> None:
        self._write(value)


class ExpiringReducingHandle(ExpiringScalarHandle, ReducingHandle):
    def get(self) -> Any:
        stored = self._read()
        return None if stored is None else self._expose(stored)

    def add(self, value: Any) -> None:
        stored = self._unexpired()
        if stored is not None and value is not None:
            value = self._reduce(self._expose(stored), value)
        self._write(value)

    def _merged(self, first: Any, second: Any) -> Any:
        return _merge_pairs(self, super()._merged, first, second)


class ExpiringAggregatingHandle(ExpiringScalarHandle, AggregatingHandle):
    def get(self) -> Any:
        stored = self._read()
        return None if stored is None else self._function.get_result(self._expose(stored))

    def add(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        stored = self._unexpired()
        accumulator = self._function.create_accumulator() if stored is None else self._expose(stored)
        self._write(self._function.add(value, accumulator))

    def _merged(self, first: Any, second: Any) -> Any:
        return _merge_pairs(self, super()._merged, first, second)


class ExpiringFoldingHandle(ExpiringScalarHandle, FoldingHandle):
    def get(self) -> Any:
        stored = self._read()
        return None if stored is None else self._expose(stored)

    def add(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        stored = self._unexpired()
        accumulator = self.descriptor.get_default_value() if stored is None else self._expose(stored)
        self._write(self._fold(accumulator, value))


def _merge_pairs(handle: ExpiringHandle, merge: Any, first: Any, second: Any) -> Any:
    """Merge two pairs, without expired ones; the result counts as used now."""
    live = [pair for pair in (first, second) if pair is not None and not handle.has_expired(pair)]
    if len(live) < 2:
        return live[0] if live else None
    return merge(first[0], second[0]), handle._now


class ExpiringListHandle(ExpiringHandle, ListHandle):
    """A list whose elements expire one by one."""

    def get(self) -> list[Any]:
        slot = self._cursor.slot
        pairs = self._values[slot]
        if pairs is None:
            return []
        live = [pair for pair in pairs if not self.has_expired(pair)]
        if len(live) < len(pairs):
            self._replace(live or None)
        if self._on_read and live:
            now = self._now
            self._replace([(stored, now) for stored, _ in live])
        return [self._expose(stored) for stored, _ in (pairs if self._returns_expired else live)]

    def add(self, value: Any) -> None:
        self.add_all([value])

    def _elements(self, values: Iterable[Any]) -> list[Any]:
        now = self._now
        return [(stored, now) for stored in super()._elements(values)]

    def _clean(self, cell: int) -> None:
        pairs = self._values[cell]
        live = [pair for pair in pairs if not self.has_expired(pair)]
        if len(live) < len(pairs):
            self._values[cell] = live or None
            self._pending[cell] = REWRITTEN


class ExpiringMapHandle(ExpiringHandle, MapHandle):
    """A map whose entries expire one by one."""

    def get(self, key: Any) -> Any:
        pair = self._read_entry(key)
        return None if pair is None or pair[0] is None else self._expose(pair[0])

    def contains(self, key: Any) -> bool:
        return self._read_entry(key) is not None

    def put(self, key: Any, value: Any) -> None:
        self._write(self._dict_key(key), (self.adopt(value), self._now))

    def put_all(self, dict_value: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        now = self._now
        entries = iter_entries(dict_value, self._describe)
        checked = [(self._dict_key(key), (self.adopt(value), now)) for key, value in entries]
        for key, pair in checked:
            self._write(key, pair)

    def is_empty(self) -> bool:
        content = self._values[self._cursor.slot]
        return content is None or (not self._returns_expired and all(map(self.has_expired, content.values())))

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter([(self._user_key(key), self._exposed(pair[0])) for key, pair in self._read_all()])

    def keys(self) -> Iterator[Any]:
        return iter([self._user_key(key) for key, _ in self._read_all()])

    def values(self) -> Iterator[Any]:
        return iter([self._exposed(pair[0]) for _, pair in self._read_all()])

    def _read_entry(self, key: Any) -> tuple[Any, int] | None:
        dict_key = self._dict_key(key)
        slot = self._cursor.slot
        pair: tuple[Any, int] | None = (self._values[slot] or {}).get(dict_key)
        if pair is None:
            return None
        if self.has_expired(pair):
            self._expire(slot, [dict_key])
            return pair if self._returns_expired else None
        if self._on_read:
            self._write(dict_key, (pair[0], self._now))
        return pair

    def _read_all(self) -> list[tuple[Any, tuple[Any, int]]]:
        slot = self._cursor.slot
        entries = list((self._values[slot] or {}).items())
        live = [(key, pair) for key, pair in entries if not self.has_expired(pair)]
        if len(live) < len(entries):
            self._expire(slot, [key for key, pair in entries if self.has_expired(pair)])
        if self._on_read:
            for key, pair in live:
                self._write(key, (pair[0], self._now))
        return entries if self._returns_expired else live

    def _clean(self, cell: int) -> None:
        expired = [key for key, pair in self._values[cell].items() if self.has_expired(pair)]
        if expired:
            self._expire(cell, expired)

    def _expire(self, cell: int, keys: list[Any]) -> None:
        content = self._values[cell]
        written = self._written(cell)
        for key in keys:
            del content[key]
            written.add(key)
        if not content:
            self._values[cell] = None
