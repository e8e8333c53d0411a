"""What the size of the state costs a worker: rows a second, memory, bytes written, resuming, with few and many keys.

    python benchmarks/large_state_worker.py [--keys 100000,1000000,10000000] [--backends hashmap,columnar]
        [--forms rows,batches] [--rows 200000] [--epochs 6] [--cold] [--directory DIR] [--json]

No JVM: each measurement is one process that does what a Python worker with one of `--subtasks` subtasks does, batch by
batch, on a checkpoint that was written before: open the version, look the keys up, count, flush a run. The key of each
row is drawn uniformly. With `--cold` the worker forgets everything between epochs, as if Spark had moved the subtask
each time. Runs are merged by a process beside it, as in a job, and its time does not count. Rates are rows in a second
of the worker's processor time: on a machine that does other things, too, wall times say little. Ratios are to the first
number of keys.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from holdfast.kernel.configuration import Configuration  # noqa: E402
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of, range_of  # noqa: E402
from holdfast.runtime.compaction import create_compaction_executor  # noqa: E402
from holdfast.runtime.function.user_function import KeyedProcessFunction  # noqa: E402
from holdfast.runtime.graph.stream_graph import OperatorSpec  # noqa: E402
from holdfast.runtime.operator import SubtaskInfo  # noqa: E402
from holdfast.runtime.operator.operator_instance import OperatorInstance  # noqa: E402
from holdfast.runtime.operator.reduction import CountReduction  # noqa: E402
from holdfast.runtime.task.worker_process import paused_garbage_collection  # noqa: E402
from holdfast.runtime.window_operator.window_subtask import subtask_class  # noqa: E402
from holdfast.state import load_state_backend  # noqa: E402
from holdfast.state.compaction_plan import (  # noqa: E402
    CompactionOutput,
    CompactionPlan,
    apply_compaction,
    choose_merge,
    layers,
    output_ranges,
)
from holdfast.state.descriptor import ValueStateDescriptor  # noqa: E402
from holdfast.state.environment import Environment  # noqa: E402
from holdfast.state.layout import OP, VALUE, StateLayout  # noqa: E402
from holdfast.state.probe import KEY  # noqa: E402
from holdfast.state.run_file import (  # noqa: E402
    HASH,
    RunHandle,
    RunMeta,
    SegmentData,
    forget_runs,
    write_run,
)
from holdfast.state.version import STATE_CACHE, StateVersion  # noqa: E402
from holdfast.storage.local import LocalFileSystem  # noqa: E402
from holdfast.types.arrow import batch_to_elements, elements_to_batch  # noqa: E402
from holdfast.types.key_codec import key_codec_for, lazy_keys  # noqa: E402
from holdfast.types.type_parser import parse_schema, parse_type  # noqa: E402

MAX_PARALLELISM = 128
BATCH = 10_000
JOB = "0" * 32
EVENT = parse_schema("key string, value bigint")
COUNTED = parse_schema("key string, value bigint, count bigint")
COUNT = ValueStateDescriptor("count", parse_type("bigint"))
CODEC = key_codec_for(parse_type("string"))
PIECE = 1_000_000


class Counter(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value[0], value[1], count


def names_of(numbers: Any) -> list[str]:
    return [f"key-{number:08d}" for number in numbers]


def write_state(directory: str, keys: int, own: KeyGroupRange) -> list[RunHandle]:
    """Write a version in which each key of a subtask has been counted once, as compaction would leave it."""
    names, hashes = [], []
    for start in range(0, keys, PIECE):
        part = names_of(range(start, min(keys, start + PIECE)))
        part_hashes = CODEC.hashes(part)
        groups = key_groups_of(part_hashes, MAX_PARALLELISM)
        mine = np.flatnonzero((groups >= own.start) & (groups <= own.end))
        names.append(pa.array(part).take(pa.array(mine)))
        hashes.append(part_hashes[mine])
    key, hash64 = pa.concat_arrays(names), np.concatenate(hashes)
    order = np.argsort(hash64)
    bounds = np.searchsorted(key_groups_of(hash64[order], MAX_PARALLELISM), np.arange(own.start, own.end + 2))
    layout = StateLayout.of(COUNT, CODEC)
    pieces = max(1, min(own.size, len(key) // PIECE))
    runs = []
    for piece in range(pieces):
        first, after = (own.start + own.size * at // pieces for at in (piece, piece + 1))
        rows = order[bounds[first - own.start] : bounds[after - own.start]]
        columns = {
            HASH: pa.array(hash64[rows]),
            KEY: key.take(pa.array(rows)),
            VALUE: pa.array(np.ones(len(rows), np.int64)),
            OP: pa.array(np.zeros(len(rows), np.int8)),
        }
        meta = RunMeta(KeyGroupRange(first, after - 1), MAX_PARALLELISM, 1, 1, CODEC.to_json())
        segments = {COUNT.name: SegmentData(pa.table(columns), layout.schema)}
        runs.append(write_run(LocalFileSystem(), directory, f"shared/base-{piece}.run", segments, meta))
    return runs


def anonymous_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return float("nan")


class Epoch(NamedTuple):
    """What an epoch took, in seconds and bytes."""

    seconds: float
    processor: float
    rows: int
    written: int
    changed: int


class Worker:
    """A Python worker with one subtask."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._files = LocalFileSystem()
        self._own = range_of(0, MAX_PARALLELISM, options["subtasks"])
        self._version = StateVersion(tuple(RunHandle.from_json(run) for run in options["runs"]))
        self._configuration = Configuration({"state.backend.type": options["backend"]})
        self._state_backend = load_state_backend(self._configuration)
        shape: Any = "process" if options["form"] == "rows" else "batches"
        function = Counter() if options["form"] == "rows" else CountReduction(name="count")
        self._spec = OperatorSpec(function, shape, True, EVENT, COUNTED)
        self._info = SubtaskInfo("count", max_parallelism=MAX_PARALLELISM, parallelism=options["subtasks"])
        self._opened = OperatorInstance(self._spec, self._info, self._backend())
        self._random = np.random.default_rng(7)
        self._epoch = 1
        self._merges = 0
        self._merging = create_compaction_executor("process")
        self._anonymous = 0.0

    def _backend(self) -> Any:
        environment = Environment(JOB, "count", 0, self._options["subtasks"], MAX_PARALLELISM, self._configuration, 0)
        return self._state_backend.create_keyed_state_backend(
            environment, JOB, "count", CODEC, MAX_PARALLELISM, self._own, None
        )

    def batches(self) -> list[tuple[pa.RecordBatch, Any]]:
        """The rows of an epoch that belong to the subtask."""
        found = []
        wanted = self._options["rows"] // self._options["subtasks"]
        while wanted > 0:
            names = names_of(self._random.integers(0, self._options["keys"], BATCH * self._options["subtasks"]))
            hashes = CODEC.hashes(names)
            groups = key_groups_of(hashes, MAX_PARALLELISM)
            mine = np.flatnonzero((groups >= self._own.start) & (groups <= self._own.end))[:wanted]
            keys = pa.array(names).take(pa.array(mine))
            found.append(
                (
                    pa.record_batch(
                        [keys, pa.array(mine)], schema=pa.schema([("key", pa.string()), ("value", pa.int64())])
                    ),
                    hashes[mine],
                )
            )
            wanted -= len(mine)
        return found

    def epoch(self) -> Epoch:
        """Run an epoch."""
        batches = self.batches()
        if self._options["cold"]:
            STATE_CACHE.clear()
            forget_runs()
        self._epoch += 1
        started, worked = time.perf_counter(), time.process_time()
        with paused_garbage_collection():
            backend = self._backend()
            backend.open_version(self._version, self._files, self._options["directory"])
            subtask: Any = subtask_class(self._spec, has_timestamps=False)(self._opened, self._info, backend)
            for batch, hashes in batches:
                keys = lazy_keys(CODEC, [batch.column(0)])
                if self._options["form"] == "rows":
                    elements_to_batch(subtask.process(batch_to_elements(batch, EVENT), keys, hashes), COUNTED)
                else:
                    subtask.process_batch(batch, keys, hashes)
            run = backend.flush(lambda: f"shared/{self._epoch:06d}.run", 1, self._epoch)
            backend.commit_cache()
        seconds, processor = time.perf_counter() - started, time.process_time() - worked
        self._anonymous = max(self._anonymous, anonymous_megabytes())
        self._version = self._version.plus(run)
        self._compact()
        return Epoch(seconds, processor, sum(batch.num_rows for batch, _ in batches), run.size, run.rows[COUNT.name])

    def _compact(self) -> None:
        """Merge what is due, as the process beside the driver would; its time is not that of the worker."""
        found = layers(self._version.runs)
        window = choose_merge(found, 8)
        if window is None:
            return
        chosen, is_oldest = found[window.start : window.end], window.start == 0
        self._merges += 1
        outputs = [
            CompactionOutput(f"shared/0-{self._merges}-{at}.run", part)
            for at, part in enumerate(output_ranges(chosen, is_oldest, [self._own]))
        ]
        inputs = tuple(run for layer in chosen for run in layer.runs)
        plan = CompactionPlan(self._options["directory"], inputs, tuple(outputs), is_oldest, 0, 1)
        written = self._merging.submit(plan).result()
        swapped = apply_compaction(self._version, inputs, written)
        assert swapped is not None
        self._version = swapped

    def measure(self) -> dict[str, Any]:
        resumed = self.epoch()
        epochs = [self.epoch() for _ in range(self._options["epochs"])]
        self._merging.close()
        # Hash, offset and bytes of the key, value, operation of each entry.
        encoded = sum(epoch.changed for epoch in epochs) * (8 + 4 + len("key-00000000") + 8 + 1)
        return {
            "first_epoch_seconds": round(resumed.processor, 3),
            "epoch_seconds": round(statistics.median(epoch.processor for epoch in epochs), 3),
            "epoch_wall_seconds": round(statistics.median(epoch.seconds for epoch in epochs), 3),
            "rows_per_second": round(statistics.median(epoch.rows / epoch.processor for epoch in epochs)),
            "written_by_encoded": round(sum(epoch.written for epoch in epochs) / encoded, 2),
            "anonymous_megabytes": round(self._anonymous, 1),
        }


def measured(options: dict[str, Any]) -> dict[str, Any]:
    """Measure in a process of its own, which knows nothing."""
    command = [sys.executable, __file__, "--worker", json.dumps(options)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(found)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", default="100000,1000000,10000000", help="numbers of keys (default: %(default)s)")
    parser.add_argument("--backends", default="hashmap,columnar")
    parser.add_argument("--forms", default="rows,batches")
    parser.add_argument("--rows", type=int, default=200_000, help="rows an epoch of all subtasks")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--subtasks", type=int, default=2)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--directory", help="where the state is written; the default is the temporary directory")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        print(json.dumps(Worker(json.loads(chosen.worker)).measure()))
        return
    own = range_of(0, MAX_PARALLELISM, chosen.subtasks)
    rates: dict[tuple[str, str], dict[str, Any]] = {}
    for keys in map(int, chosen.keys.split(",")):
        directory = tempfile.mkdtemp(prefix="holdfast-large-state-", dir=chosen.directory)
        try:
            runs = [run.to_json() for run in write_state(directory, keys, own)]
            for backend in chosen.backends.split(","):
                for form in chosen.forms.split(","):
                    options = {
                        "backend": backend,
                        "form": form,
                        "keys": keys,
                        "runs": runs,
                        "directory": directory,
                        "rows": chosen.rows,
                        "epochs": chosen.epochs,
                        "subtasks": chosen.subtasks,
                        "cold": chosen.cold,
                    }
                    shown = {"backend": backend, "form": form, "keys": keys, "cold": chosen.cold, **measured(options)}
                    few = rates.setdefault((backend, form), shown)
                    shown["rate_by_few"] = round(shown["rows_per_second"] / few["rows_per_second"], 2)
                    shown["resume_by_few"] = round(shown["first_epoch_seconds"] / few["first_epoch_seconds"], 2)
                    _show(shown, chosen.json)
                    for path in Path(directory, "shared").glob("0*.run"):
                        path.unlink()
        finally:
            shutil.rmtree(directory)


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result), flush=True)
    else:
        print("  ".join(f"{name}={value}" for name, value in result.items()), flush=True)


if __name__ == "__main__":
    main()
