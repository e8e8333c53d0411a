"""What `holdfast run`, `info` and a job manager tell a program from outside: every environment looks here.

Options win over what the program sets, and the log names what they replaced; defaults lose against it. A program whose
plan alone is asked for ends where it would execute its first job. A job manager hears of each job that is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger, shown
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.master.job_client import JobClient

logger = get_logger(__name__)

OnLaunch = Callable[[JobClient], None]

_from_outside = Configuration()
_defaults = Configuration()
_on_launch: OnLaunch | None = None
_launched: str | None = None
_interrupted: str | None = None
_is_planning = False


@dataclass(frozen=True)
class Program:
    """What a program would have executed.

    Attributes:
        session: The Spark session that it has made or was given, None if there is none yet.
    """

    graph: StreamGraph
    name: str
    configuration: Configuration
    session: Any


class ProgramPlanned(BaseException):
    """Ends a program whose plan alone was asked for.

    Attributes:
        program: What it would have executed.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program.name)
        self.program = program


@contextmanager
def planning() -> Iterator[None]:
    """Runs a program up to the execution of its first job, where `ProgramPlanned` is raised instead."""
    global _is_planning
    _is_planning = True
    try:
        yield
    finally:
        _is_planning = False


def end_if_planning(program: Program) -> None:
    """Ends the program if its plan alone was asked for.

    Raises:
        ProgramPlanned: It was.
    """
    if _is_planning:
        raise ProgramPlanned(program)


@contextmanager
def launching(
    options: Configuration, *, defaults: Configuration | None = None, on_launch: OnLaunch | None = None
) -> Iterator[None]:
    """Runs a program with options that win over its own.

    Args:
        options: These options.
        defaults: Options over which the program's own win.
        on_launch: Called with the handle of each job that the program executes.
    """
    global _from_outside, _defaults, _on_launch, _launched
    before = _from_outside, _defaults, _on_launch, _launched
    _from_outside, _defaults, _on_launch = options.clone(), (defaults or Configuration()).clone(), on_launch
    _launched = None
    try:
        yield
    finally:
        _from_outside, _defaults, _on_launch, _launched = before


def with_options_from_outside(program: Configuration) -> Configuration:
    """The program's configuration, with the options from outside over it and the defaults below it.

    Logs each value of the program that was replaced.
    """
    own, _ = program.overriding(_defaults)
    combined, replaced = _from_outside.overriding(own)
    for key, value in sorted(replaced.items()):
        if program.contains(key):
            logger.info("option %s: the program's value %s is replaced from the command line", key, shown(key, value))
    return combined


def require_one_job(name: str) -> None:
    """Lets a program that was submitted to a job manager execute one job.

    Raises:
        ConfigurationError: It has executed one before, which has the id under which the program was submitted.
    """
    global _launched
    if _on_launch is None:
        return
    if _launched is not None:
        raise ConfigurationError(
            f"A program that is submitted executes one job, but this one executes {_launched!r} and then {name!r}: "
            "submit a program for each of them."
        )
    _launched = name


def told_of_launch(client: JobClient) -> JobClient:
    """Lets whoever runs the program know that a job was launched; returns its handle."""
    if _on_launch is not None:
        _on_launch(client)
    return client


def note_signal(client: JobClient) -> None:
    """Remembers if SIGTERM has ended a job."""
    global _interrupted
    if client.was_interrupted:
        _interrupted = client.name


def end_if_signalled(name: str) -> None:
    """Ends the program, with exit code 0, if SIGTERM has ended a job of it: the signal was for the process.

    Raises:
        SystemExit: It has.
    """
    if _interrupted is not None:
        logger.warning("SIGTERM has ended job %r: job %r is not begun, and the program ends", _interrupted, name)
        raise SystemExit(0)
