"""The job of a demo: started in a process group of its own, followed, and killed.

`holdfast demo` and the demos in `examples` use it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import click
import pyarrow.parquet as pq

from holdfast.errors import JobExecutionError

_POLL_SECONDS: Final = 0.1
_LONGEST_RUN: Final = 900.0
_LAST_LINES: Final = 30


class CommittedRows:
    """Counts the rows that a reader of a directory of Parquet files can see. It reads the footer of each file once.

    Args:
        output: The directory.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._rows: dict[Path, int] = {}

    def count(self) -> int:
        """Return the rows in all committed files."""
        for path in self._output.rglob("*.parquet"):
            if path not in self._rows:
                self._rows[path] = pq.read_metadata(path).num_rows
        return sum(self._rows.values())


class DemoJob:
    """A running job. As a context manager it kills the job at the end, if it still runs.

    Args:
        command: The program and its arguments.
        log: The file that gets its output.
        directory: Its working directory; None for that of this process.
        environment: Further variables of its environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._started = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Without these variables Spark starts its workers with the first python3 on PATH.
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_DRIVER_PYTHON": sys.executable,
                    **(environment or {}),
                },
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def session(self) -> int:
        """The id of its session and process group."""
        return self._process.pid

    @property
    def seconds(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill Python and the JVM with SIGKILL. Does nothing after their end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def follow(self, committed: CommittedRows, total: int) -> Iterator[int]:
        """Yield the number of committed rows while the job runs, and once after its end; print it when it changes.

        Args:
            committed: Counts the rows.
            total: The rows that the job will commit.

        Raises:
            JobExecutionError: It runs too long.
        """
        is_terminal, shown = sys.stdout.isatty(), -1
        try:
            while True:
                has_ended = self.exit_code is not None
                rows = committed.count()
                if rows != shown:
                    shown = rows
                    line = f"   {rows:>9,} of {total:,} rows are committed, {self.seconds:5.1f} s"
                    click.echo(f"\r{line}" if is_terminal else line, nl=not is_terminal)
                yield rows
                if has_ended:
                    return
                if self.seconds > _LONGEST_RUN:
                    raise self.error(f"The job has not ended after {_LONGEST_RUN:.0f} s.")
                time.sleep(_POLL_SECONDS)
        finally:
            if is_terminal:
                click.echo()

    def wait_until(self, is_met: Callable[[], object], awaited: str) -> None:
        """Block until a condition is met.

        Args:
            is_met: The condition.
            awaited: The condition in words, for errors, such as "the rules were read".

        Raises:
            JobExecutionError: The job ended before, or it takes too long.
        """
        while True:
            exit_code = self.exit_code
            if is_met():
                return
            if exit_code is not None:
                raise self.error(f"The job ended (exit code {exit_code}) before {awaited}.")
            if self.seconds > _LONGEST_RUN:
                raise self.error(f"The job runs for {_LONGEST_RUN:.0f} s, and still not: {awaited}.")
            time.sleep(_POLL_SECONDS)

    def require_success(self) -> None:
        """Block until the job has ended.

        Raises:
            JobExecutionError: It failed, or runs too long.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, _LONGEST_RUN - self.seconds))
        if self.exit_code is None:
            raise self.error(f"The job has not ended after {_LONGEST_RUN:.0f} s.")
        if self.exit_code != 0:
            raise self.error(f"The job failed with exit code {self.exit_code}.")

    def error(self, text: str) -> JobExecutionError:
        """Return an error about the job, with the end of its log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return JobExecutionError("\n".join([f"{text} The end of its log {self._log}:", *lines]))
