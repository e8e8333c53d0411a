"""The directory of a job, and where things are in it.

::

    <root>/<job-id>/chk-<n>/_metadata     one completed checkpoint
                    shared/               run files
                    taskowned/            files of operators that no run holds
                    register/             the fenced register, if files hold it
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.kernel.ids import JobID
from holdfast.storage.file_system.file import FileSystem
from holdfast.storage.file_system.path import is_absolute, join

METADATA_NAME: Final = "_metadata"
SHARED: Final = "shared"
TASK_OWNED: Final = "taskowned"
REGISTER: Final = "register"
_CHECKPOINT: Final = re.compile(r"chk-([0-9]{1,19})")


class JobDirectory:
    """The paths of one job.

    Attributes:
        fs: The file system.
        root: The checkpoint directory of all jobs.
        job_id: The job.
        path: The job's own directory.
    """

    def __init__(self, fs: FileSystem, root: str, job_id: JobID, *, create_subdir: bool = True) -> None:
        self.fs = fs
        self.root = root.rstrip("/") or "/"
        self.job_id = job_id
        self.path = join(self.root, str(job_id)) if create_subdir else self.root

    @property
    def shared_dir(self) -> str:
        """Where run files are."""
        return join(self.path, SHARED)

    @property
    def taskowned_dir(self) -> str:
        """Where operators' files are that are not runs."""
        return join(self.path, TASK_OWNED)

    @property
    def register_dir(self) -> str:
        """Where the versions of the file register are."""
        return join(self.path, REGISTER)

    def chk_dir(self, checkpoint_id: int) -> str:
        """Where a checkpoint's own files are."""
        return join(self.path, f"chk-{checkpoint_id}")

    def metadata_path(self, checkpoint_id: int) -> str:
        """The document of a checkpoint."""
        return join(self.path, f"chk-{checkpoint_id}", METADATA_NAME)

    def relative(self, path: str) -> str:
        """Return a path in this directory as it is written into documents.

        Raises:
            ValueError: The path is elsewhere.
        """
        prefix = self.path.rstrip("/") + "/"
        if not path.startswith(prefix):
            raise ValueError(f"{path!r} is not in the job directory {self.path!r}.")
        return path[len(prefix) :]

    def absolute(self, relative: str) -> str:
        """Return where a path of a document is; one that is absolute already stays as it is."""
        return relative if is_absolute(relative) else join(self.path, relative)

    def create(self) -> None:
        """Make the directories, durably."""
        self.fs.mkdirs(self.shared_dir)
        self.fs.mkdirs(self.taskowned_dir)

    def __repr__(self) -> str:
        return f"JobDirectory({self.path!r})"


def checkpoint_id_of(name: str) -> int | None:
    """Return the id that the name of a checkpoint's directory says, None for another name."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None
