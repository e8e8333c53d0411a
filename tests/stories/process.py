"""Running the programs of tests/programs in processes of their own, and killing them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    output: str

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


def start(
    program: str, *arguments: object, fault: str | None = None, log: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program in a process group of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "HOLDFAST_FAULT"}
    if fault is not None:
        environment["HOLDFAST_FAULT"] = fault
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment["PYSPARK_PYTHON"] = sys.executable
    target = subprocess.PIPE if log is None else log.open("ab")
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "programs" / program), *map(str, arguments)],
        stdout=target,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def run(program: str, *arguments: object, fault: str | None = None, timeout: float = 400) -> Ended:
    """Runs a program to its end; kills its whole group if it takes too long."""
    process = start(program, *arguments, fault=fault)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{program} did not end within {timeout} s:\n{output.decode()[-4000:]}") from None
    return Ended(process.returncode, output.decode())


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a program and all that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def java_below(pid: int) -> int | None:
    """The first Java process among the descendants of a process, None if there is none yet."""
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        for child in children(current):
            if command_of(child) == "java":
                return child
            waiting.append(child)
    return None


def command_of(pid: int) -> str:
    """The name of a process's program, nothing if it has ended."""
    return _read(Path(f"/proc/{pid}/comm")).strip()


def children(pid: int) -> list[int]:
    """The processes that a process has started, none if it has ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
    except (FileNotFoundError, ProcessLookupError):  # while its folder was read
        return []
    return [int(child) for task in tasks for child in _read(task).split()]


def _read(path: Path) -> str:
    """The content, or nothing if the process has ended meanwhile."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
