"""Real processes that campaign against the API server and die by signals; judged by what is in the register."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from holdfast.ha.kubernetes import KubernetesConfigMap, KubernetesRegister
from holdfast.storage.register import RegisterState
from holdfast.testing.kubernetes.api_server import Fault, FaultKind, KubernetesApiServer
from holdfast.testing.leader_election_contract import eventually
from tests.services.kubernetes.cluster import KubernetesCluster

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]

NAME = "contest"
IDS_A_PROCESS = 100_000


class ContenderProcess:
    """One process and what it said."""

    def __init__(self, cluster: KubernetesCluster, number: int, lease: float) -> None:
        self.identity = f"process-{number}"
        where = [str(cluster.kubeconfig), cluster.namespace, NAME]
        arguments = [*where, self.identity, str(number * IDS_A_PROCESS), str(lease)]
        module = "tests.services.kubernetes.contender_process"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        self.said: list[list[str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.split())

    def heard(self, word: str) -> list[list[str]]:
        return [words[1:] for words in self.said if words[0] == word]

    @property
    def wrote(self) -> list[tuple[int, int]]:
        """Checkpoints and tokens of which the register said that they are in."""
        return [(int(checkpoint), int(token)) for checkpoint, token in self.heard("wrote")]

    @property
    def leads(self) -> bool:
        """Whether it writes, as far as it has said."""
        last = [words[0] for words in self.said if words[0] in ("wrote", "leads", "revoked", "fenced")]
        return bool(last) and last[-1] == "wrote"

    def send(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


class Contest:
    """All processes of one test."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self.alive: list[ContenderProcess] = []
        self.all: list[ContenderProcess] = []
        self._register = KubernetesRegister(cluster.client(), KubernetesConfigMap(f"{NAME}-job"))

    def start(self, lease: float = 3.0) -> ContenderProcess:
        """One more, which holds leases of so many seconds."""
        process = ContenderProcess(self._cluster, next(self._numbers), lease)
        self.alive.append(process)
        self.all.append(process)
        return process

    def leader(self, *others: ContenderProcess) -> ContenderProcess:
        """Wait for the one that leads with the register's token; not one of those given."""

        def leading() -> list[ContenderProcess]:
            owner = self._register.read().owner
            return [p for p in self.alive if p not in others and p.identity == owner and p.leads]

        eventually(lambda: len(leading()) == 1, "one process leads and writes", 60.0)
        return leading()[0]

    def kill(self, process: ContenderProcess) -> None:
        process.kill()
        self.alive.remove(process)

    def read(self) -> RegisterState:
        return self._register.read()

    def raise_token(self, owner: str) -> None:
        self._register.raise_token(owner)

    def judge(self) -> None:
        """Everything that was said to be written is there, and the tokens only go up."""
        for process in list(self.alive):
            self.kill(process)
        state = self.read()
        there = [(pointer.checkpoint_id, pointer.token) for pointer in state.checkpoints]
        tokens = [token for _, token in there]
        assert tokens == sorted(tokens)
        assert len(set(there)) == len(there)
        writers = {(token, checkpoint // IDS_A_PROCESS) for checkpoint, token in there}
        assert len(writers) == len(set(tokens)), "two processes wrote under one token"
        missing = {pair for process in self.all for pair in process.wrote} - set(there)
        assert not missing
        # A process that was killed may have written one more than it could say, and one whose write has failed, too.
        unsaid = set(there) - {pair for process in self.all for pair in process.wrote}
        assert len(unsaid) <= len(self.all) + sum(len(process.heard("failed")) for process in self.all)
        assert not [words for process in self.all for words in process.heard("error")]

    def close(self) -> None:
        for process in list(self.alive):
            self.kill(process)


@pytest.fixture
def contest(cluster: KubernetesCluster) -> Iterator[Contest]:
    made = Contest(cluster)
    yield made
    made.close()


def test_ten_contenders_of_which_the_leader_is_killed_ten_times(contest: Contest) -> None:
    for _ in range(10):
        contest.start()
    seen: list[ContenderProcess] = []
    for _ in range(10):
        leader = contest.leader()
        assert leader not in seen
        seen.append(leader)
        contest.kill(leader)
        contest.start()
    contest.leader()
    contest.judge()
    assert contest.read().token >= 11


def test_a_leader_that_is_stopped_for_longer_than_its_lease_is_fenced(contest: Contest) -> None:
    first, second = contest.start(), contest.start()
    leader = contest.leader()
    other = second if leader is first else first
    leader.send(signal.SIGSTOP)
    assert contest.leader(leader) is other
    before = contest.read()
    leader.send(signal.SIGCONT)
    eventually(
        lambda: bool(leader.heard("fenced") or leader.heard("revoked")), "the old leader learns that it leads no more"
    )
    eventually(lambda: len(contest.read().checkpoints) > len(before.checkpoints) + 5, "the new leader goes on")
    assert contest.read().token == before.token
    contest.judge()


def test_a_leader_that_is_fenced_by_one_who_was_elected_before_raises_its_token_again(contest: Contest) -> None:
    """As by a process that was granted, slept, and wakes between the grant and the token when another leads."""
    leader = contest.start()
    contest.leader()
    late = contest.read().token + 1
    contest.raise_token("who-slept")
    eventually(lambda: contest.read().token > late, "the leader raises the token again", 60.0)
    assert contest.leader() is leader
    contest.judge()


def test_a_leader_whose_write_is_refused_goes_on(contest: Contest, server: KubernetesApiServer) -> None:
    leader = contest.start()
    contest.leader()
    server.inject(Fault(FaultKind.ERROR_BEFORE, verb="update", name=f"{NAME}-job", code=403))
    eventually(lambda: bool(leader.heard("failed")), "the leader gives a write up")
    wrote = len(leader.wrote)
    eventually(lambda: len(leader.wrote) > wrote + 5, "it writes again")
    contest.judge()


def test_a_process_that_is_stopped_for_a_moment_only_goes_on_leading(contest: Contest) -> None:
    leader = contest.start(lease=30.0)
    contest.leader()
    contest.start(lease=30.0)
    for _ in range(3):
        leader.send(signal.SIGSTOP)
        leader.send(signal.SIGCONT)
        assert contest.leader() is leader
    contest.judge()
    assert contest.read().token == 1
