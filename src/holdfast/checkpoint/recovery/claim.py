"""A savepoint that belongs to the job that was started from it: when nothing needs it any more, the job deletes it.

What the job needs of it was copied (or linked) before, so it needs nothing any more when the first checkpoint of its
own has completed. That checkpoint, and those after it, say what is still owed, until it is done: whoever goes on from
one of them goes on with the deletion too. A claim also knows the digest of the savepoint's document. If somebody has
put another savepoint at its place, that one is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.recovery.disposal import DISPOSAL_MARK, dispose_savepoint
from holdfast.checkpoint.recovery.retained import load, root_of
from holdfast.errors import ConfigurationError, NotExistError
from holdfast.kernel import fault
from holdfast.storage.file_system.path import is_absolute, join
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import JobDirectory


@dataclass(frozen=True)
class Claim:
    """A savepoint that its job is to delete.

    Attributes:
        path: Its directory, absolute.
        digest: SHA-256 of its document, hexadecimal.
    """

    path: str
    digest: str

    @classmethod
    def of(cls, snapshot: CompletedCheckpoint, directory: JobDirectory) -> Claim | None:
        """Return the claim on what a job is started from; None for one of its own checkpoints, which it owns anyway.

        Raises:
            ConfigurationError: It is a checkpoint of another job, or its path is a link.
        """
        if root_of(snapshot).rstrip("/") == directory.path.rstrip("/"):
            return None
        if not snapshot.metadata.is_savepoint:
            raise ConfigurationError(
                f"{snapshot.path!r} is a checkpoint of job {snapshot.get_job_id()}, and cannot be claimed: other "
                "checkpoints of that job share its files. Start with NO_CLAIM, and delete the directory of that job "
                "when you need none of them any more; or take a savepoint and claim that."
            )
        fs = file_system_for(snapshot.path)
        if fs.is_link(snapshot.path):
            raise ConfigurationError(
                f"{snapshot.path!r} is a link, and no deletion follows one: name the directory of the savepoint itself."
            )
        path = snapshot.path if is_absolute(snapshot.path) else fs.resolved(snapshot.path)
        return cls(path, snapshot.pointer.digest)

    def settle(self) -> None:
        """Delete the savepoint, if it is still there. Blocks. May be called again, by anybody who knows of the claim.

        Raises:
            HoldfastError: It could not be deleted; a part may be.
        """
        try:
            found = load(self.path)
        except NotExistError:
            # Either all is done, or somebody has died on the way and left a mark.
            if not file_system_for(self.path).exists(join(self.path, DISPOSAL_MARK)):
                return
        else:
            if found.pointer.digest != self.digest:
                return
        with fault.point("subsume.delete"):
            dispose_savepoint(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as a checkpoint's document has it."""
        return {"path": self.path, "digest": self.digest}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Claim:
        """Read what `to_json` returned, which was checked with the document."""
        return cls(value["path"], value["digest"])
