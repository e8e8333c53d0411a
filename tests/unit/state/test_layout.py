"""The rows of a segment stand in canonical order, whatever the order in which they were written."""

import random

from holdfast.state import HashMapStateBackend, ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state.run_file import open_run
from holdfast.testing.state_contract.state_access_contract import StateEpochs, WindowSerializer
from holdfast.testing.state_contract.state_version_contract import CollidingKeyCodec

KEYS = [f"{number}{'x' * (number % 4)}" for number in range(20)]


def rows_of(epochs, name, columns):
    run = open_run(epochs.files, epochs.directory, epochs.version.runs[-1])
    return [tuple(row.values()) for row in run.segment(name).table.select(columns).to_pylist()]


def test_rows_are_sorted_by_hash_key_namespace_and_map_key(tmp_path):
    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path), codec=CollidingKeyCodec())
    rng = random.Random(3)
    with epochs.epoch() as task:
        for key in rng.sample(KEYS, len(KEYS)):
            task.state(key, ValueStateDescriptor("value", "bigint")).update(1)
            task.state(key, MapStateDescriptor("map", "bigint", "bigint")).put_all(
                dict.fromkeys(rng.sample(range(-5, 5), 5), 1)
            )
            for window in rng.sample(range(5), 3):
                task.state(key, ListStateDescriptor("list", "bigint"), window, WindowSerializer()).add(1)
    for name, columns in (
        ("value", ["hash", "key"]),
        ("map", ["hash", "key", "map_key"]),
        ("list", ["hash", "key", "namespace"]),
    ):
        rows = rows_of(epochs, name, columns)
        assert rows == sorted(rows)
        assert len(rows) >= len(KEYS)


def test_a_clear_stands_before_the_entries_of_its_map(tmp_path):
    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path))
    descriptor = MapStateDescriptor("map", "string", "bigint")
    with epochs.epoch() as task:
        task.state("a", descriptor).put("", 1)
        task.state("b", descriptor).put("", 1)
    with epochs.epoch() as task:
        for key in "ab":
            task.state(key, descriptor).clear()
        task.state("a", descriptor).put_all({"": 2, "z": None})
        task.state("a", descriptor).remove("z")
    found = {}
    for key, entry, op, value in rows_of(epochs, "map", ["key", "map_key", "op", "value"]):
        found.setdefault(key, []).append((entry, op, value))
    assert found == {"a": [(None, 3, None), ("", 0, 2)], "b": [(None, 3, None)]}
