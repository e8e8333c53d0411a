"""Deletes files that no checkpoint needs, by the rules of `holdfast.checkpoint.retention.policy`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.checkpoint.config.options import CLEANER_PARALLEL_MODE, GRACE_PERIOD
from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.metadata import CheckpointMetadata
from holdfast.checkpoint.recovery.retained import recover
from holdfast.checkpoint.retention.deleter import Deleter, Deletion
from holdfast.checkpoint.retention.policy import Beginning, Deletions, Retention, View
from holdfast.errors import HoldfastError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system.path import base_name, parent
from holdfast.storage.file_system.scheme import FileStatus, join
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.job.naming import FileName
from holdfast.storage.register.fenced_register import Lease, RegisterState

_log = get_logger(__name__)
_PACE: Final = 0.8
_LONGEST_PACE: Final = 10.0


@dataclass(frozen=True)
class SweepReport:
    """What a sweep did.

    Attributes:
        deleted: Paths that were deleted; none if the sweep did not wait for that.
        waiting: How many more may go when their grace period is over.
    """

    deleted: tuple[str, ...] = ()
    waiting: int = 0


@dataclass(frozen=True)
class _Document:
    """What a retained document says, as far as a sweep needs it."""

    token: int
    epoch: int
    checkpoint_id: int
    completed_at: int
    names: frozenset[FileName]


class Sweeper:
    """Sweeps one job's directory on behalf of its leader. Not safe to use from several threads at a time.

    After its lease was fenced, or a write of it had an unknown outcome, it deletes nothing.

    Args:
        directory: The job's directory.
        lease: The leader's right to write the register; raised before the sweeper is made.
        configuration: Gives the grace period and whether several files are deleted at a time.
        clock: Measures the grace period.
    """

    def __init__(
        self,
        directory: JobDirectory,
        lease: Lease,
        configuration: Configuration | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = configuration or Configuration()
        self._directory = directory
        self._lease = lease
        self._clock = clock or SystemClock()
        self._deleter = Deleter(options.get(CLEANER_PARALLEL_MODE), lambda: not lease.has_ended)
        self._retention = Retention(options.get(GRACE_PERIOD))
        self._first_own_id = lease.state.next_checkpoint_id
        # Of an earlier leader; what it left is judged once, by the first sweep.
        self._found: RegisterState | None = lease.state
        self._documents: dict[str, _Document] = {}
        self._swept_at = round(self._clock.monotonic() * 1000)

    def sweep(
        self,
        live: Iterable[str] = (),
        pending_ids: Iterable[int] = (),
        pins: Iterable[CompletedCheckpoint] = (),
        is_dead_elsewhere: Callable[[Callable[[FileName], bool]], object] | None = None,
        *,
        wait: bool = True,
    ) -> SweepReport:
        """Delete what may go now.

        Args:
            live: Paths or names of files that the leader has in memory: runs of its current versions, of a compaction.
            pending_ids: Checkpoints under way.
            pins: Checkpoints that somebody still reads, restores or copies.
            is_dead_elsewhere: Called with a function that tells of a file name whether it may go; for those who keep
                files outside of the job directory, such as sinks.
            wait: Whether to block until all is deleted. Otherwise what may go is decided here, but deleted beside what
                the caller does next, and nothing is done while an earlier sweep still deletes. What nothing needs now
                is needed by nothing later, so it does not matter when it goes.

        Raises:
            FencedError: Another leader took over; nothing was deleted.
        """
        if self._lease.has_ended or (self._deleter.is_busy and not wait):
            return SweepReport()
        self._deleter.finish()
        state = self._lease.check()
        now = round(self._clock.monotonic() * 1000)
        view = self._view(state, live, pending_ids, list(pins), self._beginning(now))
        if view is None:
            return SweepReport()
        self._found = None
        places = self._list()
        deletions = self._retention.decide(view, places, self._checkpoint_directories(), now)
        self._deleter.begin(self._tasks(deletions, places), self._pace(now))
        deleted = self._deleter.finish() if wait else []
        if is_dead_elsewhere is not None:
            is_dead_elsewhere(self._retention.dead(view, now))
        return SweepReport(tuple(deleted), deletions.waiting)

    def close(self) -> None:
        """End what an earlier sweep still deletes; what has not gone yet is found by the next leader."""
        self._deleter.close()

    def _pace(self, now: int) -> float:
        """In how many seconds to delete what has come together since the last sweep, so that epochs hardly notice."""
        pace = min(_LONGEST_PACE, _PACE * (now - self._swept_at) / 1000)
        self._swept_at = now
        return pace

    def _beginning(self, now: int) -> Beginning | None:
        """Return what there was when the lease was raised, for the first sweep; None if it cannot be told."""
        if self._found is None or not self._found.checkpoints:
            return None
        documents = self._retained_documents(self._found)
        if documents is None:
            return None
        age = self._clock.now_ms() - max(document.completed_at for document in documents)
        return Beginning(
            frozenset().union(*(document.names for document in documents)),
            frozenset(document.checkpoint_id for document in documents),
            now - max(0, age),
        )

    def _view(
        self,
        state: RegisterState,
        live: Iterable[str],
        pending_ids: Iterable[int],
        pins: list[CompletedCheckpoint],
        beginning: Beginning | None,
    ) -> View | None:
        """Collect what is needed; None if a document cannot be read, because then nobody knows what it names."""
        documents = self._retained_documents(state)
        if documents is None:
            return None
        documents += [_document(pin.metadata) for pin in pins]
        named = {name for name in (FileName.parse(base_name(path)) for path in live) if name is not None}
        own = [document for document in documents if document.token == self._lease.token]
        return View(
            token=self._lease.token,
            last_completed_epoch=max((document.epoch for document in own), default=None),
            last_completed_id=max((document.checkpoint_id for document in own), default=0),
            first_own_id=self._first_own_id,
            named=frozenset(named.union(*(document.names for document in documents))),
            kept_ids=frozenset({*pending_ids, *(document.checkpoint_id for document in documents)}),
            beginning=beginning,
        )

    def _retained_documents(self, state: RegisterState) -> list[_Document] | None:
        known = {}
        for pointer in state.checkpoints:
            document = self._documents.get(pointer.digest)
            if document is None:
                try:
                    document = _document(recover(self._directory, state, pointer).metadata)
                except HoldfastError as error:
                    _log.warning("Nothing is swept, because a retained checkpoint cannot be read: %s", error)
                    return None
            known[pointer.digest] = document
        self._documents = known
        return list(known.values())

    def _list(self) -> dict[str, str]:
        """Return the directory of each file by its name; names are unique because of their nonces."""
        places = {}
        for directory in (self._directory.shared_dir, self._directory.taskowned_dir):
            if self._directory.fs.is_link(directory):
                _log.warning("Nothing is swept in %r: it is a link, and what it points to may be others'", directory)
                continue
            for name in self._directory.fs.list_names(directory):
                places[name] = directory
        return places

    def _checkpoint_directories(self) -> list[str]:
        return self._directory.fs.list_names(self._directory.path)

    def _tasks(self, deletions: Deletions, places: dict[str, str]) -> list[Deletion]:
        files = [Deletion(self._delete_file, join(places[name], name)) for name in deletions.files]
        ids = deletions.checkpoints
        return files + [Deletion(self._delete_checkpoint, self._directory.chk_dir(number)) for number in ids]

    def _delete_file(self, path: str) -> None:
        self._directory.fs.delete_in(parent(path), base_name(path))

    def _delete_checkpoint(self, path: str) -> None:
        """Delete a checkpoint's directory, its document first: what has no document is no checkpoint."""
        fs = self._directory.fs
        for status in sorted(fs.list(path), key=_metadata_first):
            if not status.is_directory:
                fs.delete_in(path, status.name)
        fs.delete_directory(path)


def _metadata_first(status: FileStatus) -> tuple[bool, str]:
    return status.name != "_metadata", status.name


def _document(metadata: CheckpointMetadata) -> _Document:
    parsed = (FileName.parse(base_name(text)) for text in metadata.strings())
    names = frozenset(name for name in parsed if name is not None)
    return _Document(metadata.token, metadata.epoch, metadata.checkpoint_id, metadata.completed_at, names)
