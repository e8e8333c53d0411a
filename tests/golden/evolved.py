"""The job of the golden archive `merged`: started three times, and its state declared otherwise since the second one.

Its classes are in files that are read for ever: what has another name or another form is another class, beside these.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast.common import Duration, TimestampAssigner, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.functions import CheckpointedFunction, RichMapFunction
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.key_group import key_group_of
from holdfast.runtime import compaction as compaction
from holdfast.runtime.compaction import ThreadCompactionExecutor
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.runtime.job.progress import EpochProgress
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.descriptor import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.types.avro import avro_type
from holdfast.types.key_codec import key_codec_for
from holdfast.types.serializer import TypeSerializer, TypeSerializerSchemaCompatibility, TypeSerializerSnapshot
from holdfast.types.type_parser import to_type
from tests.stories.local import Program, epochs, master

NAME = "golden"
ROW = "key string, n bigint, at bigint"
GROUPS = 8
SECOND_START = 2_000_000
"""Processing time from which one state has a time to live."""
KEYS = [f"k{number:02}" for number in range(24)]
STARTS = (6, 10, 13)
"""How many epochs there are after each start."""
MAX_RUNS = (3, 6, 6)
"""What merges all epochs of the first start into one run, and those of the others into others."""
BATCHES = [[(KEYS[(4 * e + i) % 24], 10 * e + i + 1, 100 * e + i) for i in range(4)] for e in range(STARTS[-1])]
OPTIONS = {"state.compaction.executor": "thread", "pipeline.max-parallelism": str(GROUPS)}
BIG = 2**40
LONG_AFTER = 1_000_000

Element = tuple[str, int, int]


@dataclasses.dataclass
class Bare:
    """The total of a key, as the first program has it."""

    n: int


Bare.__qualname__ = "Total"


@dataclasses.dataclass
class Total:
    """The same as later programs have it."""

    n: int
    first: int | None = None
    unit: str = "piece"


WEIGHT = avro_type({"type": "record", "name": "Weight", "fields": [{"name": "n", "type": "int"}]})
FIELDS = [
    {"name": "count", "type": "long", "aliases": ["n"]},
    {"name": "unit", "type": "string", "default": "kg"},
]
NEWER_WEIGHT = avro_type({"type": "record", "name": "Weight", "fields": FIELDS})


class CentSerializer(TypeSerializer[Decimal]):
    """Amounts of money in cents."""

    def serialize(self, value: Decimal) -> bytes:
        return int(value * 100).to_bytes(8, "big")

    def deserialize(self, data: bytes) -> Decimal:
        return Decimal(int.from_bytes(data, "big")) / 100

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Decimal]:
        return CentSnapshot()


class CentSnapshot(TypeSerializerSnapshot[Decimal]):
    """There is only one kind of cents."""

    def get_current_version(self) -> int:
        return 1

    def write_snapshot(self) -> Any:
        return {"per": 100}

    def read_snapshot(self, read_version: int, content: Any) -> None:
        assert (read_version, content) == (1, {"per": 100})

    def restore_serializer(self) -> CentSerializer:
        return CentSerializer()

    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[Decimal]
    ) -> TypeSerializerSchemaCompatibility[Decimal]:
        return TypeSerializerSchemaCompatibility.compatible_as_is()


class Keep(KeyedProcessFunction):
    """Keeps what comes, in the forms of the first or of the later programs; a negative number asks for what is kept."""

    def __init__(self, is_first: bool) -> None:
        self.is_first = is_first

    def open(self, runtime_context: Any) -> None:
        number = "int" if self.is_first else "bigint"
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Bare if self.is_first else Total))
        self.weight = runtime_context.get_state(
            ValueStateDescriptor("weight", WEIGHT if self.is_first else NEWER_WEIGHT)
        )
        self.cents = runtime_context.get_state(ValueStateDescriptor("cents", CentSerializer()))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", number))
        self.latest = runtime_context.get_map_state(MapStateDescriptor("latest", "string", number))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, number))
        seen = ValueStateDescriptor[int]("seen", "bigint")
        if not self.is_first:
            seen.enable_time_to_live(StateTtlConfig.new_builder(dt.timedelta(days=36_500)).build())
        self.seen = runtime_context.get_state(seen)
        self.fired = runtime_context.get_list_state(ListStateDescriptor("fired", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = value.n
        if n < 0:
            total = None if self.total.value() is None else dataclasses.astuple(self.total.value())
            yield repr((value.key, total, self.weight.value(), self.cents.value(), list(self.all.get())))
            yield repr((value.key, sorted(self.latest.items()), self.sum.get(), self.seen.value()))
            yield repr((value.key, sorted(self.fired.get())))
            return
        total = self.total.value() or (Bare(0) if self.is_first else Total(0, n, "new"))
        total.n += n
        self.total.update(total)
        self.weight.update({"n": n} if self.is_first else {"count": n + BIG, "unit": "g"})
        self.cents.update(Decimal(n) / 4)
        self.all.add(n)
        self.latest.put(f"m{n % 2}", n)
        if n % 5 == 0:
            self.latest.remove("m1")
        self.sum.add(n)
        self.seen.update(n)
        service = ctx.timer_service()
        service.register_event_time_timer(value.at + 50)
        service.register_event_time_timer(value.at + LONG_AFTER)
        service.register_event_time_timer(value.at + LONG_AFTER + 1)
        service.delete_event_time_timer(value.at + LONG_AFTER + 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.fired.add(timestamp)
        yield from ()


class Count(RichMapFunction, CheckpointedFunction):
    """Counts keys in raw keyed state, and all elements of the subtask in raw operator state."""

    def initialize_state(self, context: Any) -> None:
        self.codec = key_codec_for(to_type("string"))
        self.groups: dict[int, Counter[str]] = {}
        for part in context.get_raw_keyed_state_inputs():
            with part.get_stream() as stream:
                self.groups[part.get_key_group_id()] = Counter(json.loads(stream.read()))
        self.count = sum(int(part.get_stream().read()) for part in context.get_raw_operator_state_inputs())

    def snapshot_state(self, context: Any) -> None:
        output = context.get_raw_keyed_operator_state_output()
        for group, counts in sorted(self.groups.items()):
            output.start_new_key_group(group)
            output.write(json.dumps(counts, sort_keys=True).encode())
        whole = context.get_raw_operator_state_output()
        for part in (self.count // 2, self.count - self.count // 2):
            whole.start_new_partition()
            whole.write(b"%d" % part)

    def map(self, value: Any) -> str:
        counts = self.groups.setdefault(key_group_of(self.codec.hash(value.key), GROUPS), Counter())
        if value.n < 0:
            return repr(("counted", value.key, counts[value.key], self.count))
        counts[value.key] += 1
        self.count += 1
        return ""


class Share(RichMapFunction, CheckpointedFunction):
    """Lists and a map of subtasks; later programs ask for the lists on the first subtask only, or on all if told so."""

    def __init__(self, is_first: bool, asks_everywhere: bool) -> None:
        self.is_first = is_first
        self.asks_everywhere = is_first or asks_everywhere

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def initialize_state(self, context: Any) -> None:
        number = "int" if self.is_first else "bigint"
        subtask = self.runtime_context.get_index_of_this_subtask()
        store = context.get_operator_state_store()
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", "string", number))
        self.asks = self.asks_everywhere or subtask == 0
        if self.asks:
            self.split = store.get_list_state(ListStateDescriptor("split", number))
            self.union = store.get_union_list_state(ListStateDescriptor("union", number))

    def snapshot_state(self, context: Any) -> None:
        subtask = self.runtime_context.get_index_of_this_subtask()
        if self.is_first:
            self.split.update([10 * subtask, 10 * subtask + 1])
            self.union.update([subtask])
            self.rules.put("first", 1)
        elif not self.asks_everywhere:
            self.rules.put("later", BIG)
            if subtask == 0:
                self.split.update([0, 1, BIG])
                self.union.update([BIG])

    def map(self, value: Any) -> str:
        if value.n >= 0:
            return ""
        return repr(("shared", sorted(self.split.get()), sorted(self.union.get()), sorted(self.rules.items())))


class At(TimestampAssigner):
    """The time of an element is in a column."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value.at)


def program(told: list[str], *, is_first: bool = False, asks_everywhere: bool = True) -> Program:
    """The job as it was at first, or later; what it emits is added to `told`."""
    built = Program()
    in_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0)).with_timestamp_assigner(At())
    rows = built.source("in", ROW)
    timed = rows.assign_timestamps_and_watermarks(in_time).key_by("key")
    made = {
        "keep": timed.process(Keep(is_first), output_type="string"),
        "count": rows.key_by("key").map(Count(), output_type="string"),
        "share": rows.map(Share(is_first, asks_everywhere), output_type="string"),
    }
    for uid, stream in made.items():
        end = stream.uid(uid).for_each_epoch(lambda frame, _: told.extend(row["value"] for row in frame.to_pylist()))
        end.uid(f"{uid}-told")
    return built


def job_over(
    made: Program, root: Path, batches: Sequence[Sequence[Element]], parallelism: int = 2, **options: Any
) -> JobMaster:
    """The job over a directory, ready to run."""
    clock = ManualClock(SECOND_START)
    return master(made, root, epochs("in", batches), OPTIONS | options, name=NAME, clock=clock, parallelism=parallelism)


class AtOnce(ThreadCompactionExecutor):
    """Has merged before the next epoch, so that what is written does not depend on time."""

    def submit(self, plan: Any) -> Any:
        future = super().submit(plan)
        future.exception()
        return future


def write(root: Path) -> None:
    """Runs the job three times, each time from the checkpoint before; the last but one epoch leaves a savepoint."""
    with patch.object(compaction, "create_compaction_executor", lambda name: AtOnce()):
        for start in range(len(STARTS)):
            _run(root, start)


def _run(root: Path, start: int) -> None:
    made = program([], is_first=start == 0, asks_everywhere=False)
    options = {"state.compaction.max-runs": str(MAX_RUNS[start])}
    job = job_over(made, root, BATCHES[: STARTS[start]], **options)
    wanted = SnapshotRequest(is_savepoint=True, directory=str(root / "savepoints"))

    def ask(record: EpochProgress) -> None:
        if record.epoch == STARTS[-1] - 1:
            job.control.request(wanted)

    job.progress.listen(ask)
    job.run()
