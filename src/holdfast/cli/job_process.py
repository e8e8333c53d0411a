"""The process of a submitted job: ``python -m holdfast.cli.job_process DIRECTORY PIPE``, started by a job manager.

With ``-`` for the directory it is a spare process: it warms up, reports that it is ready, and reads the directory from
standard input.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.cli.output import exit_code_of
from holdfast.cli.program import as_main_program, log_to_stderr, run_script
from holdfast.datastream.environment.launch import OnLaunch, program_overrides
from holdfast.dispatcher.dispatcher_machine import ProcessOutcome
from holdfast.dispatcher.process import PROGRAM, SPARE, LaunchedJob, ProcessStart, ended_line, launched_line, ready_line
from holdfast.errors import ConfigurationError, FencedError
from holdfast.ha.job_result_store import FailureCause
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import without_credentials
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient

_INTERRUPTED: Final = 128 + signal.SIGTERM
_STAY_WARM_SECONDS: Final = 40.0
_LONGEST: Final = 64 * 1024


def main(where: str, pipe: int) -> int:
    """Run the program in a directory to its end; return the exit code."""
    os.set_inheritable(pipe, False)
    orders = _die_with_job_manager()
    log_to_stderr()
    directory = Path(_await_order(orders, pipe) if where == SPARE else where)
    launched: list[JobClient] = []

    def report_launched(client: JobClient) -> None:
        launched.append(client)
        place = client.job_directory
        job = LaunchedJob(
            str(client.get_job_id()), client.name, place.root, create_subdir=place.path != place.root.rstrip("/")
        )
        _write(pipe, launched_line(job))

    failure: BaseException | None = None
    try:
        _run(ProcessStart.read(directory), directory, launched, report_launched)
    except BaseException as error:  # noqa: BLE001 - how the process ends is decided below
        failure = error
    if failure is not None and not isinstance(failure, SystemExit):
        with suppress(OSError, ValueError):  # the program has closed standard error, or its disk is full
            traceback.print_exception(failure)
    if _is_late_signal(failure, launched):
        failure = None
    _write(pipe, ended_line(_outcome(launched, failure)))
    return 0 if failure is None else exit_code_of(failure)


def _run(start: ProcessStart, directory: Path, launched: list[JobClient], report_launched: OnLaunch) -> None:
    # The environment knows the options of all packages.
    import holdfast.datastream.environment.stream_execution_environment  # noqa: F401

    options, defaults = Configuration(start.options), Configuration(start.defaults)
    options.validate()
    script = directory / PROGRAM / start.script
    with (
        program_overrides(options, defaults=defaults, on_launch=report_launched),
        as_main_program(script, start.arguments),
    ):
        # A program that was told to stop before it has executed its job ends here.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(_INTERRUPTED))
        try:
            run_script(script)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        for client in launched:
            client.run_to_end()
    if not launched:
        raise ConfigurationError(f"{start.script!r} ended without executing a job.")


def _outcome(launched: list[JobClient], failure: BaseException | None) -> ProcessOutcome:
    has_run = any(client.has_run for client in launched)
    interrupted = any(client.was_interrupted for client in launched)
    name = launched[-1].name if launched else ""
    if failure is None:
        return ProcessOutcome(_worst(launched), has_run, interrupted, name=name)
    if isinstance(failure, (SystemExit, KeyboardInterrupt)) and not launched:
        interrupted = isinstance(failure, KeyboardInterrupt) or failure.code == _INTERRUPTED
    return ProcessOutcome(
        "FAILED",
        has_run,
        interrupted,
        was_fenced=_is_fenced(failure),
        failure=_cause(failure),
        name=name,
    )


def _cause(failure: BaseException) -> FailureCause:
    try:
        message = str(failure)
    except Exception as error:  # noqa: BLE001 - the program's own error may fail to print
        message = f"its message cannot be had: {error!r}"
    return FailureCause(
        type(failure).__name__, _shorten(message), _shorten("".join(traceback.format_exception(failure)))
    )


def _shorten(text: str) -> str:
    """Return a text as it is stored for later leaders, which read it of each ended job: shortened if it is long."""
    text = without_credentials(text)
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}... {len(text) - _LONGEST} characters ...{text[-half:]}"


def _is_late_signal(failure: BaseException | None, launched: list[JobClient]) -> bool:
    """Return whether SIGTERM came when the jobs of the program had ended."""
    is_signal = isinstance(failure, SystemExit) and failure.code == _INTERRUPTED
    return is_signal and bool(launched) and all(client.get_job_status().is_terminal_state() for client in launched)


def _write(pipe: int, line: bytes) -> None:
    while line:
        line = line[os.write(pipe, line) :]


def _worst(launched: list[JobClient]) -> str:
    """Return the status of the last job; a later job does not make a stopped one finished."""
    statuses = [client.get_job_status() for client in launched]
    stopped = [status for status in statuses if status is not JobStatus.FINISHED]
    return (stopped or statuses)[-1].value


def _is_fenced(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, FencedError):
            return True
        error = error.__cause__
    return False


def _await_order(orders: queue.SimpleQueue[str], pipe: int) -> str:
    """Warm up and wait for a job; return its directory."""
    from holdfast.cli.spare import Spare

    spare = Spare(ProcessStart.read(Path.cwd().parent).defaults)
    os.ftruncate(1, 0)  # the output of the warm-up belongs to no job
    _write(pipe, ready_line())
    while True:
        try:
            order = orders.get(timeout=_STAY_WARM_SECONDS)
        except queue.Empty:
            spare.stay_warm()
        else:
            spare.give_away()
            return order


def _die_with_job_manager() -> queue.SimpleQueue[str]:
    """Kill this process and its JVM when the job manager ends, in any way: another one leads the job then.

    Returns the lines that the job manager writes before.
    """
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    line = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        with os.fdopen(line, "rb", closefd=False) as lines:
            for order in lines:
                orders.put(order.decode().rstrip("\n"))
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="holdfast-job-manager", daemon=True).start()
    return orders


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
