"""Candidates at the ZooKeeper latch: sessions end, connections break and answers get lost between any two steps."""

import random
import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ha.zookeeper.leader_election import (
    Create,
    Delete,
    GrantLeadership,
    Instruction,
    LatchMachine,
    List,
    RevokeLeadership,
    WatchNode,
    sequence_number,
)
from tests.examples import examples


class Server:
    """The nodes of the latch, and whose session each belongs to."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.sequence = 0
        self.sessions = 0
        self.alive: set[int] = set()
        self.watchers: list[tuple[str, Candidate]] = []

    def open_session(self) -> int:
        self.sessions += 1
        self.alive.add(self.sessions)
        return self.sessions

    def expire(self, session: int) -> None:
        self.alive.discard(session)
        for name in [name for name, owner in self.nodes.items() if owner == session]:
            self.delete(name)

    def create(self, prefix: str, session: int) -> None:
        self.nodes[f"{prefix}{self.sequence:010d}"] = session
        self.sequence += 1

    def delete(self, name: str) -> None:
        self.nodes.pop(name, None)
        woken = [candidate for watched, candidate in self.watchers if watched == name]
        self.watchers = [entry for entry in self.watchers if entry[0] != name]
        for candidate in woken:
            candidate.wake()

    def names(self) -> list[str]:
        return sorted(self.nodes, key=sequence_number)


class Candidate:
    """The adapter, one request at a time; each may be carried out and its answer arrive late, or never."""

    def __init__(self, server: Server, rng: random.Random, tolerates: bool) -> None:
        self.server, self.rng, self.tolerates = server, rng, tolerates
        self.start()

    def start(self) -> None:
        self.machine = LatchMachine(uuid.UUID(int=self.rng.getrandbits(128)).hex, tolerates_suspension=self.tolerates)
        self.session: int | None = None
        self.connected = False
        self.todo: list[Instruction] = []
        self.answers: list[tuple[int, list[str]]] = []
        self.granted = False

    def connect(self) -> None:
        if self.connected:
            return
        if self.session is None or self.session not in self.server.alive:
            if self.session is not None:
                self.take(self.machine.lost())
            self.session = self.server.open_session()
        self.connected = True
        self.take(self.machine.connected())

    def disconnect(self) -> None:
        if self.connected:
            self.connected = False
            self.todo = []
            self.server.watchers = [entry for entry in self.server.watchers if entry[1] is not self]
            self.take(self.machine.suspended())

    def wake(self) -> None:
        if self.connected:
            self.todo.append(List(self.machine.period))

    def send(self, answer_is_lost: bool) -> None:
        """Carry out the next instruction at the server."""
        if not self.todo or not self.connected or self.session not in self.server.alive:
            return
        match self.todo.pop(0):
            case List(period):
                if not answer_is_lost:
                    self.answers.append((period, self.server.names()))
            case Create(prefix):
                self.server.create(prefix, self.session)
                self.wake()
            case Delete(name):
                self.server.delete(name)
            case WatchNode(name):
                if name in self.server.nodes:
                    self.server.watchers.append((name, self))
                else:
                    self.wake()
        if answer_is_lost:
            self.disconnect()

    def hear(self) -> None:
        """An answer arrives, perhaps long after it was given."""
        if self.answers:
            period, names = self.answers.pop(0)
            self.take(self.machine.listed(period, names, uuid.UUID(int=self.rng.getrandbits(128))))

    def take(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, GrantLeadership):
                assert not self.granted, "granted twice"
                self.granted = True
            elif isinstance(instruction, RevokeLeadership):
                assert self.granted, "revoked without a grant"
                self.granted = False
            else:
                self.todo.append(instruction)


def check(server: Server, candidates: list[Candidate]) -> None:
    """Whoever leads with a session that lives has the lowest node; so its checked writes are the leader's."""
    leaders = [c for c in candidates if c.granted and c.session in server.alive]
    for leader in leaders:
        assert leader.machine.node == server.names()[0]
    assert len(leaders) <= 1


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**64), st.booleans())
def test_only_the_lowest_node_leads_whatever_gets_lost(  # noqa: C901, PLR0912 - a branch for each event
    seed: int, tolerates: bool
) -> None:
    rng = random.Random(seed)
    server = Server()
    candidates = [Candidate(server, rng, tolerates) for _ in range(3)]
    for _ in range(600):
        candidate = rng.choice(candidates)
        match rng.choices(
            ["connect", "send", "hear", "wake", "lose", "disconnect", "expire", "crash"], [4, 10, 5, 1, 1, 2, 2, 0.3]
        )[0]:
            case "connect":
                candidate.connect()
            case "send":
                candidate.send(answer_is_lost=False)
            case "wake":
                candidate.wake()  # a request failed a while ago, and is tried again
            case "lose":
                candidate.send(answer_is_lost=True)
            case "hear":
                candidate.hear()
            case "disconnect":
                candidate.disconnect()
            case "expire":
                # The server ends sessions that it does not hear from.
                if candidate.session is not None and not candidate.connected:
                    server.expire(candidate.session)
            case "crash":
                dead = candidate.session
                candidate.disconnect()
                candidate.start()
                if dead is not None:
                    server.expire(dead)
        check(server, candidates)
    # From now on everything works.
    for candidate in candidates:
        candidate.connect()
    for _ in range(60):
        for candidate in candidates:
            candidate.send(answer_is_lost=False)
            candidate.hear()
    check(server, candidates)
    assert sum(candidate.granted for candidate in candidates) == 1
    living = [name for name, session in server.nodes.items() if session in {c.session for c in candidates}]
    assert len(living) == 3, "each candidate stands in line once"
