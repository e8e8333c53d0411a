"""How long a pointer write takes, and how long a job is without a leader; per type of high availability.

Usage: python benchmarks/takeover.py [--type a,b,...] [--rounds N] [--writes N] [--json]

Real processes campaign; session timeout and lease duration are 4 s. ``killed``: from SIGKILL of the leader until
another leader has raised the token of the job and written its first pointer. ``left``: the same from the moment at
which the leader begins to leave in good order. ``write``: one pointer write (the fenced register of the job, with three
retained checkpoints) by the leader.
ZooKeeper is one real server, or three with ``zookeeper-3``; Kubernetes is the cluster of HOLDFAST_TEST_KUBECONFIG, by
default the strict API server of holdfast.testing, which keeps nothing on disk, so its writes are those of HTTP and
Python alone. Everything else is on one machine.

``job-manager`` is something else: `make demo-ha`, with three ZooKeeper servers, two job managers and the flights job on
Spark. ``killed`` is there from SIGKILL of the leader, in the middle of the flights, until the other one has the first
new completed checkpoint of the job; ``led``, until it leads. The output is compared with the batch computation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FLIGHTS = ROOT / "examples" / "flights"
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from holdfast.ha.election_service import LeaderElectionService  # noqa: E402
from holdfast.ha.embedded import EmbeddedElection, EmbeddedLeaderElectionDriverFactory  # noqa: E402
from holdfast.storage.register import EmbeddedRegister  # noqa: E402
from holdfast.testing.leader_election_contract import RecordingContender  # noqa: E402
from tests.programs.ha_candidate import CandidateProcess, completing  # noqa: E402

SESSION_MS = 4000
TYPES = ("embedded", "filesystem", "zookeeper", "zookeeper-3", "kubernetes", "job-manager")
CANDIDATES = 3
RETAINED = 3
REAL = "HOLDFAST_TEST_KUBECONFIG"


@dataclass
class Result:
    """What was measured of one type, in seconds."""

    type: str
    write: list[float]
    killed: list[float]
    left: list[float]

    def to_json(self) -> dict[str, Any]:
        line: dict[str, Any] = {"type": self.type, "session_timeout_ms": SESSION_MS}
        line["write_ms_median"] = round(statistics.median(self.write) * 1000, 3)
        line["write_ms_p99"] = round(sorted(self.write)[int(len(self.write) * 0.99)] * 1000, 3)
        line["writes"] = len(self.write)
        for name, values in (("killed", self.killed), ("left", self.left)):
            line[f"{name}_s_median"] = round(statistics.median(values), 3) if values else None
            line[f"{name}_s_max"] = round(max(values), 3) if values else None
        line["rounds"] = len(self.left)
        return line


@contextlib.contextmanager
def cluster(kind: str, directory: Path) -> Iterator[dict[str, Any]]:
    """Start what a type needs and give the configuration of its processes."""
    values: dict[str, Any] = {
        "high-availability.type": kind.partition("-")[0],
        "high-availability.storageDir": str(directory / "ha"),
        "execution.checkpointing.dir": str(directory / "checkpoints"),
    }
    with contextlib.ExitStack() as stack:
        if kind.startswith("zookeeper"):
            from holdfast.testing.server.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

            server = stack.enter_context(ZooKeeperEnsemble() if kind.endswith("3") else ZooKeeperServer())
            values["high-availability.zookeeper.quorum"] = server.connect_string
            values["high-availability.zookeeper.client.session-timeout"] = SESSION_MS
            values["high-availability.zookeeper.client.retry-wait"] = 200
        else:
            prefix = f"high-availability.{kind}.leader-election"
            values[f"{prefix}.lease-duration"] = SESSION_MS
            values[f"{prefix}.renew-deadline"] = 3000
            values[f"{prefix}.retry-period"] = 1000
        if kind == "kubernetes":
            values["kubernetes.cluster-id"] = f"take-over-{uuid.uuid4().hex[:8]}"
            values["kubernetes.namespace"] = "default"
            values["kubernetes.config.file"] = os.environ.get(REAL) or double(stack, directory)
        yield values


def double(stack: contextlib.ExitStack, directory: Path) -> str:
    """Start the API server of holdfast.testing."""
    from holdfast.testing.kubernetes.api_server import KubernetesApiServer

    api = stack.enter_context(KubernetesApiServer())
    return str(api.write_kubeconfig(directory / "kubeconfig"))


class Race:
    """Candidates of one cluster, of which one leads."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self._configuration = configuration
        self._candidates: list[CandidateProcess] = []
        self._writes: list[float] = []

    def fill(self) -> None:
        """Start as many candidates as are missing."""
        while len(self._candidates) < CANDIDATES:
            self._candidates.append(CandidateProcess(self._configuration, retained=RETAINED))
        self._wait(lambda: all(candidate.said("started") for candidate in self._candidates))

    def leader(self) -> CandidateProcess:
        """Wait for the leader's first write."""
        leaders: list[CandidateProcess] = []

        def found() -> bool:
            leaders[:] = [candidate for candidate in self._candidates if candidate.said("wrote")]
            return bool(leaders)

        self._wait(found)
        return leaders[0]

    def replace(self, *, killed: bool) -> float:
        """End the leader and return the seconds until another has written."""
        leader = self.leader()
        time.sleep(0.5 + time.time() % 1)  # at some moment between two renewals
        self._writes += [line["seconds"] for line in leader.said("wrote")]
        self._candidates.remove(leader)
        began = time.time()
        if killed:
            leader.kill()
        else:
            leader.leave()
        successor = self.leader()
        seconds: float = successor.said("wrote")[0]["at"] - began
        return seconds

    def writes(self, number: int) -> list[float]:
        """Let the leader write until there are so many measurements."""
        leader = self.leader()
        self._wait(lambda: len(self._writes) + len(leader.said("wrote")) >= number)
        return self._writes + [line["seconds"] for line in leader.said("wrote")]

    def close(self) -> None:
        for candidate in self._candidates:
            candidate.kill()

    def _wait(self, condition: Any) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError("no candidate leads; run one by hand: python -m tests.programs.ha_candidate ...")
            time.sleep(0.005)


def measure(kind: str, rounds: int, writes: int) -> Result:
    """Measure one type with processes of its own."""
    with tempfile.TemporaryDirectory(prefix="takeover-") as directory, cluster(kind, Path(directory)) as configuration:
        race = Race(configuration)
        try:
            killed, left = [], []
            for _ in range(rounds):
                race.fill()
                killed.append(race.replace(killed=True))
                race.fill()
                left.append(race.replace(killed=False))
            return Result(kind, race.writes(writes), killed, left)
        finally:
            race.close()


def measure_embedded(rounds: int, writes: int) -> Result:
    """Contenders of one process: nobody can be killed, and everything is memory."""
    election = EmbeddedElection()
    register = EmbeddedRegister()
    left, durations = [], []
    for _ in range(rounds):
        services = [
            LeaderElectionService(EmbeddedLeaderElectionDriverFactory(election, str(uuid.uuid4()))) for _ in "ab"
        ]
        elections = [service.create_leader_election("dispatcher") for service in services]
        contenders = [RecordingContender(f"host-{number}") for number in range(2)]
        for one, contender in zip(elections, contenders, strict=True):
            one.start_leader_election(contender)
        while not contenders[0].leads:
            time.sleep(0.001)
        began = time.perf_counter()
        elections[0].close()
        while not contenders[1].leads:
            time.sleep(0)
        lease = register.raise_token("benchmark")
        lease.write(completing(lease.state.next_checkpoint_id, lease.token, RETAINED))
        left.append(time.perf_counter() - began)
        elections[1].close()
        for service in services:
            service.close()
    lease = EmbeddedRegister().raise_token("benchmark")
    for checkpoint_id in range(1, writes + 1):
        began = time.perf_counter()
        lease.write(completing(checkpoint_id, lease.token, RETAINED))
        durations.append(time.perf_counter() - began)
    return Result("embedded", durations, [], left)


def measure_job_managers(rounds: int) -> dict[str, Any]:
    """The demonstration with two job managers, so many times."""
    sys.path.insert(0, str(FLIGHTS))
    import demo_ha

    killed, led = [], []
    with tempfile.TemporaryDirectory(prefix="takeover-") as directory, contextlib.redirect_stdout(sys.stderr):
        for _ in range(rounds):
            code, seconds = demo_ha.demonstrate(Path(directory), files_per_epoch=10)
            if code != 0:
                raise RuntimeError("the output differs from the batch computation")
            led.append(seconds.leads)
            killed.append(seconds.checkpoint)
    line: dict[str, Any] = {"type": "job-manager", "session_timeout_ms": demo_ha.SESSION_SECONDS * 1000}
    for name, values in (("led", led), ("killed", killed)):
        line[f"{name}_s_median"] = round(statistics.median(values), 3)
        line[f"{name}_s_max"] = round(max(values), 3)
    return line | {"rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", default=",".join(TYPES), help="which types, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="how many leaders are killed, and how many leave")
    parser.add_argument("--writes", type=int, default=200, help="how many pointer writes are measured")
    parser.add_argument("--json", action="store_true", help="only JSON lines on standard output")
    arguments = parser.parse_args()
    chosen = [name.strip() for name in arguments.type.split(",")]
    unknown = sorted(set(chosen) - set(TYPES))
    if unknown:
        parser.error(f"unknown types {unknown}; there are {list(TYPES)}")
    if not arguments.json:
        print(f"{platform.platform()}, session timeout and lease {SESSION_MS} ms, {CANDIDATES} candidates")
        print(f"{'type':<12} {'write ms (median, p99)':<24} {'killed s (median, max)':<24} left s (median, max)")
    for kind in chosen:
        if kind == "job-manager":
            line = measure_job_managers(arguments.rounds)
            led = f"led after {line['led_s_median']}, {line['led_s_max']}"
            shown = f"{kind:<12} {'-':<24} {line['killed_s_median']}, {line['killed_s_max']:<18} {led}"
            print(json.dumps(line) if arguments.json else shown, flush=True)
            continue
        measured = (
            measure_embedded(arguments.rounds, arguments.writes)
            if kind == "embedded"
            else measure(kind, arguments.rounds, arguments.writes)
        )
        line = measured.to_json()
        if arguments.json:
            print(json.dumps(line), flush=True)
        else:
            write = f"{line['write_ms_median']}, {line['write_ms_p99']}"
            killed = f"{line['killed_s_median']}, {line['killed_s_max']}" if measured.killed else "-"
            print(f"{kind:<12} {write:<24} {killed:<24} {line['left_s_median']}, {line['left_s_max']}", flush=True)


if __name__ == "__main__":
    main()
