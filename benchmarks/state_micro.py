"""What the hashmap backend costs by itself: no Spark, one process, a counter on uniform string keys.

Usage: python benchmarks/state_micro.py [--keys N] [--batch N] [--json]

Prints the median of several rounds: warm access (core-microseconds a row for prepare, slot assignment, `value()` and
`update()` together), a cold probe of one batch (core-milliseconds), the flush of all keys (milliseconds, the disk
included), and catching up with a run that another process wrote (core-milliseconds).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    TaskEnvironment,
    ValueStateDescriptor,
    load_state_backend,
)
from holdfast.state.run_file import forget_runs
from holdfast.state.version import STATE_CACHE, StateVersion
from holdfast.storage.local import LocalFileSystem
from holdfast.types.key_codec import key_codec_for
from holdfast.types.type_parser import to_type

GROUPS = 128
FS = LocalFileSystem()
CODEC = key_codec_for(to_type("string"))


class Bench:
    def __init__(self, root: str, keys: int, batch: int) -> None:
        self.root = root
        self.files = 0
        self.backends = load_state_backend(Configuration())
        rng = random.Random(7)
        names = [f"key-{number:08d}" for number in range(keys)]
        self.names = names
        self.columns = [pa.array(rng.choices(names, k=batch)) for _ in range(20)]
        self.hashes = [CODEC.hashes(column.to_pylist()) for column in self.columns]
        self.all_hashes = CODEC.hashes(names)

    @property
    def batches(self) -> list[tuple[list[str], Any]]:
        """Batches as they come from Arrow: with new string objects every time."""
        return [(CODEC.dict_keys([column]), hashes) for column, hashes in zip(self.columns, self.hashes, strict=True)]

    def open(self, version: StateVersion, descriptor: Any, operator: str = "op") -> tuple[Any, Any]:
        environment = TaskEnvironment("job", operator, max_parallelism=GROUPS)
        backend = self.backends.create_keyed_state_backend(
            environment, "job", operator, CODEC, GROUPS, KeyGroupRange(0, GROUPS - 1)
        )
        backend.open_version(version, FS, self.root)
        return backend, backend.get_partitioned_state(None, None, descriptor)

    def path(self) -> str:
        self.files += 1
        return f"shared/{self.files}.run"

    def write_all(self, descriptor: Any, write: Callable[[Any, str], None]) -> StateVersion:
        STATE_CACHE.clear()
        backend, state = self.open(StateVersion(), descriptor)
        for slot, name in zip(backend.prepare(self.names, self.all_hashes), self.names, strict=True):
            backend.slot = slot
            write(state, name)
        version = StateVersion().plus(backend.flush(self.path, 1, 1))
        backend.commit_cache()
        return version

    def warm(self, version: StateVersion, descriptor: Any, row: Callable[[Any, Any, list[int]], None]) -> float:
        backend, state = self.open(version, descriptor)
        batches = self.batches
        start = time.thread_time()
        for keys, hashes in batches:
            row(backend, state, backend.prepare(keys, hashes))
        taken = time.thread_time() - start
        backend.drop_cache()
        return taken / sum(len(keys) for keys, _ in batches) * 1e6

    def cold(self, version: StateVersion, descriptor: Any) -> float:
        STATE_CACHE.clear()
        forget_runs()
        batch = self.batches[0]
        start = time.thread_time()
        backend, _ = self.open(version, descriptor)
        backend.prepare(*batch)
        taken = time.thread_time() - start
        backend.drop_cache()
        return taken * 1e3

    def flush(self, descriptor: Any, value: Any) -> float:
        STATE_CACHE.clear()
        backend, state = self.open(StateVersion(), descriptor)
        for slot in backend.prepare(self.names, self.all_hashes):
            backend.slot = slot
            state.update(value)
        start = time.perf_counter()
        backend.flush(self.path, 1, 1)
        taken = time.perf_counter() - start
        backend.drop_cache()
        return taken * 1e3

    def catch_up(self, version: StateVersion, descriptor: Any) -> float:
        """Another process runs an epoch over one batch; this one then follows."""
        backend, _ = self.open(version, descriptor)
        backend.prepare(self.names, self.all_hashes)
        backend.commit_cache()
        kept = STATE_CACHE.take(("job", "op", 0, GROUPS - 1))
        assert kept is not None
        backend, state = self.open(version, descriptor)
        for slot in backend.prepare(*self.batches[0]):
            backend.slot = slot
            state.update(1)
        newer = version.plus(backend.flush(self.path, 1, 2))
        backend.drop_cache()
        STATE_CACHE.put(("job", "op", 0, GROUPS - 1), kept, 1 << 40)
        start = time.thread_time()
        backend, _ = self.open(newer, descriptor)
        taken = time.thread_time() - start
        backend.drop_cache()
        return taken * 1e3


def count(backend: Any, state: Any, slots: list[int]) -> None:
    value, update = state.value, state.update
    for slot in slots:
        backend.slot = slot
        update((value() or 0) + 1)


def append(backend: Any, state: Any, slots: list[int]) -> None:
    for slot in slots:
        backend.slot = slot
        state.add(1)


def put(backend: Any, state: Any, slots: list[int]) -> None:
    for slot in slots:
        backend.slot = slot
        state.put("entry", 1)


def median(rounds: int, measure: Callable[[], float]) -> float:
    found = []
    for _ in range(rounds):
        gc.collect()
        found.append(measure())
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as root:
        bench = Bench(root, arguments.keys, arguments.batch)
        typed, untyped = ValueStateDescriptor("count", "bigint"), ValueStateDescriptor("count")
        lists, maps = ListStateDescriptor("list", "bigint"), MapStateDescriptor("map", "string", "bigint")

        def warmed(descriptor: Any, write: Callable[[Any, str], None], row: Any) -> float:
            version = bench.write_all(descriptor, write)

            def one() -> float:
                if not len(STATE_CACHE):
                    bench.write_all(descriptor, write)
                backend, _ = bench.open(version, descriptor)
                backend.prepare(bench.names, bench.all_hashes)
                backend.commit_cache()
                return bench.warm(version, descriptor, row)

            return median(arguments.rounds, one)

        version = bench.write_all(typed, lambda state, name: state.update(1))
        found = {
            "warm_value_us_per_row": warmed(typed, lambda state, name: state.update(1), count),
            "warm_undeclared_us_per_row": warmed(untyped, lambda state, name: state.update(1), count),
            "warm_list_add_us_per_row": warmed(lists, lambda state, name: state.add(1), append),
            "warm_map_put_us_per_row": warmed(maps, lambda state, name: state.put("a", 1), put),
            "cold_probe_ms_per_batch": median(arguments.rounds, lambda: bench.cold(version, typed)),
            "flush_all_keys_ms": median(arguments.rounds, lambda: bench.flush(typed, 1)),
            "flush_all_keys_undeclared_ms": median(arguments.rounds, lambda: bench.flush(untyped, 1)),
            "catch_up_one_batch_ms": median(arguments.rounds, lambda: bench.catch_up(version, typed)),
        }
    for name, value in found.items():
        print(json.dumps({"name": name, "value": round(value, 3)}) if arguments.json else f"{name:32} {value:9.3f}")


if __name__ == "__main__":
    main()
