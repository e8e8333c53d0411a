"""The processes of the tests: each test runs once, with at most two Sparks at a time."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdist.remote import Producer

from tests import scheduling
from tests.scheduling import BUSY_PROCESSES, SESSION, ByWhatTheyShare, is_busy

SCOPES = {
    "tests/spark/test_a.py": 5,
    "tests/spark/test_b.py": 2,
    "tests/spark/test_yarn_stories.py": 3,
    "tests/spark/test_other_stories.py": 4,
    "tests/unit/test_c.py": 9,
    "tests/unit/test_d.py": 1,
    "tests/unit/test_crash_stories.py": 3,
    "tests/services/queryable/test_leaders.py": 1,
    "tests/services/test_e.py": 3,
}


class Process:
    """A worker of xdist: it runs a test when it knows the next one, or that there is none."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.shutting_down = False
        self.queue: list[int] = []
        self.ran: list[str] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        assert not self.shutting_down
        self.queue += numbers

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        return len(self.queue) > (0 if self.shutting_down else 1)


class Run:
    def __init__(self, tests: list[str], processes: int) -> None:
        self.tests = tests
        config: Any = SimpleNamespace(
            getvalue={"tx": ["popen"] * processes}.__getitem__, option=SimpleNamespace(loadscopereorder=True)
        )
        self.scheduler = ByWhatTheyShare(config, Producer("", enabled=False))
        self.processes = [Process() for _ in range(processes)]
        self.living = list(self.processes)
        for process in self.processes:
            self.join(process)
        self.scheduler.schedule()

    def join(self, process: Any) -> None:
        self.scheduler.add_node(process)
        self.scheduler.add_node_collection(process, self.tests)

    def scope(self, test: str) -> str:
        return self.scheduler._split_scope(test)

    def busy(self) -> int:
        """How many processes are at a test that keeps the cores busy."""
        return sum(p.can_run and is_busy(self.scope(self.tests[p.queue[0]])) for p in self.living)

    def step(self, rng: random.Random) -> bool:
        """Let some process run a test or end; false if none can."""
        able = [process for process in self.living if process.can_run or process.shutting_down]
        if not able:
            return False
        process: Any = rng.choice(able)
        if process.can_run:
            number = process.queue.pop(0)
            process.ran.append(self.tests[number])
            self.scheduler.mark_test_complete(process, number)
        else:
            self.living.remove(process)
            if process in self.scheduler.assigned_work:
                assert self.scheduler.remove_node(process) is None
        if self.scheduler.tests_finished:
            for other in self.living:
                other.shutdown()
        return True

    def crash(self, process: Any) -> None:
        """End a process in a test, which counts as failed, and start another one, as xdist does."""
        number = process.queue.pop(0)
        self.living.remove(process)
        crashed = self.scheduler.remove_node(process)
        assert crashed == self.tests[number]
        new = Process()
        self.processes.append(new)
        self.living.append(new)
        self.join(new)
        self.scheduler.schedule()


def listed(files: dict[str, int]) -> list[str]:
    return [f"{file}::test_{number}" for file, count in files.items() for number in range(count)]


@given(st.dictionaries(st.sampled_from(list(SCOPES)), st.integers(1, 9), min_size=1), st.integers(1, 6), st.integers())
def test_each_test_runs_once_and_at_most_two_sparks_at_a_time(files: dict[str, int], processes: int, seed: int) -> None:
    rng = random.Random(seed)
    run = Run(listed(files), processes)
    while run.step(rng):
        assert run.busy() <= BUSY_PROCESSES
    assert not run.living
    assert sorted(test for process in run.processes for test in process.ran) == sorted(run.tests)


@given(st.integers(3, 6), st.integers())
def test_after_the_session_a_process_runs_nothing_but_tests_of_spark(processes: int, seed: int) -> None:
    rng = random.Random(seed)
    run = Run(listed(SCOPES), processes)
    while run.step(rng):
        pass
    [with_session] = [p for p in run.processes if any(run.scope(test) == SESSION for test in p.ran)]
    scopes = [run.scope(test) for test in with_session.ran]
    assert all(is_busy(scope) for scope in scopes[scopes.index(SESSION) :])


def test_what_waits_runs_beside_what_is_busy_and_the_longest_begins_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "durations", {"tests/unit/test_d.py::test_0": 60.0}.copy)
    run = Run(listed(SCOPES), 4)
    first = [run.scope(run.tests[process.queue[0]]) for process in run.processes]
    assert [is_busy(scope) for scope in first] == [True, True, False, False]
    assert first[2:] == ["tests/unit/test_d.py", "tests/unit/test_c.py"]


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("seed", range(20))
def test_a_process_that_crashes_leaves_its_tests_to_the_others(victim: int, seed: int) -> None:
    rng = random.Random(seed)
    run = Run(listed(SCOPES), 4)
    for _ in range(rng.randrange(12)):
        run.step(rng)
    process = run.processes[victim]
    crashed = []
    if process in run.living and process.queue:
        crashed.append(run.tests[process.queue[0]])
        run.crash(process)
    while run.step(rng):
        pass
    ran = [test for process in run.processes for test in process.ran]
    assert sorted({*ran, *crashed}) == sorted(run.tests)
