"""Election under virtual time: many candidates, one record, and everything that can go wrong between two steps."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import ConfigurationError
from holdfast.ha.kubernetes.config_map import LeaseRecord, LeaseRecordForm
from holdfast.ha.lease import LeaseMachine, LeaseTiming, Write
from holdfast.kernel.clock import SystemClock
from tests.examples import examples

TIMES = LeaseTiming(15.0, 15.0, 5.0)


class WallClock(SystemClock):
    """The time of day on one machine, which stands still until somebody sets it."""

    time_of_day_ms = 0

    def now_ms(self) -> int:
        return self.time_of_day_ms


def candidate(name: str, times: LeaseTiming = TIMES, wall: WallClock | None = None) -> LeaseMachine[LeaseRecord]:
    return LeaseMachine(name, times, LeaseRecordForm(wall or WallClock()))


def look(machine: LeaseMachine[LeaseRecord], text: str | None, now: float) -> tuple[bool, Write[LeaseRecord] | None]:
    """Read the annotation: whether the lease was lost by that, and what is to be written."""
    instructions = [*machine.observe(now, text, LeaseRecord.parse(text)), *machine.decide(now)]
    writes = [instruction for instruction in instructions if isinstance(instruction, Write)]
    return len(writes) < len(instructions), writes[0] if writes else None


def hear(machine: LeaseMachine[LeaseRecord], write: Write[LeaseRecord], now: float) -> bool:
    """The answer to a write arrives; returns whether that made a leader."""
    return bool(machine.wrote(now, write.lease.encode(), write))


def campaign(machine: LeaseMachine[LeaseRecord], text: str | None, now: float) -> tuple[str | None, bool, bool]:
    """One look without a hitch: the annotation after it, whether it was lost, whether it was granted."""
    lost, write = look(machine, text, now)
    if write is None:
        return text, lost, False
    return write.lease.encode(), lost, hear(machine, write, now)


def test_the_first_candidate_takes_a_lease_that_nobody_has() -> None:
    first = candidate("first")
    text, lost, granted = campaign(first, None, 100.0)
    assert (lost, granted, first.is_leading) == (False, True, True)
    record = json.loads(text or "")
    assert (record["holderIdentity"], record["leaseDurationSeconds"], record["leaderTransitions"]) == ("first", 15, 0)


def test_others_wait_for_a_whole_lease_after_they_saw_it_for_the_last_time() -> None:
    first, second = candidate("first"), candidate("second")
    text, _, _ = campaign(first, None, 0.0)
    assert campaign(second, text, 10.0) == (text, False, False)
    assert campaign(second, text, 24.9) == (text, False, False)
    text, _, granted = campaign(second, text, 25.0)
    assert granted
    assert json.loads(text or "")["leaderTransitions"] == 1


def test_a_renewal_starts_the_waiting_again() -> None:
    first, second = candidate("first"), candidate("second")
    text, _, _ = campaign(first, None, 0.0)
    campaign(second, text, 1.0)
    text, lost, granted = campaign(first, text, 14.0)
    assert (lost, granted, first.is_leading) == (False, False, True)
    for now in (16.0, 30.0):
        assert campaign(second, text, now) == (text, False, False)


def test_a_renewal_is_seen_although_the_wall_clock_stands_still() -> None:
    first = candidate("first")
    one, _, _ = campaign(first, None, 0.0)
    two, _, _ = campaign(first, one, 5.0)
    assert one != two


def test_a_leader_that_does_not_renew_stops_at_its_deadline() -> None:
    first = candidate("first")
    campaign(first, None, 0.0)
    assert first.deadline == 15.0
    assert not first.expire(14.9)
    assert first.expire(15.0)
    assert not first.expire(16.0)
    assert not first.is_leading


def test_the_deadline_counts_from_before_the_write_was_sent() -> None:
    first = candidate("first")
    _, write = look(first, None, 0.0)
    assert write is not None
    assert hear(first, write, 14.0)
    assert first.expire(15.0)


def test_an_answer_that_comes_after_the_deadline_grants_nothing() -> None:
    first = candidate("first")
    _, write = look(first, None, 0.0)
    assert write is not None
    assert not hear(first, write, 15.0)
    assert not first.is_leading


def test_a_leader_that_reads_another_holder_is_deposed_at_once() -> None:
    first, second = candidate("first"), candidate("second")
    campaign(first, None, 0.0)
    text, _, _ = campaign(second, None, 0.0)
    assert campaign(first, text, 1.0) == (text, True, False)
    assert not first.is_leading


def test_a_released_lease_is_taken_without_waiting() -> None:
    first, second = candidate("first"), candidate("second")
    text, _, _ = campaign(first, None, 0.0)
    campaign(second, text, 0.5)
    (release,) = first.resign()
    free = release.lease.encode()
    assert json.loads(free)["holderIdentity"] == ""
    _, _, granted = campaign(second, free, 1.0)
    assert granted


def test_the_longer_of_two_lease_durations_counts() -> None:
    patient = candidate("patient", LeaseTiming(60.0, 50.0, 5.0))
    hasty = candidate("hasty", LeaseTiming(4.0, 3.0, 1.0))
    text, _, _ = campaign(patient, None, 0.0)
    campaign(hasty, text, 1.0)
    assert campaign(hasty, text, 50.0) == (text, False, False)
    assert campaign(hasty, text, 61.0)[2]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"holderIdentity": 3, "leaseDurationSeconds": "x"}'])
def test_an_annotation_that_cannot_be_read_counts_as_none(text: str) -> None:
    assert LeaseRecord.parse(text) is None
    assert campaign(candidate("first"), text, 0.0)[2]


def test_a_record_of_another_client_can_be_read() -> None:
    go = (
        '{"holderIdentity":"pod-7","leaseDurationSeconds":15,"acquireTime":"2024-01-01T00:00:00Z",'
        '"renewTime":"2024-01-01T00:00:10Z","leaderTransitions":2}'
    )
    record = LeaseRecord.parse(go)
    assert record is not None
    assert (record.holder, record.duration, record.transitions) == ("pod-7", 15.0, 2)
    assert LeaseRecord.parse(record.encode()) == record


@pytest.mark.parametrize(
    "times", [(15, 16, 5), (15, 15, 15), (15, 10, 0), (15, 5, 6), (0, 0, 0)], ids=lambda times: str(times)
)
def test_times_with_which_two_could_lead_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigurationError, match="leader election"):
        LeaseTiming(*times)


class ElectionModel(RuleBasedStateMachine):
    """Candidates whose requests and answers travel, get lost and come late; processes that stop and die.

    Every candidate has a monotonic clock of its own beginning; all run at the same speed.
    """

    @initialize(seed=st.integers(0, 10_000))
    def begin(self, seed: int) -> None:
        chance = random.Random(seed)
        self.time = 0.0
        self.text: str | None = None
        self.version = 0
        self.names = 0
        self.machines: dict[str, LeaseMachine[LeaseRecord]] = {}
        self.offsets: dict[str, float] = {}
        self.stopped: set[str] = set()
        self.walls: dict[str, WallClock] = {}
        self.read: dict[str, tuple[int, Write[LeaseRecord]]] = {}
        self.flying: list[tuple[str, int, Write[LeaseRecord]]] = []
        self.answers: list[tuple[str, Write[LeaseRecord]]] = []
        for _ in range(3):
            self._join(chance.uniform(0, 1e6))

    def _join(self, offset: float) -> None:
        self.names += 1
        name = f"process-{self.names}"
        self.walls[name] = WallClock()
        self.machines[name] = candidate(name, wall=self.walls[name])
        self.offsets[name] = offset

    def _now(self, name: str) -> float:
        return self.time + self.offsets[name]

    def _running(self) -> list[str]:
        return [name for name in self.machines if name not in self.stopped]

    @rule(which=st.integers(0, 9), wall=st.integers(0, 10**12))
    def look(self, which: int, wall: int) -> None:
        """A candidate reads the record; its clock is read after the answer."""
        names = self._running()
        if not names:
            return
        name = names[which % len(names)]
        self.walls[name].time_of_day_ms = wall
        _, write = look(self.machines[name], self.text, self._now(name))
        self.read.pop(name, None)
        if write is not None:
            self.read[name] = (self.version, write)

    @rule(which=st.integers(0, 9))
    def send(self, which: int) -> None:
        """A candidate sends the write that its last look allows."""
        names = [name for name in self.read if name in self._running()]
        if not names:
            return
        name = names[which % len(names)]
        self.flying.append((name, *self.read.pop(name)))

    @precondition(lambda self: getattr(self, "flying", None))
    @rule(which=st.integers(0, 9), lost=st.booleans(), answered=st.booleans())
    def arrive(self, which: int, lost: bool, answered: bool) -> None:
        """A request arrives or gets lost; its answer sets out or does not."""
        name, version, write = self.flying.pop(which % len(self.flying))
        if lost or version != self.version:
            return
        self.version += 1
        self.text = write.lease.encode()
        if answered:
            self.answers.append((name, write))

    @precondition(lambda self: getattr(self, "answers", None))
    @rule(which=st.integers(0, 9))
    def answer(self, which: int) -> None:
        """An answer reaches a candidate that still runs."""
        name, write = self.answers.pop(which % len(self.answers))
        if name in self.machines and name not in self.stopped:
            hear(self.machines[name], write, self._now(name))

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.9, 5.0, 10.0, 14.9, 15.0, 15.1, 40.0]))
    def pass_time(self, seconds: float) -> None:
        """Time passes; the watchdogs of those that run notice their deadlines."""
        self.time += seconds
        for name in self._running():
            self.machines[name].expire(self._now(name))

    @rule(which=st.integers(0, 9))
    def stop(self, which: int) -> None:
        """A process is stopped (SIGSTOP): it believes whatever it believes and does nothing."""
        names = self._running()
        if len(names) > 1:
            self.stopped.add(names[which % len(names)])

    @rule(which=st.integers(0, 9))
    def go_on(self, which: int) -> None:
        """A stopped process runs again; its watchdog is the first to notice."""
        names = sorted(self.stopped)
        if names:
            name = names[which % len(names)]
            self.stopped.discard(name)
            self.machines[name].expire(self._now(name))

    @rule(which=st.integers(0, 9), offset=st.floats(0, 1e6))
    def die(self, which: int, offset: float) -> None:
        """A process dies, and another starts somewhere."""
        names = list(self.machines)
        name = names[which % len(names)]
        del self.machines[name]
        self.stopped.discard(name)
        self.read.pop(name, None)
        self._join(offset)

    @invariant()
    def at_most_one_of_those_that_run_leads(self) -> None:
        if not hasattr(self, "machines"):
            return
        leaders = [name for name in self._running() if self.machines[name].is_leading]
        assert len(leaders) <= 1, leaders

    def teardown(self) -> None:
        """Left in peace, one candidate leads after at most two leases."""
        if not hasattr(self, "machines"):
            return
        self.stopped.clear()
        self.flying.clear()
        for _ in range(8):
            self.pass_time(5.0)
            for name in self._running():
                version, text = self.version, self.text
                _, write = look(self.machines[name], text, self._now(name))
                if write is not None and version == self.version:
                    self.version += 1
                    self.text = write.lease.encode()
                    hear(self.machines[name], write, self._now(name))
        assert sum(machine.is_leading for machine in self.machines.values()) == 1


TestElection = ElectionModel.TestCase
TestElection.settings = settings(
    max_examples=examples(200), stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


@given(st.floats(0, 1e9), st.floats(0, 100))
def test_the_next_look_is_never_far(start: float, later: float) -> None:
    first, second = candidate("first"), candidate("second")
    text, _, _ = campaign(first, None, start)
    look(second, text, start)
    for machine in (first, second):
        assert 0 < machine.pause(start + later) <= TIMES.retry_period
