"""What a job manager tells the process of a job, and what that tells back: files and lines of JSON.

The directory of a job in the working directory::

    start.json      what is to be run; for the user of the job manager alone
    program/        the files that were submitted; the process works there
    log, log.1      what its processes have written, and what the log was before it became too long

The process inherits a pipe, whose number is its second argument, into which it writes one object a line: ``launched``
(job id, root, create_subdir, name) when the program has executed its job, and ``ended`` as its last word. A process
that has no job yet says ``ready`` first, and reads the directory of its job from its standard input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.dispatcher.protocol.event import ProcessOutcome
from holdfast.errors import CorruptFileError
from holdfast.ha.job_manager_store.job_result import FailureCause
from holdfast.kernel.malformed import MALFORMED

START: Final = "start.json"
PROGRAM: Final = "program"
LOG: Final = "log"
SPARE: Final = "-"
"""In place of the directory: it comes later."""
_T = TypeVar("_T", "LaunchedJob", ProcessOutcome, FailureCause)


@dataclass(frozen=True)
class ProcessStart:
    """What a process runs.

    Attributes:
        script: The program's name among the files.
        arguments: What it finds behind its name.
        options: Options that win over its own.
        defaults: Options over which its own win.
    """

    script: str
    arguments: tuple[str, ...]
    options: Mapping[str, str]
    defaults: Mapping[str, str]

    def write(self, directory: Path) -> None:
        """Write it, readable for the user of this process alone."""
        path = directory / START
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> ProcessStart:
        """Read it.

        Raises:
            CorruptFileError: It is not there, or not whole.
        """
        path = directory / START
        try:
            body = json.loads(path.read_text())
            script, arguments, options, defaults = map(body.get, ("script", "arguments", "options", "defaults"))
            texts = (script, *arguments, *options.values(), *defaults.values())
            if type(arguments) is not list or not all(type(text) is str for text in texts):
                raise TypeError("a field is of another type")
            return cls(script, tuple(arguments), options, defaults)
        except (OSError, *MALFORMED) as error:
            raise CorruptFileError(str(path), None, f"it does not say what is to be run: {error!r:.300}.") from error


@dataclass(frozen=True)
class LaunchedJob:
    """Where the job of a process is.

    Attributes:
        root: The directory of checkpoints.
        create_subdir: Whether the job has a directory of its own in it.
    """

    job_id: str
    name: str
    root: str
    create_subdir: bool


def launched_line(job: LaunchedJob) -> bytes:
    """Return the line that says so."""
    return _line({"event": "launched", **asdict(job)})


def ended_line(outcome: ProcessOutcome) -> bytes:
    """Return the last line of a process."""
    return _line({"event": "ended", **asdict(outcome)})


def ready_line() -> bytes:
    """Return the line of a process that waits for a job."""
    return _line({"event": "ready"})


def is_ready_line(line: bytes) -> bool:
    """Whether a line is that, and whole."""
    return line == ready_line()


def parse_line(line: bytes) -> LaunchedJob | ProcessOutcome | None:
    """Read a line; None if it is not whole: the process died while it wrote."""
    try:
        body: dict[str, Any] = json.loads(line)
        kind = body.pop("event")
        if kind == "launched":
            return _checked(LaunchedJob(**body))
        failure = body.pop("failure")
        return _checked(ProcessOutcome(**body, failure=None if failure is None else _checked(FailureCause(**failure))))
    except MALFORMED:
        return None


def _checked(found: _T) -> _T:
    """What was read, if each field is of its type."""
    for field in fields(found):
        if type(getattr(found, field.name)).__name__.replace("NoneType", "None") not in str(field.type).split(" | "):
            raise TypeError(field.name)
    return found


def _line(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode() + b"\n"
