"""Merging layers: in whatever steps they are merged, they say what the operations say one after the other."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.queryable.replica.checkpoint_view import MAX_LAYERS, _stretches, compacted
from holdfast.queryable.replica.layer import ReplicaLayer, empty_layer, merge
from holdfast.state.descriptor import StateKind
from holdfast.state.layout import Op

KEYS = [f"key-{i}" for i in range(6)]
# Some keys share a hash: keys are told apart by themselves.
HASHES = {key: np.uint64((i // 2) * 2**60 + 7) for i, key in enumerate(KEYS)}
NAMESPACES = [b"", b"n1", b"n2"]
MAP_KEYS = ["a", "b", "c"]

CELL = st.tuples(st.sampled_from(KEYS), st.sampled_from(NAMESPACES))
SCALAR_EPOCH = st.dictionaries(CELL, st.one_of(st.none(), st.integers(0, 99)), max_size=8)
LIST_EPOCH = st.dictionaries(
    CELL,
    st.tuples(st.sampled_from([Op.PUT, Op.APPEND, Op.DELETE]), st.lists(st.integers(0, 99), min_size=1, max_size=3)),
    max_size=8,
)
MAP_EPOCH = st.dictionaries(
    CELL,
    st.tuples(st.booleans(), st.dictionaries(st.sampled_from(MAP_KEYS), st.one_of(st.none(), st.integers(0, 99)))),
    max_size=8,
)


def layer_from(run, rows, value_type, spaced, with_map_keys=False):
    """Rows are (key, namespace, map key, op, value), in the order within their cell."""
    if not rows:
        return empty_layer((run,))
    order = sorted(range(len(rows)), key=lambda i: (int(HASHES[rows[i][0]]), rows[i][0], rows[i][1]))
    rows = [rows[i] for i in order]
    return ReplicaLayer(
        (run,),
        np.array([HASHES[row[0]] for row in rows], np.uint64),
        np.array([row[3] for row in rows], np.int8),
        pa.array([row[0] for row in rows]),
        pa.array([row[1] for row in rows], pa.binary()) if spaced else None,
        pa.array([row[2] for row in rows], pa.string()) if with_map_keys else None,
        pa.array([row[4] for row in rows], value_type),
    )


def in_steps(kind, layers, data):
    """Merge neighbours, some of them, then all at the bottom."""
    layers = list(layers)
    while len(layers) > 1 and data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(layers) - 2))
        stop = data.draw(st.integers(start + 2, len(layers)))
        layers[start:stop] = [merge(kind, layers[start:stop])]
    return merge(kind, layers, at_bottom=True)


def rows_in(layer):
    columns = [layer.keys, layer.namespaces, layer.map_keys, layer.values]
    lists = [column.to_pylist() if column is not None else [None] * len(layer) for column in columns]
    return list(zip(*lists, strict=True))


def spaced_cells(epoch, spaced):
    return {cell: value for cell, value in epoch.items() if spaced or cell[1] == b""}


@settings(deadline=None)
@given(st.lists(SCALAR_EPOCH, max_size=6), st.booleans(), st.data())
def test_of_values_the_newest_counts(epochs, spaced, data):
    epochs = [spaced_cells(epoch, spaced) for epoch in epochs]
    model = {}
    for epoch in epochs:
        model.update(epoch)
    layers = [
        layer_from(
            str(n), [(k, s, None, Op.DELETE if v is None else Op.PUT, v) for (k, s), v in e.items()], pa.int64(), spaced
        )
        for n, e in enumerate(epochs)
    ]

    merged = in_steps(StateKind.VALUE, layers, data)

    assert merged.runs == tuple(str(n) for n in range(len(epochs)))
    found = {(key, name or b""): value for key, name, _, value in rows_in(merged)}
    assert found == {cell: value for cell, value in model.items() if value is not None}
    assert len(merged) == len(found)


@settings(deadline=None)
@given(st.lists(LIST_EPOCH, max_size=6), st.booleans(), st.data())
def test_lists_are_put_together_from_the_newest_whole_one(epochs, spaced, data):
    epochs = [spaced_cells(epoch, spaced) for epoch in epochs]
    model = {}
    layers = []
    for number, epoch in enumerate(epochs):
        rows = []
        for (key, name), (op, elements) in epoch.items():
            before = model.get((key, name), []) if op is Op.APPEND else []
            model[key, name] = before + (elements if op is not Op.DELETE else [])
            rows.append((key, name, None, op, None if op is Op.DELETE else elements))
        layers.append(layer_from(str(number), rows, pa.list_(pa.int64()), spaced))

    merged = in_steps(StateKind.LIST, layers, data)

    found = {(key, name or b""): value for key, name, _, value in rows_in(merged)}
    assert found == {cell: value for cell, value in model.items() if value}
    assert len(merged) == len(found)


@settings(deadline=None)
@given(st.lists(MAP_EPOCH, max_size=6), st.booleans(), st.data())
def test_of_maps_the_newest_entries_since_the_last_clear_count(epochs, spaced, data):
    epochs = [spaced_cells(epoch, spaced) for epoch in epochs]
    model = {}
    layers = []
    for number, epoch in enumerate(epochs):
        rows = []
        for (key, name), (is_cleared, entries) in epoch.items():
            content = model.setdefault((key, name), {})
            if is_cleared:
                content.clear()
                rows.append((key, name, None, Op.CLEAR, None))
            for entry, value in entries.items():
                content[entry] = value
                rows.append((key, name, entry, Op.DELETE if value is None else Op.PUT, value))
        layers.append(layer_from(str(number), rows, pa.int64(), spaced, with_map_keys=True))

    merged = in_steps(StateKind.MAP, layers, data)

    found = {}
    for key, name, entry, value in rows_in(merged):
        found.setdefault((key, name or b""), {})[entry] = value
    model = {cell: {e: v for e, v in content.items() if v is not None} for cell, content in model.items()}
    assert found == {cell: content for cell, content in model.items() if content}
    assert len(merged) == sum(map(len, found.values()))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_compaction_keeps_few_layers_and_loses_nothing(sizes):
    layers = ()
    for number, size in enumerate(sizes):
        hashes = np.arange(size, dtype=np.uint64) * np.uint64(1000) + np.uint64(number)
        keys = pa.array([f"{number}-{i}" for i in range(size)])
        new = ReplicaLayer(
            (str(number),), hashes, np.zeros(size, np.int8), keys, None, None, pa.array(range(size), pa.int64())
        )
        before = (*layers, new if size else empty_layer((str(number),)))
        layers = compacted(StateKind.VALUE, before)
        assert len(layers) <= MAX_LAYERS
        assert sum(map(len, layers)) == sum(sizes[: number + 1])
    assert tuple(run for layer in layers for run in layer.runs) == tuple(map(str, range(len(sizes))))


@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=200), min_size=1, max_size=6), st.integers(1, 30))
def test_stretches_are_short_and_have_all_rows_of_a_hash(hashes, rows):
    layers = []
    for number, some in enumerate(hashes):
        ids = np.array(sorted(some), np.uint64)
        values = pa.array(range(len(ids)), pa.int64())
        layers.append(ReplicaLayer((str(number),), ids, np.zeros(len(ids), np.int8), values, None, None, values))

    last, found = -1, []
    for stretch in _stretches(layers, rows):
        together = np.concatenate([layer.hashes for layer in stretch])
        assert int(together.min()) > last
        last = int(together.max())
        for layer in stretch:
            assert len(layer) <= rows + np.bincount(layer.hashes.astype(int)).max()
        found += together.tolist()

    assert sorted(found) == sorted(value for some in hashes for value in some)
