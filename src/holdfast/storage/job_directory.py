"""The directory of a job, and where things are in it.

::

    <root>/<job-id>/chk-<n>/_metadata     one completed checkpoint
                    shared/               run files
                    taskowned/            files of operators that no run holds
                    register/             the fenced register, if files hold it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.errors import NotExistError
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.storage.file_system import FileSystem, base_name, is_absolute, join, parent
from holdfast.storage.local import final_name

METADATA_NAME: Final = "_metadata"
SHARED: Final = "shared"
TASK_OWNED: Final = "taskowned"
REGISTER: Final = "register"
_CHECKPOINT: Final = re.compile(r"chk-([0-9]{1,19})")
RUN_SUFFIX: Final = ".run"
_OWNER: Final = re.compile(r"[0-9A-Za-z_]{1,40}")
_NAME: Final = re.compile(
    r"(?P<token>[0-9]{6,19})-(?P<epoch>[0-9]{9,19})-(?P<attempt>[0-9]{1,19})-(?P<owner>[0-9A-Za-z_]{1,40})"
    r"-(?P<subtask>[0-9]{1,6})-(?P<nonce>[0-9a-f]{12})(?P<suffix>(\.[0-9A-Za-z_]+)*)"
)


def resolve_pointer(fs: FileSystem, path: str) -> str:
    """Return the directory of the checkpoint at a path, without a trailing slash.

    Raises:
        NotExistError: There is no checkpoint.
    """
    trimmed = path.rstrip("/") or "/"
    directory = parent(trimmed) if base_name(trimmed) == METADATA_NAME else trimmed
    if not fs.exists(join(directory, METADATA_NAME)):
        where = "the file does not exist" if not fs.exists(directory) else f"it has no {METADATA_NAME!r} file"
        raise NotExistError(
            f"No checkpoint or savepoint at {path!r}: {where}. Give its directory, or its {METADATA_NAME!r} file; "
            "`holdfast checkpoints DIR` lists those of a job."
        )
    return directory


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
        return join(self.path, SHARED)

    @property
    def taskowned_dir(self) -> str:
        return join(self.path, TASK_OWNED)

    @property
    def register_dir(self) -> str:
        return join(self.path, REGISTER)

    def chk_dir(self, checkpoint_id: int) -> str:
        return join(self.path, f"chk-{checkpoint_id}")

    def metadata_path(self, checkpoint_id: int) -> str:
        return join(self.path, f"chk-{checkpoint_id}", METADATA_NAME)

    def relative(self, path: str) -> str:
        """Return a path of this directory as documents have it: relative to the directory.

        Raises:
            ValueError: The path is elsewhere.
        """
        prefix = self.path.rstrip("/") + "/"
        if not path.startswith(prefix):
            raise ValueError(f"{path!r} is not in the job directory {self.path!r}.")
        return path[len(prefix) :]

    def absolute(self, relative: str) -> str:
        """Return the full path of one in a document; an absolute one stays as it is."""
        return relative if is_absolute(relative) else join(self.path, relative)

    def create(self) -> None:
        self.fs.mkdirs(self.shared_dir)
        self.fs.mkdirs(self.taskowned_dir)

    def __repr__(self) -> str:
        return f"JobDirectory({self.path!r})"


def checkpoint_id_of(name: str) -> int | None:
    """Return the id in the name of a checkpoint's directory, None for another name."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class FileName:
    """The fields in the name of a file: ``<token>-<epoch>-<attempt>-<owner>-<subtask>-<nonce><suffix>``.

    A name is unique to the task attempt that wrote the file, so no path is ever written twice, and a sweep can tell
    from the name alone whether it may delete the file.

    Attributes:
        token: Fencing token of the leader whose task wrote the file.
        epoch: Epoch in which it was written.
        attempt: Number of earlier tries of the epoch under this token.
        owner: Usually the first eight digits of the operator id.
        subtask: Index of the subtask.
        nonce: 12 random hexadecimal digits.
    """

    token: int
    epoch: int
    attempt: int
    owner: str
    subtask: int
    nonce: str

    @classmethod
    def new(cls, token: int, epoch: int, attempt: int, owner: str, subtask: int) -> FileName:
        return cls(token, epoch, attempt, owner, subtask, new_nonce())

    def format(self, suffix: str = RUN_SUFFIX) -> str:
        """Return the name with a suffix; with equal width, names sort by token and epoch."""
        if not _OWNER.fullmatch(self.owner):
            raise ValueError(f"The owner in a file name has 1 to 40 letters, digits and '_', not {self.owner!r}.")
        return f"{self.token:06d}-{self.epoch:09d}-{self.attempt}-{self.owner}-{self.subtask}-{self.nonce}{suffix}"

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """Read a name, also the temporary form of one; None if it is not a name of this form."""
        temporary = final_name(name)
        match = _NAME.fullmatch(temporary if temporary is not None else name)
        if match is None:
            return None
        return cls(
            int(match["token"]),
            int(match["epoch"]),
            int(match["attempt"]),
            match["owner"],
            int(match["subtask"]),
            match["nonce"],
        )
