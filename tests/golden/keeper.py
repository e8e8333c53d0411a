"""A job that keeps state of every kind and type, for the golden checkpoints.

`python -m tests.golden.keeper DIRECTORY [NAME ...]` writes archives, by name those of this job and of the jobs in
`evolved` and `keyed`, without names all of them. Only a new format version needs that for archives that there are: what
is here stays as it is. The archive of Spark's source positions is made by `tests.golden.spark_positions`.
"""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.runtime.job.progress import EpochProgress
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.descriptor import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.types.row import Row
from holdfast.types.types import Types
from tests.golden import evolved, keyed
from tests.stories.local import Program, epochs, master

NAME = "golden"
START = 1_000_000
BACKENDS = ("hashmap", "columnar")
WRITTEN: dict[str, dict[str, str]] = {
    "hashmap": {"state.backend.type": "hashmap"},
    "columnar": {"state.backend.type": "columnar"},
    "files": {"execution.checkpointing.data-inline-threshold": "0"},
}
"""The archives of this job, and the options with which each was written; the last has operator state in files."""
MERGED = "merged"
"""How the names of archives of the job in `evolved` end."""
NEWEST_MERGED = f"compressed-{MERGED}"
"""The newest of them: small merged runs are compressed."""
OTHERS: dict[str, Callable[[Path], None]] = {NEWEST_MERGED: evolved.write, "keys": keyed.write}
"""The archives of other jobs, and what runs these over a directory."""
VERSION = 1
BATCHES = [[("a", 1), ("b", 2)], [("a", 3), ("c", 4)], [("b", 5)]]
ASK = [[("a", 0), ("b", 0), ("c", 0)]]

VALUES: dict[str, tuple[Any, Any]] = {
    "string": (Types.STRING(), "tång \N{SPIRAL SHELL}"),
    "byte": (Types.BYTE(), -128),
    "boolean": (Types.BOOLEAN(), True),
    "short": (Types.SHORT(), 32767),
    "int": (Types.INT(), -(2**31)),
    "long": (Types.LONG(), 2**63 - 1),
    "float": (Types.FLOAT(), 0.5),
    "double": (Types.DOUBLE(), -0.1),
    "char": (Types.CHAR(3), "ab "),
    "big_int": (Types.BIG_INT(), 10**37),
    "big_dec": (Types.BIG_DEC(), Decimal("1.000000000000000001")),
    "decimal": (Types.DECIMAL(10, 2), Decimal("-12.50")),
    "binary": (Types.BINARY(), b"\x00\xff"),
    "date": (Types.SQL_DATE(), dt.date(1969, 12, 31)),
    "time": (Types.SQL_TIME(), dt.time(23, 59, 59, 999_999)),
    "timestamp": (Types.SQL_TIMESTAMP(), dt.datetime(1969, 7, 20, 20, 17, 40, 1)),
    "timestamp_ntz": (Types.TIMESTAMP_NTZ(), dt.datetime(2024, 2, 29, 12)),
    "duration": (Types.DURATION(), dt.timedelta(days=-1, microseconds=1)),
    "pickled": (Types.PICKLED_BYTE_ARRAY(), {"set": {1, 2}}),
    "row": (Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()]), Row(n=1, s=None)),
    "tuple": (Types.TUPLE([Types.LONG(), Types.STRING()]), (1, "one")),
    "array": (Types.PRIMITIVE_ARRAY(Types.INT()), [1, 2, 3]),
    "list": (Types.LIST(Types.STRING()), ["x", None]),
    "map": (Types.MAP(Types.STRING(), Types.LONG()), {"one": 1}),
}


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, a: Any, b: Any) -> Any:
        return (a[0] + b[0], a[1] + b[1])


class Keep(KeyedProcessFunction):
    """Keeps what comes; the number 0 asks for all that is kept."""

    def open(self, runtime_context: Any) -> None:
        self.typed = {
            name: runtime_context.get_state(ValueStateDescriptor(f"type-{name}", kind))
            for name, (kind, _) in VALUES.items()
        }
        self.listed = runtime_context.get_list_state(ListStateDescriptor("listed", "bigint"))
        self.mapped = runtime_context.get_map_state(MapStateDescriptor("mapped", "string", "bigint"))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, "bigint"))
        accumulator = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), accumulator))
        expiring = ValueStateDescriptor("expiring", "bigint")
        expiring.enable_time_to_live(StateTtlConfig.new_builder(dt.timedelta(days=36_500)).build())
        self.expiring = runtime_context.get_state(expiring)
        self.fired = runtime_context.get_state(ValueStateDescriptor("fired", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = value.n
        if n == 0:
            typed = {name: state.value() for name, state in self.typed.items()}
            mapped = sorted(self.mapped.items())
            yield repr((value.key, list(self.listed.get()), mapped, self.sum.get(), self.mean.get()))
            yield repr((value.key, self.expiring.value(), self.fired.value(), _plain(typed)))
            return
        for name, state in self.typed.items():
            state.update(VALUES[name][1])
        self.listed.add(n)
        self.mapped.put(f"m{n % 2}", n)
        self.sum.add(n)
        self.mean.add(n)
        self.expiring.update(n)
        if n == 4:
            self.mapped.clear()
        ctx.timer_service().register_processing_time_timer(START + 1_000_000 + n)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.fired.update((self.fired.value() or 0) + timestamp - START - 1_000_000)
        yield from ()


class Collect(RichMapFunction, CheckpointedFunction):
    """Operator state of each mode; 0 asks for it."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", "bigint"))
        self.union = store.get_union_list_state(ListStateDescriptor("union", "string"))
        self.shared = store.get_broadcast_state(MapStateDescriptor("shared", "string", "bigint"))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        if value.n == 0:
            kept = (sorted(self.split.get()), sorted(self.union.get()), sorted(self.shared.items()))
            return repr(("operator", *kept))
        self.split.add(value.n)
        self.union.add(value.key)
        self.shared.put("last", 7)
        return ""


def _plain(typed: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, Row) else value for name, value in typed.items()}


def program(told: list[str]) -> Program:
    built = Program()
    rows = built.source("in", "key string, n bigint")
    kept = rows.key_by("key").process(Keep(), output_type="string").uid("keep")
    kept.for_each_epoch(lambda frame, _: told.extend(row["value"] for row in frame.to_pylist())).uid("told")
    collected = rows.map(Collect(), output_type="string").uid("collect")
    collected.for_each_epoch(lambda frame, _: told.extend(row["value"] for row in frame.to_pylist())).uid("collected")
    return built


def job_over(
    root: Path, batches: Sequence[Any], now: int, told: list[str], parallelism: int = 2, **options: Any
) -> JobMaster:
    """The job over a directory, ready to run; compaction is off, so that what is written does not depend on time."""
    return master(
        program(told),
        root,
        epochs("in", batches),
        {"state.compaction.enabled": "false"} | options,
        name=NAME,
        clock=ManualClock(now),
        parallelism=parallelism,
    )


def run(root: Path, options: dict[str, str]) -> None:
    """Runs the job over a directory, and takes a savepoint of all but its last epoch."""
    job = job_over(root, BATCHES, START, [], **options)
    wanted = SnapshotRequest(is_savepoint=True, directory=str(root / "savepoints"))

    def ask(record: EpochProgress) -> None:
        if record.epoch == len(BATCHES) - 1:
            job.control.request(wanted)

    job.progress.listen(ask)
    job.run()


def write(archive_name: str, target: Path) -> None:
    """Writes one golden archive."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "checkpoints"
        if archive_name in WRITTEN:
            run(root, WRITTEN[archive_name])
        else:
            OTHERS[archive_name](root)
        pack(root, target)


def pack(root: Path, target: Path) -> None:
    """Makes an archive of all files in a directory."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                info = zipfile.ZipInfo(str(path.relative_to(root)), (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())


if __name__ == "__main__":
    for name in sys.argv[2:] or (*WRITTEN, *OTHERS):
        write(name, Path(sys.argv[1]) / f"format-{VERSION}-{name}.zip")
