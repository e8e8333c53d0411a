"""The state variables of Spark's `transformWithState`, kept as Holdfast's keyed state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.streaming import stateful_processor as spark

from holdfast.errors import StateError
from holdfast.spark.stateful_processor.spark_form import Convert, into_state, of_state
from holdfast.state.layout.value_codec import exact_class
from holdfast.types.information.type_information import RowTypeInformation

_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})
_new = tuple.__new__

# None of these calls the constructor of the class whose form it has: that would ask for a connection to the JVM.


class DeclaredValues:
    """Takes what a processor writes, which must have the fields that were declared, and gives what it reads.

    Args:
        name: Of the state.
        type_info: The fields.

    Attributes:
        given: Makes the tuple that a processor gets of a row.
    """

    def __init__(self, name: str, type_info: RowTypeInformation) -> None:
        self._name = name
        self._row_type = type_info.row_type
        self._width = len(type_info.names)
        self._classes = tuple(map(exact_class, type_info.types))
        self._only_class = self._classes[0] if self._width == 1 else None
        self._takes = _converting(list(map(into_state, type_info.types)))
        self.given = _converting(list(map(of_state, type_info.types))) or tuple

    def __call__(self, value: Sequence[Any]) -> Any:
        """Return a row; a tuple if something has to be looked at.

        Numbers of numpy and instants of pandas become Python's, as in Spark.

        Raises:
            StateError: It is no tuple, list or row of as many values as were declared.
        """
        if value.__class__ is tuple:
            if self._only_class is not None:
                if len(value) == 1 and value[0].__class__ is self._only_class:
                    return _new(self._row_type, value)  # in the form that state keeps
            elif tuple(map(type, value)) == self._classes:
                return _new(self._row_type, value)
        if not isinstance(value, tuple | list) or len(value) != self._width:
            fields = f"{self._width} value{'s' if self._width > 1 else ''}"
            raise StateError(f"State {self._name!r} takes a tuple of {fields}, as its schema says, not {value!r}.")
        taken = tuple([one if one.__class__ in _PLAIN else _plain(one) for one in value])
        return taken if self._takes is None else self._takes(taken)


def _converting(parts: list[Convert | None]) -> Callable[[Iterable[Any]], tuple[Any, ...]] | None:
    """What converts the parts of a row, of which some stay; None if all do."""
    if not any(parts):
        return None
    return lambda row: tuple([one if part is None else part(one) for part, one in zip(parts, row, strict=True)])


def _plain(value: Any) -> Any:
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    item = getattr(value, "item", None)
    return item() if callable(item) and type(value).__module__ == "numpy" and not getattr(value, "ndim", 0) else value


class ProcessorValueState(spark.ValueState):
    """One value a key.

    Args:
        name: Of the state.
        handle: Holdfast's value state.
        type_info: Of its values.
    """

    def __init__(self, name: str, handle: Any, type_info: RowTypeInformation) -> None:
        self._handle = handle
        self._declared = DeclaredValues(name, type_info)

    def exists(self) -> bool:
        return self._handle.value() is not None

    def get(self) -> tuple[Any, ...] | None:
        found = self._handle.value()
        return None if found is None else self._declared.given(found)

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._handle.update(self._declared(newValue))

    def clear(self) -> None:
        self._handle.clear()


class ProcessorListState(spark.ListState):
    """A list of values a key.

    Args:
        name: Of the state.
        handle: Holdfast's list state.
        type_info: Of its values.
    """

    def __init__(self, name: str, handle: Any, type_info: RowTypeInformation) -> None:
        self._name = name
        self._handle = handle
        self._declared = DeclaredValues(name, type_info)

    def exists(self) -> bool:
        return next(iter(self._handle.get() or ()), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        return map(self._declared.given, list(self._handle.get() or ()))

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self._handle.update(self._checked(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._handle.add(self._declared(newState))

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._handle.add_all(self._checked(newState))

    def clear(self) -> None:
        self._handle.clear()

    def _checked(self, values: Iterable[Any]) -> list[tuple[Any, ...]]:
        checked = list(map(self._declared, values))
        if not checked:
            raise StateError(f"State {self._name!r}: an empty list is no value, as in Spark; call clear() instead.")
        return checked


class ProcessorMapState(spark.MapState):
    """A map a key.

    Args:
        name: Of the state.
        handle: Holdfast's map state.
        key_type: Of the keys of the map.
        type_info: Of its values.
    """

    def __init__(self, name: str, handle: Any, key_type: RowTypeInformation, type_info: RowTypeInformation) -> None:
        self._handle = handle
        self._key = DeclaredValues(name, key_type)
        self._declared = DeclaredValues(name, type_info)

    def exists(self) -> bool:
        return not self._handle.is_empty()

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        found = self._handle.get(self._key(key))
        return None if found is None else self._declared.given(found)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return bool(self._handle.contains(self._key(key)))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._handle.put(self._key(key), self._declared(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        of_key, of_value = self._key.given, self._declared.given
        return ((of_key(key), of_value(value)) for key, value in list(self._handle.items()))

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return map(self._key.given, list(self._handle.keys()))

    def values(self) -> Iterator[tuple[Any, ...]]:
        return map(self._declared.given, list(self._handle.values()))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._handle.remove(self._key(key))

    def clear(self) -> None:
        self._handle.clear()
