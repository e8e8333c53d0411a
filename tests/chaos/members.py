"""The processes of a site: a driver's Python, its JVM, its executors and their Python workers, and the servers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.stories.process import children, command_of, kill_group, start


@dataclass(frozen=True)
class Member:
    """One process.

    Attributes:
        kind: ``driver``, ``JVM``, ``executor``, ``worker``, ``replica`` or ``server``; those of a driver that does not
            lead with ``standby's`` before it.
        pid: Its process id.
    """

    kind: str
    pid: int

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended meanwhile."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Driver:
    """One process of the job, which its supervisor starts again whenever it ends.

    Args:
        number: Which of the drivers.
        arguments: What the program gets.
        directory: For its log.
    """

    def __init__(self, number: int, arguments: Sequence[object], directory: Path) -> None:
        self.number = number
        self.log = directory / f"driver-{number}.log"
        self.starts = 0
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0

    def supervise(self) -> bool:
        """Start the process if it does not run, as a service manager does; returns whether it did not."""
        if self._process is not None and self._process.poll() is None:
            return False
        if self._process is not None:
            with suppress(ProcessLookupError):  # what it has started may have outlived it
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process = start("chaos_job.py", *self._arguments, log=self.log)
        self.starts += 1
        return True

    def members(self, leads: bool) -> list[Member]:
        """The processes that run now."""
        if self._process is None or self._process.poll() is not None:
            return []
        standing = "" if leads else "standby's "
        found = [Member(f"{standing}driver", self._process.pid)]
        below = [(pid, False) for pid in children(self._process.pid)]
        while below:
            pid, is_below_java = below.pop()
            command = command_of(pid)
            if command == "java":
                found.append(Member(standing + ("executor" if is_below_java else "JVM"), pid))
            elif command.startswith("python") and is_below_java and not children(pid):
                found.append(Member(f"{standing}worker", pid))
            below += [(child, is_below_java or command == "java") for child in children(pid)]
        return found

    def begins_to_lead(self) -> bool:
        """Whether it has said so since this was asked last."""
        if not self.log.exists():
            return False
        with self.log.open("rb") as log:
            log.seek(self._read)
            lines = log.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole)
        return b"this process leads job" in whole

    def end(self) -> None:
        """Kill it with all that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                kill_group(self._process)


def one_of(members: Sequence[Member], chance: random.Random, met: Mapping[str, int]) -> Member | None:
    """A member, of one of the kinds which were met least often."""
    kinds = sorted({member.kind for member in members})
    if not kinds:
        return None
    least = min(met.get(kind, 0) for kind in kinds)
    kind = chance.choice([kind for kind in kinds if met.get(kind, 0) == least])
    return chance.choice([member for member in members if member.kind == kind])


def busiest(members: Sequence[Member], seconds: float) -> Member | None:
    """The member that uses the processor most within some seconds; None if none does. Blocks for them."""
    before = {member: _used(member.pid) for member in members}
    time.sleep(seconds)
    used = {member: _used(member.pid) - before[member] for member in members}
    found = max(used, key=lambda member: used[member], default=None)
    return found if found is not None and used[found] > 0 else None


def _used(pid: int) -> int:
    """Nanoseconds for which the threads of a process have run; none if it has ended."""
    found = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += int((task / "schedstat").read_text().split()[0])
    return found


def zookeeper_servers() -> list[Member]:
    """The servers of ZooKeeper that this process has started."""
    return [Member("server", pid) for pid in children(os.getpid()) if command_of(pid) == "java"]


def real_api_servers() -> list[Member]:
    """What a real API server of Kubernetes consists of, where `scripts/real_api_server.py` says so."""
    return [Member("server", int(pid)) for pid in os.environ.get("HOLDFAST_TEST_API_SERVER", "").split()]
