"""Names of run files and staged files, from which token and epoch can be read.

A name is unique to the attempt that wrote the file, so no path is ever written twice; and whoever sweeps can tell from
the name alone whether a file is his to delete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.kernel.ids import new_nonce
from holdfast.storage.file_system.local import final_name

RUN_SUFFIX: Final = ".run"
_OWNER: Final = re.compile(r"[0-9A-Za-z_]{1,40}")
_NAME: Final = re.compile(
    r"(?P<token>[0-9]{6,19})-(?P<epoch>[0-9]{9,19})-(?P<attempt>[0-9]{1,19})-(?P<owner>[0-9A-Za-z_]{1,40})"
    r"-(?P<subtask>[0-9]{1,6})-(?P<nonce>[0-9a-f]{12})(?P<suffix>(\.[0-9A-Za-z_]+)*)"
)


@dataclass(frozen=True, slots=True)
class FileName:
    """What the name of a file says: ``<token>-<epoch>-<attempt>-<owner>-<subtask>-<nonce><suffix>``.

    Attributes:
        token: Fencing token of the leader whose task wrote the file.
        epoch: Epoch in which it was written.
        attempt: Attempt of the task.
        owner: Usually the first eight digits of the operator id.
        subtask: Index of the subtask.
        nonce: 12 hexadecimal digits that nobody else drew.
    """

    token: int
    epoch: int
    attempt: int
    owner: str
    subtask: int
    nonce: str

    @classmethod
    def new(cls, token: int, epoch: int, attempt: int, owner: str, subtask: int) -> FileName:
        """Return a name that nobody else has, with a new nonce."""
        return cls(token, epoch, attempt, owner, subtask, new_nonce())

    def format(self, suffix: str = RUN_SUFFIX) -> str:
        """Return the name with a suffix such as ``".run"``; with equal width, names sort by token and epoch."""
        if not _OWNER.fullmatch(self.owner):
            raise ValueError(f"The owner in a file name has 1 to 40 letters, digits and '_', not {self.owner!r}.")
        return f"{self.token:06d}-{self.epoch:09d}-{self.attempt}-{self.owner}-{self.subtask}-{self.nonce}{suffix}"

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """Read a name, also a temporary one under which a file is written first; None if it is not one of ours."""
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
