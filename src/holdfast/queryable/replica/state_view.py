"""One state in one checkpoint, as a server holds it: layers, and finding and scanning in them."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.kernel.key_group import KeyGroupRange, hash_range
from holdfast.queryable.replica.layer import (
    ReplicaLayer,
    WantedKeys,
    find,
    groups_of,
    puts,
    total,
    wanted_keys,
)
from holdfast.queryable.replica.merge import merge
from holdfast.queryable.wire.description import VALUE, StateDescription
from holdfast.queryable.wire.errors import BadRequestError, LimitExceededError, UnknownKvStateIdError
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.column_layout import Op
from holdfast.state.run import batch
from holdfast.state.run.lower_bound import Hashes

SCALARS: Final = frozenset({StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING, StateKind.FOLDING})
MAX_LAYERS: Final = 6
ROWS_PER_BATCH: Final = 64 * 1024


@dataclass
class StateView:
    """One state in one checkpoint, for the key groups that a server holds.

    Attributes:
        description: What the state is.
        key_groups: The ranges that the server holds.
        layers: Its rows, oldest layer first. Merging replaces the tuple by one that says the same.
        damage: Why it cannot be answered, if a run is damaged or does not fit.
        forms: How its values stood in files, the present form last.
    """

    description: StateDescription
    key_groups: tuple[KeyGroupRange, ...]
    layers: tuple[ReplicaLayer, ...]
    damage: HoldfastError | None = None
    forms: tuple[Any, ...] = ()
    _newest_first: tuple[tuple[ReplicaLayer, ...], tuple[ReplicaLayer, ...]] = field(default=((), ()), repr=False)

    @cached_property
    def is_whole(self) -> bool:
        """Whether all key groups are held here."""
        return sum(held.size for held in self.key_groups) == self.description.max_parallelism

    @cached_property
    def nothing(self) -> pa.Array:
        """The answer for one key that has no value."""
        return pa.nulls(1, self._value_type)

    def find_one(self, key_hash: int, key: bytes) -> pa.Array | None:
        """Return the value of one key as a column of one row, None if there is none.

        For scalar state without namespaces whose keys are whole bytes.

        Args:
            key_hash: Its hash.
            key: The key's bytes as they stand on the wire.
        """
        for layer in self._filled():
            hashes = layer.view
            row = bisect_left(hashes, key_hash)
            while row < len(hashes) and hashes[row] == key_hash:
                raw = layer.raw_key
                assert raw is not None
                if raw(row) == key:
                    return layer.values.slice(row, 1) if layer.ops[row] == Op.PUT else None  # type: ignore[union-attr]
                row += 1
        return None

    def find_many(
        self, hashes: Hashes, keys: pa.Array, namespace: bytes | None, map_keys: pa.Array | None = None
    ) -> pa.Array:
        """Return the values of several keys, null where there is none.

        Args:
            hashes: The hash of each.
            keys: The keys in comparable form.
            namespace: Of all of them, None for state without namespaces.
            map_keys: The entry to look up in each key's map, which is then returned with nothing else in it; None for
                whole maps, and for other state.

        Raises:
            LimitExceededError: They are more than one column can have.
        """
        wanted = wanted_keys(hashes, keys, namespace)
        try:
            return self._scalars(wanted) if self.description.kind in SCALARS else self._merged(wanted, map_keys)
        except pa.ArrowInvalid as error:
            if "overflow" not in str(error):
                raise
            raise LimitExceededError(
                f"The values of these {len(wanted)} keys have more than {batch.COLUMN_BYTES} bytes together. Ask for "
                "fewer keys at once, or for single entries of a map."
            ) from error

    def _scalars(self, wanted: WantedKeys) -> pa.Array:
        position = np.full(len(wanted), -1)
        pieces: list[pa.Array] = []
        base = 0
        for layer in self._filled():
            found, rows = find(layer, wanted)
            if not len(found):
                continue
            assert layer.values is not None
            owners = wanted.order[found]
            if not layer.is_plain:
                values = puts(layer, rows)
                rows, owners = rows[values], owners[values]
            pieces.append(layer.values.take(pa.array(rows)))
            position[owners] = np.arange(base, base + len(rows))
            base += len(rows)
            wanted = wanted.without(found)
            if not len(wanted):
                break
        if not base:
            return pa.nulls(len(position), self._value_type)
        together = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        missing = position < 0
        return together.take(pa.array(position, mask=missing) if missing.any() else pa.array(position))

    def _merged(self, wanted: WantedKeys, map_keys: pa.Array | None) -> pa.Array:
        parts = []
        for layer in self.layers:
            found, rows = find(layer, wanted)
            if len(rows):
                # From here on a row's key is the position among the wanted ones.
                part = layer.take(rows, found.astype(np.uint64))
                parts.append(ReplicaLayer(part.runs, part.hashes, part.ops, None, None, part.map_keys, part.values))
        merged = merge(self.description.kind, parts, at_bottom=True)
        if self.description.kind is StateKind.LIST:
            values = self._as_lists(merged, len(wanted))
        else:
            if map_keys is not None and len(merged):
                merged = _entries(merged, map_keys.take(pa.array(wanted.order)))
            values = self._as_maps(merged, len(wanted))
        return values.take(pa.array(np.argsort(wanted.order)))

    def _as_lists(self, merged: ReplicaLayer, count: int) -> pa.Array:
        position = np.full(count, -1)
        position[merged.hashes.astype(np.int64)] = np.arange(len(merged))
        if merged.values is None:
            return pa.nulls(count, self._value_type)
        return merged.values.take(pa.array(position, mask=position < 0))

    def _as_maps(self, merged: ReplicaLayer, count: int) -> pa.Array:
        kind = self.description.arrow_schema.field(VALUE).type
        if merged.values is None:
            return pa.nulls(count, kind)
        sizes = np.bincount(merged.hashes.astype(np.int64), minlength=count)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        bounds = pa.array(offsets, mask=np.append(sizes == 0, False))
        assert merged.map_keys is not None
        maps = pa.MapArray.from_arrays(bounds, merged.map_keys.view(kind.key_type), merged.values)
        return maps.cast(kind) if maps.type != kind else maps

    def scan(
        self, key_groups: KeyGroupRange | None, rows: int = ROWS_PER_BATCH, most_bytes: int | None = None
    ) -> Iterator[ReplicaLayer]:
        """Return all rows of a range of key groups that stand for something, in stretches.

        Args:
            key_groups: None for all.
            rows: About how many rows a stretch has.
            most_bytes: It has fewer where they would be longer than this, about.

        Raises:
            BadRequestError: There are not so many key groups.
            UnknownKvStateIdError: Some of them are not held here.
        """
        maximum = self.description.max_parallelism
        wanted = key_groups if key_groups is not None else KeyGroupRange(0, maximum - 1)
        if wanted.end >= maximum:
            raise BadRequestError(f"There are {maximum} key groups; {wanted.end} is not one of them.")
        if sum(held.intersection(wanted).size for held in self.key_groups) != wanted.size:
            raise UnknownKvStateIdError(f"Not all of the key groups {wanted.start} to {wanted.end} are held here.")
        low, high = hash_range(wanted, maximum)
        layers = [layer.between(low, high) for layer in self.layers]
        if most_bytes is not None:
            size = sum(layer.nbytes for layer in layers)
            rows = max(1, min(rows, most_bytes * total(layers) // max(1, size)))
        return self._merged_stretches(layers, rows)

    def _merged_stretches(self, layers: Sequence[ReplicaLayer], rows: int) -> Iterator[ReplicaLayer]:
        for stretch in _stretches([layer for layer in layers if len(layer)], rows):
            merged = merge(self.description.kind, stretch, at_bottom=True)
            if len(merged):
                yield merged

    def _filled(self) -> tuple[ReplicaLayer, ...]:
        """The layers that have rows, newest first."""
        layers = self.layers
        known = self._newest_first
        if known[0] is not layers:
            known = (layers, tuple(layer for layer in reversed(layers) if len(layer)))
            self._newest_first = known
        return known[1]

    @property
    def _value_type(self) -> pa.DataType:
        return self.description.arrow_schema.field(VALUE).type


def _entries(merged: ReplicaLayer, map_keys: pa.Array) -> ReplicaLayer:
    """The rows of the wanted entries, one for each position that `merged` has as hashes."""
    assert merged.map_keys is not None
    same = pc.equal(merged.map_keys, map_keys.take(pa.array(merged.hashes.astype(np.int64))))
    return merged.take(np.flatnonzero(same.to_numpy(zero_copy_only=False)))


def _stretches(layers: Sequence[ReplicaLayer], rows: int) -> Iterator[list[ReplicaLayer]]:
    """Cut layers at the same hashes, so that each stretch has about so many rows in all.

    Each layer gives bounds, as they need not have the same hashes: those of two subtasks have none in common.
    """
    if not layers:
        return
    starts = [0] * len(layers)
    for bound in chain(heapq.merge(*(layer.hashes[rows::rows] for layer in layers)), (None,)):
        ends = [len(layer) if bound is None else int(np.searchsorted(layer.hashes, bound)) for layer in layers]
        part = [layer.slice(*ends_) for layer, *ends_ in zip(layers, starts, ends, strict=True)]
        starts = ends
        if any(map(len, part)):
            yield [layer for layer in part if len(layer)]


def compacted(kind: StateKind, layers: tuple[ReplicaLayer, ...]) -> tuple[ReplicaLayer, ...]:
    """Return the same with at most `MAX_LAYERS` layers: the newest ones are merged, as few rows as will do.

    A row is merged about as often as its layer doubles, so what merging costs in all grows with the logarithm of the
    number of rows.
    """
    groups = groups_of(layers)
    if len(groups) <= MAX_LAYERS:
        return layers
    start, rows, size = len(groups), 0, 0
    while start > 0:
        layer, *rest = groups[start - 1]
        size += layer.nbytes
        # What is too long for one array stays as it is: there are as many layers then as compaction leaves runs.
        if rest or size > batch.BATCH_BYTES:
            break
        if rows and start < MAX_LAYERS and len(layer) > 2 * rows:
            break
        start -= 1
        rows += len(layer)
    if len(groups) - start < 2:
        return layers
    merged = merge(kind, [layer for layer, *_ in groups[start:]], at_bottom=start == 0)
    return (*(layer for group in groups[:start] for layer in group), merged)
