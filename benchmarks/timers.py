"""What timers cost an epoch: no Spark, one subtask with 128 key groups, syncs included.

Usage: python benchmarks/timers.py [--timers 10 2000000 10000000] [--due N] [--panes 1000000] [--json]

For each state backend and number of timers, event time and processing time half each, lying in eight runs:

- `warm_ms`: median of epochs in which 100 keys change a value and nothing is due, from opening the state to the run on
  the disk, in a process that knows the runs;
- `listed_ms`: the same, and each of the 100 keys lists its timers;
- `registered`: timers set a second, each after its key was made the current one; `fired`: event-time timers fired a
  second, with their keys' values changed;
- `registered_as_arrays`, `fired_as_arrays`: timers a second of a batch of keys that is prepared already, and taken with
  the state of their keys loaded; their values are not changed.
- `by_element`, `by_batch`: event-time timers fired a second through operators of a stream with timestamps, `on_timer`
  of a generator and `on_timers` of a `BatchFunction`, which emit a row for each; where there are timers enough.

With `--panes`: epochs of an operator of windows by columns with so many open panes, each with its timer: `set_s` in
which all are new, `quiet_ms` (median) in which 100 get a row and none is due, `fire_s` in which a window of each ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.datastream.functions import BatchContext, BatchFunction, KeyedProcessFunction, RuntimeContext
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.operator import OperatorInstance, SubtaskInfo
from holdfast.runtime.operator.batch_function import BatchSubtask
from holdfast.runtime.task.worker_process import paused_garbage_collection
from holdfast.runtime.window_operator.batch_aggregate import CountAggregate, SumAggregate
from holdfast.runtime.window_operator.pane_operator import PaneOperator, Panes, PaneSubtask
from holdfast.runtime.window_operator.window_subtask import subtask_class
from holdfast.state import ValueStateDescriptor, load_state_backend
from holdfast.state.backend import StateBackend
from holdfast.testing.epoch_runner import EpochProgram
from holdfast.testing.state_contract.state_access_contract import StateEpochs, StateTask
from holdfast.types.arrow import timestamp_column
from holdfast.types.key_codec import LazyKeys, keys_of_columns
from holdfast.types.type_parser import parse_schema, parse_type

RUNS = 8
BY_ELEMENT = 400_000
"""Timers that are set one by one; what is more is set as arrays."""
CHANGED = 100
ROUNDS = 20
ROUNDS_OF_PANES = 5
FAR = 1_000_000_000
MINUTE = 60_000
BATCH = 100_000
ROW = parse_schema("key bigint, value bigint")
COUNT = ValueStateDescriptor("count", "bigint", 0)


class Jobs:
    def __init__(self, backend: StateBackend, root: str, timers: int) -> None:
        self.epochs = StateEpochs(backend, root, key_type="bigint", max_parallelism=128)
        self.registered = 0.0
        self.timers = timers
        spent = 0.0
        for run in range(RUNS):
            with self.epochs.epoch() as task:
                begun = time.perf_counter()
                for number in range(run, min(timers, BY_ELEMENT), RUNS):
                    task.backend.set_current_key(number // 2)
                    register(task, number)
                spent += time.perf_counter() - begun
                self.register_rest(task, np.arange(BY_ELEMENT + run, timers, RUNS))
        self.registered = min(timers, BY_ELEMENT) / spent

    def register_rest(self, task: StateTask, numbers: Any) -> None:
        domains = task.backend.timers.register_event_time_timers, task.backend.timers.register_processing_time_timers
        for odd, set_timers in enumerate(domains):
            mine = numbers[numbers % 2 == odd]
            stored, hashes = keys_of_columns(self.epochs.codec, [pa.array(mine // 2)])
            set_timers(np.asarray(task.backend.prepare(LazyKeys(self.epochs.codec, stored), hashes)), FAR + mine)

    def epoch(self, work: Callable[[StateTask], None]) -> float:
        begun = time.perf_counter()
        with self.epochs.epoch() as task:
            work(task)
            task.backend.timers.advance_watermark(FAR - 1, fail)
            task.backend.timers.fire_processing(FAR - 1, fail)
        return (time.perf_counter() - begun) * 1000

    def warm(self, work: Callable[[StateTask], None]) -> float:
        return round(statistics.median([self.epoch(work) for _ in range(ROUNDS)]), 2)

    def fire(self, due: int) -> float:
        fired = 0

        def count(time: int) -> None:
            nonlocal fired
            fired += 1
            state.update(state.value() + 1)

        with self.epochs.epoch() as task:
            state = task.backend.get_partitioned_state(None, None, COUNT)
            begun = time.perf_counter()
            task.backend.timers.advance_watermark(FAR + due, count)
            spent = time.perf_counter() - begun
        return round(fired / spent)

    def fire_through(self, spec: OperatorSpec, through: int) -> float:
        info = SubtaskInfo("reminders", max_parallelism=128)
        with self.epochs.epoch() as task:
            opened = OperatorInstance(spec, info, self.epochs.new_backend())
            subtask = subtask_class(spec, has_timestamps=True)(opened, info, task.backend)
            begun = time.perf_counter()
            if isinstance(subtask, BatchSubtask):
                emitted, timestamps = subtask.close(FAR + through, 0)
                fired = emitted.num_rows
            else:
                fired = len(subtask.advance_watermark(FAR + through))
                timestamps = subtask.take_timestamps()
            spent = time.perf_counter() - begun
            assert len(timestamps) == fired
        return round(fired / spent)

    def as_arrays(self, due: int) -> dict[str, int]:
        keys = list(range(due))
        with self.epochs.epoch() as task:
            slots = np.array(task.prepare(keys))
            begun = time.perf_counter()
            task.backend.timers.register_event_time_timers(slots, 2 * FAR + slots)
            registered = due / (time.perf_counter() - begun)
        with self.epochs.epoch() as task:
            begun = time.perf_counter()
            taken = len(task.backend.timers.take_due_event_time(2 * FAR + due).times)
            return {
                "registered_as_arrays": round(registered),
                "fired_as_arrays": round(taken / (time.perf_counter() - begun)),
            }


class PaneJob:
    def __init__(self, backend: StateBackend, root: str) -> None:
        panes = Panes(2 * MINUTE, MINUTE, 0)
        aggregates = {"n": CountAggregate(), "total": SumAggregate("value")}
        keys = {"key": parse_type("bigint")}
        operator = PaneOperator(panes, aggregates, ROW, keys, is_event_time=True)
        self.epochs = StateEpochs(backend, root, key_type="bigint", max_parallelism=128)
        spec = OperatorSpec(operator, "panes", True, ROW, operator.output_type)
        self.opened = OperatorInstance(spec, SubtaskInfo("panes"), self.epochs.new_backend())
        self.watermark = self.results = 0

    def epoch(self, rows: int, at: int, watermark: int) -> float:
        """Run an epoch with one row for each of so many keys, and return its seconds."""
        begun = time.perf_counter()
        with self.epochs.epoch() as task, paused_garbage_collection():
            subtask = PaneSubtask(self.opened, SubtaskInfo("panes", watermark=self.watermark), task.backend)
            for first in range(0, rows, BATCH):
                numbers = pa.array(range(first, min(first + BATCH, rows)))
                batch = pa.record_batch([numbers, numbers], schema=ROW.arrow_schema)
                stored, hashes = keys_of_columns(self.epochs.codec, [numbers])
                keys = LazyKeys(self.epochs.codec, stored)
                subtask.process_rows(batch, keys, hashes, timestamp_column([at] * len(numbers)))
            results, _ = subtask.close(watermark, 0)
        self.watermark, self.results = watermark, len(results)
        return time.perf_counter() - begun


def measure_panes(name: str, count: int) -> dict[str, Any]:
    backend = load_state_backend(Configuration({"state.backend.type": name}))
    with tempfile.TemporaryDirectory() as root:
        job = PaneJob(backend, root)
        set_ = job.epoch(count, 10 * MINUTE + 1, 10 * MINUTE)
        quiet = statistics.median(
            [job.epoch(CHANGED, 10 * MINUTE + 1, 10 * MINUTE + 1) for _ in range(ROUNDS_OF_PANES)]
        )
        assert job.results == 0
        fire = job.epoch(0, 0, 11 * MINUTE)
        assert job.results == count
        return {
            "backend": name,
            "panes": count,
            "set_s": round(set_, 2),
            "quiet_ms": round(quiet * 1000, 2),
            "fire_s": round(fire, 2),
        }


class Reminder(KeyedProcessFunction):
    """Counts the timers of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        raise AssertionError("nothing comes")

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[int, int]]:
        count = self._count.value() + 1
        self._count.update(count)
        yield ctx.get_current_key(), count


class BatchReminder(BatchFunction):
    """The same."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(COUNT)

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> None:
        raise AssertionError("nothing comes")

    def on_timers(self, batch: pa.RecordBatch, ctx: BatchContext) -> pa.RecordBatch:
        state = ctx.columns(self._count)
        counts = pc.add(state.get().fill_null(0), 1)
        state.put(None, counts)
        ctx.keep_timestamps()
        return batch.append_column("count", counts)


def specs() -> dict[str, OperatorSpec]:
    keyed = EpochProgram().source("reminders", "key bigint").key_by("key")
    streams = {
        "by_element": keyed.process(Reminder(), "key bigint, count bigint"),
        "by_batch": keyed.process_batches(BatchReminder(), "key bigint, count bigint"),
    }
    return {name: stream._node.operator for name, stream in streams.items()}


def register(task: StateTask, number: int) -> None:
    timers = task.backend.timers
    if number % 2:
        timers.register_processing_time_timer(FAR + number)
    else:
        timers.register_event_time_timer(FAR + number)


def fail(time: int) -> None:
    raise AssertionError(f"nothing is due, and {time} fired")


def change(task: StateTask) -> None:
    state = task.backend.get_partitioned_state(None, None, COUNT)
    for key in range(CHANGED):
        task.backend.set_current_key(key)
        state.update(state.value() + 1)


def change_and_list(task: StateTask) -> None:
    change(task)
    for key in range(CHANGED):
        task.backend.set_current_key(key)
        task.backend.timers.event_time_timers()


def measure(name: str, timers: int, due: int) -> dict[str, Any]:
    backend = load_state_backend(Configuration({"state.backend.type": name}))
    with tempfile.TemporaryDirectory() as root:
        job = Jobs(backend, root, timers)
        job.epoch(change)
        measured = {
            "backend": name,
            "timers": timers,
            "warm_ms": job.warm(change),
            "listed_ms": job.warm(change_and_list),
            "registered": round(job.registered),
            "fired": job.fire(2 * due),
        }
        for number, (through, spec) in enumerate(specs().items(), start=2):
            if timers >= 2 * number * due:
                measured[through] = job.fire_through(spec, 2 * number * due)
        return measured | job.as_arrays(due)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["hashmap", "columnar"])
    parser.add_argument("--timers", type=int, nargs="+", default=[10, 2_000_000, 10_000_000])
    parser.add_argument("--due", type=int, default=100_000, help="timers that fire")
    parser.add_argument("--panes", type=int, nargs="*", default=[], help="open panes, in place of timers")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.backends:
        of_panes = (measure_panes(name, count) for count in arguments.panes)
        of_timers = (measure(name, timers, arguments.due) for timers in arguments.timers)
        for row in of_panes if arguments.panes else of_timers:
            print(json.dumps(row) if arguments.json else row, flush=True)


if __name__ == "__main__":
    main()
