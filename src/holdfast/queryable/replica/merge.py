"""Merging layers: what several say, oldest first, as one.

For a value the newest row counts; lists are put together from the newest whole one on; of a map the newest row of each
entry counts, and none that is older than a clear. What is merged is again a layer and can be merged with older ones,
except at the bottom, where nothing older exists: there deletions are left out and only what is there remains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.queryable.replica.layer import ReplicaLayer, empty_layer
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.column_layout import Op
from holdfast.state.run.lower_bound import Positions

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def merge(kind: StateKind, layers: Sequence[ReplicaLayer], *, at_bottom: bool = False) -> ReplicaLayer:
    """Return several layers, oldest first, as one."""
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
    """All rows of several layers, in an order in which those of one cell stand together, oldest first."""

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
        """The newest row of each cell."""
        newest = np.append(self.new_cell[1:], True)
        if at_bottom:
            newest &= self.ops == Op.PUT
        return self._layer(runs, newest)

    def entries(self, runs: tuple[str, ...], at_bottom: bool) -> ReplicaLayer:
        """The newest row of each entry that is not older than its map's last clear, and the clear before them."""
        clears = self.ops == Op.CLEAR
        cell = np.cumsum(self.new_cell) - 1
        cleared = np.full(int(cell[-1]) + 1, -1)
        np.maximum.at(cleared, cell[clears], self.ages[clears])
        keep = np.append(self.new_entry[1:], True) & (self.ages >= cleared[cell])
        if at_bottom:
            keep &= self.ops == Op.PUT
        return self._layer(runs, keep)

    def lists(self, runs: tuple[str, ...], at_bottom: bool) -> ReplicaLayer:
        """The lists, put together."""
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
    """Whether two different keys have the same hash."""
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not len(same):
        return False
    return not keys.take(pa.array(order[same])).equals(keys.take(pa.array(order[same + 1])))


def _changes(columns: Sequence[npt.NDArray[np.generic]]) -> Mask:
    """Whether each row differs from the one before it."""
    changed = np.zeros(len(columns[0]), bool)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed
