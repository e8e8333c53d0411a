"""Handles of keyed state: value, reducing, aggregating, folding, list and map.

This is the hot path. Reading and updating an immutable value takes a few attribute reads and one index each. Other
values must be copied or encoded, in classes of their own, so that immutable values do not pay for a check.

Handles of state with a time to live (`ExpiringHandle`) pair each value, element or entry with the time of its last use.
`last_expired_stamp` of descriptors says what has expired at the processing time of the epoch. The timestamps are part
of the state, so time while the job is down counts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NoReturn, TypeVar

from holdfast.errors import StateError
from holdfast.state.api import (
    AggregatingState,
    FoldingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    iter_elements,
    iter_entries,
)
from holdfast.state.backend import StateHandle
from holdfast.state.descriptor import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    last_expired_stamp,
)
from holdfast.state.hashmap.columns import REWRITTEN, Column, ListColumn, MapColumn
from holdfast.state.hashmap.slots import NamespaceCursor
from holdfast.state.layout import Encoded, OpaqueCodec, RowCodec
from holdfast.types.key_codec import AtomicKeyCodec, KeyCodec
from holdfast.types.row import CHANGES, original
from holdfast.types.type_information import AtomicTypeInformation

C = TypeVar("C", bound=Column)
# Instances of exactly these classes are their own dict keys, for map keys of these types.
_PLAIN_KEYS = {"string": str, "binary": bytes, "tinyint": int, "smallint": int, "int": int, "bigint": int}
_DEFAULT_CELLS_A_SNAPSHOT: Final = 10_000


class CellHandle(StateHandle, Generic[C]):
    """A handle that works on the cells of a column.

    Attributes:
        column: The cells.
    """

    column: C

    def attach(self, column: C, cursor: Any) -> None:
        """Bind the handle to a column.

        Args:
            column: The cells.
            cursor: Object whose `slot` is the number of the current cell.
        """
        self.column = column
        self._cursor = cursor
        self._values = column.values
        self._dirty = column.dirty
        self._codec = column.layout.value
        self._exact = column.layout.value.exact
        self._expose = column.layout.value.expose

    def detach(self) -> None:
        """Release the column; using the handle raises afterwards."""
        self.column = self._values = self._dirty = None  # type: ignore[assignment]
        self._cursor = _Detached(self.descriptor.name)

    def get_current_namespace(self) -> Any:
        return self._cursor.namespace if isinstance(self._cursor, NamespaceCursor) else None

    def set_current_namespace(self, namespace: Any) -> None:
        if namespace is None or not isinstance(self._cursor, NamespaceCursor):
            raise StateError(f"State {self.descriptor.name!r} has no namespace {namespace!r}.")
        self._cursor.move(namespace)

    def clear(self) -> None:
        slot = self._cursor.slot
        self._values[slot] = None
        self._dirty[slot] = 1

    def adopt(self, value: Any) -> Any:
        """Return the stored form of a value, None for None.

        Raises:
            OutputTypeError: It does not fit the declared type.
        """
        if value is None:
            return None
        try:
            return self._codec.adopt(value)
        except Exception as error:
            raise self.write_error(value, error) from error

    def merge_namespaces(self, target: Any, sources: Iterable[Any] | None) -> None:
        """Merge the content of some namespaces of the current key, in order, into another one, and clear them."""
        before = self.get_current_namespace()
        merged = None
        for source in sources or ():
            self.set_current_namespace(source)
            content = self._values[self._cursor.slot]
            if content is not None:
                self.clear()
                merged = content if merged is None else self._merged(merged, content)
        if merged is not None:
            self.set_current_namespace(target)
            content = self._values[self._cursor.slot]
            self._replace(merged if content is None else self._merged(content, merged))
        if before is not None:
            self.set_current_namespace(before)

    def _replace(self, content: Any) -> None:
        slot = self._cursor.slot
        self._values[slot] = content
        self._dirty[slot] = 1

    def _merged(self, first: Any, second: Any) -> Any:
        raise StateError(f"State {self.descriptor.name!r} of kind {self.descriptor.kind.value!r} cannot be merged.")


class _Detached:
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def slot(self) -> int:
        raise StateError(
            f"This handle of state {self._name!r} belongs to a task that has ended. Get the state in open()."
        )


class ValueHandle(CellHandle[Column], ValueState[Any]):
    """An immutable value without a default."""

    def value(self) -> Any:
        return self._values[self._cursor.slot]

    def update(self, value: Any) -> None:
        if type(value) is not self._exact:
            value = self.adopt(value)
        slot = self._cursor.slot
        self._values[slot] = value
        self._dirty[slot] = 1


class RowValueHandle(ValueHandle):
    """A row with immutable fields, without a default; reading returns the row as it was written."""

    def value(self) -> Any:
        stored = self._values[self._cursor.slot]
        return original(stored) if CHANGES else stored


class DefaultValueHandle(ValueHandle):
    """A value of any type with a default."""

    def value(self) -> Any:
        stored = self._values[self._cursor.slot]
        return self.descriptor.get_default_value() if stored is None else self._expose(stored)


class CopiedValueHandle(ValueHandle):
    """A value that is copied or decoded on every read, without a default."""

    def value(self) -> Any:
        stored = self._values[self._cursor.slot]
        return None if stored is None else self._expose(stored)


class OpaqueValueHandle(CopiedValueHandle):
    """A value without a declared type, without a default; numbers and texts are stored as they are."""

    def attach(self, column: Column, cursor: Any) -> None:
        super().attach(column, cursor)
        assert isinstance(self._codec, OpaqueCodec)
        self._kept = self._codec.kept

    def value(self) -> Any:
        stored = self._values[self._cursor.slot]
        return self._expose(stored) if type(stored) is Encoded else stored

    def update(self, value: Any) -> None:
        if type(value) not in self._kept:
            value = self.adopt(value)
        slot = self._cursor.slot
        self._values[slot] = value
        self._dirty[slot] = 1


class ReducingHandle(CellHandle[Column], ReducingState[Any]):
    user_functions = ("_reduce",)

    def __init__(self, backend: Any, descriptor: StateDescriptor[Any], namespace_serializer: Any = None) -> None:
        super().__init__(backend, descriptor, namespace_serializer)
        assert isinstance(descriptor, ReducingStateDescriptor)
        self._reduce = descriptor.reduce

    def get(self) -> Any:
        stored = self._values[self._cursor.slot]
        return None if stored is None else self._expose(stored)

    def add(self, value: Any) -> None:
        slot = self._cursor.slot
        stored = self._values[slot]
        if stored is not None and value is not None:
            value = self._reduce(self._expose(stored), value)
        if type(value) is not self._exact:
            value = self.adopt(value)
        self._values[slot] = value
        self._dirty[slot] = 1

    def _merged(self, first: Any, second: Any) -> Any:
        return self.adopt(self._reduce(self._expose(first), self._expose(second)))


class AggregatingHandle(CellHandle[Column], AggregatingState[Any, Any]):
    user_functions = ("_function",)

    def __init__(self, backend: Any, descriptor: StateDescriptor[Any], namespace_serializer: Any = None) -> None:
        super().__init__(backend, descriptor, namespace_serializer)
        assert isinstance(descriptor, AggregatingStateDescriptor)
        self._function = descriptor.agg_function

    def get(self) -> Any:
        stored = self._values[self._cursor.slot]
        return None if stored is None else self._function.get_result(self._expose(stored))

    def add(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        slot = self._cursor.slot
        stored = self._values[slot]
        function = self._function
        accumulator = function.create_accumulator() if stored is None else self._expose(stored)
        accumulator = function.add(value, accumulator)
        if type(accumulator) is not self._exact:
            accumulator = self.adopt(accumulator)
        self._values[slot] = accumulator
        self._dirty[slot] = 1

    def _merged(self, first: Any, second: Any) -> Any:
        return self.adopt(self._function.merge(self._expose(first), self._expose(second)))


class FoldingHandle(CellHandle[Column], FoldingState[Any, Any]):
    user_functions = ("_fold",)

    def __init__(self, backend: Any, descriptor: StateDescriptor[Any], namespace_serializer: Any = None) -> None:
        super().__init__(backend, descriptor, namespace_serializer)
        assert isinstance(descriptor, FoldingStateDescriptor)
        self._fold = descriptor.fold

    def get(self) -> Any:
        stored = self._values[self._cursor.slot]
        return None if stored is None else self._expose(stored)

    def add(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        slot = self._cursor.slot
        stored = self._values[slot]
        accumulator = self.descriptor.get_default_value() if stored is None else self._expose(stored)
        accumulator = self._fold(accumulator, value)
        if type(accumulator) is not self._exact:
            accumulator = self.adopt(accumulator)
        self._values[slot] = accumulator
        self._dirty[slot] = 1


class ListHandle(CellHandle[ListColumn], ListState[Any]):
    """A list per key; a flush writes only the added elements, if nothing else has changed."""

    def attach(self, column: ListColumn, cursor: Any) -> None:
        super().attach(column, cursor)
        self._pending = column.pending
        self._shares = column.layout.value.shares
        self._holds_rows = isinstance(column.layout.value, RowCodec)

    def get(self) -> list[Any]:
        stored = self._values[self._cursor.slot]
        if stored is None:
            return []
        if self._shares or (self._holds_rows and not CHANGES):
            return list(stored)
        return list(map(self._expose, stored))

    def add(self, value: Any) -> None:
        if type(value) is not self._exact:
            value = self._element(value)
        slot = self._cursor.slot
        stored = self._values[slot]
        if stored is None:
            self._pending.setdefault(slot, 0)
            self._values[slot] = [value]
            return
        if slot not in self._pending:
            self._pending[slot] = len(stored)
        stored.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        elements = self._elements(values)
        if elements:
            slot = self._cursor.slot
            stored = self._values[slot]
            if slot not in self._pending:
                self._pending[slot] = 0 if stored is None else len(stored)
            if stored is None:
                self._values[slot] = elements
            else:
                stored.extend(elements)

    def update(self, values: Iterable[Any]) -> None:
        self._replace(self._elements(values) or None)

    def clear(self) -> None:
        self._replace(None)

    def _replace(self, content: Any) -> None:
        slot = self._cursor.slot
        self._values[slot] = content
        self._pending[slot] = REWRITTEN

    def _merged(self, first: Any, second: Any) -> Any:
        return first + second

    def _elements(self, values: Iterable[Any]) -> list[Any]:
        if values is None:
            raise StateError(f"The elements of {self._describe()} are None. Pass an empty list for no elements.")
        exact = self._exact
        return [
            value if type(value) is exact else self._element(value) for value in iter_elements(values, self._describe)
        ]

    def _element(self, value: Any) -> Any:
        if value is None:
            raise StateError(f"None cannot be an element of {self._describe()}.")
        return self.adopt(value)

    def _describe(self) -> str:
        return f"list state {self.descriptor.name!r}"


class MapHandle(CellHandle[MapColumn], MapState[Any, Any]):
    """A map per key; a flush writes only the changed entries."""

    def attach(self, column: MapColumn, cursor: Any) -> None:
        super().attach(column, cursor)
        self._pending = column.pending
        assert column.layout.map_key is not None
        self._keys: KeyCodec = column.layout.map_key
        self._plain_key: type = _plain_key_of(self._keys)

    def get(self, key: Any) -> Any:
        if type(key) is not self._plain_key:
            key = self._dict_key(key)
        content = self._values[self._cursor.slot]
        stored = None if content is None else content.get(key)
        return None if stored is None else self._expose(stored)

    def contains(self, key: Any) -> bool:
        if type(key) is not self._plain_key:
            key = self._dict_key(key)
        content = self._values[self._cursor.slot]
        return content is not None and key in content

    def put(self, key: Any, value: Any) -> None:
        if type(key) is not self._plain_key:
            key = self._dict_key(key)
        if type(value) is not self._exact:
            value = self.adopt(value)
        self._write(key, value)

    def put_all(self, dict_value: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        checked = [(self._dict_key(key), self.adopt(value)) for key, value in iter_entries(dict_value, self._describe)]
        for key, value in checked:
            self._write(key, value)

    def _describe(self) -> str:
        return f"map state {self.descriptor.name!r}"

    def remove(self, key: Any) -> None:
        key = self._dict_key(key)
        slot = self._cursor.slot
        content = self._values[slot]
        if content is not None and key in content:
            self._written(slot).add(key)
            del content[key]
            if not content:
                self._values[slot] = None

    def clear(self) -> None:
        slot = self._cursor.slot
        self._values[slot] = None
        self._pending[slot] = set()
        self.column.cleared.add(slot)

    def is_empty(self) -> bool:
        return self._values[self._cursor.slot] is None

    def items(self) -> Iterator[tuple[Any, Any]]:
        content = self._values[self._cursor.slot]
        return iter([(self._user_key(key), self._exposed(stored)) for key, stored in (content or {}).items()])

    def keys(self) -> Iterator[Any]:
        content = self._values[self._cursor.slot]
        return iter([self._user_key(key) for key in content or ()])

    def values(self) -> Iterator[Any]:
        content = self._values[self._cursor.slot]
        return iter([self._exposed(stored) for stored in (content or {}).values()])

    def _write(self, key: Any, stored: Any) -> None:
        slot = self._cursor.slot
        content = self._values[slot]
        if content is None:
            content = self._values[slot] = {}
        content[key] = stored
        written = self._pending.get(slot)
        if written is None:
            self._pending[slot] = {key}
        else:
            written.add(key)

    def _written(self, slot: int) -> set[Any]:
        return self._pending.setdefault(slot, set())

    def _exposed(self, stored: Any) -> Any:
        return None if stored is None else self._expose(stored)

    def _user_key(self, key: Any) -> Any:
        return key if self._plain_key is not _NoPlainKey else self._keys.user_key(key)

    def _dict_key(self, key: Any) -> Any:
        if type(key) is self._plain_key:
            return key
        try:
            return self._keys.dict_key(key)
        except Exception as error:
            raise self._key_error(key, error) from error

    def _key_error(self, key: Any, error: Exception) -> Exception:
        if key is None:
            return StateError(f"None cannot be a key of map state {self.descriptor.name!r}.")
        return self.write_error(key, error)


class _NoPlainKey:
    def __init__(self) -> NoReturn:
        raise AssertionError


def _plain_key_of(codec: KeyCodec) -> type:
    if isinstance(codec, AtomicKeyCodec) and type(codec.key_type) is AtomicTypeInformation:
        return _PLAIN_KEYS.get(codec.key_type.name, _NoPlainKey)
    return _NoPlainKey


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
