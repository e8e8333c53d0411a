"""Deletes files that no checkpoint needs any more.

`Retention` is the pure decision, `Sweeper` lists and deletes on behalf of the leader, `Deleter` spreads deletions over
time. `discard_all` deletes the checkpoints of a job that has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_by_pointer
from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.options import CLEANER_PARALLEL_MODE, GRACE_PERIOD
from holdfast.checkpoint.snapshot_type import CheckpointProperties, CheckpointRetentionPolicy
from holdfast.errors import HoldfastError
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import base_name, join, parent, translate
from holdfast.storage.job_directory import METADATA_NAME, FileName, JobDirectory, checkpoint_id_of
from holdfast.storage.register import RegisterState, RegisterWriter

logger = get_logger(__name__)

# A leader deletes only files that it has fenced. It may delete a file of the job directory if all of this holds:
#
# - Its name has a token below the leader's own; or the leader's own token and an epoch up to the one of its last
#   completed checkpoint. A later file may still become part of a checkpoint.
# - No document of a retained or pinned checkpoint names it, and the leader does not need it.
# - Both have held for the grace period: as this leader has seen it, or since the newest checkpoint that it found at its
#   beginning was completed. The age of the file never counts.
#
# It may delete a directory ``chk-<n>`` if its id was reserved before the leader raised its token, or is not above its
# last completed checkpoint, and the checkpoint is neither retained nor pending nor pinned. Files of a higher token, and
# files with other names, are never deleted.

K = TypeVar("K", bound=Hashable)
_THREADS: Final = 4
_PACE: Final = 0.8
_LONGEST_PACE: Final = 10.0


@dataclass(frozen=True)
class InitialFiles:
    """Files that a leader found when it began.

    Attributes:
        named: Files that a retained checkpoint names.
        kept_ids: The retained checkpoints.
        since: Since when nothing names any other file of earlier leaders, in milliseconds of the clock of
            `Retention.decide`.
    """

    named: frozenset[FileName]
    kept_ids: frozenset[int]
    since: int


@dataclass(frozen=True)
class RetentionView:
    """Knowledge of a leader at the time of a decision.

    Attributes:
        token: Its token.
        last_completed_epoch: Epoch of its last completed checkpoint; None if it has completed none.
        last_completed_id: Id of that checkpoint; 0 if it has completed none.
        first_own_id: Lowest checkpoint id that was not reserved before it raised its token.
        named: Files that are still needed.
        kept_ids: Checkpoints that are retained, pending or pinned.
        beginning: Files that it found when it began; None if unknown or outdated.
    """

    token: int
    last_completed_epoch: int | None
    last_completed_id: int
    first_own_id: int
    named: frozenset[FileName]
    kept_ids: frozenset[int]
    beginning: InitialFiles | None = None

    def may_delete(self, name: FileName) -> bool:
        """Return whether the leader may delete a file, and nothing needs it."""
        if name in self.named:
            return False
        if name.token == self.token:
            return self.last_completed_epoch is not None and name.epoch <= self.last_completed_epoch
        return name.token < self.token

    def may_delete_checkpoint(self, checkpoint_id: int) -> bool:
        """Return whether the leader may delete a checkpoint's directory, and nothing needs it."""
        if checkpoint_id in self.kept_ids:
            return False
        return checkpoint_id < self.first_own_id or checkpoint_id <= self.last_completed_id

    def unreferenced_since(self, name: FileName, now: int) -> int:
        """Return since when at the latest nothing needs a file that is noticed now."""
        found = self.beginning
        return now if found is None or name.token >= self.token or name in found.named else min(now, found.since)

    def checkpoint_unreferenced_since(self, checkpoint_id: int, now: int) -> int:
        """Return since when at the latest nothing needs a checkpoint's directory."""
        found = self.beginning
        is_own = checkpoint_id >= self.first_own_id
        return now if found is None or is_own or checkpoint_id in found.kept_ids else min(now, found.since)


@dataclass(frozen=True)
class Deletions:
    """Files and directories to delete now.

    Attributes:
        files: Names of files, in the order of the listing.
        checkpoints: Ids of checkpoints whose directories are to be deleted.
        waiting: Number of further ones whose grace period is not over.
    """

    files: tuple[str, ...] = ()
    checkpoints: tuple[int, ...] = ()
    waiting: int = 0


@dataclass
class Retention:
    """Decides what to delete; remembers since when each file is not needed.

    Args:
        grace_period: Milliseconds.
    """

    grace_period: int
    _files: dict[FileName, int] = field(default_factory=dict)
    _checkpoints: dict[int, int] = field(default_factory=dict)

    def decide(self, view: RetentionView, files: Iterable[str], directories: Iterable[str], now: int) -> Deletions:
        """Decide about the listed files and directories.

        Args:
            view: Knowledge of the leader; made after it raised its token and then read the register.
            files: Names of files; those without a name of Holdfast's are ignored.
            directories: Names of directories in the job's directory.
            now: Milliseconds of a monotonic clock.
        """
        names = {name: FileName.parse(name) for name in files}
        deletable = {name: parsed for name, parsed in names.items() if parsed is not None and view.may_delete(parsed)}
        ids = [number for number in map(checkpoint_id_of, directories) if number is not None]
        old = [number for number in ids if view.may_delete_checkpoint(number)]
        seen, seen_ids = self._files, self._checkpoints
        self._files = {
            name: seen[name] if name in seen else view.unreferenced_since(name, now) for name in deletable.values()
        }
        self._checkpoints = {
            number: seen_ids[number] if number in seen_ids else view.checkpoint_unreferenced_since(number, now)
            for number in old
        }
        due = [name for name, parsed in deletable.items() if self._is_over(self._files[parsed], now)]
        due_ids = [number for number in old if self._is_over(self._checkpoints[number], now)]
        waiting = len(deletable) - len(due) + len(old) - len(due_ids)
        return Deletions(tuple(due), tuple(due_ids), waiting)

    def dead(self, view: RetentionView, now: int) -> Callable[[FileName], bool]:
        """Return a function that decides about one file outside of the job directory.

        The grace period of such a file begins with the first call for it.
        """
        asked: dict[FileName, int] = self._outside

        def is_dead(name: FileName) -> bool:
            if not view.may_delete(name):
                asked.pop(name, None)
                return False
            return self._is_over(asked.setdefault(name, view.unreferenced_since(name, now)), now)

        return is_dead

    _outside: dict[FileName, int] = field(default_factory=dict)

    def _is_over(self, since: int, now: int) -> bool:
        return now - since >= self.grace_period


class Deletion(NamedTuple):
    """One file or directory to delete.

    Attributes:
        delete: Function that deletes it.
        path: Its path.
    """

    delete: Callable[[str], None]
    path: str


class Deleter:
    """Deletes files beside the epochs. A file that cannot be deleted is logged and stays.

    Args:
        parallel: Whether several files are deleted at a time.
        is_allowed: Called before each deletion.
    """

    def __init__(self, parallel: bool, is_allowed: Callable[[], bool]) -> None:
        self._threads = _THREADS if parallel else 1
        self._is_allowed = is_allowed
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: list[Future[str | None]] = []
        self._hurry = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether deletions are still under way."""
        return not all(one.done() for one in self._under_way)

    def begin(self, deletions: Sequence[Deletion], seconds: float) -> None:
        """Start deletions, spread evenly over some seconds. Does not block."""
        began, step = time.monotonic(), seconds / max(1, len(deletions))
        for number, one in enumerate(deletions):
            self._under_way.append(self._running().submit(self._delete_at, began + number * step, one))

    def finish(self) -> list[str]:
        """Wait for the started deletions and return the deleted paths.

        Raises:
            FaultInjectedError: A deletion was told to fail.
        """
        self._hurry.set()
        under_way, self._under_way = self._under_way, []
        try:
            return [path for path in (one.result() for one in under_way) if path is not None]
        finally:
            self._hurry.clear()

    def close(self) -> None:
        """Cancel deletions that have not begun; the next leader repeats them. Blocks until none is running."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            self._hurry.set()
            pool.shutdown()
        self._under_way.clear()

    def _running(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "holdfast-sweep")
        return self._pool

    def _delete_at(self, when: float, deletion: Deletion) -> str | None:
        self._hurry.wait(max(0.0, when - time.monotonic()))
        return self._delete(deletion)

    def _delete(self, deletion: Deletion) -> str | None:
        if not self._is_allowed():
            return None
        try:
            with fault.point("subsume.delete"):
                deletion.delete(deletion.path)
        except OSError as error:
            logger.warning("Could not delete %r: %s", deletion.path, translate(error, "delete", deletion.path))
            return None
        except fault.FaultInjectedError:
            raise
        except HoldfastError as error:
            logger.warning("Could not delete %r: %s", deletion.path, error)
            return None
        return deletion.path


@dataclass(frozen=True)
class SweepReport:
    """Result of a sweep.

    Attributes:
        deleted: Deleted paths; empty if the sweep did not wait for deletions.
        waiting: Number of files whose grace period is not over.
    """

    deleted: tuple[str, ...] = ()
    waiting: int = 0


@dataclass(frozen=True)
class _Document:
    """The part of a retained document that a sweep needs."""

    token: int
    epoch: int
    checkpoint_id: int
    completed_at: int
    names: frozenset[FileName]


class Sweeper:
    """Sweeps one job's directory on behalf of its leader. Used by one thread at a time.

    It deletes nothing after its writer was fenced, or after a write with an unknown outcome.

    Args:
        directory: The job's directory.
        writer: The leader's writer, raised before the sweeper is made.
        configuration: Options of grace period and parallel deletion.
        clock: Measures the grace period.
    """

    def __init__(
        self,
        directory: JobDirectory,
        writer: RegisterWriter,
        configuration: Configuration | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = configuration or Configuration()
        self._directory = directory
        self._writer = writer
        self._clock = clock or SystemClock()
        self._deleter = Deleter(options.get(CLEANER_PARALLEL_MODE), lambda: not writer.has_ended)
        self._retention = Retention(options.get(GRACE_PERIOD))
        self._first_own_id = writer.state.next_checkpoint_id
        # State of the register at the beginning, for the first sweep; None afterwards.
        self._found: RegisterState | None = writer.state
        self._documents: dict[str, _Document] = {}
        # Directories whose document this sweeper has deleted; those that a listing still shows have other files.
        self._without_document: set[str] = set()
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
        """Delete what is not needed any more.

        Args:
            live: Paths or names of files that the leader needs: runs of current versions and of compactions.
            pending_ids: Pending checkpoints.
            pins: Checkpoints that are being read, restored or copied.
            is_dead_elsewhere: Called with a function that decides about one file name; for sinks and others with files
                outside of the job directory.
            wait: Whether to block until all is deleted. Otherwise deletions run beside the next epochs, and nothing is
                done while an earlier sweep still deletes. That is safe: a file that nothing needs now is never needed
                again.

        Raises:
            FencedError: Another leader took over; nothing was deleted.
        """
        if self._writer.has_ended or (self._deleter.is_busy and not wait):
            return SweepReport()
        self._deleter.finish()
        state = self._writer.check()
        now = round(self._clock.monotonic() * 1000)
        view = self._view(state, live, pending_ids, list(pins), self._beginning(now))
        if view is None:
            return SweepReport()
        self._found = None
        places = self._list()
        directories = self._checkpoint_directories()
        self._without_document &= {join(self._directory.path, name) for name in directories}
        deletions = self._retention.decide(view, places, directories, now)
        self._deleter.begin(self._tasks(deletions, places), self._pace(now))
        deleted = self._deleter.finish() if wait else []
        if is_dead_elsewhere is not None:
            is_dead_elsewhere(self._retention.dead(view, now))
        return SweepReport(tuple(deleted), deletions.waiting)

    def close(self) -> None:
        """Cancel deletions of an earlier sweep; the next leader repeats them."""
        self._deleter.close()

    def _pace(self, now: int) -> float:
        """Return over how many seconds to spread deletions, so that they do not slow epochs down."""
        pace = min(_LONGEST_PACE, _PACE * (now - self._swept_at) / 1000)
        self._swept_at = now
        return pace

    def _beginning(self, now: int) -> InitialFiles | None:
        """Return the files at the time the token was raised, for the first sweep; None if unknown."""
        if self._found is None or not self._found.checkpoints:
            return None
        documents = self._retained_documents(self._found)
        if documents is None:
            return None
        age = self._clock.now_ms() - max(document.completed_at for document in documents)
        return InitialFiles(
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
        beginning: InitialFiles | None,
    ) -> RetentionView | None:
        """Collect the leader's knowledge; None if a document cannot be read, because its files are unknown then."""
        documents = self._retained_documents(state)
        if documents is None:
            return None
        documents += [_document(pin.metadata) for pin in pins]
        named = {name for name in (FileName.parse(base_name(path)) for path in live) if name is not None}
        own = [document for document in documents if document.token == self._writer.token]
        return RetentionView(
            token=self._writer.token,
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
                    document = _document(read_by_pointer(self._directory, state, pointer).metadata)
                except HoldfastError as error:
                    logger.warning("Swept nothing, because a retained checkpoint cannot be read: %s", error)
                    return None
            known[pointer.digest] = document
        self._documents = known
        return list(known.values())

    def _list(self) -> dict[str, str]:
        """Return the directory of each file by its name; names are unique because of their nonces."""
        places = {}
        for directory in (self._directory.shared_dir, self._directory.taskowned_dir):
            if self._directory.fs.is_link(directory):
                logger.warning("Swept nothing in %r: it is a link, and its target may belong to others", directory)
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
        """Delete a checkpoint's directory, its document first: a directory without document is no checkpoint.

        It is listed only if it has other files, because a listing is an expensive request in an object store. There a
        later sweep finds such a directory again.
        """
        fs = self._directory.fs
        fs.delete_in(path, METADATA_NAME)
        if fs.delete_directory(path) and path not in self._without_document:
            self._without_document.add(path)
            return
        for status in fs.list(path):
            if not status.is_directory:
                fs.delete_in(path, status.name)
        fs.delete_directory(path)


def _document(metadata: CheckpointMetadata) -> _Document:
    parsed = (FileName.parse(base_name(text)) for text in metadata.strings())
    names = frozenset(name for name in parsed if name is not None)
    return _Document(metadata.token, metadata.epoch, metadata.checkpoint_id, metadata.completed_at, names)


# When a job ends and its options delete its checkpoints, the write of the terminal status removes their pointers; their
# files are deleted after it. A process that dies in between leaves files behind, which the next run of the job sweeps.


def discards_checkpoints(configuration: Configuration, status: str) -> bool:
    """Return whether checkpoints are deleted when the job ends with a status.

    By default they are kept, also those of a FINISHED job, which Flink deletes.
    """
    policy = CoordinatorConfiguration.from_options(configuration).policy
    if policy is CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION or status == "SUSPENDED":
        return False
    return CheckpointProperties.for_checkpoint(policy).discard_on(status)


def discard_all(directory: JobDirectory, writer: RegisterWriter) -> None:
    """Delete the checkpoints and files of a job that has ended; its register names none of them any more.

    Nothing is deleted if the writer has ended. Files of a higher token, and files that cannot be deleted, stay.
    """
    first_foreign_id = writer.check().next_checkpoint_id
    for place in (directory.shared_dir, directory.taskowned_dir):
        names = ((name, FileName.parse(name)) for name in directory.fs.list_names(place))
        own = [name for name, parsed in names if parsed is not None and parsed.token <= writer.token]
        _delete(directory, place, own)
    for name in directory.fs.list_names(directory.path):
        number = checkpoint_id_of(name)
        if number is not None and number < first_foreign_id:
            chk = directory.chk_dir(number)
            _delete(directory, chk, [status.name for status in directory.fs.list(chk) if not status.is_directory])
            directory.fs.delete_directory(chk)


def _delete(directory: JobDirectory, place: str, names: Iterable[str]) -> None:
    for name in names:
        try:
            with fault.point("subsume.delete"):
                directory.fs.delete_in(place, name)
        except fault.FaultInjectedError:
            raise
        except HoldfastError as error:
            logger.warning("Could not delete %r: %s", join(place, name), error)
