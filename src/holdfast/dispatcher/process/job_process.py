"""One process of a job, from its start to its end, as its job manager sees it.

It is the leader of a process group, so that its JVM ends with it. Its standard input is a pipe that this process holds
open: whatever becomes of the job manager, the pipe then ends, and the process with all that belongs to it kills itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.dispatcher.process.process_start import LOG, PROGRAM, LaunchedJob, ProcessStart, parse_line
from holdfast.dispatcher.process.spare_process import SpareProcess
from holdfast.dispatcher.protocol.event import ProcessOutcome
from holdfast.ha.job_manager_store.job_result import FailureCause
from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)
_FENCED_CODE: Final = 3
_LONGEST_LOG: Final = 64 << 20
_LOG_SECONDS: Final = 60.0
_LAST_WORDS: Final = 4000
_LINGER_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 60.0
_FAREWELL_SECONDS: Final = 20.0


class JobProcess:
    """A process of a job; safe to use from several threads. `run` is called once.

    Args:
        command: What runs a job; the directory and the number of the pipe are added to it.
        directory: The directory of the job, with its program in it.
        environment: Of the process.
        on_launched: Called when the program has executed its job.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        on_launched: Callable[[LaunchedJob], None],
    ) -> None:
        self._command = command
        self._directory = directory
        self._environment = environment
        self._on_launched = on_launched
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._was_told_to_end = False
        self._outcome: ProcessOutcome | None = None
        self.launched: LaunchedJob | None = None

    @property
    def pid(self) -> int | None:
        """The process, None before it has started."""
        return None if self._process is None else self._process.pid

    def run(self, start: ProcessStart, spare: SpareProcess | None = None) -> ProcessOutcome:
        """Start the process and return how it ended. Blocks.

        Args:
            start: What is to be run.
            spare: A process that has entered the directory, and becomes that of the job; None to start one.

        Raises:
            OSError: It cannot be started.
        """
        with self._lock:
            if self._was_told_to_end:
                if spare is not None:
                    spare.end()
                return ProcessOutcome(None, was_interrupted=True)
            start.write(self._directory)
            lines, process = self._started() if spare is None else self._begun(spare)
            self._process = process
        reader = threading.Thread(target=self._read, args=(lines,), name="holdfast-job-process", daemon=True)
        reader.start()
        ended = threading.Event()
        threading.Thread(target=self._keep_log_short, args=(ended,), name="holdfast-job-log", daemon=True).start()
        code = process.wait()
        ended.set()
        self._signal(signal.SIGKILL)  # what it has left behind
        with self._lock:
            self._is_over = True
        reader.join(_LINGER_SECONDS)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # what it was told it never read
            process.stdin.close()
        return self._told(code)

    def end(self, *, at_once: bool) -> None:
        """End the process: after the epoch, if it comes to its end soon, or at once. Does not block."""
        with self._lock:
            self._was_told_to_end = True
        if at_once:
            self._signal(signal.SIGKILL)
            return
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)  # Spark ends with the program
        self._signal_later(_GRACE_SECONDS)

    def _begun(self, spare: SpareProcess) -> tuple[BinaryIO, subprocess.Popen[bytes]]:
        with suppress(BrokenPipeError):  # it has died meanwhile, as any process may
            spare.begin(self._directory)
        return spare.lines, spare.process

    def _keep_log_short(self, ended: threading.Event) -> None:
        while not ended.wait(_LOG_SECONDS):
            self._cut_log()

    def _cut_log(self) -> None:
        """Begin the log anew when it is long, and keep what it had beside it; what comes in between may be lost.

        The process has it open and adds to its end, so it stays the same file.
        """
        log, before = self._directory / LOG, self._directory / f"{LOG}.1"
        try:
            if log.exists() and log.stat().st_size > _LONGEST_LOG:
                before.unlink(missing_ok=True)  # on a disk that is full there may be no room for both
                shutil.copyfile(log, before)
                os.truncate(log, 0)
        except OSError as error:
            _log.warning("the log %s is long, and was not cut: %s", log, error)

    def _started(self) -> tuple[BinaryIO, subprocess.Popen[bytes]]:
        self._cut_log()
        log = self._directory / LOG
        reading, writing = os.pipe()
        lines = os.fdopen(reading, "rb")
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [*self._command, str(self._directory), str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory / PROGRAM,
                    env=dict(self._environment),
                    pass_fds=(writing,),
                    start_new_session=True,
                )
        except OSError:
            lines.close()
            raise
        finally:
            os.close(writing)
        return lines, process

    def _read(self, lines: BinaryIO) -> None:
        with lines:
            for line in lines:
                found = parse_line(line)
                if isinstance(found, ProcessOutcome):
                    self._outcome = found
                    self._signal_later(_FAREWELL_SECONDS)  # a thread of the program may never end
                elif found is not None:
                    self.launched = found
                    self._on_launched(found)

    def _signal_later(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._signal, (signal.SIGKILL,))
        timer.daemon = True
        timer.start()

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._process is not None and not self._is_over:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def _told(self, code: int) -> ProcessOutcome:
        if self._outcome is not None:
            outcome = self._outcome
            return replace(outcome, was_interrupted=True) if self._was_told_to_end else outcome
        if code == _FENCED_CODE:
            return ProcessOutcome(None, was_fenced=True)
        has_run = self.launched is not None
        # One that ends itself without a job would do so each time; what a signal ends may be well the next time.
        has_ended_itself = code >= 0 and not has_run
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        when = " before it had executed a job" if has_ended_itself else ""
        return ProcessOutcome(
            "FAILED" if has_ended_itself else None,
            has_run=has_run,
            was_interrupted=self._was_told_to_end,
            failure=FailureCause("ProcessDied", f"The process of the job died with {how}{when}.", self._last_words()),
        )

    def _last_words(self) -> str:
        try:
            with (self._directory / LOG).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _LAST_WORDS))
                return log.read().decode(errors="replace")
        except OSError:
            return ""
