"""A snapshot that belongs to the job that was started from it: when nothing needs it any more, the job deletes it.

What the job needs of it was copied (or linked) before, so it needs nothing any more when the first checkpoint of its
own has completed. That checkpoint, and those after it, say what is still owed, until it is done: whoever goes on from
one of them goes on with the deletion too. A claim also knows the digest of the snapshot's document. If somebody has
put another one at its place, that one is left alone. For checkpoints see `claimed_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.recovery.claimed_checkpoint import give_up, take
from holdfast.checkpoint.recovery.disposal import DISPOSAL_MARK, dispose_savepoint
from holdfast.checkpoint.recovery.retained import is_in, load
from holdfast.errors import ConfigurationError, NotExistError
from holdfast.kernel import fault
from holdfast.storage.file_system.path import is_absolute, join
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import JobDirectory


@dataclass(frozen=True)
class Claim:
    """A snapshot that its job is to delete.

    Attributes:
        path: Its directory, absolute.
        digest: SHA-256 of its document, hexadecimal.
        job: Of a checkpoint, the job that had it; None for a savepoint.
        owner: Of a checkpoint, what the register of that job says of who has claimed it.
    """

    path: str
    digest: str
    job: str | None = None
    owner: str | None = None

    @classmethod
    def of(cls, snapshot: CompletedCheckpoint, directory: JobDirectory) -> Claim | None:
        """Return the claim on what a job is started from; None for one of its own checkpoints, which it owns anyway.

        A job whose checkpoint is claimed is fenced from then on.

        Raises:
            ConfigurationError: Its path is a link, or its job does not retain it.
            StorageError, ConflictError: The job of the checkpoint could not be fenced.
        """
        if is_in(snapshot, directory):
            return None
        fs = file_system_for(snapshot.path)
        if fs.is_link(snapshot.path):
            raise ConfigurationError(
                f"{snapshot.path!r} is a link, and no deletion follows one: name the directory of the snapshot itself."
            )
        path = snapshot.path if is_absolute(snapshot.path) else fs.resolved(snapshot.path)
        if snapshot.metadata.is_savepoint:
            return cls(path, snapshot.pointer.digest)
        owner = f"job {directory.job_id} in {directory.path}, which has claimed checkpoint {snapshot.checkpoint_id}"
        take(snapshot, owner)
        return cls(path, snapshot.pointer.digest, str(snapshot.get_job_id()), owner)

    def settle(self) -> None:
        """Delete the snapshot, if it is still there. Blocks. May be called again, by anybody who knows of the claim.

        Raises:
            HoldfastError: It could not be deleted; a part may be.
        """
        if self.job is not None and self.owner is not None:
            give_up(self.path, self.digest, self.job, self.owner)
            return
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
        of_checkpoint = {} if self.job is None else {"job": self.job, "owner": self.owner}
        return {"path": self.path, "digest": self.digest, **of_checkpoint}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Claim:
        """Read what `to_json` returned, which was checked with the document."""
        return cls(value["path"], value["digest"], value.get("job"), value.get("owner"))
