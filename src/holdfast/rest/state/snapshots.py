"""Which checkpoints and savepoints of a job can be looked into."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint, directory_of
from holdfast.checkpoint.recovery.retained import load
from holdfast.checkpoint.statistics.tracker import COMPLETED
from holdfast.errors import NotExistError
from holdfast.rest.answer import RefusedError
from holdfast.runtime.master.job_master import JobMaster

_ID: Final = re.compile("[0-9]{1,19}")


@dataclass(frozen=True)
class Snapshot:
    """A completed checkpoint or savepoint.

    Attributes:
        id: Its id.
        is_savepoint: Which of both.
        path: Its directory.
        timestamp: When it was completed, in milliseconds since 1970; None if that is not known without reading it.
        state_size: Bytes of its state, None in the same case.
    """

    id: int
    is_savepoint: bool
    path: str
    timestamp: int | None
    state_size: int | None

    def to_json(self) -> dict[str, Any]:
        """The snapshot as the page lists it."""
        kind = "SAVEPOINT" if self.is_savepoint else "CHECKPOINT"
        return {
            "id": self.id,
            "type": kind,
            "path": self.path,
            "timestamp": self.timestamp,
            "state_size": self.state_size,
        }


def snapshots_of(master: JobMaster) -> list[Snapshot]:
    """Return the retained checkpoints, and the savepoints that this process has made, newest first.

    Raises:
        StorageError: The register cannot be read.
    """
    statistics = master.statistics.create_snapshot()
    known = {stats.checkpoint_id: stats for stats in (*statistics.history, statistics.latest_savepoint) if stats}
    found: dict[int, Snapshot] = {}
    for pointer in master.job.register.read().checkpoints:
        path = directory_of(master.job.directory.absolute(pointer.path))
        stats = known.get(pointer.checkpoint_id)
        is_told = stats is not None and stats.status == COMPLETED
        found[pointer.checkpoint_id] = Snapshot(
            pointer.checkpoint_id,
            False,
            path,
            stats.end_timestamp if stats is not None and is_told else None,
            stats.state_size if stats is not None and is_told else None,
        )
    for number, stats in known.items():
        if stats.status == COMPLETED and stats.properties.is_savepoint() and stats.external_path is not None:
            found[number] = Snapshot(number, True, stats.external_path, stats.end_timestamp, stats.state_size)
    return [found[number] for number in sorted(found, reverse=True)]


def snapshot_of(master: JobMaster, number: str | None) -> tuple[Snapshot, CompletedCheckpoint]:
    """Return one of them with its document.

    Args:
        master: The job's master.
        number: Its id, None for the newest checkpoint.

    Raises:
        RefusedError: There is none.
        CorruptFileError: Its document is damaged.
    """
    if number is not None and not _ID.fullmatch(number):
        raise RefusedError(400, f"The id of a checkpoint is a number, not {number!r:.40}.")
    found = snapshots_of(master)
    for snapshot in found:
        if snapshot.id == int(number) if number is not None else not snapshot.is_savepoint:
            try:
                return snapshot, load(snapshot.path)
            except NotExistError as error:
                raise RefusedError(404, f"Checkpoint {snapshot.id} has just been deleted. {error}") from error
    there = ", ".join(str(snapshot.id) for snapshot in found) or "none yet"
    raise RefusedError(
        404,
        f"No completed checkpoint {number or ''} is retained; there are: {there} "
        "(execution.checkpointing.num-retained).",
    )
