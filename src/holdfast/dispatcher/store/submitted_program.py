"""What is submitted: a program, its files and options, as a plan keeps it. Nothing in it is executed by a store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import ConfigurationError, CorruptFileError
from holdfast.ha.job_manager_store.blob_store import BlobKey
from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan
from holdfast.kernel.ids import JobID
from holdfast.kernel.malformed import MALFORMED

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +-]{0,199}")
_FORMAT: Final = 1
_SUBMISSION: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class SubmittedProgram:
    """A program to be run.

    Attributes:
        submission: A random name: what happened to a job of this id before belongs to another one.
        script: The name of the file that is run.
        files: All files by name, the script among them, and the keys of their blobs.
        arguments: What the program finds behind its name in ``sys.argv``.
        options: Options as text, which win over the program's own.
    """

    submission: str
    script: str
    files: Mapping[str, BlobKey]
    arguments: tuple[str, ...]
    options: Mapping[str, str]

    def to_plan(self, job_id: JobID, job_name: str) -> ExecutionPlan:
        """Return the plan that keeps it."""
        document = {
            "format": _FORMAT,
            "submission": self.submission,
            "script": self.script,
            "files": {name: str(key) for name, key in self.files.items()},
            "arguments": list(self.arguments),
            "options": dict(self.options),
        }
        return ExecutionPlan(job_id, job_name, document)

    @classmethod
    def of(cls, plan: ExecutionPlan) -> SubmittedProgram:
        """Read it from a plan.

        Raises:
            CorruptFileError: The plan is none of a submitted program, or a newer version's.
        """
        document = plan.document
        try:
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']!r}, and this release reads {_FORMAT}")
            if not _SUBMISSION.fullmatch(document["submission"]):
                raise ValueError("its submission has no name")
            files = {check_name(name): BlobKey.parse(key) for name, key in document["files"].items()}
            if document["script"] not in files:
                raise ValueError("its script is none of its files")
            arguments = tuple(_text(argument) for argument in document["arguments"])
            options = {_text(key): _text(value) for key, value in document["options"].items()}
            return cls(document["submission"], document["script"], files, arguments, options)
        except (*MALFORMED, ConfigurationError) as error:
            raise CorruptFileError(
                f"plan of job {plan.job_id}", None, f"it is not what a job manager has stored: {error!r:.300}."
            ) from error


def check_name(name: Any) -> str:
    """Return the name of a file if it is one that cannot lead anywhere else.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r:.80} cannot be the name of a submitted file: letters, digits, '_', '.', '+', '-' and blanks, at "
            "most 200, not beginning with a dot."
        )
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value
