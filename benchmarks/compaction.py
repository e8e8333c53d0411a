"""Epoch times, runs to look through and write amplification over many epochs of the epoch runner.

    python benchmarks/compaction.py --epochs 2000 --json
    python benchmarks/compaction.py --epochs 10000 --keys 100000 --rows 200

One JSON line a workload with --json, a table otherwise.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import tempfile
import time
from typing import Any

import numpy as np

from holdfast.kernel.configuration import Configuration
from holdfast.runtime.compaction import Compaction
from holdfast.runtime.function.sink import Sink, SinkWriter
from holdfast.runtime.function.user_function import KeyedProcessFunction
from holdfast.runtime.graph.stream_graph import KeyedNode, KeySpec, OperatorSpec, SinkNode, SourceNode, StreamGraph
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.descriptor import ListStateDescriptor, ValueStateDescriptor
from holdfast.testing.epoch_runner import LocalEngine, run_job
from holdfast.types.type_parser import parse_schema, parse_type

EVENT = parse_schema("k string, v bigint")


class Counter(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", parse_type("bigint")))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return ()


class Collector(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", parse_type("bigint")))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.add(value.v)
        return ()


class Nothing(Sink):
    def create_writer(self, context: Any) -> SinkWriter:
        return _NothingWriter()


class _NothingWriter(SinkWriter):
    def write(self, element: Any, context: Any) -> None:
        return

    def write_batch(self, batch: Any) -> None:
        return

    def prepare_commit(self) -> list[Any]:
        return []


class Workload:
    """Batches made when they are asked for."""

    def __init__(self, epochs: int, rows: int, keys: int | None) -> None:
        self._epochs, self._rows, self._keys = epochs, rows, keys
        self._random = random.Random(7)

    def __len__(self) -> int:
        return self._epochs

    def __getitem__(self, epoch: int) -> dict[str, list[tuple[str, int]]]:
        if not 0 <= epoch < self._epochs:
            raise IndexError(epoch)
        first = epoch * self._rows
        if self._keys is None:
            return {"events": [(f"key-{first + i}", i) for i in range(self._rows)]}
        return {"events": [(f"key-{self._random.randrange(self._keys)}", i) for i in range(self._rows)]}


class TimedEngine(LocalEngine):
    """Remembers how long each epoch took, checkpoint and all."""

    def __init__(self, workload: Workload) -> None:
        super().__init__([])
        self.inputs = workload  # type: ignore[assignment]

    def drive(self, driver: Any) -> Any:
        self.times: list[float] = []
        self.cpu_times: list[float] = []
        process = driver.process

        def timed(epoch_input: Any) -> None:
            started, cpu_started = time.perf_counter(), time.thread_time()
            process(epoch_input)
            self.cpu_times.append(1000 * (time.thread_time() - cpu_started))
            self.times.append(1000 * (time.perf_counter() - started))

        driver.process = timed
        return super().drive(driver)


def measure(
    epochs: int, rows: int, keys: int | None, kind: str, options: dict[str, Any], place: str | None
) -> dict[str, Any]:
    """Run one job and say how it went."""
    function = Collector() if kind == "list" else Counter()
    source = SourceNode(name="events", uid="events", element_type=EVENT, is_streaming=True)
    node = KeyedNode(
        inputs=(source,),
        name="count",
        uid="count",
        element_type=EVENT,
        operator=OperatorSpec(function, "process", True, EVENT, EVENT),
        key=KeySpec(columns=("k",)),
    )
    graph = StreamGraph([SinkNode(inputs=(node,), name="out", uid="out", element_type=EVENT, sink=Nothing())])
    observed: list[Compaction] = []
    begin = Compaction.__init__

    def observe(self: Compaction, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        observed.append(self)

    directory = tempfile.mkdtemp(prefix="holdfast-compaction-", dir=place)
    engine = TimedEngine(Workload(epochs, rows, keys))
    written: list[int] = []
    Compaction.__init__ = observe  # type: ignore[method-assign]
    try:
        master: JobMaster = run_job(graph, directory, engine, Configuration(options).to_dict(), parallelism=1)
        master.progress.listen(lambda progress: written.append(progress.state_bytes))
        flushed = _watch_flushes()
        master.run()
    finally:
        Compaction.__init__ = begin  # type: ignore[method-assign]
        shutil.rmtree(directory)
    times, statistics = np.array(engine.times), observed[0].statistics
    return {
        "workload": f"{kind}, {'new keys' if keys is None else f'{keys:,} keys'}, {rows} rows",
        "epochs": epochs,
        **_spread("", times),
        # What other programs on the machine do shows less in this.
        **_spread("cpu_", np.array(engine.cpu_times)),
        "max_ms": round(float(times.max()), 1),
        "deepest": statistics.deepest,
        "compactions": statistics.swapped,
        "dropped": statistics.dropped,
        "behind_runs": statistics.behind,
        "flushed_bytes": sum(flushed),
        "compacted_bytes": statistics.bytes_written,
        "write_amplification": round(1 + statistics.bytes_written / max(1, sum(flushed)), 2),
        "state_bytes": written[-1],
    }


def _spread(prefix: str, times: Any) -> dict[str, float]:
    median, late = np.median(times), np.percentile(times, 99)
    ratio = round(float(late / median), 2)
    return {f"{prefix}median_ms": round(median, 2), f"{prefix}p99_ms": round(late, 2), f"{prefix}p99_by_median": ratio}


def _watch_flushes() -> list[int]:
    """Collect the sizes of all runs that epochs write in this process."""
    from holdfast.state.hashmap.backend import HashMapKeyedStateBackend

    sizes: list[int] = []
    flush = getattr(HashMapKeyedStateBackend.flush, "watched", HashMapKeyedStateBackend.flush)

    def watched(self: HashMapKeyedStateBackend, *arguments: Any) -> Any:
        run = flush(self, *arguments)
        if run is not None:
            sizes.append(run.size)
        return run

    watched.watched = flush  # type: ignore[attr-defined]
    HashMapKeyedStateBackend.flush = watched  # type: ignore[method-assign]
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--keys", type=int, default=20_000, help="0 stands for keys that are all new")
    parser.add_argument("--kind", choices=["value", "list"], default="value")
    parser.add_argument("--executor", choices=["process", "thread"], default="process")
    parser.add_argument("--grace-period", help="'0 ms' deletes at once; the default is that of jobs")
    parser.add_argument("--off", action="store_true", help="without compaction")
    parser.add_argument("--directory", help="where checkpoints go; the default is the temporary directory")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    options = {
        "state.compaction.executor": arguments.executor,
        "state.compaction.enabled": str(not arguments.off).lower(),
        "restart-strategy.type": "none",
    }
    if arguments.grace_period is not None:
        options["execution.checkpointing.cleaner.grace-period"] = arguments.grace_period
    result = measure(
        arguments.epochs, arguments.rows, arguments.keys or None, arguments.kind, options, arguments.directory
    )
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
