"""What a process remembers is a cache: forgotten or not, after failures or without, the output is the same."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import KeyedProcessFunction, RichMapFunction
from holdfast.errors import JobExecutionError, UserFunctionError
from holdfast.kernel import fault
from holdfast.state.descriptor import ListStateDescriptor, ValueStateDescriptor
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import RESTARTING, Program, epochs, run

PAIR = "key string, n bigint"
BATCHES = [[(f"key-{(7 * epoch + i) % 5}", epoch * 10 + i) for i in range(8)] for epoch in range(6)]


class Forgetful(KeyedProcessFunction):
    """Keeps garbage in `self` in every way that there is, shows all of it, and has honest state beside it."""

    def __init__(self) -> None:
        self.made = {"elements": 0}

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", None))
        self.seen: list[Any] = []
        self.nested = {"deep": [{"set": {-1}}]}
        self.count = 0
        self.lock = threading.Lock()

    def process_element(self, value: Any, ctx: Any) -> Any:
        with self.lock:
            self.made["elements"] += 1
            self.seen.append(value.n)
            self.nested["deep"][0]["set"].add(value.n)
            self.count += 1
            self.late = getattr(self, "late", 0) + 1
        self.total.update((self.total.value() or 0) + value.n)
        # What was got from state and is changed without an update is garbage too.
        last = list(self.last.get())
        entry = {"ns": [value.n]}
        self.last.update([*last, entry][-2:])
        entry["ns"].append(-1)
        garbage = (self.made["elements"], len(self.seen), len(self.nested["deep"][0]["set"]), self.count, self.late)
        yield value.key, self.total.value(), garbage, [e["ns"] for e in last]


def pages(place: Path, out: str, options: dict[str, Any] | None = None, **settings: Any) -> dict[str, list[Any]]:
    program = Program()
    program.source("in", PAIR).key_by("key").process(Forgetful()).uid("forgetful").sink_to(Journal(place / out))
    run(program, place / f"{out}-job", epochs("in", BATCHES), options, **settings)
    return journal.pages(place / out)


def test_cold_workers_and_warm_ones_write_the_same_pages(place: Path) -> None:
    warm = pages(place, "warm")
    assert len(warm) == 2 * len(BATCHES)
    assert pages(place, "cold", amnesia=True) == warm
    for page in warm.values():
        assert [row[2] for row in page] == [(n, n, n + 1, n, n) for n in range(1, len(page) + 1)], "a task begins anew"
        assert all(-1 not in ns for row in page for ns in row[3])


@pytest.mark.parametrize("amnesia", [False, True])
def test_fields_set_by_a_failed_attempt_are_not_visible(place: Path, amnesia: bool) -> None:
    failures = iter(range(1000))

    def strike(stage: int, partition: int) -> None:
        # Each second task of the first tries fails, after the first one has left its garbage.
        if partition == 1 and next(failures) % 3 == 0:
            raise fault.FaultInjectedError("the second task fails")

    assert pages(place, "calm") == pages(place, "rough", RESTARTING, interceptor=strike, amnesia=amnesia)


@pytest.mark.parametrize("point", ["run.write", "metadata.write", "pointer.write", "notify"])
def test_a_cache_that_is_ahead_of_the_checkpoint_is_not_believed(place: Path, point: str) -> None:
    """The tasks succeeded and kept their state; then the epoch was lost, or nobody knows whether it was."""
    calm = pages(place, "calm")
    for moment in ("before", "after", "lost"):
        fault.install(f"{moment}:{point}:3=raise,{moment}:{point}:7=raise")
        assert pages(place, moment, RESTARTING) == calm


class Diary:
    """Lines in a file, because what is pickled shares nothing else with the test."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def write(self, line: str) -> None:
        with Path(self._path).open("a") as file:
            file.write(line + "\n")

    def count(self) -> Counter[str]:
        path = Path(self._path)
        return Counter(path.read_text().split()) if path.exists() else Counter()


class Opened(RichMapFunction):
    def __init__(self, name: str, diary: Diary) -> None:
        self.name, self.diary = name, diary

    def open(self, runtime_context: Any) -> None:
        self.diary.write(f"{self.name}-opened")

    def map(self, value: Any) -> Any:
        self.diary.write(f"{self.name}-used")
        return value

    def close(self) -> None:
        self.diary.write(f"{self.name}-closed")


def opened_job(place: Path, diary: Diary) -> Program:
    program = Program()
    stream = (
        program.source("in", PAIR).map(Opened("narrow", diary), PAIR).key_by("key").map(Opened("keyed", diary), PAIR)
    )
    stream.uid("keyed").set_parallelism(3).sink_to(Journal(place / "out"))
    return program


def test_functions_are_opened_once_a_process_and_closed_at_the_end(place: Path) -> None:
    diary = Diary(place / "diary")
    run(opened_job(place, diary), place / "job", epochs("in", BATCHES), source_tasks=3)
    rows = sum(map(len, BATCHES))
    assert diary.count() == {
        "narrow-opened": 1, "narrow-used": rows, "narrow-closed": 1,
        "keyed-opened": 1, "keyed-used": rows, "keyed-closed": 1,
    }  # fmt: skip


def test_each_attempt_opens_them_anew_and_closes_those_before(place: Path) -> None:
    diary = Diary(place / "diary")
    fault.install("before:pointer.write:2=raise,before:pointer.write:4=raise")
    run(opened_job(place, diary), place / "job", epochs("in", BATCHES), RESTARTING)
    count = diary.count()
    assert count["keyed-opened"] == count["keyed-closed"] == 3
    assert count["narrow-opened"] == count["narrow-closed"] == 3


def test_a_process_for_each_task_opens_and_closes_in_each(place: Path) -> None:
    diary = Diary(place / "diary")
    run(opened_job(place, diary), place / "job", epochs("in", BATCHES[:2]), amnesia=True)
    count = diary.count()
    assert count["narrow-opened"] == count["narrow-closed"] == 2 * 2
    assert count["keyed-opened"] == count["keyed-closed"] == 2 * 3


class Broken(RichMapFunction):
    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, runtime_context: Any) -> None:
        if self.where == "open":
            raise ConnectionError("no service")

    def map(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        if self.where == "close":
            raise ConnectionError("no service")


def broken_job(place: Path, where: str) -> Program:
    program = Program()
    program.source("in", PAIR).key_by("key").map(Broken(where), PAIR).uid("broken").sink_to(Journal(place / "out"))
    return program


def test_open_that_raises_is_the_users_error(place: Path) -> None:
    with pytest.raises(JobExecutionError) as failed:
        run(broken_job(place, "open"), place / "job", epochs("in", BATCHES))
    error = failed.value.__cause__
    assert isinstance(error, UserFunctionError)
    assert error.uid == "broken"
    assert "while opening" in str(error) and "ConnectionError: no service" in str(error)


def test_an_error_in_close_does_no_harm(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        run(broken_job(place, "close"), place / "job", epochs("in", BATCHES))
    assert "close() of operator 'broken' failed" in caplog.text
    assert journal.as_tuples(journal.read(place / "out")) == sorted(pair for batch in BATCHES for pair in batch)


def holding(resource: Callable[[], Any]) -> Any:
    class Holding(RichMapFunction):
        def open(self, runtime_context: Any) -> None:
            self.resource = resource()

        def map(self, value: Any) -> Any:
            assert self.resource is not None
            return value

    return Holding()


@pytest.mark.parametrize(
    "resource",
    [
        threading.Lock,
        lambda: Path("/dev/null").open(),  # noqa: SIM115
        lambda: (n for n in range(3)),
        lambda: threading.current_thread(),
    ],
    ids=["a lock", "a file", "a generator", "a thread"],
)
def test_objects_that_cannot_be_copied_are_shared_by_the_tasks(place: Path, resource: Callable[[], Any]) -> None:
    program = Program()
    program.source("in", PAIR).key_by("key").map(holding(resource), PAIR).uid("holding").sink_to(Journal(place / "out"))
    run(program, place / "job", epochs("in", BATCHES[:2]))
    assert len(journal.read(place / "out")) == 16
