"""What the directory of a job says about its submission to a job manager."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from holdfast.errors import AlreadyExistError, ConfigurationError
from holdfast.ha.options import HA_SUBMISSION
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.engine import Job
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import JobDirectory

# A job that has ended and is submitted to a job manager again runs again. The register has the job's terminal status,
# but not whether it ended before or after the submission; two files in the job's directory record that::
#
#     submission-<name>            the job has begun to run: the terminal status in the register is newer
#     submission-<name>.stopped    the job was stopped, or its trigger is exhausted
#
# The first is created after the register says that the job runs and before the job can end, the second when it has
# ended. The next submission deletes those before it.
_NAME: Final = re.compile("[0-9a-f]{32}")

_FILE: Final = re.compile(r"submission-([0-9a-f]{32})(\.stopped)?")

_STOPPED: Final = ".stopped"


class Submission:
    """One submission of a job to a job manager.

    Args:
        directory: The job's directory.
        name: The submission.
    """

    def __init__(self, directory: JobDirectory, name: str) -> None:
        self._directory = directory
        self._name = name

    def ended(self, terminal: str | None) -> JobStatus | None:
        """Return how the job has ended since it was submitted; None if it must run.

        Args:
            terminal: The terminal status in the register.
        """
        if self._exists(_STOPPED):
            return JobStatus.SUSPENDED
        return JobStatus(terminal) if terminal is not None and self._exists() else None

    def begin(self) -> None:
        """Record that the job has begun to run; the register must say so before."""
        self._create()
        fs, path = self._directory.fs, self._directory.path
        for name in fs.list_names(path):
            match = _FILE.fullmatch(name)
            if match and match[1] != self._name:
                fs.delete_in(path, name)

    def stop(self) -> None:
        """Record that the job has ended, and that another submission can resume it."""
        self._create(_STOPPED)

    def _exists(self, suffix: str = "") -> bool:
        return self._directory.fs.exists(self._path(suffix))

    def _create(self, suffix: str = "") -> None:
        with suppress(AlreadyExistError):
            self._directory.fs.create_exclusive(self._path(suffix), b"")

    def _path(self, suffix: str) -> str:
        return join(self._directory.path, f"submission-{self._name}{suffix}")


def submission_of(job: Job) -> Submission | None:
    """Return the submission of a job; None if no job manager runs it.

    Raises:
        ConfigurationError: The name is not one of a job manager.
    """
    name = job.configuration.get(HA_SUBMISSION)
    if name is None:
        return None
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"Option {HA_SUBMISSION.key!r} is set by job managers only; {name!r} is not a valid value."
        )
    return Submission(job.directory, name)
