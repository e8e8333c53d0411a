"""What `holdfast run` and `holdfast info` tell a program from outside: every environment looks here.

Options win over what the program sets, and the log names what they replaced. A program whose plan alone is asked for
ends where it would execute its first job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import shown
from holdfast.runtime.graph.stream_graph import StreamGraph

logger = logging.getLogger(__name__)

_from_outside = Configuration()
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
def launching(options: Configuration) -> Iterator[None]:
    """Runs a program with options that win over its own."""
    global _from_outside
    before, _from_outside = _from_outside, options.clone()
    try:
        yield
    finally:
        _from_outside = before


def with_options_from_outside(program: Configuration) -> Configuration:
    """The program's configuration with the options from outside over it; logs each value that was replaced."""
    combined, replaced = _from_outside.overriding(program)
    for key, value in sorted(replaced.items()):
        logger.info("option %s: the program's value %s is replaced from the command line", key, shown(key, value))
    return combined
