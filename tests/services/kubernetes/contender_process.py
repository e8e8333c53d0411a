"""A process that campaigns and, while it leads, completes checkpoints in a fenced register; it prints what happens.

python -m tests.services.kubernetes.contender_process KUBECONFIG NAMESPACE NAME IDENTITY FIRST_ID LEASE_SECONDS
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from concurrent.futures import Future
from pathlib import Path

from lightkube import KubeConfig

from holdfast.errors import ConflictError, FencedError, HoldfastError
from holdfast.ha.kubernetes import KubeClient, KubernetesConfigMap, KubernetesLeaderElectionDriverFactory
from holdfast.ha.kubernetes.client import KubernetesConnection
from holdfast.ha.kubernetes.document import KubernetesRegister
from holdfast.ha.kubernetes.watch import ConfigMapWatcher
from holdfast.ha.leader_election import (
    LeaderElectionDriver,
    LeaderElectionListener,
    LeaderInformation,
    LeaderInformationRegister,
)
from holdfast.ha.lease import LeaseTiming
from tests.contract.register_contract import completing

PATIENCE = 1.0
"""For how many seconds one that was fenced, or whose register did not answer, waits before it looks again."""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


class Leading(LeaderElectionListener):
    """Works from each grant on until it is revoked, as a job's process does.

    One that is fenced stands by: whoever raised the token was elected, and then this process soon learns that it was
    deposed; or it was elected before this one, slept, and raised the token late, and then this process has to raise it
    again, or nobody would ever work.
    """

    def __init__(self, register: KubernetesRegister, identity: str, first_id: int) -> None:
        self._register = register
        self._identity = identity
        self._next = first_id
        self._term: threading.Event | None = None
        self.driver: Future[LeaderElectionDriver] = Future()

    def on_grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        say("granted", leader_session_id)
        self._term = threading.Event()
        threading.Thread(target=self._work, args=(self._term,), daemon=True).start()

    def on_revoke_leadership(self) -> None:
        say("revoked")
        if self._term is not None:
            self._term.set()

    def on_leader_information_change(self, component_id: str, leader_information: LeaderInformation) -> None:
        raise AssertionError

    def on_leader_information_register_change(self, register: LeaderInformationRegister) -> None:
        pass

    def on_error(self, error: BaseException) -> None:
        say("error", repr(error))

    def _work(self, ended: threading.Event) -> None:
        driver = self.driver.result()
        while not ended.is_set():
            # A token that is raised after the term is over would fence the successor.
            if driver.has_leadership():
                try:
                    self._write(ended)
                except FencedError:
                    say("fenced")
                except HoldfastError as error:
                    say("failed", repr(error))
            ended.wait(PATIENCE)

    def _write(self, ended: threading.Event) -> None:
        lease = self._register.raise_token(self._identity)
        say("leads", lease.token)
        while not ended.wait(0.02):
            checkpoint_id, self._next = self._next, self._next + 1
            try:
                lease.write(completing(checkpoint_id, token=lease.token))
            except ConflictError:
                continue
            say("wrote", checkpoint_id, lease.token)


def main() -> None:
    kubeconfig, namespace, name, identity, first_id, lease = sys.argv[1:]
    config = KubeConfig.from_file(Path(kubeconfig)).get()
    assert config is not None
    client = KubeClient(KubernetesConnection(config, namespace, 2.0))
    watcher = ConfigMapWatcher(client.connection, name, watch_seconds=5)
    register = KubernetesRegister(client, KubernetesConfigMap(f"{name}-job"))
    times = LeaseTiming(lease_duration=float(lease), renew_deadline=0.8 * float(lease), retry_period=0.4)
    factory = KubernetesLeaderElectionDriverFactory(client, watcher, KubernetesConfigMap(name), identity, times)
    leading = Leading(register, identity, int(first_id))
    leading.driver.set_result(factory.create(leading))
    say("started")
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)


if __name__ == "__main__":
    main()
