"""What timers cost an epoch: no Spark, one subtask with 128 key groups, syncs included.

Usage: python benchmarks/timers.py [--timers 10 2000000 10000000] [--due N] [--json]

For each state backend and number of timers, event time and processing time half each, lying in eight runs:

- `warm_ms`: median of epochs in which 100 keys change a value and nothing is due, from opening the state to the run on
  the disk, in a process that knows the runs;
- `listed_ms`: the same, and each of the 100 keys lists its timers;
- `registered`: timers set a second; `fired`: event-time timers fired a second, with their keys' values changed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from holdfast.kernel.configuration import Configuration
from holdfast.state import ValueStateDescriptor, load_state_backend
from holdfast.state.backend import StateBackend
from holdfast.testing.state_contract.state_epochs import StateEpochs, StateTask

RUNS = 8
CHANGED = 100
ROUNDS = 20
FAR = 1_000_000_000
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
                for number in range(run, timers, RUNS):
                    task.backend.set_current_key(number // 2)
                    register(task, number)
                spent += time.perf_counter() - begun
        self.registered = timers / spent

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
        return {
            "backend": name,
            "timers": timers,
            "warm_ms": job.warm(change),
            "listed_ms": job.warm(change_and_list),
            "registered": round(job.registered),
            "fired": job.fire(2 * due),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, nargs="+", default=[10, 2_000_000, 10_000_000])
    parser.add_argument("--due", type=int, default=100_000, help="timers that fire")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for name in ("hashmap", "columnar"):
        for timers in arguments.timers:
            row = measure(name, timers, arguments.due)
            print(json.dumps(row) if arguments.json else row, flush=True)


if __name__ == "__main__":
    main()
