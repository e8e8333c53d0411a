"""Where the cells of a state are: one for each key, or one for each key and namespace.

A key has a *slot*, a small number, in all states of an operator; a state has *cells*. Without namespaces the cell of a
key is its slot. With them a cell is made when a key and a namespace meet first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from holdfast.types.serializer import TypeSerializer

Cells = npt.NDArray[np.int64]


class Slots(Sequence[int]):
    """Slots in an array, of which numbers of Python are made when somebody asks for one.

    Attributes:
        array: The slots.
    """

    def __init__(self, array: Cells) -> None:
        self.array = array

    @cached_property
    def _numbers(self) -> list[int]:
        numbers: list[int] = self.array.tolist()
        return numbers

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._numbers[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array, dtype) if copy else np.asarray(self.array, dtype)


class SlotPlacement:
    """Cells that are the slots themselves."""

    def slots_of(self, cells: Cells) -> Cells:
        """Return the slot that each cell belongs to."""
        return cells

    def namespaces_of(self, cells: Cells) -> list[bytes] | None:
        """Return the encoded namespace of each cell, None for state without namespaces."""
        return None

    def keep(self, slots: Cells) -> Cells:
        """Forget all other slots, number the rest anew in order; return the cells that are left, by old number."""
        return slots


class NamespacePlacement(SlotPlacement):
    """Cells of keys and namespaces."""

    def __init__(self, grow: Callable[[], None]) -> None:
        self._grow = grow
        self._cells: dict[tuple[int, bytes], int] = {}
        self._slots: list[int] = []
        self._namespaces: list[bytes] = []
        self._of_slot: dict[int, list[int]] = {}

    def cell(self, slot: int, namespace: bytes) -> int:
        """Return the cell of a key in a namespace, a new and empty one at the first call."""
        cell = self._cells.get((slot, namespace))
        if cell is None:
            cell = self._cells[slot, namespace] = len(self._slots)
            self._slots.append(slot)
            self._namespaces.append(namespace)
            self._of_slot.setdefault(slot, []).append(cell)
            self._grow()
        return cell

    def cells_of_slot(self, slot: int) -> list[int]:
        """Return the cells of a key."""
        return self._of_slot.get(slot, [])

    def slots_of(self, cells: Cells) -> Cells:
        """Return the slot that each cell belongs to."""
        slots = self._slots
        return np.fromiter((slots[cell] for cell in cells.tolist()), np.int64, len(cells))

    def namespaces_of(self, cells: Cells) -> list[bytes] | None:
        """Return the encoded namespace of each cell."""
        return [self._namespaces[cell] for cell in cells.tolist()]

    def keep(self, slots: Cells) -> Cells:
        """Forget all other slots, and number the cells of the rest anew."""
        moved = dict(zip(slots.tolist(), range(len(slots)), strict=True))
        kept = [cell for cell, slot in enumerate(self._slots) if slot in moved]
        self._number(kept, [moved[self._slots[cell]] for cell in kept])
        return np.array(kept, np.int64)

    def keep_cells(self, cells: Cells) -> None:
        """Forget all but some cells, given ascending, and number them anew in order; slots stay as they are."""
        kept = cells.tolist()
        self._number(kept, [self._slots[cell] for cell in kept])

    def _number(self, kept: list[int], slots: list[int]) -> None:
        self._slots = slots
        self._namespaces = [self._namespaces[cell] for cell in kept]
        self._cells = {}
        self._of_slot = {}
        for cell, (slot, namespace) in enumerate(zip(self._slots, self._namespaces, strict=True)):
            self._cells[slot, namespace] = cell
            self._of_slot.setdefault(slot, []).append(cell)


class NamespaceCursor:
    """Points handles at the cell of the current key in the current namespace.

    Attributes:
        namespace: The current namespace.
    """

    def __init__(self, backend: Any, placement: NamespacePlacement, serializer: TypeSerializer[Any]) -> None:
        self._backend = backend
        self._placement = placement
        self._serializer = serializer
        self.namespace: Any = None
        self._encoded = b""

    def move(self, namespace: Any) -> None:
        """Make another namespace the current one."""
        self.namespace = namespace
        self._encoded = self._serializer.serialize(namespace)

    @property
    def slot(self) -> int:
        """The cell, under the name by which handles ask a backend for it."""
        return self._placement.cell(self._backend.slot.__index__(), self._encoded)

    def decode(self, namespace: bytes) -> Any:
        """Return a namespace of its bytes."""
        return self._serializer.deserialize(namespace)


def pick(values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return the values at some positions."""
    if len(positions) > 1:
        return list(itemgetter(*positions)(values))
    return [values[position] for position in positions]
