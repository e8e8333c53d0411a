"""A program changes its types again and again; backends, parallelism and crashes change nothing about the state."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.datastream.functions import KeyedProcessFunction
from holdfast.errors import JobExecutionError, StateMigrationError
from holdfast.kernel import fault
from holdfast.kernel.clock import ManualClock
from holdfast.state.descriptor import ListStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.types.types import Types
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, run
from tests.stories.tidiness import inspect

EVENT = "key string, n bigint"


@dataclasses.dataclass
class Total:
    n: int
    first: int | None = None
    unit: str = "piece"


@dataclasses.dataclass
class Bare:
    n: int


Bare.__qualname__ = "Total"


class Adding(KeyedProcessFunction):
    """Adds up in a dataclass, and keeps all in a list; emits what it has."""

    def __init__(self, total: type, element: str) -> None:
        self.total_type, self.element = total, element

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", self.total_type))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", self.element))

    def process_element(self, value: Any, ctx: Any) -> Any:
        total = self.total.value()
        if total is None:
            total = self.total_type(0)
            if self.total_type is Total:
                total.first, total.unit = value.n, "new"
        total.n += value.n
        self.total.update(total)
        self.all.add(value.n)
        first, unit = getattr(total, "first", None), getattr(total, "unit", "none")
        yield value.key, total.n, first, unit, sum(self.all.get())


def greatest(batch: pa.RecordBatch, state: Any) -> pa.RecordBatch:
    """The greatest number of each key so far, as columns."""
    keys, numbers = batch.column("key"), batch.column("n")
    before = state.get(keys)
    latest: dict[str, Any] = {}
    for key, number, known in zip(keys.to_pylist(), numbers.to_pylist(), before.to_pylist(), strict=True):
        latest[key] = max(number, latest.get(key, known if known is not None else number))
    names = pa.array(list(latest))
    state.put(names, pa.array(list(latest.values())).cast(before.type))
    return pa.RecordBatch.from_pydict({"key": names, "most": state.get(names).cast(pa.float64())})


def program(out: Path, version: int, parallelism: int) -> Program:
    made = Program()
    keyed = made.source("in", EVENT).key_by("key")
    function = Adding(Bare, "int") if version == 1 else Adding(Total, "bigint")
    form = "key string, n bigint, first bigint, unit string, sum bigint"
    keyed.process(function, form).uid("add").set_parallelism(parallelism).sink_to(Journal(out / "add")).uid("o1")
    number = {1: "int", 2: "bigint", 3: "decimal(30,0)"}[version]
    most = keyed.process_batches(greatest, "key string, most double", state=ValueStateDescriptor("most", number))
    most.uid("most").set_parallelism(parallelism).sink_to(Journal(out / "most")).uid("o2")
    return made


BATCHES = [[(f"k{(epoch * 3 + i) % 9}", epoch + i) for i in range(6)] for epoch in range(9)]


@pytest.mark.parametrize(
    ("faulty", "amnesia"), [("", True), ("after:run.write:2=raise", False), ("before:pointer.write:2=raise", True)]
)
def test_three_versions_of_a_program_over_both_backends(tmp_path: Path, faulty: str, amnesia: bool) -> None:
    starts = [(1, "hashmap", 2), (2, "columnar", 3), (3, "hashmap", 1)]
    for number, (version, backend, parallelism) in enumerate(starts, start=1):
        options = {**RESTARTING, "state.backend.type": backend, "state.compaction.max-runs": "3"}
        if faulty:
            fault.install(faulty)
        run(program(tmp_path / "out", version, parallelism), tmp_path / "job", epochs("in", BATCHES[: 3 * number]),
            options, amnesia=amnesia)  # fmt: skip
        fault.clear()
    inspect(tmp_path / "job")
    sums: dict[str, int] = defaultdict(int)
    known: dict[str, tuple[Any, ...]] = {}
    most: dict[str, float] = {}
    added = []
    for epoch, batch in enumerate(BATCHES):
        for key, n in batch:
            sums[key] += n
            most[key] = max(n, most.get(key, n))
            if key not in known:
                known[key] = (None, "piece") if epoch < 3 else (n, "new")
            first, unit = known[key] if epoch >= 3 else (None, "none")
            added.append((key, sums[key], first, unit, sums[key]))
    assert sorted(map(tuple, journal.read(tmp_path / "out" / "add")), key=str) == sorted(added, key=str)
    assert {row[0]: row[1] for row in sorted(journal.read(tmp_path / "out" / "most"))} == most


def test_an_incompatible_program_fails_at_start_and_the_older_program_resumes(tmp_path: Path) -> None:
    run(program(tmp_path / "out", 2, 2), tmp_path / "job", epochs("in", BATCHES[:2]))
    with pytest.raises((StateMigrationError, JobExecutionError), match="not compatible"):
        run(program(tmp_path / "out", 1, 2), tmp_path / "job", epochs("in", BATCHES[:3]))
    run(program(tmp_path / "out", 2, 2), tmp_path / "job", epochs("in", BATCHES[:3]))
    assert sum(1 for _ in journal.read(tmp_path / "out" / "add")) == 18


class Last(KeyedProcessFunction):
    """Emits what was kept of the key, which may expire."""

    def __init__(self, ttl: bool) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        descriptor: ValueStateDescriptor[int] = ValueStateDescriptor("last", Types.LONG())
        if self.ttl:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(1_000).build())
        self.last = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.key, self.last.value()
        if self.last.value() is None or not self.ttl:
            self.last.update(value.n)


def test_a_time_to_live_is_switched_on_by_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(10_000)
    batches: list[list[tuple[str, int]]] = [[("a", 1), ("b", 2)]]

    def goes_on(batch: list[tuple[str, int]], *, ttl: bool) -> dict[str, Any]:
        batches.append(batch)
        made = Program()
        stream = made.source("in", EVENT).key_by("key").process(Last(ttl), "key string, last bigint").uid("last")
        stream.sink_to(Journal(tmp_path / str(len(batches)))).uid("out")
        run(made, tmp_path / "job", epochs("in", batches), clock=clock)
        return {row[0]: row[1] for row in journal.read(tmp_path / str(len(batches)))}

    assert goes_on([("a", 3)], ttl=False) == {"a": 1, "b": None}
    clock.advance(100_000)
    assert goes_on([("a", 4)], ttl=True) == {"a": 3}
    clock.advance(900)
    assert goes_on([("a", 5), ("b", 6)], ttl=True) == {"a": 3, "b": 2}
    clock.advance(200)
    assert goes_on([("a", 7), ("b", 8)], ttl=True) == {"a": None, "b": None}
    assert goes_on([("a", 9)], ttl=False) == {"a": 7}
    clock.advance(100_000)
    assert goes_on([("a", 0), ("b", 0)], ttl=False) == {"a": 9, "b": 8}
