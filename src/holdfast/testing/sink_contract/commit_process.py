"""A process that commits and stops at a line of it: there it is killed, or sleeps while another process commits.

The lines that count are those of the packages in which the sink and its test are written; what they call is done before
the next of them.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Final

from holdfast.runtime.commit.sink_committing import Entry
from holdfast.testing.sink_contract.sink_backend import SinkBackend
from holdfast.testing.sink_contract.sink_stage import SinkStage

PATIENCE: Final = 120.0
"""Seconds within which a process answers."""


class CommitProcess:
    """A process of its own that commits an epoch, and stops where it is told.

    Args:
        backend: Makes its sink.
        staging: The directory that writers were given.
        incarnation: Of the job.
        committables: What it commits.
        line: The line, from 1, in front of which it stops; 0 if it does not stop.
    """

    def __init__(
        self, backend: SinkBackend, staging: Path, incarnation: str, committables: Sequence[Entry], line: int = 0
    ) -> None:
        # A fork of this process might inherit a lock that a thread of it holds; one of the fork server does not.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, type(backend).__module__])
        self._answers, theirs = context.Pipe()
        arguments = (theirs, backend, staging, incarnation, list(committables), line)
        self._process = context.Process(target=_commit, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def answer(self) -> Any:
        """Blocks until it stops, and is then None, or until it has committed, and is then the lines that it took.

        Raises:
            AssertionError: It has ended without an answer, or does not answer.
        """
        assert self._answers.poll(PATIENCE), "the process that commits does not answer"
        try:
            return self._answers.recv()
        except EOFError:
            raise AssertionError("the process that commits has ended without an answer") from None

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.join(PATIENCE)

    def go_on(self) -> None:
        """Lets one that has stopped go on, and blocks until it has ended.

        The first commit may take more lines than later ones, because it makes directories: a process that was to stop
        at such a line has committed and ended.
        """
        with suppress(BrokenPipeError):
            self._answers.send(None)
        self._process.join(PATIENCE)
        assert not self._process.is_alive(), "the process that commits hangs"


def lines_of_a_commit(backend: SinkBackend, staging: Path, incarnation: str, committables: Sequence[Entry]) -> int:
    """Commits in a process that does not stop; how many lines that took."""
    process = CommitProcess(backend, staging, incarnation, committables)
    lines = process.answer()
    process.kill()
    assert isinstance(lines, int), f"the commit failed: {lines}"
    return lines


def _commit(
    answers: Connection, backend: SinkBackend, staging: Path, incarnation: str, entries: list[Entry], line: int
) -> None:
    stage = SinkStage(backend.new_sink(), staging, backend.columns, incarnation=incarnation)
    packages = {_package(stage.sink), _package(backend)}
    lines = 0

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in packages:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                answers.send(None)
                answers.recv()
        return follow

    sys.settrace(follow)
    try:
        stage.commit(entries)
    except Exception as error:
        sys.settrace(None)
        answers.send(repr(error))
    else:
        sys.settrace(None)
        answers.send(lines)


def _package(instance: object) -> str:
    return type(instance).__module__.partition(".")[0]
