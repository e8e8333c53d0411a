"""Keys, slots and cells of a subtask.

Every key has a *slot*, a small integer, which is the same in all states of an operator. A state has *cells*: one per
slot, or with namespaces one per key and namespace.

Keys that arrive as a column stay a column: they are looked up, get slots, are searched in runs, and are written without
Python objects. Objects are created on demand, for all new keys at once. Keys that arrive as objects, because their
column form is not unique, are in a dictionary.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import count, repeat
from operator import itemgetter
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.batch import split_into_batches
from holdfast.state.probe import Hashes
from holdfast.types.key_codec import KeyCodec
from holdfast.types.serializer import TypeSerializer

Cells = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]
_FEWEST: Final = 1024
_NOTHING: Final = -1
_SAMPLE: Final = 64
_ROUNDS: Final = 8
# Bytes of a key in a list, in a dictionary with its slot, and of its hash.
_IN_LIST: Final = 8
_IN_INDEX: Final = 100
_HASH: Final = 8


class Slots(Sequence[int]):
    """Slots in an array, with Python integers created on demand.

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
    """Placement without namespaces: the cell of a key is its slot."""

    def slots_of(self, cells: Cells) -> Cells:
        """Return the slot of each cell."""
        return cells

    def namespaces_of(self, cells: Cells) -> list[bytes] | None:
        """Return the encoded namespace of each cell, None for state without namespaces."""
        return None

    def keep(self, slots: Cells) -> Cells:
        """Drop all other slots, and renumber the given ones in order; return the cells that are left, by old number."""
        return slots


class NamespacePlacement(SlotPlacement):
    """Placement with namespaces: a cell is created for the first use of a key and namespace."""

    def __init__(self, grow: Callable[[], None]) -> None:
        self._grow = grow
        self._cells: dict[tuple[int, bytes], int] = {}
        self._slots: list[int] = []
        self._namespaces: list[bytes] = []
        self._of_slot: dict[int, list[int]] = {}

    def cell(self, slot: int, namespace: bytes) -> int:
        """Return the cell of a slot and namespace; create an empty one if there is none."""
        cell = self._cells.get((slot, namespace))
        if cell is None:
            cell = self._cells[slot, namespace] = len(self._slots)
            self._slots.append(slot)
            self._namespaces.append(namespace)
            self._of_slot.setdefault(slot, []).append(cell)
            self._grow()
        return cell

    def cells_of_slot(self, slot: int) -> list[int]:
        return self._of_slot.get(slot, [])

    def slots_of(self, cells: Cells) -> Cells:
        slots = self._slots
        return np.fromiter((slots[cell] for cell in cells.tolist()), np.int64, len(cells))

    def namespaces_of(self, cells: Cells) -> list[bytes] | None:
        return [self._namespaces[cell] for cell in cells.tolist()]

    def keep(self, slots: Cells) -> Cells:
        moved = dict(zip(slots.tolist(), range(len(slots)), strict=True))
        kept = [cell for cell, slot in enumerate(self._slots) if slot in moved]
        self._number(kept, [moved[self._slots[cell]] for cell in kept])
        return np.array(kept, np.int64)

    def keep_cells(self, cells: Cells) -> None:
        """Drop all other cells, and renumber the given ones, which are ascending, in order."""
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
    """Cursor of handles with namespaces: the cell of the current key in the current namespace.

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
        self.namespace = namespace
        self._encoded = self._serializer.serialize(namespace)

    @property
    def slot(self) -> int:
        """The current cell. It is called `slot` because handles without namespaces use the backend itself as cursor."""
        return self._placement.cell(self._backend.slot.__index__(), self._encoded)


def pick(values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    if len(positions) > 1:
        return list(itemgetter(*positions)(values))
    return [values[position] for position in positions]


_WIDE: Final = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


class GrowingArray:
    """An Arrow array without nulls that can be appended to in amortized constant time.

    Texts and bytes are kept in Arrow's large types, which may exceed 2 GiB.

    Args:
        kind: Text, bytes, or a type with a width in whole bytes.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.kind: pa.DataType = _WIDE.get(kind, kind)
        self._count = 0
        self._values = _Bytes()
        # End offset of each text; None for other types.
        self._ends: _Bytes | None = _Bytes() if kind in _WIDE else None
        if self._ends is not None:
            self._ends.extend(np.zeros(1, np.int64))
        self._view: pa.Array | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return len(self._values) + (0 if self._ends is None else len(self._ends))

    def extend(self, values: pa.Array) -> None:
        """Append values; texts and bytes may be of either Arrow type.

        Raises:
            ArrowInvalid: They cannot be cast to the type.
        """
        values = values if values.type == self.kind else values.cast(self.kind)
        _, first, *rest = values.buffers()
        if self._ends is None:
            width = self.kind.bit_width // 8
            start = values.offset * width
            self._values.extend(np.frombuffer(first, np.uint8)[start : start + len(values) * width])
        elif len(values):
            ends = np.frombuffer(first, np.int64)[values.offset : values.offset + len(values) + 1]
            before = len(self._values)
            if rest[0] is not None:
                self._values.extend(np.frombuffer(rest[0], np.uint8)[ends[0] : ends[-1]])
            self._ends.extend(ends[1:] - (ends[0] - before))
        self._count += len(values)
        self._view = None

    def view(self) -> pa.Array:
        """Return all values without a copy; later appends do not change it."""
        if self._view is None:
            buffers = [None, self._values.buffer()]
            if self._ends is not None:
                buffers.insert(1, self._ends.buffer())
            self._view = pa.Array.from_buffers(self.kind, self._count, buffers, null_count=0)
        return self._view

    def take(self, positions: Positions) -> pa.Array:
        return self.view().take(pa.array(positions))


class _Bytes:
    """A buffer that doubles its capacity; views of it stay valid."""

    def __init__(self) -> None:
        self._room: npt.NDArray[np.uint8] = np.empty(_FEWEST, np.uint8)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def extend(self, values: npt.NDArray[Any]) -> None:
        added = values.view(np.uint8)
        end = self._used + len(added)
        if end > len(self._room):
            room: npt.NDArray[np.uint8] = np.empty(max(end, 2 * len(self._room)), np.uint8)
            room[: self._used] = self._room[: self._used]
            self._room = room
        self._room[self._used : end] = added
        self._used = end

    def buffer(self) -> pa.Buffer:
        return pa.py_buffer(self._room[: self._used])


class KeyTable:
    """A hash table from keys to slots that looks up whole columns without Python objects.

    A dictionary needs an object for each key, hashes it again, and misses the processor's caches twice. Here the hashes
    that arrive with the keys are looked up in one small array, and the found keys are compared column by column, which
    takes a fifth of the time.

    Args:
        kind: Type of the keys in storage form, in which equal keys are equal and different keys are different.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._keys = GrowingArray(kind)
        # Open addressing with linear probing; never more than half full.
        self._places: npt.NDArray[np.int32] = np.full(_power_above(2 * _FEWEST), _NOTHING, np.int32)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._places.nbytes

    def keys(self, start: int = 0) -> Iterator[pa.Array]:
        """Return the keys from a slot on in storage form, in pieces that each fit into one array."""
        keys = self._keys.view().slice(start)
        return (
            piece.column(0).combine_chunks().cast(self._kind) for piece in split_into_batches(pa.table({"key": keys}))
        )

    def wide(self, slots: Cells) -> pa.Array:
        """Return the keys of some slots in the large type, which has no size limit."""
        return self._keys.take(slots)

    def take(self, slots: Cells) -> pa.Array:
        """Return the keys of some slots in storage form."""
        return self._keys.take(slots).cast(self._kind)

    def append(self, stored: pa.Array, hashes: Hashes) -> None:
        """Add distinct new keys, which get the next slots.

        Args:
            stored: The keys.
            hashes: The hash of each slot, those of the new keys at its end.
        """
        known = len(self)
        self._keys.extend(stored)
        if 2 * len(self) > len(self._places):
            self._places = np.full(_power_above(4 * len(self)), _NOTHING, np.int32)
            known = 0
        self._insert(np.arange(known, len(self)), hashes)

    def _insert(self, slots: Cells, hashes: Hashes) -> None:
        mask, places = np.uint64(len(self._places) - 1), self._places
        at = hashes[slots] & mask
        while len(slots):
            free = places[at] == _NOTHING
            places[at[free]] = slots[free]  # of several slots for one place, the last assignment wins
            rest = places[at] != slots
            slots, at = slots[rest], (at[rest] + np.uint64(1)) & mask

    def find(self, stored: pa.Array, wanted: Hashes, hashes: Hashes) -> Cells:
        """Return the slot of each key, -1 for unknown keys.

        Args:
            stored: The keys.
            wanted: The hash of each key.
            hashes: The hash of each slot's key.
        """
        found: Cells = np.full(len(wanted), _NOTHING, np.int64)
        mask = np.uint64(len(self._places) - 1)
        rows, at = np.arange(len(wanted)), wanted & mask
        while len(rows):
            slots = self._pass_over(wanted[rows], at, hashes)
            there = slots != _NOTHING
            rows, at, slots = rows[there], at[there], slots[there]
            sought = stored if len(rows) == len(stored) else stored.take(pa.array(rows))
            same = pc.equal(self._keys.take(slots), sought.cast(self._keys.kind))
            mine = same.to_numpy(zero_copy_only=False)
            found[rows[mine]] = slots[mine]
            # The key at this place has the same hash but is another one: continue behind it.
            rows, at = rows[~mine], (at[~mine] + np.uint64(1)) & mask
        return found

    def _pass_over(self, wanted: Hashes, at: npt.NDArray[np.uint64], hashes: Hashes) -> Cells:
        """Advance each place to the first that is free or has the wanted hash; return the slots there."""
        mask, places = np.uint64(len(self._places) - 1), self._places
        slots: Cells = places[at].astype(np.int64)
        rest = np.flatnonzero((slots != _NOTHING) & (hashes[slots] != wanted))
        while len(rest):
            at[rest] = (at[rest] + np.uint64(1)) & mask
            following = places[at[rest]].astype(np.int64)
            slots[rest] = following
            rest = rest[(following != _NOTHING) & (hashes[following] != wanted[rest])]
        return slots


def _power_above(size: int) -> int:
    return 1 << (size - 1).bit_length()


class SlotKeys:
    """The keys of all slots, as a column, as objects, or both.

    At any time at least one of the two forms is complete; the other one has the first slots.

    Args:
        codec: Codec of the keys.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec
        self._count = 0
        self._hashes: Hashes = np.empty(_FEWEST, np.uint64)
        self._table = KeyTable(codec.storage_type)
        self._objects: list[Any] = []
        # A missing key gets the next slot by the default factory, so one pass finds known and adds new keys.
        self._index: defaultdict[Any, int] = defaultdict()

    def __len__(self) -> int:
        return self._count

    @property
    def hashes(self) -> Hashes:
        """The hash of each slot's key; elements beyond the last slot are undefined."""
        return self._hashes

    def slots_of(self, keys: Sequence[Any], hashes: Hashes) -> list[int]:
        """Return the slot of each key; new keys get the next slots.

        Args:
            keys: Dict keys.
            hashes: The hash of each key.
        """
        index, before = self._complete_index(), self._count
        slots = list(map(index.__getitem__, keys))
        if len(index) > before:
            if len(keys) == 1:  # from set_current_key(): arrays would take ten times as long
                self._objects.append(keys[0])
                self._add_hashes(hashes)
                return slots
            # New keys got ascending slots, so a key occurs first where the running maximum increases.
            reached = np.maximum.accumulate(np.maximum(np.array(slots, np.int64), before - 1))
            first = np.flatnonzero(np.diff(reached, prepend=before - 1))
            self._objects += pick(keys, first.tolist())
            self._add_hashes(np.asarray(hashes, np.uint64)[first])
        return slots

    def slots_of_column(self, stored: pa.Array, hashes: Hashes) -> Cells:
        """Return the slot of each key of a canonical column; new keys get the next slots.

        Args:
            stored: The keys in storage form, in which different keys are different.
            hashes: The hash of each key.
        """
        slots = self.find_column(stored, hashes)
        rounds = 0
        while len(unknown := np.flatnonzero(slots < 0)):
            rounds += 1
            if rounds > _ROUNDS:
                # Keys were chosen to share a hash: a dictionary distinguishes them by Python's hash.
                slots[unknown] = self.slots_of(
                    self._codec.from_storage(stored.take(pa.array(unknown))), hashes[unknown]
                )
                break
            new, first, which = np.unique(hashes[unknown], return_index=True, return_inverse=True)
            start = self._count
            self._add_hashes(new)
            self._table.append(stored.take(pa.array(unknown[first])), self._hashes)
            slots[unknown] = start + which
            if len(new) < len(unknown):
                # Other rows of the same keys, or keys with the same hash, which get a slot in the next round.
                rows = np.delete(unknown, first)
                slots[rows] = self._table.find(stored.take(pa.array(rows)), hashes[rows], self._hashes)
        return slots

    def find(self, keys: Sequence[Any]) -> Cells:
        """Return the slot of each dict key, -1 for unknown keys."""
        return np.fromiter(map(self._complete_index().get, keys, repeat(-1)), np.int64, len(keys))

    def find_column(self, stored: pa.Array, hashes: Hashes) -> Cells:
        """Return the slot of each key of a canonical column, -1 for unknown keys."""
        covered = len(self._table)
        if covered < self._count:
            self._table.append(self._codec.storage_array(self._objects[covered:]), self._hashes)
        return self._table.find(stored, hashes, self._hashes)

    def __getitem__(self, slot: int) -> Any:
        if slot >= len(self._objects):
            self._make_objects()
        return self._objects[slot]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make_objects())

    def objects(self, slots: Cells) -> list[Any]:
        return pick(self._make_objects(), slots.tolist())

    def stored(self, slots: Cells) -> pa.Array:
        """Return the keys of some slots in storage form."""
        keys = self.take(slots)
        return keys if isinstance(keys, pa.Array) else self._codec.storage_array(keys)

    def take(self, slots: Cells) -> Sequence[Any] | pa.Array:
        """Return the keys of some slots in the form that needs no conversion: storage form, or dict keys."""
        return self._table.take(slots) if len(self._table) == self._count else self.objects(slots)

    def keep(self, slots: Cells) -> None:
        """Drop all other slots, and renumber the given ones, which are ascending, in order."""
        stored = self._table.wide(slots) if len(self._table) == self._count else None
        self._objects = pick(self._objects, slots.tolist()) if len(self._objects) == self._count else []
        self._index = defaultdict()
        self._hashes = np.concatenate([self._hashes[slots], np.empty(_FEWEST, np.uint64)])
        self._count = len(slots)
        self._table = KeyTable(self._codec.storage_type)
        if stored is not None:
            self._table.append(stored, self._hashes)

    def estimated_bytes(self) -> int:
        objects = self._objects
        sample = objects[:: max(1, len(objects) // _SAMPLE)]
        size = sum(map(sys.getsizeof, sample)) / max(1, len(sample))
        in_objects = len(objects) * (_IN_LIST + size) + len(self._index) * _IN_INDEX
        return int(self._count * _HASH + self._table.nbytes + in_objects)

    def _add_hashes(self, hashes: Hashes) -> None:
        end = self._count + len(hashes)
        if end > len(self._hashes):
            grown: Hashes = np.empty(max(end, 2 * len(self._hashes)), np.uint64)
            grown[: self._count] = self._hashes[: self._count]
            self._hashes = grown
        self._hashes[self._count : end] = hashes
        self._count = end

    def _make_objects(self) -> list[Any]:
        known = len(self._objects)
        if known < self._count:
            for keys in self._table.keys(known):
                self._objects += self._codec.from_storage(keys)
        return self._objects

    def _complete_index(self) -> defaultdict[Any, int]:
        index = self._index
        if len(index) < self._count:
            index.update(zip(self._make_objects()[len(index) :], count(len(index)), strict=False))
        index.default_factory = count(self._count).__next__
        return index
