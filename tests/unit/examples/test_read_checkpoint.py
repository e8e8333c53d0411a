"""The documented format, read by a program that uses nothing of Holdfast, agrees with what was written."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from examples import read_checkpoint
from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import CheckpointedFunction, KeyedProcessFunction, RichMapFunction
from holdfast.datastream.window import (
    CountAggregate,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    MeanAggregate,
    SlidingEventTimeWindows,
    SumAggregate,
    TumblingEventTimeWindows,
)
from holdfast.errors import StorageError
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister
from holdfast.types.types import Types
from tests.stories.local import Program, master

EVENT = "key string, n bigint"


class Everything(KeyedProcessFunction):
    """All kinds of state: sums, lists that are cut, maps that are cleared, timers that are taken back."""

    def open(self, runtime_context: Any) -> None:
        ttl = ValueStateDescriptor[int]("last", "bigint")
        ttl.enable_time_to_live(StateTtlConfig.new_builder("1 h").build())
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "struct<sum: bigint, odd: boolean>"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        self.by_rest = runtime_context.get_map_state(MapStateDescriptor("by_rest", "double", "bigint"))
        self.most = runtime_context.get_reducing_state(ReducingStateDescriptor("most", max, "bigint"))
        self.last = runtime_context.get_state(ttl)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        before = self.total.value() or (0, False)
        self.total.update((before[0] + value.n, value.n % 2 == 1))
        self.seen.add(value.n)
        if value.n % 10 == 9:
            self.seen.update([value.n])
        self.by_rest.put(float(value.n % 3) if value.n % 3 else math.nan, value.n)
        if value.n % 10 == 8:
            self.by_rest.remove(1.0)
        if value.n % 10 == 7:
            self.by_rest.clear()
        if value.n % 10 == 6:
            self.by_rest.clear()
            self.by_rest.put(5.0, None)
        self.most.add(value.n)
        self.last.update(value.n)
        ctx.timer_service().register_processing_time_timer(1_000_000 + value.n)
        if value.n % 10 == 5:
            ctx.timer_service().delete_processing_time_timer(1_000_000 + value.n - 5)
        if value.n % 10 == 4:
            ctx.timer_service().register_processing_time_timer(500)
        yield value.key

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        if timestamp == 500:
            ctx.timer_service().register_processing_time_timer(2_000_000)
        yield ctx.get_current_key()


def model(epochs: list[list[tuple[str, int]]]) -> dict[str, dict[str, Any]]:
    """What the state must be, from the elements alone."""
    found: dict[str, dict[str, Any]] = {}
    for epoch in epochs:
        for key, n in epoch:
            of = found.setdefault(key, {"total": (0, False), "seen": [], "by_rest": {}, "most": n, "timers": set()})
            of["total"] = (of["total"][0] + n, n % 2 == 1)
            of["seen"] = [n] if n % 10 == 9 else [*of["seen"], n]
            of["by_rest"]["nan" if n % 3 == 0 else float(n % 3)] = n
            if n % 10 == 8:
                of["by_rest"].pop(1.0, None)
            if n % 10 in (6, 7):
                of["by_rest"] = {5.0: None} if n % 10 == 6 else {}
            of["most"] = max(of["most"], n)
            of["last"] = n
            of["timers"].add(1_000_000 + n)
            if n % 10 == 5:
                of["timers"].discard(1_000_000 + n - 5)
            if n % 10 == 4:
                of["timers"].add(2_000_000)  # the one at 500 fires at once and sets this one
    return found


def written(directory: Path, epochs: list[list[tuple[str, int]]]) -> Path:
    """A job that has run over the epochs, at another parallelism from the middle on; its directory."""
    half = len(epochs) // 2
    for parallelism, until in ((2, half), (3, len(epochs))):
        program = Program()
        program.source("in", EVENT).key_by("key").process(Everything()).uid("all").print().uid("out")
        inputs = [{"in": epoch} for epoch in epochs[:until]]
        job = master(program, directory, inputs, {"pipeline.max-parallelism": "16"}, parallelism=parallelism,
                     clock=ManualClock(1000))  # fmt: skip
        job.run()
    return Path(job.job.directory.path)


EPOCHS = [
    [(f"k{key}", epoch * 10 + (key * 3 + epoch) % 10) for key in range(epoch % 4, 12)] for epoch in range(8)
]  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("checkpoints"), EPOCHS)


def read(place: Path) -> dict[str, dict[Any, Any]]:
    return {name: content for _, name, _, content in read_checkpoint.states(place)}


def test_a_stranger_reads_every_kind_of_state(job: Path) -> None:
    expected, found = model(EPOCHS), read(job)

    assert found["total"] == {key: {"sum": of["total"][0], "odd": of["total"][1]} for key, of in expected.items()}
    assert found["seen"] == {key: of["seen"] for key, of in expected.items()}
    maps = {key: {"nan" if rest != rest else rest: n for rest, n in of.items()} for key, of in found["by_rest"].items()}
    assert maps == {key: of["by_rest"] for key, of in expected.items() if of["by_rest"]}
    assert found["most"] == {key: of["most"] for key, of in expected.items()}
    assert found["last"] == {key: of["last"] for key, of in expected.items()}
    timers = found["_timer_state/processing_user-timers"]
    assert timers == {key: sorted(of["timers"]) for key, of in expected.items()}


def test_each_retained_checkpoint_is_the_state_of_its_own_epoch(job: Path) -> None:
    places = sorted(job.glob("chk-*"), key=lambda place: int(place.name[4:]))
    epochs = [read_checkpoint.document(place / "_metadata")["epoch"] for place in places]
    assert epochs == [6, 7, 8]
    for place, epoch in zip(places, epochs, strict=True):
        assert read(place)["seen"] == {key: of["seen"] for key, of in model(EPOCHS[:epoch]).items()}


@pytest.mark.parametrize(
    ("columns", "key_type", "keys"),
    [
        (None, None, [("ab", 1), ("ab", None), True, -3, 1 << 70, 0.5, b"\x00\xff", date(1969, 7, 20), Decimal("1.5")]),
        (["a", "b", "c", "d", "e", "f", "g"],
         "a string, b bigint, c double, d date, e decimal(20,2), f timestamp, g boolean",
         [("é", -1, 0.25, date(2013, 1, 1), Decimal("-12.34"), datetime(2013, 1, 1, 5, tzinfo=UTC), True),
          (None, 2**63 - 1, None, None, None, None, None)]),
        (["a"], "a decimal(10,2)", [(Decimal("7.25"),), (Decimal("-0.01"),)]),
        (["a"], "a timestamp_ntz", [(datetime(2013, 1, 1, 5, 0, 0, 7),)]),
        (None, None, [datetime(2013, 1, 1, 5), datetime(2013, 1, 1, 6, tzinfo=UTC), time(5, 6, 7), timedelta(days=-1),
                      UUID(int=5), frozenset({1, "a"})]),
    ],
)  # fmt: skip
def test_a_stranger_reads_keys_of_any_type(
    tmp_path: Path, columns: list[str] | None, key_type: str | None, keys: list[Any]
) -> None:
    program = Program()
    elements = program.source("in", key_type)
    keyed = elements.key_by(columns) if columns else elements.key_by(lambda element: element)
    keyed.map(Seen(), output_type="bigint").uid("seen").print().uid("out")
    job = master(program, tmp_path, [{"in": keys}, {"in": keys}])
    job.run()

    expected = [key[0] if columns and len(columns) == 1 else key for key in keys]
    assert read(Path(job.job.directory.path))["n"] == dict.fromkeys(expected, 2)


@dataclass(frozen=True)
class Airport:
    code: str
    runways: int


@dataclass(frozen=True)
class Leg:
    origin: Airport
    number: int


def test_a_stranger_reads_keys_of_lists_dicts_and_dataclasses(tmp_path: Path) -> None:
    program = Program()
    untyped = program.source("untyped").key_by(lambda element: element)
    untyped.map(Seen(), output_type="bigint").uid("untyped-seen").print().uid("untyped-out")
    legs = program.source("legs").key_by(lambda element: element, key_type=Leg)
    legs.map(SeenLegs(), output_type="bigint").uid("legs-seen").print().uid("legs-out")
    job = master(program, tmp_path, [{"untyped": [[1, "a"], {"b": 2, "a": [1]}], "legs": [Leg(Airport("EWR", 3), 7)]}])
    job.run()

    found = read(Path(job.job.directory.path))
    assert found["n"] == {(1, "a"): 1, (("a", (1,)), ("b", 2)): 1}
    assert found["legs"] == {(("EWR", 3), 7): 1}
    with pytest.raises(SystemExit, match="is no tag of a key"):
        read_checkpoint.decode_tagged(b"?\1a", 0)


def test_a_row_of_changes_is_read_in_its_newer_form() -> None:
    def changes(kind: str) -> dict[str, Any]:
        return {"type": "changelog", "rows": {"type": "row", "fields": [{"name": "n", "type": kind}]}}

    older, newer = changes("int"), changes("double")
    assert Types.CHANGELOG(["n"], [Types.INT()]).to_json() == older
    assert read_checkpoint.newer({"n": 1, "row_kind": 3}, older, newer) == {"n": 1.0, "row_kind": 3}
    assert read_checkpoint.newer({"n": 1}, older["rows"], newer) == {"n": 1.0, "row_kind": None}
    assert read_checkpoint.newer({"n": 1, "row_kind": 0}, older, newer["rows"]) == {"n": 1.0}


class Seen:
    """Counts elements of a key."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", "bigint", 0))

    def map(self, value: Any) -> int:
        self.n.update(self.n.value() + 1)
        return int(self.n.value())


class SeenLegs(Seen):
    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("legs", "bigint", 0))


def test_a_savepoint_is_read_wherever_it_was_moved(tmp_path: Path) -> None:
    program = Program()
    program.source("in", EVENT).key_by("key").process(Everything()).uid("all").print().uid("out")
    master(program, tmp_path / "checkpoints", [{"in": EPOCHS[0]}], clock=ManualClock(1000)).run()
    job = master(program, tmp_path / "checkpoints", [{"in": epoch} for epoch in EPOCHS[:2]], clock=ManualClock(1000))
    asked = job.control.request(SnapshotRequest(is_savepoint=True, directory=str(tmp_path / "savepoints")))
    job.run()
    moved = Path(asked.result(timeout=0)).rename(tmp_path / "elsewhere")

    assert read(moved)["seen"] == {key: of["seen"] for key, of in model(EPOCHS[:1]).items()}


READING = "key string, at bigint, n bigint"
FIRST = [("a", 1_000, 1), ("b", 2_500, None), ("a", 7_000, 3), ("c", 41_000, 7), ("a", 45_000, 9)]
SECOND = [("a", 47_000, 5), ("b", 52_500, None), ("c", 49_000, None), ("d", 55_000, 2)]
END = ("end", 10_000_000, 0)


def windowed(directory: Path, apply: Any, inputs: list[list[Any]]) -> tuple[Path, list[tuple[Any, ...]]]:
    """A job of windows over the inputs: its directory, and what it has emitted of keys other than that of the end."""
    emitted: list[tuple[Any, ...]] = []
    clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    program = Program()
    keyed = program.source("in", READING).assign_timestamps_and_watermarks(clock).key_by("key")
    results = apply(keyed).uid("windows")
    rows = results.for_each_epoch(lambda frame, epoch: emitted.extend(tuple(row.values()) for row in frame.to_pylist()))
    rows.uid("out")
    job = master(program, directory, [{"in": rows} for rows in inputs])
    job.run()
    return Path(job.job.directory.path), [row for row in emitted if row[0] != END[0]]


def merged(panes: list[dict[str, Any]]) -> tuple[Any, ...]:
    """The number of rows, the sum and the mean of `n` in some panes, as the page says what accumulators are."""
    numbers = [pane["pane-total-0"] for pane in panes if "pane-total-0" in pane]
    count = sum(pane["pane-mean-1"] for pane in panes)
    mean = sum(pane["pane-mean-0"] for pane in panes) / count if count else None
    return sum(pane["pane-rows-0"] for pane in panes), sum(numbers) if numbers else None, mean


@pytest.mark.parametrize(
    "assigner",
    [
        SlidingEventTimeWindows.of(Time.seconds(60), Time.seconds(40)),
        SlidingEventTimeWindows.of(Time.seconds(30), Time.seconds(10), Time.seconds(3)),
        TumblingEventTimeWindows.of(Time.seconds(45)),
        EventTimeSessionWindows.with_gap(Time.seconds(20)),
    ],
    ids=["sliding", "small slides", "tumbling", "sessions"],
)
def test_open_windows_of_columns_are_those_that_the_job_emits_at_the_end(tmp_path: Path, assigner: Any) -> None:
    def aggregate(keyed: Any) -> Any:
        numbers = {"count": CountAggregate(), "total": SumAggregate("n"), "mean": MeanAggregate("n")}
        return keyed.window(assigner).aggregate_batches(**numbers)

    place, before = windowed(tmp_path, aggregate, [FIRST, SECOND])
    found = read_checkpoint.open_windows(place, "windows")
    _, after = windowed(tmp_path, aggregate, [FIRST, SECOND, [END]])

    assert before, "some windows have ended before"
    assert sorted((key, *window, *merged(panes)) for (key, window), panes in found.items()) == sorted(after)


@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows.of(Time.seconds(60)), EventTimeSessionWindows.with_gap(Time.seconds(20))],
    ids=["tumbling", "sessions"],
)
@pytest.mark.parametrize("evictor", [None, CountEvictor.of(2)], ids=["all", "evictor"])
def test_open_windows_of_elements_are_those_that_the_job_emits_at_the_end(
    tmp_path: Path, assigner: Any, evictor: Any
) -> None:
    def collect(keyed: Any) -> Any:
        windows = keyed.window(assigner) if evictor is None else keyed.window(assigner).evictor(evictor)
        kind = "key string, window_start bigint, window_end bigint, times array<bigint>"
        return windows.apply(
            lambda key, window, rows: [(key[0], window.start, window.end, [row.at for row in rows])], kind
        )

    place, _ = windowed(tmp_path, collect, [FIRST, SECOND])
    found = read_checkpoint.open_windows(place, "windows")
    _, after = windowed(tmp_path, collect, [FIRST, SECOND, [END]])

    elements = {of: rows if evictor is None else [row["f0"] for row in rows][-2:] for of, rows in found.items()}
    assert sorted((key, *window, [row["at"] for row in rows]) for (key, window), rows in elements.items()) == sorted(
        after
    )
    if evictor is not None:
        assert all(row["f1"] == row["f0"]["at"] for rows in found.values() for row in rows)


def test_windows_of_counts_and_the_global_window_are_told_by_their_namespaces(tmp_path: Path) -> None:
    def counted(keyed: Any) -> Any:
        return keyed.count_window(2).apply(
            lambda key, window, rows: [(key[0], len(list(rows)))], "key string, n bigint"
        )

    place, _ = windowed(tmp_path / "counted", counted, [FIRST, SECOND])
    numbers = {of: len(rows) for of, rows in read_checkpoint.open_windows(place, "windows").items()}
    assert numbers == {("d", 0): 1}

    def triggered(keyed: Any) -> Any:
        windows = keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(100))
        return windows.apply(lambda key, window, rows: [], "string")

    place, _ = windowed(tmp_path / "triggered", triggered, [FIRST, SECOND])
    numbers = {of: len(rows) for of, rows in read_checkpoint.open_windows(place, "windows").items()}
    assert numbers == {("a", None): 4, ("b", None): 2, ("c", None): 2, ("d", None): 1}


class Keeper(RichMapFunction, CheckpointedFunction):
    """Keeps all elements in a list of its subtask, and the number of epochs in a map that all subtasks share."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.kept = store.get_list_state(ListStateDescriptor("kept", "string"))
        self.epochs = store.get_broadcast_state(MapStateDescriptor("epochs", None, "bigint"))

    def snapshot_state(self, context: Any) -> None:
        self.epochs.put(("epochs", 1), (self.epochs.get(("epochs", 1)) or 0) + 1)

    def map(self, value: Any) -> Any:
        self.kept.add(value.key)
        return value.key


@pytest.mark.parametrize("threshold", ["1 mb", "0"], ids=["inline", "in files"])
def test_a_stranger_reads_state_of_subtasks(tmp_path: Path, threshold: str) -> None:
    for parallelism, until in ((2, 3), (3, 6)):
        program = Program()
        kept = program.source("in", EVENT).map(Keeper(), "string").uid("keeper").set_parallelism(parallelism)
        kept.print().uid("out")
        options = {"execution.checkpointing.data-inline-threshold": threshold}
        job = master(program, tmp_path, [{"in": epoch} for epoch in EPOCHS[:until]], options)
        job.run()
    directory = Path(job.job.directory.path)
    found = read(directory)

    assert sorted(found["kept"]) == [0, 1, 2]
    everything = [key for part in found["kept"].values() for key in part]
    assert sorted(everything) == sorted(key for epoch in EPOCHS[:6] for key, _ in epoch)
    assert found["epochs"] == {subtask: {("epochs", 1): 6} for subtask in range(3)}
    assert bool(list(directory.glob("taskowned/*.state"))) == (threshold == "0")


def test_the_reader_notices_a_flipped_bit(job: Path, tmp_path: Path) -> None:
    pointer = read_checkpoint.newest(job)
    handle = read_checkpoint.document(pointer)["operators"][0]["runs"][0]
    damaged = tmp_path / handle["path"]
    damaged.parent.mkdir()
    whole = (job / handle["path"]).read_bytes()
    for at in [*range(0, len(whole), 97), *range(len(whole) - 64, len(whole))]:
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((SystemExit, ValueError)):
            read_checkpoint.Run(tmp_path, handle)


@pytest.fixture
def copied(job: Path, tmp_path: Path) -> Path:
    """The job's directory, to be damaged."""
    return Path(shutil.copytree(job, tmp_path / "copied"))


def test_the_document_is_compared_with_its_pointer(copied: Path) -> None:
    """A document that is whole by itself is not what was completed if the pointer says otherwise."""
    place = read_checkpoint.newest(copied)
    before = sorted(copied.glob("chk-*"), key=lambda path: int(path.name[4:]))[-2]
    whole = place.read_bytes()
    place.write_bytes((before / "_metadata").read_bytes())
    with pytest.raises(SystemExit, match="is not what was completed"):
        read(copied)
    place.write_bytes(whole + b" ")
    with pytest.raises(SystemExit, match="is not what was completed"):
        read(copied)
    place.write_bytes(whole)
    assert read(copied)


def test_a_version_of_the_register_counts_only_if_the_one_before_it_proves_it(copied: Path) -> None:
    """A writer that slept has made a version in a hole: there is none before it, or another one than it names."""
    folder = copied / "register"
    newest = max(folder.glob("v-*"))
    number = int(newest.name[2:])
    assert read_checkpoint.register(copied)["version"] == number > 1

    body = json.loads(newest.read_bytes())
    other = {**body, "version": number + 1, "history": ["0" * 12, "1" * 12, *body["history"]]}
    phantom = folder / f"v-{number + 1:020}"
    phantom.write_bytes(sealed(other))
    with pytest.raises(SystemExit, match="is not proved by the one before it"):
        read_checkpoint.register(copied)
    with pytest.raises(StorageError, match="has no version before it"):
        FileRegister(LocalFileSystem(), str(folder)).read()

    phantom.write_bytes(sealed({**other, "history": ["0" * 12, *body["history"]]}))
    assert read_checkpoint.register(copied)["version"] == number + 1
    newest.unlink()
    with pytest.raises(SystemExit, match="is not proved by the one before it"):
        read_checkpoint.register(copied)


def test_the_first_version_of_a_register_counts_unless_it_may_have_been_deleted(tmp_path: Path) -> None:
    register = FileRegister(LocalFileSystem(), str(tmp_path / "register"))
    register.raise_token("writer")
    assert read_checkpoint.register(tmp_path)["version"] == 1
    with pytest.raises(SystemExit, match="no checkpoint of"):
        read_checkpoint.newest(tmp_path)
    (tmp_path / "register" / "trimmed").touch()
    with pytest.raises(SystemExit, match="is not proved by the one before it"):
        read_checkpoint.register(tmp_path)


def sealed(fields: dict[str, Any]) -> bytes:
    """A document with its checksum, as the page says."""
    rest = {name: value for name, value in fields.items() if name != "checksum"}
    body = b"," + json.dumps(rest).encode()[1:] + b"\n"
    return b'{"checksum":"sha256:' + hashlib.sha256(body).hexdigest().encode() + b'"' + body


def test_a_register_in_another_store_is_not_looked_for_in_files(copied: Path) -> None:
    (copied / "register.json").write_text("{}")
    with pytest.raises(SystemExit, match="is in another store"):
        read(copied)


def test_keys_that_python_finds_equal_stay_apart(tmp_path: Path) -> None:
    program = Program()
    keyed = program.source("in").key_by(lambda element: element)
    keyed.map(Seen(), output_type="bigint").uid("seen").print().uid("out")
    running = master(program, tmp_path, [{"in": [1, 1, True, 1.0]}], parallelism=1)
    running.run()
    counted = read(Path(running.job.directory.path))["n"]
    assert sorted(counted.values()) == [1, 1, 2]
    decoded = {repr(key if not isinstance(key, bytes) else read_checkpoint.decode_tagged(key, 0)[0]) for key in counted}
    assert decoded == {"1", "True", "1.0"}


def test_the_reader_is_a_strangers_program(job: Path) -> None:
    source = Path(read_checkpoint.__file__)
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import)
                     else [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
    }  # fmt: skip
    assert imported - set(sys.stdlib_module_names) == {"pyarrow", "xxhash"}
    lines = subprocess.run([sys.executable, str(source), str(job)], check=True, capture_output=True, text=True).stdout
    assert '"state": "total", "kind": "value", "key": "k3", "value": {"sum":' in lines


class Remembering(KeyedProcessFunction):
    """Keeps the newest value and all of them, in forms that change from start to start."""

    def __init__(self, form: Any, make: Any) -> None:
        self.form, self.make = form, make

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", self.form))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", self.form))
        self.by_n = runtime_context.get_map_state(MapStateDescriptor("by_n", "bigint", self.form))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        made = self.make(value.n)
        self.last.update(made)
        self.all.add(made)
        self.by_n.put(value.n, made)
        yield value.key


def test_state_that_was_declared_otherwise_is_read_in_its_newest_form(tmp_path: Path) -> None:
    starts: list[tuple[Any, Any, list[str]]] = [
        ("struct<n: int, gone: string>", lambda n: (n, "x"), ["a", "b", "c"]),
        ("struct<n: int>", lambda n: (n,), ["b"]),
        (
            Types.ROW_NAMED(
                ["tags", "n", "gone"],
                [Types.LIST(Types.STRING()), Types.DOUBLE(), Types.STRING()],
                defaults={"tags": ["old"]},
            ),
            lambda n: ([], n / 2, "back"),
            ["c"],
        ),
    ]
    epochs: list[dict[str, Any]] = []
    for number, (form, make, keys) in enumerate(starts):
        program = Program()
        found = program.source("in", EVENT).key_by("key").process(Remembering(form, make)).uid("memory")
        found.print().uid("out")
        epochs.append({"in": [(key, 10 * number + 1) for key in keys]})
        job = master(program, tmp_path, epochs, {"state.compaction.enabled": "false"}, parallelism=1)
        job.run()
    content = read(Path(job.job.directory.path))
    old, dropped = {"tags": ["old"], "n": 1.0, "gone": None}, {"tags": ["old"], "n": 11.0, "gone": None}
    new = {"tags": [], "n": 10.5, "gone": "back"}
    assert content["last"] == {"a": old, "b": dropped, "c": new}
    assert content["all"] == {"a": [old], "b": [old, dropped], "c": [old, new]}
    assert content["by_n"] == {"a": {1: old}, "b": {1: old, 11: dropped}, "c": {1: old, 21: new}}


class Latest(RichMapFunction):
    """Keeps the newest number, with a time to live if there is one."""

    def __init__(self, lives: str | None) -> None:
        self.lives = lives

    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor[int]("last", "bigint")
        if self.lives is not None:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(self.lives).build())
        self.last = runtime_context.get_state(descriptor)

    def map(self, value: Any) -> Any:
        self.last.update(value.n)
        return value.n


def test_the_forms_of_a_key_group_are_those_of_its_own_newest_run(tmp_path: Path) -> None:
    """One subtask has switched a time to live on over older values, the other has never had a value without."""
    old, new = "k0", "k2"  # of different subtasks
    inputs: list[dict[str, Any]] = [{"in": [(old, 1)]}]
    for lives, keys in ((None, []), ("1 h", [old + "x", new, new])):
        program = Program()
        program.source("in", EVENT).key_by("key").map(Latest(lives), "bigint").uid("latest").print().uid("out")
        inputs.extend({"in": [(key, 2)]} for key in keys)
        job = master(program, tmp_path, inputs, {"state.compaction.enabled": "false"}, clock=ManualClock(5_000_000))
        job.run()
    place = Path(job.job.directory.path)
    [operator] = [one for one in read_checkpoint.checkpoint(place)[0]["operators"] if one["uid"] == "latest"]
    runs = [read_checkpoint.Run(place, handle).segments["last"]["schema"] for handle in operator["runs"]]
    assert ["former" in schema and "since" in schema for schema in runs] == [False, True, False, False]
    expires = runs[1]["since"] + 3_600_000
    for now, is_there in ((expires - 1, True), (expires, False)):
        [values] = [content for _, name, _, content in read_checkpoint.states(place, now) if name == "last"]
        assert (old in values) == is_there, "it lives from the time on at which the time to live was switched on"
