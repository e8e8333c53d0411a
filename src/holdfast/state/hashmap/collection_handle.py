"""Handles of list and map state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from holdfast.errors import StateError
from holdfast.state.declaration.api import ListState, MapState
from holdfast.state.declaration.map_access import elements_of, entries_of
from holdfast.state.hashmap.collection_column import REWRITTEN, ListColumn, MapColumn
from holdfast.state.hashmap.handle import CellHandle
from holdfast.state.layout.value_codec import RowCodec
from holdfast.types.changed_row import CHANGES
from holdfast.types.information.type_information import AtomicTypeInformation
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.key_codec import AtomicKeyCodec

# Instances of exactly these classes are their own dict keys, for map keys of these types.
_PLAIN_KEYS = {"string": str, "binary": bytes, "tinyint": int, "smallint": int, "int": int, "bigint": int}


class ListHandle(CellHandle[ListColumn], ListState[Any]):
    """A list a key; adding is written as the elements that were added."""

    def attach(self, column: ListColumn, cursor: Any) -> None:
        """Work on a column from now on."""
        super().attach(column, cursor)
        self._pending = column.pending
        self._shares = column.layout.value.shares
        self._bears_rows = isinstance(column.layout.value, RowCodec)

    def get(self) -> list[Any]:
        """Return the elements in a new list."""
        stored = self._values[self._cursor.slot]
        if stored is None:
            return []
        if self._shares or (self._bears_rows and not CHANGES):
            return list(stored)
        return list(map(self._expose, stored))

    def add(self, value: Any) -> None:
        """Append an element."""
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
        """Append elements; nothing changes if one of them is refused."""
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
        """Replace all elements; nothing changes if one of them is refused."""
        self._replace(self._elements(values) or None)

    def clear(self) -> None:
        """Remove all elements."""
        self._replace(None)

    def _replace(self, content: Any) -> None:
        slot = self._cursor.slot
        self._values[slot] = content
        self._pending[slot] = REWRITTEN

    def _merged(self, first: Any, second: Any) -> Any:
        return first + second

    def _elements(self, values: Iterable[Any]) -> list[Any]:
        if values is None:
            raise StateError(f"The elements of {self._called()} are None; an empty list is no error.")
        exact = self._exact
        return [value if type(value) is exact else self._element(value) for value in elements_of(values, self._called)]

    def _element(self, value: Any) -> Any:
        if value is None:
            raise StateError(f"None is no element of {self._called()}.")
        return self.adopt(value)

    def _called(self) -> str:
        return f"list state {self.descriptor.name!r}"


class MapHandle(CellHandle[MapColumn], MapState[Any, Any]):
    """A map a key; changes are written entry by entry."""

    def attach(self, column: MapColumn, cursor: Any) -> None:
        """Work on a column from now on."""
        super().attach(column, cursor)
        self._pending = column.pending
        assert column.layout.map_key is not None
        self._keys: KeyCodec = column.layout.map_key
        self._plain_key: type = _plain_key_of(self._keys)

    def get(self, key: Any) -> Any:
        """Return the value of an entry, None if there is no such entry."""
        if type(key) is not self._plain_key:
            key = self._dict_key(key)
        content = self._values[self._cursor.slot]
        stored = None if content is None else content.get(key)
        return None if stored is None else self._expose(stored)

    def contains(self, key: Any) -> bool:
        """Whether there is such an entry."""
        if type(key) is not self._plain_key:
            key = self._dict_key(key)
        content = self._values[self._cursor.slot]
        return content is not None and key in content

    def put(self, key: Any, value: Any) -> None:
        """Set an entry; the value may be None."""
        if type(key) is not self._plain_key:
            key = self._dict_key(key)
        if type(value) is not self._exact:
            value = self.adopt(value)
        self._write(key, value)

    def put_all(self, dict_value: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Set several entries; nothing changes if one of them is refused."""
        checked = [(self._dict_key(key), self.adopt(value)) for key, value in entries_of(dict_value, self._called)]
        for key, value in checked:
            self._write(key, value)

    def _called(self) -> str:
        return f"map state {self.descriptor.name!r}"

    def remove(self, key: Any) -> None:
        """Remove an entry, and the map with its last one."""
        key = self._dict_key(key)
        slot = self._cursor.slot
        content = self._values[slot]
        if content is not None and key in content:
            self._written(slot).add(key)
            del content[key]
            if not content:
                self._values[slot] = None

    def clear(self) -> None:
        """Remove all entries."""
        slot = self._cursor.slot
        self._values[slot] = None
        self._pending[slot] = set()
        self.column.cleared.add(slot)

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return self._values[self._cursor.slot] is None

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return key and value of each entry there is now."""
        content = self._values[self._cursor.slot]
        return iter([(self._user_key(key), self._exposed(stored)) for key, stored in (content or {}).items()])

    def keys(self) -> Iterator[Any]:
        """Return the key of each entry there is now."""
        content = self._values[self._cursor.slot]
        return iter([self._user_key(key) for key in content or ()])

    def values(self) -> Iterator[Any]:
        """Return the value of each entry there is now."""
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
            raise self._refused_key(key, error) from error

    def _refused_key(self, key: Any, error: Exception) -> Exception:
        if key is None:
            return StateError(f"None is no key of map state {self.descriptor.name!r}.")
        return self.refusal(key, error)


class _NoPlainKey:
    def __init__(self) -> NoReturn:
        raise AssertionError


def _plain_key_of(codec: KeyCodec) -> type:
    if isinstance(codec, AtomicKeyCodec) and type(codec.key_type) is AtomicTypeInformation:
        return _PLAIN_KEYS.get(codec.key_type.name, _NoPlainKey)
    return _NoPlainKey
