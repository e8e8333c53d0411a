"""Layers, the sorted rows of a state from one or more runs: lookup of keys, and merging.

Rows of newer layers replace rows of older ones, as in runs. Layers are immutable and shared between views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.descriptor import StateKind
from holdfast.state.evolution import Conversion
from holdfast.state.layout import MAP_KEY, NAMESPACE, OP, STAMP, VALUE, Op
from holdfast.state.probe import KEY, Hashes, Positions, lower_bounds
from holdfast.state.run_file import Segment

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ReplicaLayer:
    """Rows of a state, sorted by hash.

    Attributes:
        runs: The runs of the rows, oldest first; with the range of key groups they identify the layer. Empty for a
            layer that continues the one before it, whose runs have more rows than one array can hold.
        hashes: The hash of each row.
        ops: The operation of each row, see `holdfast.state.layout.Op`.
        keys: The key of each row in comparable form; None if the hash alone identifies a key.
        namespaces: The namespace of each row, for state with namespaces.
        map_keys: The map key of each row of map state, null in a clear.
        values: The value of each row; None if there are no rows.
    """

    runs: tuple[str, ...]
    hashes: Hashes
    ops: npt.NDArray[np.int8]
    keys: pa.Array | None
    namespaces: pa.Array | None
    map_keys: pa.Array | None
    values: pa.Array | None

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def nbytes(self) -> int:
        columns = (self.keys, self.namespaces, self.map_keys, self.values)
        return sum(column.nbytes for column in columns if column is not None)

    @cached_property
    def hash_view(self) -> memoryview:
        """The hashes as a sequence for `bisect`."""
        return np.ascontiguousarray(self.hashes).data

    @cached_property
    def raw_key(self) -> Callable[[int], bytes] | None:
        """A function that returns the bytes of a row's key as in requests; None for keys that are not whole bytes."""
        keys = self.keys
        if keys is None or pa.types.is_boolean(keys.type):
            return None
        if pa.types.is_string(keys.type) or pa.types.is_binary(keys.type):
            _, places, data = keys.buffers()
            offsets = memoryview(places).cast("i")[keys.offset : keys.offset + len(keys) + 1]
            content = memoryview(data) if data is not None else memoryview(b"")
            return lambda row: bytes(content[offsets[row] : offsets[row + 1]])
        width = keys.type.bit_width // 8
        fixed = memoryview(keys.buffers()[1])[keys.offset * width :]
        return lambda row: bytes(fixed[row * width : (row + 1) * width])

    @cached_property
    def is_plain(self) -> bool:
        """Whether all rows are values, with no deletion or append among them."""
        return not self.ops.any()

    def take(self, rows: Positions, hashes: Hashes | None = None) -> ReplicaLayer:
        """Return some rows. If other hashes are given, these identify the keys, and the keys are dropped."""
        positions = pa.array(rows)
        kept = self.hashes[rows] if hashes is None else hashes
        keys = self.keys if hashes is None else None
        return self._with(kept, self.ops[rows], lambda array: array.take(positions), keys)

    def slice(self, start: int, stop: int) -> ReplicaLayer:
        """Return the rows from `start` to `stop` without a copy."""
        count = stop - start
        return self._with(
            self.hashes[start:stop], self.ops[start:stop], lambda array: array.slice(start, count), self.keys
        )

    def between(self, low: int, high: int) -> ReplicaLayer:
        """Return the rows with hashes from `low` to `high`, both included."""
        start = int(np.searchsorted(self.hashes, np.uint64(low)))
        stop = int(np.searchsorted(self.hashes, np.uint64(high), side="right"))
        return self if (start, stop) == (0, len(self)) else self.slice(start, stop)

    def _with(
        self, hashes: Hashes, ops: npt.NDArray[np.int8], part: Callable[[Any], Any], keys: pa.Array | None
    ) -> ReplicaLayer:
        return replace(
            self,
            hashes=hashes,
            ops=ops,
            keys=None if keys is None else part(keys),
            namespaces=None if self.namespaces is None else part(self.namespaces),
            map_keys=None if self.map_keys is None else part(self.map_keys),
            values=None if self.values is None else part(self.values),
        )


def empty_layer(runs: tuple[str, ...]) -> ReplicaLayer:
    """Return a layer for runs without rows of a state."""
    return ReplicaLayer(runs, np.empty(0, np.uint64), np.empty(0, np.int8), None, None, None, None)


def layer_from_run(
    runs: tuple[str, ...], segment: Segment | None, key_groups: KeyGroupRange, convert: Conversion | None = None
) -> ReplicaLayer:
    """Return the rows of a run in a range of key groups, memory-mapped.

    Args:
        runs: The id of the run; empty if the layer continues another one.
        segment: A part of the state's segment, None if the run has none.
        key_groups: The range.
        convert: Converts values to the form of newer runs; None if they have it.

    Raises:
        CorruptFileError: The segment is damaged.
    """
    rows = segment.range(key_groups) if segment is not None else slice(0, 0)
    if segment is None or rows.start >= rows.stop:
        return empty_layer(runs)
    table = segment.table.slice(rows.start, rows.stop - rows.start)
    values = _column(table, VALUE)
    if convert is not None:
        stamps = _column(table, STAMP) if STAMP in table.column_names else None
        values, _ = convert.convert(values, stamps, _column(table, OP))
    names = table.column_names
    return ReplicaLayer(
        runs,
        _column(table, "hash").to_numpy(),
        _column(table, OP).to_numpy(),
        comparable(_column(table, KEY)),
        _column(table, NAMESPACE) if NAMESPACE in names else None,
        comparable(_column(table, MAP_KEY)) if MAP_KEY in names else None,
        values,
    )


def comparable(array: pa.Array) -> pa.Array:
    """Return keys in a form in which every key equals itself: floating-point numbers as their bits, because of NaN."""
    if pa.types.is_float64(array.type):
        return array.view(pa.int64())
    if pa.types.is_float32(array.type):
        return array.view(pa.int32())
    return array


@dataclass(frozen=True)
class WantedKeys:
    """Keys to look up, in the order of their hashes.

    Attributes:
        hashes: The hash of each key, ascending.
        keys: The keys in comparable form, in any order.
        order: The position in `keys` of each hash.
        namespace: The namespace of all keys; None for state without namespaces.
    """

    hashes: Hashes
    keys: pa.Array
    order: Positions
    namespace: bytes | None

    def __len__(self) -> int:
        return len(self.hashes)

    def without(self, found: Positions) -> WantedKeys:
        """Return the keys at all other positions."""
        rest = np.ones(len(self), bool)
        rest[found] = False
        return WantedKeys(self.hashes[rest], self.keys, self.order[rest], self.namespace)


def wanted_keys(hashes: Hashes, keys: pa.Array, namespace: bytes | None) -> WantedKeys:
    """Sort keys, given in comparable form, by their hashes."""
    order = np.argsort(hashes)
    return WantedKeys(hashes[order], keys, order, namespace)


def find(layer: ReplicaLayer, wanted: WantedKeys) -> tuple[Positions, Positions]:
    """Find the rows of some keys.

    Returns:
        Ascending positions among the wanted keys, and for each position a row. A key may have several rows.
    """
    stored = layer.hashes
    if not len(stored):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # Layers of different subtasks have disjoint ranges of hashes.
    start = int(np.searchsorted(wanted.hashes, stored[0]))
    stop = int(np.searchsorted(wanted.hashes, stored[-1], side="right"))
    hashes = wanted.hashes[start:stop]
    first = lower_bounds(stored, hashes)
    hits = np.flatnonzero(stored[first] == hashes)
    if not len(hits):
        return hits, hits
    rows = first[hits]
    after = np.minimum(rows + 1, len(stored) - 1)
    if ((stored[after] == hashes[hits]) & (after > rows)).any():
        count = np.searchsorted(stored, hashes[hits], side="right") - rows
        starts = np.cumsum(count) - count
        hits, rows = np.repeat(hits, count), np.repeat(rows - starts, count) + np.arange(int(count.sum()))
    hits = hits + start
    keys = wanted.keys.take(pa.array(wanted.order[hits]))
    kept = _matching(layer, pa.array(rows), keys, wanted.namespace)
    return (hits, rows) if kept is None else (hits[kept], rows[kept])


def _matching(
    layer: ReplicaLayer, rows: pa.Array, keys: pa.Array, namespace: bytes | None
) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows with the right key and namespace; None for all rows."""
    assert layer.keys is not None
    stored = layer.keys.take(rows)
    if namespace is None:
        if stored.equals(keys):
            return None
        return pc.equal(stored, keys).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    assert layer.namespaces is not None
    same = pc.and_(pc.equal(stored, keys), pc.equal(layer.namespaces.take(rows), namespace))
    return same.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def is_put(layer: ReplicaLayer, rows: Positions) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that are values."""
    mask: npt.NDArray[np.bool_] = layer.ops[rows] == Op.PUT
    return mask


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def total_rows(layers: Sequence[ReplicaLayer]) -> int:
    return sum(map(len, layers))


def group_by_run(layers: Iterable[ReplicaLayer]) -> list[list[ReplicaLayer]]:
    """Group each layer that names runs with the layers that continue it."""
    groups: list[list[ReplicaLayer]] = []
    for layer in layers:
        if layer.runs:
            groups.append([layer])
        elif groups:
            groups[-1].append(layer)
    return groups


def merge(kind: StateKind, layers: Sequence[ReplicaLayer], *, at_bottom: bool = False) -> ReplicaLayer:
    """Merge layers, given oldest first, into one.

    Of a value the newest row is kept. A list is the newest complete one and all later appends. Of a map the newest row
    of each entry is kept unless a later row clears the map. The result can be merged with older layers, except at the
    bottom: there are no older layers, so deletions are dropped and only present rows are kept.
    """
    runs = tuple(run for layer in layers for run in layer.runs)
    filled = [layer for layer in layers if len(layer)]
    if not filled:
        return empty_layer(runs)
    if len(filled) == 1 and not (at_bottom and not filled[0].is_plain):
        only = filled[0]
        return only if only.runs == runs else _renamed(only, runs)
    rows = _Rows(filled)
    if kind is StateKind.LIST:
        return rows.lists(runs, at_bottom)
    if kind is StateKind.MAP:
        return rows.entries(runs, at_bottom)
    return rows.values(runs, at_bottom)


def _renamed(layer: ReplicaLayer, runs: tuple[str, ...]) -> ReplicaLayer:
    return ReplicaLayer(runs, layer.hashes, layer.ops, layer.keys, layer.namespaces, layer.map_keys, layer.values)


class _Rows:
    """The rows of several layers, sorted so that the rows of one key and namespace are adjacent, oldest first."""

    def __init__(self, layers: Sequence[ReplicaLayer]) -> None:
        hashes = np.concatenate([layer.hashes for layer in layers])
        ages = np.repeat(np.arange(len(layers)), [len(layer) for layer in layers])
        self._keys = _together([layer.keys for layer in layers])
        self._namespaces = _together([layer.namespaces for layer in layers])
        self._map_keys = _together([layer.map_keys for layer in layers])
        self._all_values = _together([layer.values for layer in layers])
        codes = [_codes(part) for part in (self._map_keys, self._namespaces) if part is not None]
        order = _order(hashes, ages, codes)
        if self._keys is not None and _has_collisions(hashes[order], self._keys, order):
            codes.append(_codes(self._keys))
            order = _order(hashes, ages, codes)
        self.order: Positions = order
        self.hashes = hashes[order]
        self.ages = ages[order]
        self.ops = np.concatenate([layer.ops for layer in layers])[order]
        in_order = [self.hashes, *(code[order] for code in codes)]
        is_map = self._map_keys is not None
        self.new_entry = _changes(in_order)
        self.new_cell = _changes([in_order[0], *in_order[2:]]) if is_map else self.new_entry

    def values(self, runs: tuple[str, ...], at_bottom: bool) -> ReplicaLayer:
        newest = np.append(self.new_cell[1:], True)
        if at_bottom:
            newest &= self.ops == Op.PUT
        return self._layer(runs, newest)

    def entries(self, runs: tuple[str, ...], at_bottom: bool) -> ReplicaLayer:
        """Keep the newest row of each entry that its map's last clear has not removed, and that clear."""
        clears = self.ops == Op.CLEAR
        cell = np.cumsum(self.new_cell) - 1
        cleared = np.full(int(cell[-1]) + 1, -1)
        np.maximum.at(cleared, cell[clears], self.ages[clears])
        keep = np.append(self.new_entry[1:], True) & (self.ages >= cleared[cell])
        if at_bottom:
            keep &= self.ops == Op.PUT
        return self._layer(runs, keep)

    def lists(self, runs: tuple[str, ...], at_bottom: bool) -> ReplicaLayer:
        cell = np.cumsum(self.new_cell) - 1
        count = int(cell[-1]) + 1
        whole = self.ops != Op.APPEND
        since = np.full(count, -1)
        np.maximum.at(since, cell[whole], self.ages[whole])
        kept = self.ages >= since[cell]
        assert self._all_values is not None
        parts = self._all_values.take(pa.array(self.order[kept]))
        lengths = pc.fill_null(pc.list_value_length(parts), 0).to_numpy(zero_copy_only=False)
        ends = np.zeros(count + 1, np.int64)
        np.add.at(ends, cell[kept] + 1, lengths)
        offsets = np.cumsum(ends).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), parts.flatten(), type=parts.type)
        is_empty = offsets[1:] == offsets[:-1]
        ops = np.where(is_empty, Op.DELETE, np.where((since >= 0) | at_bottom, Op.PUT, Op.APPEND)).astype(np.int8)
        first = np.flatnonzero(self.new_cell)
        remain = ~is_empty if at_bottom else np.ones(count, bool)
        positions = pa.array(np.flatnonzero(remain))
        chosen = self._layer(runs, np.isin(np.arange(len(self.hashes)), first[remain]))
        return ReplicaLayer(
            runs, chosen.hashes, ops[remain], chosen.keys, chosen.namespaces, None, lists.take(positions)
        )

    def _layer(self, runs: tuple[str, ...], mask: Mask) -> ReplicaLayer:
        positions = pa.array(self.order[mask])

        def part(array: pa.Array | None) -> pa.Array | None:
            return None if array is None else array.take(positions)

        return ReplicaLayer(
            runs,
            self.hashes[mask],
            self.ops[mask],
            part(self._keys),
            part(self._namespaces),
            part(self._map_keys),
            part(self._all_values),
        )


def _together(arrays: Sequence[pa.Array | None]) -> pa.Array | None:
    return None if arrays[0] is None else pa.concat_arrays(arrays)


def _codes(array: pa.Array) -> Codes:
    """Return a number for each value, the same for equal ones, -1 for null."""
    encoded = array.dictionary_encode().indices.fill_null(-1)
    codes: Codes = encoded.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _order(hashes: npt.NDArray[np.uint64], ages: Codes, codes: Sequence[Codes]) -> Positions:
    if not codes:
        return np.argsort(hashes, kind="stable")
    return np.lexsort((ages, *codes, hashes))


def _has_collisions(hashes: npt.NDArray[np.uint64], keys: pa.Array, order: Positions) -> bool:
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not len(same):
        return False
    return not keys.take(pa.array(order[same])).equals(keys.take(pa.array(order[same + 1])))


def _changes(columns: Sequence[npt.NDArray[np.generic]]) -> Mask:
    """Return a mask of the rows that differ from the one before."""
    changed = np.zeros(len(columns[0]), bool)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed
