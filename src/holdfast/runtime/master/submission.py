"""What became of a job since it was submitted to a job manager, as its directory says.

A job that has ended and is submitted again runs again. So its register, which may say that it was cancelled, does not
tell whether that was before the submission or since; two files do::

    <job directory>/submission-<name>            it has begun to run: what the register says now is since then
    <job directory>/submission-<name>.stopped    it was stopped, or its trigger is exhausted

The first is made once the register says that the job runs, and before anything can end it; the second when it has
ended. The next submission that begins removes those before it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from holdfast.errors import AlreadyExistError, ConfigurationError
from holdfast.ha.services.options import HA_SUBMISSION
from holdfast.runtime.job.job import Job
from holdfast.runtime.job.status import JobStatus
from holdfast.storage.file_system.path import join
from holdfast.storage.job.job_directory import JobDirectory

_NAME: Final = re.compile("[0-9a-f]{32}")
_FILE: Final = re.compile(r"submission-([0-9a-f]{32})(\.stopped)?")
_STOPPED: Final = ".stopped"


class Submission:
    """One submission of a job.

    Args:
        directory: The job's directory.
        name: The submission.
    """

    def __init__(self, directory: JobDirectory, name: str) -> None:
        self._directory = directory
        self._name = name

    def ended(self, terminal: str | None) -> JobStatus | None:
        """How the job has ended since it was submitted, None if it is to run.

        Args:
            terminal: What the register says.
        """
        if self._exists(_STOPPED):
            return JobStatus.SUSPENDED
        return JobStatus(terminal) if terminal is not None and self._exists() else None

    def begin(self) -> None:
        """The register says that the job runs."""
        self._create()
        fs, path = self._directory.fs, self._directory.path
        for name in fs.list_names(path):
            match = _FILE.fullmatch(name)
            if match and match[1] != self._name:
                fs.delete_in(path, name)

    def stop(self) -> None:
        """The job has ended, and can be resumed by another submission."""
        self._create(_STOPPED)

    def _exists(self, suffix: str = "") -> bool:
        return self._directory.fs.exists(self._path(suffix))

    def _create(self, suffix: str = "") -> None:
        with suppress(AlreadyExistError):
            self._directory.fs.create_exclusive(self._path(suffix), b"")

    def _path(self, suffix: str) -> str:
        return join(self._directory.path, f"submission-{self._name}{suffix}")


def submission_of(job: Job) -> Submission | None:
    """The submission of a job; None if no job manager runs it.

    Raises:
        ConfigurationError: It has a name that no job manager gives.
    """
    name = job.configuration.get(HA_SUBMISSION)
    if name is None:
        return None
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"Option {HA_SUBMISSION.key!r} is set by job managers only, not to {name!r}.")
    return Submission(job.directory, name)
