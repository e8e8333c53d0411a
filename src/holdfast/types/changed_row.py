"""Rows that a program changes: current values, earlier values, and who sees which.

A row is a tuple, which cannot change. So a changed row keeps its original values in the tuple and its current ones
beside it, and its class becomes one that reads the current ones. The code that changes a row sees it changed. State and
other steps that have the same row use the original (`original`), so rows need no copies in case they change. An emitted
row becomes what it is at that moment (`Emission`).

A program that never changes a row pays nothing: `CHANGES` is empty then, and rows are not inspected.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import count
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

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
