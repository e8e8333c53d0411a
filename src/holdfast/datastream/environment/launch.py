"""Options and hooks that `holdfast run`, `info` and a job manager set around a program, and the names of its jobs.

Options from outside win over those of the program, and the log names what they replaced; defaults lose against them. A
program that is only planned ends where it would execute its first job.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger, redacted_value
from holdfast.runtime.function.user_function import functions_of
from holdfast.runtime.graph.stream_graph import KeyedNode, Node, NonKeyedNode, StreamGraph
from holdfast.runtime.job.options import JOB_NAME
from holdfast.runtime.master.job_client import JobClient

logger = get_logger(__name__)

OnLaunch = Callable[[JobClient], None]

_from_outside = Configuration()
_defaults = Configuration()
_on_launch: OnLaunch | None = None
_launched: str | None = None
_own_names: set[str] = set()
_interrupted: str | None = None
_is_planning = False


@dataclass(frozen=True)
class Program:
    """A program that was planned instead of executed.

    Attributes:
        graph: Its steps.
        name: Name of the job.
        configuration: Options in force.
        session: The Spark session that it has made or was given, None if there is none yet.
    """

    graph: StreamGraph
    name: str
    configuration: Configuration
    session: Any


class ProgramPlanned(BaseException):
    """Ends a program that is only planned.

    Attributes:
        program: The program that it would have executed.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program.name)
        self.program = program


@contextmanager
def plan_only() -> Iterator[None]:
    """Run a program up to the execution of its first job, where `ProgramPlanned` is raised."""
    global _is_planning
    _is_planning = True
    try:
        yield
    finally:
        _is_planning = False


def stop_if_planning(program: Program) -> None:
    """End the program if it is only planned.

    Raises:
        ProgramPlanned: It is.
    """
    if _is_planning:
        raise ProgramPlanned(program)


@contextmanager
def program_overrides(
    options: Configuration, *, defaults: Configuration | None = None, on_launch: OnLaunch | None = None
) -> Iterator[None]:
    """Run a program with options that win over its own.

    Args:
        options: These options.
        defaults: Options over which the program's own win.
        on_launch: Called with the handle of each job that the program executes.
    """
    global _from_outside, _defaults, _on_launch, _launched, _own_names
    before = _from_outside, _defaults, _on_launch, _launched, _own_names
    _from_outside, _defaults, _on_launch = options.clone(), (defaults or Configuration()).clone(), on_launch
    _launched, _own_names = None, set()
    try:
        yield
    finally:
        _from_outside, _defaults, _on_launch, _launched, _own_names = before


def effective_configuration(program: Configuration) -> Configuration:
    """Return the program's configuration, with the options from outside over it and the defaults below it.

    Logs each value of the program that was replaced.
    """
    own, _ = program.overriding(_defaults)
    combined, replaced = _from_outside.overriding(own)
    for key, value in sorted(replaced.items()):
        if program.contains(key):
            logger.info(
                "option %s: the program's value %s is replaced from the command line", key, redacted_value(key, value)
            )
    return combined


def name_from_outside(own: str | None) -> str | None:
    """Return the name of a job that options from outside give it; None if they give none.

    Args:
        own: The name that the program passed to `execute`.

    Raises:
        ConfigurationError: The program has executed another job, which has that name.
    """
    name = _from_outside.get(JOB_NAME)
    others = sorted(_own_names - {own or ""})
    _own_names.add(own or "")
    if name is None or own is None:
        return None
    if others:
        raise ConfigurationError(
            f"{JOB_NAME.key} is {name!r} on the command line, which is the name of one job, but this program executes "
            f"{others[-1] or 'one without a name'!r} and then {own!r}: remove the option."
        )
    if own != name:
        logger.info("job %r runs as %r (%s from the command line)", own, name, JOB_NAME.key)
    return name


def require_one_job(name: str) -> None:
    """Let a submitted program execute only one job.

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


def notify_launched(client: JobClient) -> JobClient:
    """Notify the runner of the program of a launched job, and return its handle."""
    if _on_launch is not None:
        _on_launch(client)
    return client


def record_interruption(client: JobClient) -> None:
    """Remember that SIGTERM has ended a job."""
    global _interrupted
    if client.was_interrupted:
        _interrupted = client.name


def exit_if_interrupted(name: str) -> None:
    """End the program with exit code 0 if SIGTERM has ended a job of it: the signal was for the process.

    Raises:
        SystemExit: It has.
    """
    if _interrupted is not None:
        logger.warning("SIGTERM ended job %r: job %r is not started, and the program ends", _interrupted, name)
        raise SystemExit(0)


# Names of jobs that were given none. A process numbers its jobs, so that the next process, which executes them in the
# same order, finds each again. Within a process the same steps are the same job, because a program may run one again
# and again. Functions are compared by where they are defined: their code cannot be compared.


class ExecutedJobs:
    """The jobs that the environments of a process, or one of them, have executed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[tuple[str, str]] = set()
        self._known: dict[tuple[str, str, str, int], str] = {}

    def add(self, directory: str, name: str) -> None:
        with self._lock:
            self._names.add((directory, name))

    def name_of(self, directory: str, base: str, steps: str, repetition: int, own: set[str]) -> str:
        """Return the name of a job that was given none.

        Args:
            directory: Directory of its checkpoints.
            base: The base of the name.
            steps: Its steps, as `digest_steps` returns them.
            repetition: How often its environment has executed these steps already.
            own: The names of the jobs that its environment has executed.
        """
        key = (directory, base, steps, repetition)
        with self._lock:
            known = self._known.get(key)
            if known is not None and known not in own:
                logger.warning(
                    "an earlier environment of this process executed the same steps as job %r, so this is the same job "
                    "and resumes where it ended; pass a name to execute() if it is another job",
                    known,
                )
                return known
            number, name = 1, base
            while name in own or (directory, name) in self._names:
                number += 1
                name = f"{base}-{number}"
            self._names.add((directory, name))
            self._known[key] = name
        if base not in own and name != base:
            logger.warning(
                "this process executed another job %r, so this one, without a name, is %r; pass a name to execute() "
                "to make it independent of the order of jobs",
                base,
                name,
            )
        return name


class JobNames:
    """The names of the jobs of one environment.

    Args:
        process: The jobs of the process.
    """

    def __init__(self, process: ExecutedJobs) -> None:
        self._process = process
        self._given: list[str] = []
        self._unnamed: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, directory: str | None) -> None:
        self._given.append(name)
        if directory is not None:
            self._process.add(directory, name)

    def other_than(self, name: str) -> list[str]:
        return [other for other in self._given if other != name]

    def next(self, base: str, graph: StreamGraph, directory: str | None) -> str:
        """Return the name of a job that was given none.

        Args:
            base: The base of the name.
            graph: Its steps.
            directory: Directory of its checkpoints; None if no other environment can have a job in the same place.
        """
        steps = digest_steps(graph)
        repetition = self._unnamed[base, steps]
        self._unnamed[base, steps] += 1
        process = ExecutedJobs() if directory is None else self._process
        return process.name_of(directory or "", base, steps, repetition, set(self._given))


def digest_steps(graph: StreamGraph) -> str:
    """Return a text that is the same for jobs of the same steps."""
    places = {node.number: place for place, node in enumerate(graph.nodes)}
    described = [[*_own(node), *(places[other.number] for other in node.inputs)] for node in graph.nodes]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _own(node: Node) -> tuple[str, ...]:
    return type(node).__name__, node.identity, node.name, node.element_type.ddl, _function(node)


def _function(node: Node) -> str:
    if not isinstance(node, KeyedNode | NonKeyedNode):
        return ""
    functions = functions_of(node.operator.function)
    named = [function if hasattr(function, "__qualname__") else type(function) for function in functions]
    return " ".join(f"{getattr(one, '__module__', None)}.{one.__qualname__}" for one in named)
