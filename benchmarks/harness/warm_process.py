"""A program that stays warm: it answers each line with a line, in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def processor_seconds(session: int) -> float:
    """Return what the processes of a session that run now, and those that they have waited for, have used so far."""
    ticks = sum(int(field) for _, fields in members(session) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def end_session(session: int) -> None:
    """Kill all processes of a session."""
    for process, _ in members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def members(session: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the processes of a session, with the fields of their statistics from the state on."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield int(path.parent.name), fields


class WarmProcess:
    """Starts the program; its chatter goes to a log file.

    Args:
        command: The program with its arguments.
        workspace: Where it runs; made if it is not there.
        patience: Seconds after which a program that has not answered is killed.
        environment: Variables that it gets beside those of this process.
    """

    def __init__(
        self, command: Sequence[str], workspace: Path, patience: float, environment: Mapping[str, str] | None = None
    ) -> None:
        self._patience = patience
        self._log = workspace / "log"
        workspace.mkdir(parents=True, exist_ok=True)
        # Functions are pickled by reference, so that Spark's Python workers have to find this package.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, **(environment or {})},
                cwd=workspace,
                text=True,
                start_new_session=True,
            )

    def ask(self, line: str) -> str:
        """Blocks until the program has answered; an empty answer says that it has ended, or was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        watchdog = threading.Timer(self._patience, self._kill)
        watchdog.daemon = True  # who is told to end does not wait for it, also if that is said while it is started
        try:
            watchdog.start()
            return self._process.stdout.readline()
        finally:
            watchdog.cancel()

    def processor_seconds(self) -> float:
        """What the processes of the program that run now, and those that they have waited for, have used so far."""
        return processor_seconds(self._process.pid)

    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]

    def close(self) -> None:
        """Ends the program and everything that it has started."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        self._kill()
        self._process.wait()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
