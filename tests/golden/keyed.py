"""The job of the golden archive `keys`: keys of every kind, rows that delete and clear, namespaces, and a hook's state.

Its classes are in files that are read for ever: what has another name or another form is another class, beside these.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.datastream import KeyedProcessFunction, MasterTriggerRestoreHook, WithMasterCheckpointHook
from holdfast.datastream.functions import RichMapFunction
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.runtime.job.progress import EpochProgress
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.storage import DocumentSerializer
from holdfast.types.row import Row
from holdfast.types.serializer import TypeSerializer
from holdfast.types.type_parser import to_type
from holdfast.types.types import Types
from tests.stories.local import Program, master

NAME = "golden"
START = 1_000_000
LIVES = 3_600_000
"""Milliseconds for which values of the states with a time to live live."""
UTC, EAST = dt.UTC, dt.timezone(dt.timedelta(hours=5))
NAN, OTHER_NAN = float("nan"), struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]

# By kind: how keys are declared, and values, of which those in one group are one key.
KEYS: dict[str, tuple[Any, list[list[Any]]]] = {
    "boolean": ("boolean", [[True], [False]]),
    "tinyint": ("tinyint", [[0], [-1], [127], [-128]]),
    "smallint": ("smallint", [[0], [-1], [2**15 - 1], [-(2**15)]]),
    "int": ("int", [[0], [-1], [2**31 - 1], [-(2**31)]]),
    "bigint": ("bigint", [[0], [-1], [2**63 - 1], [-(2**63)]]),
    "float": ("float", [[0.0, -0.0], [NAN, OTHER_NAN], [float("-inf")], [1.5]]),
    "double": ("double", [[0.0, -0.0], [NAN, OTHER_NAN], [float("inf")], [0.1], [5e-324]]),
    "decimal": ("decimal(10,2)", [[Decimal("1.0"), Decimal("1.00")], [Decimal("-0.01")], [Decimal("12345678.90")]]),
    "long-decimal": ("decimal(38,6)", [[Decimal("0.000001")], [Decimal(-(10**31))], [Decimal(10**31)]]),
    "whole-number": (Types.BIG_INT(), [[0], [10**37], [-(10**37)]]),
    "string": ("string", [[""], ["kelp"], ["tång \N{SPIRAL SHELL}"], ["a\0b"]]),
    "char": (Types.CHAR(3), [["ab", "ab "], ["abc"]]),
    "binary": ("binary", [[b""], [b"\x00"], [b"\xff\xfe"]]),
    "date": ("date", [[dt.date(1970, 1, 1)], [dt.date(1969, 12, 31)], [dt.date(9999, 12, 31)]]),
    "timestamp": (
        "timestamp",
        [
            [dt.datetime(2024, 1, 1, 12, tzinfo=UTC), dt.datetime(2024, 1, 1, 17, tzinfo=EAST)],
            [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
        ],
    ),
    "timestamp-ntz": ("timestamp_ntz", [[dt.datetime(2024, 2, 29, 12)], [dt.datetime(1900, 1, 1, 0, 0, 0, 1)]]),
    "time": (Types.SQL_TIME(), [[dt.time(0)], [dt.time(23, 59, 59, 999_999)]]),
    "interval": (Types.DURATION(), [[dt.timedelta(0)], [dt.timedelta(days=-1, microseconds=1)]]),
    "composite": (
        "a string, b int, c double, d date, e decimal(10,2), f binary",
        [
            [("é", -1, zero, dt.date(2013, 1, 1), Decimal("-12.34"), b"\x00") for zero in (0.0, -0.0)],
            [(None, 2**31 - 1, None, None, None, None)],
            [(None, None, None, None, None, None)],
            [("", 0, NAN, dt.date(1969, 7, 20), Decimal(0), b"")],
        ],
    ),
    "nested": (
        "a boolean, b struct<c: timestamp, d: smallint>",
        [[(True, (dt.datetime(2024, 1, 1, tzinfo=UTC), 7))], [(False, None)], [(None, (None, None))]],
    ),
    "tuple": (Types.TUPLE([Types.LONG(), Types.STRING()]), [[(1, "a")], [(-1, None)]]),
    "tagged": (
        None,
        [
            [7], [True], [-(2**70)], [0.0, -0.0], [NAN, OTHER_NAN], ["kelp"], [b"kelp"], [dt.date(1969, 7, 20)],
            [Decimal("1.5"), Decimal("1.50")], [("a", (1, None))], [()],
        ],
    ),
}  # fmt: skip
EPOCHS = 3
DIGITS = (2, 3, 4, 5, 6, 7)
ASK = -1
OPTIONS = {"state.compaction.enabled": "false", "pipeline.max-parallelism": "16"}
ROWS = "abcdef"
"""Keys of the operators whose keys do not matter."""


def numbers(epoch: int, key: int) -> list[int]:
    """What numbers come with the key of some number in an epoch; the last digit of each says what is to be done."""
    return [1, 10, 11, 18] if epoch == 0 else [20 * epoch + DIGITS[(key + epoch) % len(DIGITS)]]


class Remember(KeyedProcessFunction):
    """Keeps what comes, and removes it again as the last digit says; a negative number asks for what is left.

    Maps have keys of the kind of the operator's keys.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, runtime_context: Any) -> None:
        declared = KEYS[self.kind][0]
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        of_map = to_type(declared) if declared else None
        self.by_key = runtime_context.get_map_state(MapStateDescriptor("by_key", of_map, "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = value.n
        if n < 0:
            entries = sorted((index_of(self.kind, key), entry) for key, entry in self.by_key.items())
            yield repr((self.kind, value.group, self.last.value(), list(self.seen.get()), entries))
            return
        remember(self.last, self.seen, self.by_key, n, map_key(self.kind, n))


def remember(last: Any, seen: Any, mapped: Any, n: int, entry: Any) -> None:
    """Writes a number into a value, a list and a map, and does what its last digit says."""
    last.update(n)
    seen.add(n)
    mapped.put(entry, n)
    digit = n % 10
    if digit == 2:
        last.clear()
    if digit == 3:
        seen.clear()
    if digit == 4:
        seen.update([n])
    if digit == 5:
        mapped.remove(entry)
    if digit in (6, 7):
        mapped.clear()
    if digit == 7:
        mapped.put(entry, n)


def map_key(kind: str, n: int) -> Any:
    """The map key that goes with a number: one of the values of the kind."""
    groups = KEYS[kind][1]
    group = groups[n // 2 % len(groups)]
    return group[n % len(group)]


def index_of(kind: str, key: Any) -> int:
    """Which of the keys of a kind a value is; equal numbers of different types are different keys."""
    wanted = _told_apart(key)
    return next(at for at, group in enumerate(KEYS[kind][1]) if wanted in map(_told_apart, group))


def _told_apart(key: Any) -> Any:
    if isinstance(key, tuple):
        return ("tuple", *map(_told_apart, key))
    if isinstance(key, float):
        return ("float", "nan" if key != key else key)
    return key if isinstance(key, str) else (type(key).__name__, key) if isinstance(key, bool | bytes) else ("", key)


class WindowSerializer(TypeSerializer[int]):
    """Namespaces that are numbers."""

    def serialize(self, value: int) -> bytes:
        return value.to_bytes(8, "big")

    def deserialize(self, data: bytes) -> int:
        return int.from_bytes(data, "big")


WINDOWS = WindowSerializer()
COUNT = 2
"""How many windows there are."""


class Windowed(KeyedProcessFunction):
    """Keeps the same in windows of numbers, with a timer for each window."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        # No public function has namespaces, so this one asks the backend as windows do.
        backend, n = ctx._backend, value.n
        if n < 0:
            yield repr(("windows", value.key, [_content(*_of_window(backend, window)) for window in range(COUNT)]))
            return
        last, seen, mapped = _of_window(backend, n % COUNT)
        remember(last, seen, mapped, n, f"m{n % 4}")
        timers = backend.get_internal_timer_service("windows", WINDOWS)
        timers.register_event_time_timer(n % COUNT, n)
        timers.register_event_time_timer(n % COUNT, n + 100)
        if n > 20:
            timers.delete_event_time_timer(1, 1)


def _content(last: Any, seen: Any, mapped: Any) -> Any:
    return last.value(), list(seen.get()), sorted(mapped.items())


def _of_window(backend: Any, window: int) -> tuple[Any, Any, Any]:
    last = backend.get_partitioned_state(window, WINDOWS, ValueStateDescriptor("last", "bigint"))
    seen = backend.get_partitioned_state(window, WINDOWS, ListStateDescriptor("seen", "bigint"))
    return last, seen, backend.get_partitioned_state(window, WINDOWS, MapStateDescriptor("mapped", "string", "bigint"))


class Uses(KeyedProcessFunction):
    """State with a time to live: of two states the files say how long values live, of one they do not."""

    def open(self, runtime_context: Any) -> None:
        said = StateTtlConfig.new_builder(LIVES).build()
        unsaid = StateTtlConfig.new_builder(LIVES).disable_cleanup_in_background().build()
        last, seen, mapped = (
            ValueStateDescriptor[int]("last", "bigint"),
            ListStateDescriptor[int]("seen", "bigint"),
            MapStateDescriptor[str, int]("mapped", "string", "bigint"),
        )
        for descriptor, config in ((last, unsaid), (seen, said), (mapped, said)):
            descriptor.enable_time_to_live(config)
        self.last = runtime_context.get_state(last)
        self.seen = runtime_context.get_list_state(seen)
        self.mapped = runtime_context.get_map_state(mapped)

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = value.n
        if n < 0:
            yield repr(("uses", value.key, *_content(self.last, self.seen, self.mapped)))
            return
        self.last.update(n)
        self.seen.add(n)
        self.mapped.put(f"m{n:02}", n)


class Bookmark(MasterTriggerRestoreHook[int]):
    """Counts the checkpoints that it is told of."""

    def __init__(self, restored: list[int | None]) -> None:
        self._restored = restored
        self._page = 0

    def get_identifier(self) -> str:
        return "bookmark"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, executor: Any) -> int:
        self._page += 1
        return self._page

    def restore_checkpoint(self, checkpoint_id: int, state: int | None) -> None:
        self._restored.append(state)
        self._page = state or 0

    def create_checkpoint_data_serializer(self) -> DocumentSerializer[int]:
        return DocumentSerializer("bookmark", 1, lambda page: {"page": page}, lambda body: int(body["page"]))


class Told(RichMapFunction, WithMasterCheckpointHook[int]):
    """Brings the hook."""

    def __init__(self, restored: list[int | None]) -> None:
        self._told = restored

    def create_master_trigger_restore_hook(self) -> Bookmark:
        return Bookmark(self._told)

    def map(self, value: Any) -> str:
        return ""


def program(told: list[str], restored: list[int | None]) -> Program:
    """The job; what it emits is added to `told`, and what its hook is given to `restored`."""
    built = Program()
    made = {f"key-{kind}": _of_kind(built, kind) for kind in KEYS}
    rows = built.source("rows", "key string, n bigint")
    made["windows"] = rows.key_by("key").process(Windowed(), output_type="string")
    made["uses"] = rows.key_by("key").process(Uses(), output_type="string")
    made["told"] = rows.map(Told(restored), output_type="string")
    first, *others = (stream.uid(uid) for uid, stream in made.items())
    told_all = first.union(*others)
    told_all.for_each_epoch(lambda frame, _: told.extend(row["value"] for row in frame.to_pylist())).uid("tell")
    return built


def _of_kind(built: Program, kind: str) -> Any:
    declared = KEYS[kind][0]
    numbers = {"group": Types.INT(), "n": Types.LONG()}
    if isinstance(declared, str) and "," in declared and not declared.startswith("decimal"):
        columns = to_type(declared)
        parts = dict(zip(columns.names, columns.types, strict=True)) | numbers
        keyed = _source(built, kind, parts).key_by(list(columns.names))
    elif declared is None:
        source = built.source(kind, None)
        keyed = source.key_by(lambda element: element.key)
    else:
        rows = _source(built, kind, {"key": to_type(declared)} | numbers)
        is_tuple = kind == "tuple"
        keyed = rows.key_by(lambda row: row.key, declared) if is_tuple else rows.key_by("key")
    return keyed.process(Remember(kind), output_type="string")


def _source(built: Program, kind: str, columns: dict[str, Any]) -> Any:
    return built.source(kind, Types.ROW_NAMED(list(columns), list(columns.values())))


def epoch_of(of: Callable[[int], Sequence[int]]) -> dict[str, list[Any]]:
    """The input of an epoch: with each key of each kind, in its forms by turns, the numbers for the key of a number."""
    epoch: dict[str, list[Any]] = {
        kind: [_element(kind, group[n % len(group)], at, n) for at, group in enumerate(groups) for n in of(first + at)]
        for first, (kind, (_, groups)) in enumerate(KEYS.items())
    }
    return epoch | {"rows": [(key, n) for at, key in enumerate(ROWS) for n in of(at)]}


def inputs(count: int) -> list[dict[str, list[Any]]]:
    """What comes in the first epochs."""
    return [epoch_of(partial(numbers, epoch)) for epoch in range(count)]


def _element(kind: str, key: Any, group: int, n: int) -> Any:
    if KEYS[kind][0] is None:
        return Row(key=key, group=group, n=n)
    return (*key, group, n) if kind in ("composite", "nested") else (key, group, n)


QUESTION = epoch_of(lambda _: [ASK])
"""An epoch that asks for all that is left."""


def job_over(
    root: Path,
    batches: Sequence[Mapping[str, Sequence[Any]]],
    now: int,
    told: list[str],
    restored: list[int | None],
    parallelism: int = 2,
    **options: Any,
) -> JobMaster:
    """The job over a directory, ready to run. A second passes with each epoch."""
    clock = ManualClock(now)
    made, settings = program(told, restored), OPTIONS | options
    job = master(made, root, batches, settings, name=NAME, clock=clock, parallelism=parallelism)
    job.progress.listen(lambda record: clock.advance(1000))
    return job


def write(root: Path) -> None:
    """Runs the job over a directory, and takes a savepoint of all but its last epoch."""
    job = job_over(root, inputs(EPOCHS), START, [], [])
    wanted = SnapshotRequest(is_savepoint=True, directory=str(root / "savepoints"))

    def ask(record: EpochProgress) -> None:
        if record.epoch == EPOCHS - 1:
            job.control.request(wanted)

    job.progress.listen(ask)
    job.run()
