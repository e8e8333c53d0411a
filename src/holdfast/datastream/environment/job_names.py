"""Which job an `execute()` without a name means.

Jobs are numbered as a process executes them, so that the next process, which executes them in the same order, finds
each again. Within a process the same steps are the same job, because a program may run one again and again; other steps
are another job. Functions count by where they are defined: what is in them cannot be compared.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from typing import Final

from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.user_function import functions_of
from holdfast.runtime.graph.stream_graph import KeyedNode, NarrowNode, Node, StreamGraph

_log: Final = get_logger(__name__)


class ExecutedJobs:
    """What the environments of a process, or one of them, have executed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[tuple[str, str]] = set()
        self._known: dict[tuple[str, str, str, int], str] = {}

    def add(self, directory: str, name: str) -> None:
        """A job has this name, in a directory of checkpoints."""
        with self._lock:
            self._names.add((directory, name))

    def name_of(self, directory: str, base: str, steps: str, repetition: int, own: set[str]) -> str:
        """Return the name of a job that was given none.

        Args:
            directory: Where its checkpoints go.
            base: What the name is made of.
            steps: Its steps, as `steps_of` tells them.
            repetition: How often its environment has executed these steps already.
            own: The names of the jobs that its environment has executed.
        """
        key = (directory, base, steps, repetition)
        with self._lock:
            known = self._known.get(key)
            if known is not None and known not in own:
                _log.warning(
                    "an earlier environment of this process has executed the same steps as job %r, so this is that job "
                    "again, and goes on where it ended; give execute() a name if it is another job",
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
            _log.warning(
                "this process has executed another job %r, so this one, which was given no name, is %r; give execute() "
                "one, and it does not depend on the order of jobs",
                base,
                name,
            )
        return name


class JobNames:
    """The names of the jobs of one environment.

    Args:
        process: What is remembered for the process.
    """

    def __init__(self, process: ExecutedJobs) -> None:
        self._process = process
        self._given: list[str] = []
        self._unnamed: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, directory: str | None) -> None:
        """A job of the environment has a name."""
        self._given.append(name)
        if directory is not None:
            self._process.add(directory, name)

    def other_than(self, name: str) -> list[str]:
        """The names of other jobs of the environment."""
        return [other for other in self._given if other != name]

    def next(self, base: str, graph: StreamGraph, directory: str | None) -> str:
        """Return the name of a job that was given none.

        Args:
            base: What the name is made of.
            graph: Its steps.
            directory: Where its checkpoints go; None if no other environment can have a job in the same place.
        """
        steps = steps_of(graph)
        repetition = self._unnamed[base, steps]
        self._unnamed[base, steps] += 1
        process = ExecutedJobs() if directory is None else self._process
        return process.name_of(directory or "", base, steps, repetition, set(self._given))


def steps_of(graph: StreamGraph) -> str:
    """Return a text that is the same for jobs of the same steps."""
    places = {node.number: place for place, node in enumerate(graph.nodes)}
    told = [[*_own(node), *(places[other.number] for other in node.inputs)] for node in graph.nodes]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _own(node: Node) -> tuple[str, ...]:
    return type(node).__name__, node.identity, node.name, node.element_type.ddl, _function(node)


def _function(node: Node) -> str:
    if not isinstance(node, KeyedNode | NarrowNode):
        return ""
    functions = functions_of(node.operator.function)
    named = [function if hasattr(function, "__qualname__") else type(function) for function in functions]
    return " ".join(f"{getattr(one, '__module__', None)}.{one.__qualname__}" for one in named)
