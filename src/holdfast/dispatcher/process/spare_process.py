"""Processes that a job manager keeps ready: everything is imported and a JVM is warm, only the job is missing.

::

    <working directory>/spare/<n>/log        what it writes; becomes the log of its job
    <working directory>/spare/<n>/program/   where it works; becomes the directory of its program
    <working directory>/spare/<n>/start.json options that every job has, unless it says something else

The first two are renamed when it gets a job. So the process, its JVM and whatever they start find themselves where any
process of a job does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.dispatcher.process.process_start import LOG, PROGRAM, SPARE, ProcessStart, is_ready_line
from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)


class SpareProcess:
    """One process without a job; safe to use from several threads.

    Args:
        command: What runs a job.
        directory: Where it works until it gets one; is made.
        environment: Of the process.
        defaults: Options of its job, as far as they are known.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], defaults: Mapping[str, str]
    ) -> None:
        self._directory = directory
        (directory / PROGRAM).mkdir(parents=True, mode=0o700)
        ProcessStart("", (), {}, defaults).write(directory)
        reading, writing = os.pipe()
        self.lines: BinaryIO = os.fdopen(reading, "rb")
        try:
            with (directory / LOG).open("ab") as output:
                self.process = subprocess.Popen(
                    [*command, SPARE, str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=directory / PROGRAM,
                    env=dict(environment),
                    pass_fds=(writing,),
                    start_new_session=True,
                )
        finally:
            os.close(writing)
        self._is_ready = threading.Event()
        threading.Thread(target=self._wait, name="holdfast-spare", daemon=True).start()

    def is_ready(self) -> bool:
        """Whether it waits for a job."""
        return self._is_ready.is_set() and self.process.poll() is None

    def enter(self, directory: Path) -> None:
        """Make its directory that of a job, whose program and log are not there yet.

        Raises:
            OSError: They are.
        """
        directory.mkdir(parents=True, exist_ok=True)
        (self._directory / PROGRAM).rename(directory / PROGRAM)
        (self._directory / LOG).rename(directory / LOG)
        shutil.rmtree(self._directory, ignore_errors=True)

    def begin(self, directory: Path) -> None:
        """Let it run what the directory says.

        Raises:
            OSError: It has died.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{directory}\n".encode())
        self.process.stdin.flush()

    def end(self) -> None:
        """End it at once, with its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait(self) -> None:
        if is_ready_line(self.lines.readline()):
            self._is_ready.set()
            _log.info("a spare process is ready: %d", self.process.pid)
        else:
            _log.warning("a spare process has ended before it was ready; what it said: %s", self._last_words())

    def _last_words(self) -> str:
        try:
            return (self._directory / LOG).read_text(errors="replace")[-1000:]
        except OSError:
            return ""


class SpareProcesses:
    """So many of them; safe to use from several threads.

    Args:
        number: How many are kept.
        command: What runs a job.
        directory: The working directory of the job manager.
    """

    def __init__(self, number: int, command: Sequence[str], directory: Path) -> None:
        self._number = number
        self._command = command
        self._directory = directory / _DIRECTORY
        self._lock = threading.Lock()
        self._spares: list[SpareProcess] = []
        self._made = 0
        shutil.rmtree(self._directory, ignore_errors=True)

    def fill(self, environment: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        """Start as many as are missing. Does not wait until they are ready.

        Args:
            environment: Of the processes.
            defaults: Options of every job.
        """
        with self._lock:
            self._spares = [spare for spare in self._spares if spare.process.poll() is None]
            while len(self._spares) < self._number:
                self._made += 1
                try:
                    spare = SpareProcess(self._command, self._directory / str(self._made), environment, defaults)
                except OSError as error:
                    _log.warning("no spare process can be started: %s", error)
                    return
                self._spares.append(spare)

    def take(self) -> SpareProcess | None:
        """Return one that is ready, which is the caller's from now on; None if there is none."""
        with self._lock:
            for spare in self._spares:
                if spare.is_ready():
                    self._spares.remove(spare)
                    return spare
        return None

    def close(self) -> None:
        """End those that have no job."""
        with self._lock:
            spares, self._spares = self._spares, []
        for spare in spares:
            spare.end()


_DIRECTORY: Final = "spare"
