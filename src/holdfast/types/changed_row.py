"""Rows that were changed: what they are now, what they were, and who is to see which.

A row is a tuple, and a tuple does not change. So a row that is changed keeps in its tuple what it *was* when whoever
has it got it, and has beside it what it *is now*; its class becomes one that reads the latter. Whoever changes a row
sees it changed. State, and other steps that hold the same row, take what it was (`original`), so nothing is copied
because somebody might change it. What a function emits becomes what it is at that moment (`Emission`).

A program that never changes a row pays nothing: `CHANGES` is empty then, and nobody looks at rows.
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
    """What a row was before a change, for what an emission had of it by then.

    Attributes:
        emitted: How many elements had been emitted.
        kind: Class of the row.
        values: Of its fields.
    """

    emitted: int
    kind: type[Any]
    values: tuple[Any, ...]


class _Change:
    """What is beside the tuple of a changed row.

    Attributes:
        was: Class of the row whose values are in the tuple.
        now: The values.
        serial: The emission that `past` is about.
        past: What the row was while things were emitted, oldest first.
    """

    __slots__ = ("now", "past", "serial", "was")

    def __init__(self, was: type[Any], now: list[Any]) -> None:
        self.was = was
        self.now = now
        self.serial = 0
        self.past: list[_Version] = []


class ChangedRow:
    """How a changed row is read; the class of one is a subclass of this and of what it would be otherwise."""

    __slots__ = ()

    _positions: ClassVar[dict[str, int]]
    _names: ClassVar[tuple[str, ...]]

    def __new__(cls, *values: Any, **fields: Any) -> Any:
        """Make a row; it is new, so nothing was changed."""
        return _unchanged[cls](*values, **fields)

    @classmethod
    def make(cls, values: Iterable[Any]) -> Any:
        """Make a row from its values in order."""
        return _new(_unchanged[cls], values)

    @classmethod
    def make_all(cls, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Make rows from columns of equal length."""
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
        """Return how many fields have a value."""
        return _now(self).count(value)

    def index(self, value: Any, *bounds: Any) -> int:
        """Return the first field that has a value."""
        return _now(self).index(value, *bounds)


def _now(row: Any) -> list[Any]:
    change: _Change = row.__dict__[_CELL]
    return change.now


def plain_tuple(value: Any) -> Any:
    """Return the values of a changed row as a tuple, which C reads; anything else as it is."""
    return tuple(_now(value)) if isinstance(value, ChangedRow) else value


def class_of_changed(unchanged: type[Any], names: Sequence[str], methods: Iterable[str]) -> type[Any]:
    """Return the class of changed rows of a class: its fields are read from what they are now.

    Args:
        unchanged: The class of rows that were not changed.
        names: Of the fields.
        methods: Names that are no attributes, because they are those of methods.
    """
    fields = {name: property(_reader(at)) for at, name in enumerate(names) if name not in methods}
    members = {"__slots__": (), "__module__": unchanged.__module__, "__qualname__": "Row"}
    made = type("Row", (ChangedRow, unchanged), fields | members)
    _unchanged[made] = unchanged
    return made


def _reader(position: int) -> Any:
    return lambda row: row.__dict__[_CELL].now[position]


def begin_change(row: Any, changed: type[Any]) -> list[Any]:
    """Note what a row is, which is about to change; return its values, to be changed in place.

    Args:
        row: It.
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
    """What a function emits, while it emits it.

    Elements are gathered in a list, without a look at them, and their rows may change until all are there. So a change
    notes how many there were, and when all are there each is made what it was when it came.

    Args:
        out: The list; what is in it already is left alone.
    """

    __slots__ = ("_start", "out", "serial")

    def __init__(self, out: list[Any]) -> None:
        self.out = out
        self.serial = next(_serials)
        self._start = len(out)
        _here.emission = self

    def end(self) -> None:
        """All are there: put in the place of changed rows what they were when they were emitted."""
        _here.emission = None
        if CHANGES:
            out, read = self.out, _Emitted(self.serial)
            for position in range(self._start, len(out)):
                if out[position].__class__ not in _FLAT:
                    read.position = position
                    out[position] = _guarded(out[position], read)


def gather(elements: Iterable[Any]) -> list[Any]:
    """Return what a function emits as a list, in which each is what it was when it came."""
    out: list[Any] = []
    emission = Emission(out)
    out.extend(elements)
    emission.end()
    return out


def current_value(value: Any) -> Any:
    """Return a value as it is now, with rows that were not changed in the place of those that were."""
    return _guarded(value, _settled_row)


def original(value: Any) -> Any:
    """Return a value as it was handed over, with rows that were not changed in the place of those that were."""
    return _guarded(value, _original_row)


def originals(values: Iterable[Any]) -> list[Any]:
    """Return values as they were handed over."""
    return [_guarded(value, _original_row) for value in values]


def _settled_row(row: Any) -> tuple[type[Any], Iterable[Any]]:
    return _unchanged[type(row)], _now(row)


def _original_row(row: Any) -> tuple[type[Any], Iterable[Any]]:
    change: _Change = row.__dict__[_CELL]
    return change.was, _items(row)


class _Emitted:
    """Finds what a changed row was when an element was emitted.

    Attributes:
        position: Of the element.
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
    """Return a value in which no row is changed; the same object where none was."""
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
    """Return values without changes, None where there are none."""
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
