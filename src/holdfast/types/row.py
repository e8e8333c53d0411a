"""Rows: tuples whose fields have names, and their kinds.

A row equals a plain tuple of the same values, and unpacks like one. Its class has the names and is made once for all
rows with these names, so a row costs little more than a tuple, and reading a field by attribute as little as by index
in a tuple. Reading by index or by ``row["name"]`` costs a Python call; unpacking is cheapest.

A row may be changed, which costs more than making one. Its tuple cannot change, so a changed row keeps its original
values in the tuple and its current ones beside it, and its class becomes one that reads the current ones. The code that
changes a row sees it changed. State and other steps that have the same row use the original (`original`), so rows need
no copies in case they change. An emitted row becomes what it is at that moment (`Emission`). A program that never
changes a row pays nothing: `CHANGES` is empty then, and rows are not inspected.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, cast
from uuid import UUID
from weakref import WeakValueDictionary

CHANGES: Final[list[bool]] = []
"""Not empty once a row was changed in this process: from then on, rows are looked at."""

_FLAT: Final = frozenset(
    {type(None), bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID, bytearray}
)
"""Classes of values in which there are no rows."""

_new = tuple.__new__
_items = tuple.__iter__
_CELL: Final = "_change"
_unchanged: Final[dict[type[Any], type[Any]]] = {}
"""The class of rows with the same names and kind that were not changed, by that of those that were."""
_serials = count(1)
_here = threading.local()


class _Version(NamedTuple):
    """A row's values before a change, for an emission that has the row.

    Attributes:
        emitted: Number of elements emitted by then.
        kind: Class of the row.
        values: Values of its fields.
    """

    emitted: int
    kind: type[Any]
    values: tuple[Any, ...]


class _Change:
    """The fields of a changed row beside its tuple.

    Attributes:
        was: Class of the row with the values of the tuple.
        now: The current values.
        serial: The emission that `past` belongs to.
        past: Values at earlier points of the emission, oldest first.
    """

    __slots__ = ("now", "past", "serial", "was")

    def __init__(self, was: type[Any], now: list[Any]) -> None:
        self.was = was
        self.now = now
        self.serial = 0
        self.past: list[_Version] = []


class ChangedRow:
    """Reads the current values of a changed row, whose class is a subclass of this and of its original class."""

    __slots__ = ()

    _positions: ClassVar[dict[str, int]]
    _names: ClassVar[tuple[str, ...]]

    def __new__(cls, *values: Any, **fields: Any) -> Any:
        return _unchanged[cls](*values, **fields)

    @classmethod
    def make(cls, values: Iterable[Any]) -> Any:
        return _new(_unchanged[cls], values)

    @classmethod
    def make_all(cls, columns: Sequence[Sequence[Any]]) -> list[Any]:
        made: list[Any] = _unchanged[cls].make_all(columns)
        return made

    def __getitem__(self, item: Any) -> Any:
        if item.__class__ is str:
            try:
                return _now(self)[type(self)._positions[item]]
            except KeyError:
                raise KeyError(f"No field {item!r}; the row has {list(type(self)._names)!r}.") from None
        found = _now(self)[item]
        return tuple(found) if isinstance(item, slice) else found

    def __iter__(self) -> Iterator[Any]:
        return iter(_now(self))

    def __reversed__(self) -> Iterator[Any]:
        return iter(_now(self)[::-1])

    def __contains__(self, item: object) -> bool:
        names = type(self)._names
        return item in (names or _now(self))

    def __hash__(self) -> int:
        return hash(tuple(_now(self)))

    def __add__(self, other: Any) -> Any:
        return tuple(_now(self)) + plain_tuple(other)

    def __radd__(self, other: Any) -> Any:
        return plain_tuple(other) + tuple(_now(self))

    def __mul__(self, times: Any) -> Any:
        return tuple(_now(self)) * times

    __rmul__ = __mul__

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (tuple(_now(self)),)

    def count(self, value: Any) -> int:
        return _now(self).count(value)

    def index(self, value: Any, *bounds: Any) -> int:
        return _now(self).index(value, *bounds)


def _now(row: Any) -> list[Any]:
    change: _Change = row.__dict__[_CELL]
    return change.now


def plain_tuple(value: Any) -> Any:
    """Return the values of a changed row as a tuple, which C can read; any other value as it is."""
    return tuple(_now(value)) if isinstance(value, ChangedRow) else value


def make_changed_class(unchanged: type[Any], names: Sequence[str], methods: Iterable[str]) -> type[Any]:
    """Return the class of changed rows of a class: its fields read the current values.

    Args:
        unchanged: The class of unchanged rows.
        names: Names of the fields.
        methods: Names that are methods, and so not attributes.
    """
    fields = {name: property(_reader(at)) for at, name in enumerate(names) if name not in methods}
    members = {"__slots__": (), "__module__": unchanged.__module__, "__qualname__": "Row"}
    made = type("Row", (ChangedRow, unchanged), fields | members)
    _unchanged[made] = unchanged
    return made


def _reader(position: int) -> Any:
    return lambda row: row.__dict__[_CELL].now[position]


def begin_change(row: Any, changed: type[Any]) -> list[Any]:
    """Record the state of a row that is about to change, and return its values, to be changed in place.

    Args:
        row: The row.
        changed: Class of the row once it is changed.
    """
    if not isinstance(row, ChangedRow):
        row.__dict__[_CELL] = _Change(type(row), list(row))
        object.__setattr__(row, "__class__", changed)
    change: _Change = row.__dict__[_CELL]
    emission: Emission | None = getattr(_here, "emission", None)
    if emission is not None and emission.out:
        if change.serial != emission.serial:
            change.serial, change.past = emission.serial, []
        emitted = len(emission.out)
        if not change.past or change.past[-1].emitted != emitted:
            change.past.append(_Version(emitted, _unchanged[type(row)], tuple(change.now)))
    return change.now


class Emission:
    """Restores what a function emitted from rows that it changed afterwards.

    Elements are collected in a list without inspection, and their rows may change until all are emitted. Each change
    records the number of elements so far; `end` then gives each element the values it had when it was emitted.

    Args:
        out: The list. Elements that are already in it are not touched.
    """

    __slots__ = ("_start", "out", "serial")

    def __init__(self, out: list[Any]) -> None:
        self.out = out
        self.serial = next(_serials)
        self._start = len(out)
        _here.emission = self

    def end(self) -> None:
        """Replace changed rows by what they were when they were emitted."""
        _here.emission = None
        if CHANGES:
            out, read = self.out, _Emitted(self.serial)
            for position in range(self._start, len(out)):
                if out[position].__class__ not in _FLAT:
                    read.position = position
                    out[position] = _guarded(out[position], read)


def collect_emitted(elements: Iterable[Any]) -> list[Any]:
    """Return the elements that a function emits, each as it was when it was emitted."""
    out: list[Any] = []
    emission = Emission(out)
    out.extend(elements)
    emission.end()
    return out


def current_value(value: Any) -> Any:
    """Return a value with its current contents, in which changed rows are replaced by unchanged ones."""
    return _guarded(value, _settled_row)


def original(value: Any) -> Any:
    """Return a value with its original contents, in which changed rows are replaced by unchanged ones."""
    return _guarded(value, _original_row)


def originals(values: Iterable[Any]) -> list[Any]:
    """Return values with their original contents."""
    return [_guarded(value, _original_row) for value in values]


def _settled_row(row: Any) -> tuple[type[Any], Iterable[Any]]:
    return _unchanged[type(row)], _now(row)


def _original_row(row: Any) -> tuple[type[Any], Iterable[Any]]:
    change: _Change = row.__dict__[_CELL]
    return change.was, _items(row)


class _Emitted:
    """Finds the values of a changed row at the moment an element was emitted.

    Attributes:
        position: Position of the element.
    """

    __slots__ = ("_serial", "position")

    def __init__(self, serial: int) -> None:
        self._serial = serial
        self.position = 0

    def __call__(self, row: Any) -> tuple[type[Any], Iterable[Any]]:
        change: _Change = row.__dict__[_CELL]
        if change.serial == self._serial:
            # The first change after it was emitted knows it.
            at = bisect_right(change.past, self.position, key=_emitted_before)
            if at < len(change.past):
                return change.past[at].kind, change.past[at].values
        return _settled_row(row)


def _emitted_before(version: _Version) -> int:
    return version.emitted


def _guarded(value: Any, read: Any) -> Any:
    try:
        return _without_changes(value, read)
    except RecursionError:
        return value  # What contains itself is no row of a declared type.


def _without_changes(value: Any, read: Any) -> Any:
    """Return a value without changed rows; the same object if it has none."""
    kind = value.__class__
    if kind in _FLAT:
        return value
    if isinstance(value, tuple):
        if isinstance(value, ChangedRow):
            kind, items = read(value)
            return _new(kind, [item if item.__class__ in _FLAT else _without_changes(item, read) for item in items])
        parts = _parts(value, read)
        return value if parts is None else _like(value, parts)
    if kind is list:
        parts = _parts(value, read)
        return value if parts is None else parts
    if kind is dict:
        keys, items = _parts(value, read), _parts(value.values(), read)
        if keys is None and items is None:
            return value
        return dict(zip(value if keys is None else keys, value.values() if items is None else items, strict=True))
    return value


def _parts(values: Iterable[Any], read: Any) -> list[Any] | None:
    """Return values without changed rows; None if there are none."""
    found: list[Any] | None = None
    for position, item in enumerate(values):
        if item.__class__ not in _FLAT:
            part = _without_changes(item, read)
            if part is not item:
                if found is None:
                    found = list(values)
                found[position] = part
    return found


def _like(value: Any, parts: list[Any]) -> Any:
    """Return a tuple of the same class; rows of PySpark have their names in the instance."""
    made = _new(value.__class__, parts)
    more = getattr(value, "__dict__", None)
    if more:
        made.__dict__.update(more)
    return made


_WORDS = ("+I", "-U", "+U", "-D")
_MAX_CACHED_LETTERS: Final = 1_000_000
"""Letters of all names of cached classes; above it the cache is cleared, and only classes in use remain."""
_MIN_LETTERS: Final = 1000
"""Letters that a class counts as, at least."""


class RowKind(Enum):
    """The effect of a changelog row on a table, as in PyFlink. Its text is `+I`, `-U`, `+U` or `-D`."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return _WORDS[self.value]


_get = tuple.__getitem__


class Row(tuple[Any, ...]):
    """Values with names (``Row(a=1, b='x')``) or without (``Row(1, 'x')``).

    ``row.a``, ``row["a"]`` and ``row[0]`` read a field. A field with the name of a method of this class (`as_dict`,
    `make` and so on) is read by ``row["as_dict"]`` only; one named ``count`` or ``index`` hides the method of tuples.
    ``"a" in row`` looks for a field if the row has names, otherwise for a value. As in PyFlink, ``Row("a", "b")`` may
    be called to make rows with these names.

    ``row.a = 1``, ``row["a"] = 1`` and ``row[0] = 1`` change a field, but only for the code that changes it: state and
    other steps that have the row keep its original values until they receive it again. C code that reads a tuple
    directly, such as ``"%s %s" % row`` and pyarrow, sees the original values too: pass it ``tuple(row)``.

    A row of a changelog has a kind, which is not a field: rows that differ only in it are equal.

    >>> row = Row(word="kelp", n=3)
    >>> row.word, row["n"], row[1]
    ('kelp', 3, 3)

    Args:
        values: Values of a row without names.
        fields: Values by name.

    Raises:
        TypeError: Both are given, or the class has names and another number of values is given.
    """

    # No __slots__: the current values of a changed row are in the instance.

    _names: ClassVar[tuple[str, ...]] = ()
    """Names of the fields; empty for a row without names."""

    _positions: ClassVar[dict[str, int]] = {}

    _kind: ClassVar[RowKind] = RowKind.INSERT
    """The kind is in the class, so that it costs nothing per row."""

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        if fields:
            if values:
                raise TypeError("A Row takes values or named fields, not both.")
            return cast("Self", _new(row_class(tuple(fields)), fields.values()))
        if cls._names and len(values) != len(cls._names):
            raise TypeError(f"Row{cls._names!r} takes {len(cls._names)} values, not {len(values)}: {values!r}.")
        return _new(cls, values)

    @classmethod
    def make(cls, values: Iterable[Any]) -> Self:
        """Return a row with these values in order; their number is not checked."""
        return _new(cls, values)

    @classmethod
    def make_all(cls, columns: Sequence[Sequence[Any]]) -> list[Self]:
        """Return rows from columns of equal length."""
        return make_rows(cls, columns)

    @staticmethod
    def of_kind(row_kind: RowKind, *values: Any, **fields: Any) -> Row:
        """Return a row of a kind, from values or from named fields.

        Raises:
            TypeError: The kind is not a `RowKind`, or the values are invalid; see `Row`.
        """
        row = Row(*values, **fields)
        return _new(row_class(type(row)._names, _checked(row_kind)), row)

    def get_row_kind(self) -> RowKind:
        """Return what the row does to a table; the default is an insert."""
        return type(self)._kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Set what the row does to a table.

        Raises:
            TypeError: It is not a `RowKind`.
        """
        if type(self)._kind is not _checked(row_kind):
            _become(self, row_class(type(self)._names, row_kind))

    def set_field_names(self, field_names: Iterable[str]) -> None:
        """Set the names of the fields.

        Raises:
            TypeError: The number of names is not that of the fields, or the names are not distinct texts.
        """
        names = tuple(field_names)
        if len(names) != len(self):
            raise TypeError(
                f"{self!r} has {len(self)} fields, and set_field_names() got {len(names)} names: {names!r}."
            )
        if names != type(self)._names:
            _become(self, row_class(names, type(self)._kind))

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the values by name.

        Args:
            recursive: Whether rows with names in the values, also in lists and maps, become dicts as well.

        Raises:
            TypeError: The row has no names.
        """
        names = type(self)._names
        if not names and len(self):
            raise TypeError(f"{self!r} has no field names.")
        return dict(zip(names, map(_plain, self) if recursive else self, strict=True))

    def __contains__(self, item: object) -> bool:
        names = type(self)._names
        return item in names if names else tuple.__contains__(self, item)

    def __setitem__(self, key: Any, value: Any) -> None:
        if key.__class__ is str:
            try:
                key = type(self)._positions[key]
            except KeyError:
                raise KeyError(f"No field {key!r}; the row has {list(type(self)._names)!r}.") from None
        elif isinstance(key, slice):
            value = list(value)
            if len(value) != len(_get(self, key)):
                raise ValueError(f"{len(value)} values for {len(_get(self, key))} fields: a Row keeps its fields.")
        else:
            _get(self, key)  # raises for an invalid index
        _changing(self)[key] = value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in type(self)._positions or name in _METHODS:
            raise AttributeError(f"No field {name!r} can be set; the row has {list(type(self)._names)!r}.")
        self[name] = value

    def get_fields_by_names(self, names: Iterable[str]) -> list[Any]:
        """Return the values of these fields, in the same order.

        Raises:
            KeyError: There is no such field.
        """
        return [self[name] for name in names]

    def __getitem__(self, item: Any) -> Any:
        if item.__class__ is str:
            try:
                return _get(self, type(self)._positions[item])
            except KeyError:
                raise KeyError(f"No field {item!r}; the row has {list(type(self)._names)!r}.") from None
        return _get(self, item)

    if not TYPE_CHECKING:  # so that type checkers take any attribute for a field

        def __getattr__(self, name: str) -> Any:
            if name in self._positions:
                return self[name]
            raise AttributeError(f"No field {name!r}; the row has {list(type(self)._names)!r}.")

    else:

        def __getattr__(self, name: str) -> Any: ...

    def __call__(self, *values: Any) -> Row:
        """Return a row with the values of this one as its names."""
        if not all(isinstance(name, str) for name in self):
            raise TypeError(f"Only a Row of field names can be called to make rows, not {self!r}.")
        return row_class(tuple(self))(*values)

    def __repr__(self) -> str:
        names, kind = type(self)._names, type(self)._kind
        before = "" if kind is RowKind.INSERT else f"{kind} "
        if not names:
            return f"{before}<Row({', '.join(map(repr, self))})>"
        return f"{before}Row({', '.join(f'{name}={value!r}' for name, value in zip(names, self, strict=False))})"

    def __reduce__(self) -> tuple[Any, ...]:
        names, kind = type(self)._names, type(self)._kind
        return revive, ((names, tuple(self)) if kind is RowKind.INSERT else (names, tuple(self), kind.value))


_changed_classes: dict[type[Any], type[Any]] = {}


def _changing(row: Row) -> list[Any]:
    """Return the values of a row that is about to change."""
    if not CHANGES:
        _compare_with_changed_rows()
        CHANGES.append(True)
    return begin_change(row, _changed_class(type(row)))


def _become(row: Row, kind: type[Row]) -> None:
    """Change the names or the kind of a row."""
    _changing(row)
    object.__setattr__(row, "__class__", _changed_class(kind))


def _changed_class(kind: type[Any]) -> type[Any]:
    if issubclass(kind, ChangedRow):
        return kind
    known = _changed_classes.get(kind)
    return known or _changed_classes.setdefault(kind, make_changed_class(kind, kind._names, _METHODS))


def _compare_with_changed_rows() -> None:
    """Compare rows in Python from now on: tuples would compare the original values of a changed row."""

    def comparing(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda row, other: compare(plain_tuple(row), plain_tuple(other))

    for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        setattr(Row, name, comparing(getattr(tuple, name)))


def _checked(row_kind: Any) -> RowKind:
    if not isinstance(row_kind, RowKind):
        raise TypeError(f"set_row_kind() takes a RowKind, not {row_kind!r}.")
    return row_kind


def _plain(value: Any) -> Any:
    """Return a value in which rows with names are dicts."""
    if isinstance(value, Row) and type(value)._names:
        return value.as_dict(recursive=True)
    if type(value) is list:
        return [_plain(item) for item in value]
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value


_METHODS = frozenset(name for name in vars(Row) if name not in ("count", "index")) | {"__class__", "__dict__"}
_Key = tuple[tuple[str, ...], RowKind]
_classes: dict[_Key, type[Row]] = {((), RowKind.INSERT): Row}
_letters = 0
_living: WeakValueDictionary[_Key, type[Row]] = WeakValueDictionary(_classes)
_making = threading.Lock()


def row_class(names: Iterable[str], kind: RowKind = RowKind.INSERT) -> type[Row]:
    """Return the class of rows with these names and of a kind; the same one as long as it is in use.

    Unused classes are dropped eventually: names may come from outside, in any number.

    Raises:
        TypeError: A name occurs twice or is not a text.
    """
    key = tuple(names), kind
    known = _classes.get(key) or _living.get(key)
    if known is not None:
        return known
    return _made(key)


def _made(key: _Key) -> type[Row]:
    global _letters
    texts, kind = key
    if len(set(texts)) != len(texts) or not all(isinstance(name, str) for name in texts):
        raise TypeError(f"The names of a row's fields must be distinct texts, not {list(texts)!r}.")
    members: dict[str, Any] = {
        name: _tuplegetter(position, f"Field {name}.") for position, name in enumerate(texts) if name not in _METHODS
    }
    members |= {
        "__slots__": (),
        "__module__": Row.__module__,
        "__qualname__": "Row",
        "_names": texts,
        "_positions": {name: position for position, name in enumerate(texts)},
        "_kind": kind,
    }
    with _making:  # two threads with the same names must get the same class
        made = _living.get(key)
        if made is None:
            made = _living[key] = type("Row", (Row,), members)
        _letters += max(_MIN_LETTERS, sum(map(len, texts)))
        if _letters > _MAX_CACHED_LETTERS:
            _letters = 0
            _classes.clear()
        _classes[key] = made
    return made


def field_names_of(cls: type[Any]) -> tuple[str, ...]:
    """Return the field names of a class of rows or named tuples; empty for any other class."""
    if issubclass(cls, Row):
        return cls._names
    names = getattr(cls, "_fields", ())
    return names if issubclass(cls, tuple) and isinstance(names, tuple) else ()


def make_rows(cls: type[Any], columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Return rows of a class of `row_class`, or of another subclass of tuple, from columns of equal length."""
    if not columns:
        return []
    return list(map(_new, repeat(cls), zip(*columns, strict=True)))


def revive(names: tuple[str, ...], values: tuple[Any, ...], kind: int = RowKind.INSERT.value) -> Row:
    """Restore a pickled row. Pickled state names this function."""
    return _new(row_class(names, RowKind(kind)), values)
