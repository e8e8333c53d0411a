"""Candidates for one lease under virtual time, with pauses, crashes and lost answers between any two steps."""

import heapq
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ha.lease import Grant, LeaseMachine, LeaseTiming, Revoke, Write
from holdfast.ha.shared_directory import LeaderLease, LeaderLeaseForm
from tests.examples import examples

TIMING = LeaseTiming(lease_duration=15.0, renew_deadline=10.0, retry_period=2.0)


@dataclass
class Document:
    """The shared lease: a version and a content, changed by compare-and-set."""

    version: int = 0
    lease: LeaderLease | None = None
    terms: list[tuple[int, str]] = field(default_factory=list)

    def swap(self, base: int, lease: LeaderLease) -> bool:
        if base != self.version:
            return False
        self.version += 1
        self.lease = lease
        if not self.terms or self.terms[-1][0] != lease.term:
            self.terms.append((lease.term, lease.holder))
        return True


@dataclass
class FencedRegister:
    """What the leaders write: it keeps the highest term and refuses lower ones."""

    term: int = 0
    writes: list[int] = field(default_factory=list)

    def write(self, term: int) -> bool:
        if term < self.term:
            return False
        self.term = term
        self.writes.append(term)
        return True


class Candidate:
    """The adapter as a chain of steps; between any two of them the world may go on without it."""

    def __init__(self, name: str, document: Document, rng: random.Random) -> None:
        self.name = name
        self.document = document
        self.offset = rng.uniform(0, 1e6)  # its monotonic clock began at another time than those of the others
        self.rng = rng
        self.incarnation = 0
        self.start()

    def start(self) -> None:
        """Begin anew, as a process that was killed and started again."""
        self.incarnation += 1
        form = LeaderLeaseForm(lambda: uuid.UUID(int=self.rng.getrandbits(128)))
        self.machine = LeaseMachine(f"{self.name}-{self.incarnation}", TIMING, form)
        self.base = 0
        self.seen: tuple[int, LeaderLease | None] = (0, None)
        self.write: Write[LeaderLease] | None = None
        self.recorded = False
        self.granted: uuid.UUID | None = None
        self.in_flight: list[tuple[int, LeaderLease]] = []  # requests that reach the store later
        self.steps = [self.read, self.observe, self.decide, self.send, self.hear]
        self.next = 0

    def believes(self, time: float) -> bool:
        return self.machine.leads_at(time + self.offset)

    def step(self, time: float, fate: str = "done") -> bool:
        """Do the next step; returns whether a round is complete."""
        self.steps[self.next](time + self.offset, fate)
        self.next = (self.next + 1) % len(self.steps)
        return self.next == 0

    def round(self, time: float) -> None:
        while not self.step(time):
            pass

    def read(self, now: float, fate: str) -> None:
        self.seen = (self.document.version, self.document.lease)

    def observe(self, now: float, fate: str) -> None:
        self.base = self.seen[0]
        self.note(self.machine.observe(now, *self.seen))

    def decide(self, now: float, fate: str) -> None:
        self.write, self.recorded = None, False
        for instruction in self.machine.decide(now):
            if isinstance(instruction, Write):
                self.write = instruction
            else:
                self.note([instruction])

    def send(self, now: float, fate: str) -> None:
        if self.write is not None and fate == "late":
            self.in_flight.append((self.base, self.write.lease))
        elif self.write is not None and fate != "never":
            self.recorded = self.document.swap(self.base, self.write.lease)

    def hear(self, now: float, fate: str) -> None:
        if self.write is not None and self.recorded and fate == "done":
            self.base += 1
            self.note(self.machine.wrote(now, self.base, self.write))

    def note(self, reports: Sequence[Grant[LeaderLease] | Revoke]) -> None:
        for report in reports:
            if isinstance(report, Grant):
                assert self.granted is None, "granted twice"
                self.granted = report.lease.session_id
            else:
                assert self.granted is not None, "revoked without a grant"
                self.granted = None


class World:
    """Four candidates, each of which stalls, dies and loses messages as the seed says."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = 0.0
        self.document, self.register = Document(), FencedRegister()
        self.candidates = [Candidate(name, self.document, self.rng) for name in "abcd"]
        self.due = [(self.rng.uniform(0, 2), number) for number in range(len(self.candidates))]
        heapq.heapify(self.due)
        self.leaders: set[str] = set()

    def run(self, until: float, *, troubled: bool) -> None:
        while self.due[0][0] < until:
            self.time, number = heapq.heappop(self.due)
            candidate = self.candidates[number]
            if troubled and self.rng.random() < 0.01:
                candidate.start()
            fate = self.rng.choices(["done", "lost", "never", "late"], [7, 1, 1, 1])[0] if troubled else "done"
            if candidate.in_flight and self.rng.random() < 0.1:
                self.document.swap(*candidate.in_flight.pop())
            ended = candidate.step(self.time, fate)
            pause = candidate.machine.pause(self.time + candidate.offset) if ended else self.rng.uniform(0, 0.02)
            if troubled and self.rng.random() < 0.05:
                pause += self.rng.choice([1.0, 5.0, 10.0, 16.0, 40.0])
            heapq.heappush(self.due, (self.time + pause, number))
            self.check()

    def check(self) -> None:
        believers = [candidate for candidate in self.candidates if candidate.believes(self.time)]
        assert len(believers) <= 1, f"{[candidate.name for candidate in believers]} believe that they lead"
        self.leaders.update(candidate.machine.identity for candidate in believers)
        # Whoever was granted writes, however stale: the register decides, not the belief.
        for candidate in self.candidates:
            if candidate.machine.term is not None:
                self.register.write(candidate.machine.term)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**64))
def test_never_do_two_believe_that_they_lead_and_terms_only_grow(seed: int) -> None:
    world = World(seed)
    world.run(600.0, troubled=True)
    terms = [term for term, _ in world.document.terms]
    assert terms == sorted(set(terms)), "two leaders had one term, or a term came back"
    assert world.register.writes == sorted(world.register.writes)
    assert len(world.leaders) > 1, "nothing happened in this world"
    # From now on everything works, and soon somebody leads.
    calm = world.time + 40.0
    world.run(calm + 2 * TIMING.lease_duration, troubled=False)
    assert sum(candidate.believes(world.time) for candidate in world.candidates) == 1
    assert sum(candidate.granted is not None for candidate in world.candidates) == 1


def candidates(document: Document, *names: str) -> list[Candidate]:
    rng = random.Random(0)
    return [Candidate(name, document, rng) for name in names]


def test_a_leader_that_was_stopped_for_longer_than_its_lease_is_replaced_and_learns_of_it() -> None:
    document = Document()
    old, new = candidates(document, "old", "new")
    old.round(0.0)
    new.round(0.0)
    assert old.believes(0.0) and not new.believes(0.0)
    # SIGSTOP: `old` does nothing for 38 seconds.
    for second in range(0, 40, 2):
        new.round(float(second))
    assert new.believes(38.0)
    assert not old.believes(38.0)
    for _ in range(3):
        old.step(38.0)
    assert old.granted is None
    old.round(38.0)
    assert new.believes(38.0) and not old.believes(38.0)


def test_a_released_lease_is_taken_at_once() -> None:
    document = Document()
    first, second = candidates(document, "first", "second")
    first.round(0.0)
    second.round(0.0)
    (release,) = first.machine.resign()
    assert document.swap(document.version, release.lease)
    second.round(0.5)
    assert second.believes(0.5)
    assert [term for term, _ in document.terms] == [1, 2]


def test_a_release_that_was_refused_is_tried_again_on_the_version_that_came_between() -> None:
    document = Document()
    (leader,) = candidates(document, "leader")
    leader.round(0.0)
    (publication,) = leader.machine.change(0.1, lambda lease: lease.with_information("rest_server", "here"))
    (release,) = leader.machine.resign()
    assert document.swap(leader.base, publication.lease)
    assert not document.swap(leader.base, release.lease)
    leader.machine.observe(0.2, document.version, document.lease)
    (release,) = leader.machine.resign()
    assert document.swap(document.version, release.lease)
    assert document.lease is not None and document.lease.released


def test_a_leader_whose_renewal_failed_tries_again_some_time_later_and_not_at_once() -> None:
    document = Document()
    (leader,) = candidates(document, "leader")
    leader.round(0.0)
    for _ in range(5):
        leader.step(2.0, "never")
    assert leader.machine.pause(2.0 + leader.offset) == TIMING.retry_period


def test_a_leader_that_cannot_renew_stops_before_others_take_over() -> None:
    document = Document()
    old, new = candidates(document, "old", "new")
    old.round(0.0)
    new.round(0.0)
    revoked_at = taken_at = None
    for tenth in range(1, 400):
        time = tenth / 10
        while not old.step(time, "never"):
            pass
        new.round(time)
        if revoked_at is None and old.granted is None:
            revoked_at = time
        if taken_at is None and new.granted is not None:
            taken_at = time
    assert revoked_at is not None and taken_at is not None
    assert revoked_at <= TIMING.renew_deadline + 0.1
    assert TIMING.lease_duration <= taken_at <= TIMING.lease_duration + 0.2


def test_a_leader_that_reads_another_name_in_the_lease_is_revoked() -> None:
    document = Document()
    (old,) = candidates(document, "old")
    old.round(0.0)
    assert document.swap(1, LeaderLease("usurper", 2, uuid.uuid4(), 15.0))
    old.round(1.0)
    assert old.granted is None and not old.believes(1.0)
    assert document.version == 2, "it renewed the lease of somebody else"


def test_a_grant_that_took_longer_than_the_deadline_is_not_believed() -> None:
    document = Document()
    (slow,) = candidates(document, "slow")
    for _ in range(4):
        slow.step(0.0)
    slow.step(11.0)
    assert document.version == 1
    assert slow.granted is None and not slow.believes(11.0)


def test_of_several_renewals_without_an_answer_the_first_counts() -> None:
    document = Document()
    (leader,) = candidates(document, "leader")
    leader.round(0.0)
    for _ in range(5):
        leader.step(2.0, "late")
    for _ in range(5):
        leader.step(9.0, "never")
    document.swap(*leader.in_flight.pop())  # the renewal of second 2 arrives
    leader.step(9.5)
    leader.step(9.5)
    assert leader.believes(11.9)
    assert not leader.believes(12.1), "others may have seen the renewal of second 2"
