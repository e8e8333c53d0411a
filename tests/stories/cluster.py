"""Job managers in processes of their own, and what a user does with them; for stories that kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from click.testing import CliRunner

from holdfast.cli import main
from tests.stories.process import ROOT

SECONDS = 120.0
_LEASE = "high-availability.filesystem.leader-election"
_HOLDFAST = "from holdfast.cli import main; main()"


def until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Waits until a condition holds, and returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


class Cluster:
    """Candidates of one election, and the commands of somebody who uses them."""

    def __init__(self, directory: Path, options: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.managers: list[subprocess.Popen[bytes]] = []
        self.options = {
            "high-availability.type": "filesystem",
            "high-availability.storageDir": str(directory / "ha"),
            f"{_LEASE}.lease-duration": "1500 ms",
            f"{_LEASE}.renew-deadline": "1 s",
            f"{_LEASE}.retry-period": "200 ms",
            **(options or {}),
        }

    @classmethod
    def without_elections(cls, directory: Path, **options: str) -> Cluster:
        """One job manager, whose working directory says where it is."""
        cluster = cls(directory)
        cluster.options = {"process.jobmanager.working-dir": str(directory / "manager"), **options}
        return cluster

    @property
    def arguments(self) -> list[str]:
        return [f"-D{key}={value}" for key, value in self.options.items()]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a job manager."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        environment["PYSPARK_PYTHON"] = sys.executable
        log = self.log(len(self.managers))
        if "high-availability.type" in self.options:  # else a manager that is killed leaves its directory behind
            arguments += (f"-Dprocess.jobmanager.working-dir={self.directory / f'works-{len(self.managers)}'}",)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _HOLDFAST, "jobmanager", *self.arguments, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self.managers.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.directory / f"job-manager-{number}.log"

    def says(self, number: int, text: str) -> None:
        """Waits until a job manager has said something."""

        def said() -> bool:
            assert self.managers[number].poll() is None, self.log(number).read_text()[-4000:]
            return text in self.log(number).read_text()

        until(said, f"job manager {number} says {text!r}")

    def run(self, verb: str, *arguments: object, code: int = 0) -> str:
        """Runs a command to its end; returns what it has printed."""
        result = CliRunner().invoke(main, [verb, *map(str, arguments[:1]), *self.arguments, *map(str, arguments[1:])])
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result.stdout if code == 0 else result.output

    def follow(self, job_id: str) -> subprocess.Popen[bytes]:
        """Starts `logs -f`, which writes to the file `followed`."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, "-c", _HOLDFAST, "logs", "-f", job_id, *self.arguments]
        with (self.directory / "followed").open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """What `list -a --json` shows, by id."""
        result = CliRunner().invoke(main, ["list", "-a", "--json", *self.arguments])
        assert result.exit_code == 0, result.output
        rows = [json.loads(line) for line in result.output.splitlines()]
        return {row["job_id"]: row for row in rows}

    def status(self, job_id: str, status: str) -> dict[str, Any]:
        """Waits until a job has a status."""

        def has_it() -> dict[str, Any] | None:
            row = self.jobs().get(job_id)
            return row if row is not None and row["status"] == status else None

        found: dict[str, Any] = until(has_it, f"job {job_id} is {status}")
        return found

    def kept(self) -> list[str]:
        """What the cluster keeps of jobs beside their checkpoints."""
        places = (self.directory / "ha", self.directory / "manager")
        names = ("blob_*", "submittedExecutionPlan*", "*_DIRTY.json")
        return sorted(str(path) for place in places for name in names for path in place.rglob(name))

    def close(self) -> None:
        for process in self.managers:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.terminate()
        for process in self.managers:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def processes_of(manager: subprocess.Popen[bytes]) -> list[int]:
    """The processes of jobs that a job manager has started."""
    children = Path(f"/proc/{manager.pid}/task").glob("*/children")
    return [int(child) for path in children for child in path.read_text().split()]


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also one that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def rows(output: Path) -> Counter[tuple[Any, ...]]:
    """What a reader of the output sees."""
    files = [path for path in output.rglob("*.parquet") if not any(part.startswith((".", "_")) for part in path.parts)]
    return Counter(tuple(row.values()) for path in files for row in pq.read_table(path).to_pylist())


def counted(*texts: str) -> Counter[tuple[Any, ...]]:
    """The oracle: each word with how often it has come by then."""
    seen: Counter[str] = Counter()
    expected: Counter[tuple[Any, ...]] = Counter()
    for word in " ".join(texts).split():
        seen[word] += 1
        expected[word, seen[word]] += 1
    return expected
