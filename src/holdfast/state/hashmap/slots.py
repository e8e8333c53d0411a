"""The keys of the slots, as a column, as objects, or both.

Keys that arrive in a column stay in it: they are found, given slots, looked for in runs and written as columns. Python
objects are made of them when somebody asks for one, of all that are new at once: a function for its current key, a
timer for its own. Keys that arrive as objects, because their column does not tell them apart, are in a dictionary.
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

# Where the cells of a state are: one for each key, or one for each key and namespace.
#
# A key has a *slot*, a small number, in all states of an operator; a state has *cells*. Without namespaces the cell of
# a key is its slot. With them a cell is made when a key and a namespace meet first.

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


# An Arrow array that grows at its end.

Positions = npt.NDArray[np.int64]

_WIDE: Final = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_FEWEST: Final = 1024


class GrowingArray:
    """An Arrow array without nulls; adding to it costs what is added, however long it is.

    Texts and bytes are kept in the form of Arrow that may exceed 2 GiB.

    Args:
        kind: Texts, bytes, or a type whose values have a width in whole bytes.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.kind: pa.DataType = _WIDE.get(kind, kind)
        self._count = 0
        self._values = _Bytes()
        # Where each text ends; nothing for other types.
        self._ends: _Bytes | None = _Bytes() if kind in _WIDE else None
        if self._ends is not None:
            self._ends.extend(np.zeros(1, np.int64))
        self._view: pa.Array | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """How many bytes its values take."""
        return len(self._values) + (0 if self._ends is None else len(self._ends))

    def extend(self, values: pa.Array) -> None:
        """Add values, which may be texts or bytes in either form.

        Raises:
            ArrowInvalid: They cannot be of this type.
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
        """Return all values without a copy; what is added later is not in it."""
        if self._view is None:
            buffers = [None, self._values.buffer()]
            if self._ends is not None:
                buffers.insert(1, self._ends.buffer())
            self._view = pa.Array.from_buffers(self.kind, self._count, buffers, null_count=0)
        return self._view

    def take(self, positions: Positions) -> pa.Array:
        """Return the values at some positions."""
        return self.view().take(pa.array(positions))


class _Bytes:
    """A stretch of memory that is doubled when it is full; what was handed out stays as it was."""

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


# Finding the slots of a whole column of keys at once, without a Python object for any of them.
#
# A dictionary needs each key as an object, hashes it anew, and visits two places in memory that the processor has not
# in its caches. Here the hashes that came with the keys are looked up in one small array, and the keys that are found
# are compared with the wanted ones column by column, which takes a fifth of the time.

_NOTHING: Final = -1


class KeyTable:
    """Keys of the slots 0, 1, 2 and so on, in a column, and where in it each is.

    Args:
        kind: Type of the keys in files; the same key is equal there, and no other is.
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
        """How many bytes it takes."""
        return self._keys.nbytes + self._places.nbytes

    def keys(self, start: int = 0) -> Iterator[pa.Array]:
        """Return the keys from a slot on, as files have them, in pieces that fit into one array each."""
        keys = self._keys.view().slice(start)
        return (
            piece.column(0).combine_chunks().cast(self._kind) for piece in split_into_batches(pa.table({"key": keys}))
        )

    def wide(self, slots: Cells) -> pa.Array:
        """Return the keys of some slots in a form that has no limit."""
        return self._keys.take(slots)

    def take(self, slots: Cells) -> pa.Array:
        """Return the keys of some slots, as files have them."""
        return self._keys.take(slots).cast(self._kind)

    def append(self, stored: pa.Array, hashes: Hashes) -> None:
        """Give distinct keys that are not known yet the next slots.

        Args:
            stored: The keys.
            hashes: The hash of each slot, those of these keys at its end.
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
            places[at[free]] = slots[free]  # of several for one place the last one gets it
            rest = places[at] != slots
            slots, at = slots[rest], (at[rest] + np.uint64(1)) & mask

    def find(self, stored: pa.Array, wanted: Hashes, hashes: Hashes) -> Cells:
        """Return the slot of each of some keys, -1 for those that have none.

        Args:
            stored: The keys.
            wanted: The hash of each.
            hashes: The hash of the key of each slot.
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
            # Another key with the same hash: its own may stand behind it.
            rows, at = rows[~mine], (at[~mine] + np.uint64(1)) & mask
        return found

    def _pass_over(self, wanted: Hashes, at: npt.NDArray[np.uint64], hashes: Hashes) -> Cells:
        """Move each place on to the first that is free or has the wanted hash; return the slots there."""
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


_SAMPLE: Final = 64

_ROUNDS: Final = 8
# What a key takes in a list, in a dictionary with its slot, and as a hash.
_IN_LIST: Final = 8
_IN_INDEX: Final = 100
_HASH: Final = 8


class SlotKeys:
    """Keys, each with a slot: 0 for the first, 1 for the second and so on.

    At any time at least one of the two forms has all keys, and the other one those of the first slots.

    Args:
        codec: Of the keys.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec
        self._count = 0
        self._hashes: Hashes = np.empty(_FEWEST, np.uint64)
        self._table = KeyTable(codec.storage_type)
        self._objects: list[Any] = []
        # Asking for a key that is not there gives it the next slot, so known and new keys are found in one pass.
        self._index: defaultdict[Any, int] = defaultdict()

    def __len__(self) -> int:
        return self._count

    @property
    def hashes(self) -> Hashes:
        """The hash of the key of each slot; there may be more at its end, which mean nothing."""
        return self._hashes

    # Finding, and giving slots.

    def slots_of(self, keys: Sequence[Any], hashes: Hashes) -> list[int]:
        """Return the slot of each key; new keys get the next ones.

        Args:
            keys: Dict keys.
            hashes: The hash of each.
        """
        index, before = self._complete_index(), self._count
        slots = list(map(index.__getitem__, keys))
        if len(index) > before:
            if len(keys) == 1:  # it was made the current one by itself: columns would take ten times as long
                self._objects.append(keys[0])
                self._add_hashes(hashes)
                return slots
            # New keys got ascending slots, so one comes for the first time where more is reached than before.
            reached = np.maximum.accumulate(np.maximum(np.array(slots, np.int64), before - 1))
            first = np.flatnonzero(np.diff(reached, prepend=before - 1))
            self._objects += pick(keys, first.tolist())
            self._add_hashes(np.asarray(hashes, np.uint64)[first])
        return slots

    def slots_of_column(self, stored: pa.Array, hashes: Hashes) -> Cells:
        """Return the slot of each key of a column that tells keys apart; new keys get the next ones.

        Args:
            stored: The keys as files have them.
            hashes: The hash of each.
        """
        slots = self.find_column(stored, hashes)
        rounds = 0
        while len(unknown := np.flatnonzero(slots < 0)):
            rounds += 1
            if rounds > _ROUNDS:
                # Somebody has made keys that share a hash: a dictionary tells them apart by another one.
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
                # Their key came in another row before, or only one with the same hash: then it gets a slot next.
                rows = np.delete(unknown, first)
                slots[rows] = self._table.find(stored.take(pa.array(rows)), hashes[rows], self._hashes)
        return slots

    def find(self, keys: Sequence[Any]) -> Cells:
        """Return the slot of each dict key, -1 for those that have none."""
        return np.fromiter(map(self._complete_index().get, keys, repeat(-1)), np.int64, len(keys))

    def find_column(self, stored: pa.Array, hashes: Hashes) -> Cells:
        """Return the slot of each key of a column that tells keys apart, -1 for those that have none."""
        covered = len(self._table)
        if covered < self._count:
            self._table.append(self._codec.storage_array(self._objects[covered:]), self._hashes)
        return self._table.find(stored, hashes, self._hashes)

    # What they are.

    def __getitem__(self, slot: int) -> Any:
        """The dict key of a slot."""
        if slot >= len(self._objects):
            self._make_objects()
        return self._objects[slot]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make_objects())

    def objects(self, slots: Cells) -> list[Any]:
        """Return the dict keys of some slots."""
        return pick(self._make_objects(), slots.tolist())

    def stored(self, slots: Cells) -> pa.Array:
        """Return the keys of some slots as files have them."""
        keys = self.some(slots)
        return keys if isinstance(keys, pa.Array) else self._codec.storage_array(keys)

    def some(self, slots: Cells) -> Sequence[Any] | pa.Array:
        """Return the keys of some slots in a form that is there: as files have them, or as dict keys."""
        return self._table.take(slots) if len(self._table) == self._count else self.objects(slots)

    def keep(self, slots: Cells) -> None:
        """Forget all other slots, and number the rest, given ascending, anew in order."""
        stored = self._table.wide(slots) if len(self._table) == self._count else None
        self._objects = pick(self._objects, slots.tolist()) if len(self._objects) == self._count else []
        self._index = defaultdict()
        self._hashes = np.concatenate([self._hashes[slots], np.empty(_FEWEST, np.uint64)])
        self._count = len(slots)
        self._table = KeyTable(self._codec.storage_type)
        if stored is not None:
            self._table.append(stored, self._hashes)

    def estimated_bytes(self) -> int:
        """Return about how much memory they take."""
        objects = self._objects
        sample = objects[:: max(1, len(objects) // _SAMPLE)]
        size = sum(map(sys.getsizeof, sample)) / max(1, len(sample))
        in_objects = len(objects) * (_IN_LIST + size) + len(self._index) * _IN_INDEX
        return int(self._count * _HASH + self._table.nbytes + in_objects)

    # Parts.

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
