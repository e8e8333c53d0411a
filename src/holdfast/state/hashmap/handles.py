"""Handles of state with one value a key: value, reducing, aggregating, folding.

This is the hot path. `value` and `update` of values that cannot change are a few attribute reads and an index each;
all other values pay for being copied or encoded, in classes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn, TypeVar

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
)
from holdfast.state.hashmap.columns import REWRITTEN, Column, ListColumn, MapColumn
from holdfast.state.hashmap.slots import NamespaceCursor
from holdfast.state.layout import Encoded, OpaqueCodec, RowCodec
from holdfast.types.atomic import AtomicTypeInformation
from holdfast.types.changed_row import CHANGES, original
from holdfast.types.key_codec import AtomicKeyCodec, KeyCodec

C = TypeVar("C", bound=Column)


class CellHandle(StateHandle, Generic[C]):
    """A handle that works on the cells of a column.

    Attributes:
        column: The cells.
    """

    column: C

    def attach(self, column: C, cursor: Any) -> None:
        """Work on a column from now on.

        Args:
            column: The cells.
            cursor: Its `slot` is the number of the current cell.
        """
        self.column = column
        self._cursor = cursor
        self._values = column.values
        self._dirty = column.dirty
        self._codec = column.layout.value
        self._exact = column.layout.value.exact
        self._expose = column.layout.value.expose

    def detach(self) -> None:
        """Let go of the column; the handle cannot be used any more."""
        self.column = self._values = self._dirty = None  # type: ignore[assignment]
        self._cursor = _Detached(self.descriptor.name)

    def get_current_namespace(self) -> Any:
        """Return the current namespace; None for state without."""
        return self._cursor.namespace if isinstance(self._cursor, NamespaceCursor) else None

    def set_current_namespace(self, namespace: Any) -> None:
        """Work on another namespace of the current key."""
        if namespace is None or not isinstance(self._cursor, NamespaceCursor):
            raise StateError(f"State {self.descriptor.name!r} has no namespace {namespace!r}.")
        self._cursor.move(namespace)

    def clear(self) -> None:
        """Remove what is in the current cell."""
        slot = self._cursor.slot
        self._values[slot] = None
        self._dirty[slot] = 1

    def adopt(self, value: Any) -> Any:
        """Return the stored form of a value, None for None.

        Raises:
            OutputTypeError: It is not of the declared type.
        """
        if value is None:
            return None
        try:
            return self._codec.adopt(value)
        except Exception as error:
            raise self.refusal(value, error) from error

    def merge_namespaces(self, target: Any, sources: Iterable[Any] | None) -> None:
        """Move what is in some namespaces of the current key into another one, in order, behind what it has."""
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
        raise StateError(f"The task of this handle of state {self._name!r} has ended. Ask for the state in open().")


class ValueHandle(CellHandle[Column], ValueState[Any]):
    """A value that cannot change, without a default."""

    def value(self) -> Any:
        """Return the value, or None."""
        return self._values[self._cursor.slot]

    def update(self, value: Any) -> None:
        """Replace the value; None clears it."""
        if type(value) is not self._exact:
            value = self.adopt(value)
        slot = self._cursor.slot
        self._values[slot] = value
        self._dirty[slot] = 1


class RowValueHandle(ValueHandle):
    """A row whose fields cannot change, without a default."""

    def value(self) -> Any:
        """Return the value as it was written, or None."""
        stored = self._values[self._cursor.slot]
        return original(stored) if CHANGES else stored


class DefaultValueHandle(ValueHandle):
    """A value of any type, with a default."""

    def value(self) -> Any:
        """Return the value, or a copy of the default."""
        stored = self._values[self._cursor.slot]
        return self.descriptor.get_default_value() if stored is None else self._expose(stored)


class CopiedValueHandle(ValueHandle):
    """A value that is copied or decoded, without a default."""

    def value(self) -> Any:
        """Return a copy of the value, or None."""
        stored = self._values[self._cursor.slot]
        return None if stored is None else self._expose(stored)


class OpaqueValueHandle(CopiedValueHandle):
    """A value without a declared type, without a default; numbers and texts are kept as they are."""

    def attach(self, column: Column, cursor: Any) -> None:
        """Work on a column from now on."""
        super().attach(column, cursor)
        assert isinstance(self._codec, OpaqueCodec)
        self._kept = self._codec.kept

    def value(self) -> Any:
        """Return the value, decoded anew every time unless it is a number or text, or None."""
        stored = self._values[self._cursor.slot]
        return self._expose(stored) if type(stored) is Encoded else stored

    def update(self, value: Any) -> None:
        """Replace the value; None clears it."""
        if type(value) not in self._kept:
            value = self.adopt(value)
        slot = self._cursor.slot
        self._values[slot] = value
        self._dirty[slot] = 1


class ReducingHandle(CellHandle[Column], ReducingState[Any]):
    """Reduces elements into one value."""

    user_functions = ("_reduce",)

    def __init__(self, backend: Any, descriptor: StateDescriptor[Any], namespace_serializer: Any = None) -> None:
        super().__init__(backend, descriptor, namespace_serializer)
        assert isinstance(descriptor, ReducingStateDescriptor)
        self._reduce = descriptor.reduce

    def get(self) -> Any:
        """Return the value, or None."""
        stored = self._values[self._cursor.slot]
        return None if stored is None else self._expose(stored)

    def add(self, value: Any) -> None:
        """Reduce an element into the value; None clears it."""
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
    """Collects elements in an accumulator."""

    user_functions = ("_function",)

    def __init__(self, backend: Any, descriptor: StateDescriptor[Any], namespace_serializer: Any = None) -> None:
        super().__init__(backend, descriptor, namespace_serializer)
        assert isinstance(descriptor, AggregatingStateDescriptor)
        self._function = descriptor.agg_function

    def get(self) -> Any:
        """Return the result of the accumulator, None if there is none."""
        stored = self._values[self._cursor.slot]
        return None if stored is None else self._function.get_result(self._expose(stored))

    def add(self, value: Any) -> None:
        """Add an element to the accumulator, a new one if there is none; None clears it."""
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
    """Folds elements into an accumulator that starts from the descriptor's value."""

    user_functions = ("_fold",)

    def __init__(self, backend: Any, descriptor: StateDescriptor[Any], namespace_serializer: Any = None) -> None:
        super().__init__(backend, descriptor, namespace_serializer)
        assert isinstance(descriptor, FoldingStateDescriptor)
        self._fold = descriptor.fold

    def get(self) -> Any:
        """Return the accumulator, None if nothing was added."""
        stored = self._values[self._cursor.slot]
        return None if stored is None else self._expose(stored)

    def add(self, value: Any) -> None:
        """Fold an element into the accumulator; None clears it."""
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


# Handles of list and map state.

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
        return [
            value if type(value) is exact else self._element(value) for value in iter_elements(values, self._called)
        ]

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
        checked = [(self._dict_key(key), self.adopt(value)) for key, value in iter_entries(dict_value, self._called)]
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
