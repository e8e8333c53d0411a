"""What is kept, and what may be deleted when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.config import CoordinatorConfiguration
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.options import CLEANER_PARALLEL_MODE, GRACE_PERIOD
from holdfast.checkpoint.recovery import recover
from holdfast.checkpoint.snapshot_type import CheckpointProperties, CheckpointRetentionPolicy
from holdfast.errors import HoldfastError
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system import FileStatus, base_name, join, parent, translate
from holdfast.storage.job_directory import FileName, JobDirectory, checkpoint_id_of
from holdfast.storage.register import Lease, RegisterState

# Which files may be deleted: a pure decision.
#
# A leader deletes only what it fenced. A file of the job directory may go if all of this holds:
#
# - its name says that it was written under a token below the leader's own, or under its own in an epoch up to the one
#   of
#   its last completed checkpoint (anything later may still be on its way into a checkpoint);
# - no document of a retained or pinned checkpoint names it, and nothing that the leader has in memory;
# - that has been so for the grace period, as this leader saw it, or as the checkpoints that it found tell: what none
#   of
#   them named when it began has not been named since the newest of them was completed. Never by the age of the file.
#
# A directory ``chk-<n>`` may go if its id was handed out before the leader raised its token, or is not above its last
# completed checkpoint, and the checkpoint is neither retained nor pending nor pinned. Files of a higher token, and
# files whose names say nothing, are nobody's to delete.

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class InitialFiles:
    """What a leader found when it began.

    Attributes:
        named: Files that a retained checkpoint named.
        kept_ids: The retained checkpoints.
        since: Nothing has named any other file of an earlier leader from here on, in milliseconds of the clock of
            `Retention.decide`.
    """

    named: frozenset[FileName]
    kept_ids: frozenset[int]
    since: int


@dataclass(frozen=True)
class RetentionView:
    """What a leader knows when it decides.

    Attributes:
        token: Its token.
        last_completed_epoch: Epoch of the last checkpoint that it completed itself, None if it has completed none.
        last_completed_id: Id of that checkpoint, 0 if it has completed none.
        first_own_id: The lowest checkpoint id that was not handed out before it raised its token.
        named: Files that something still needs.
        kept_ids: Checkpoints that are retained, pending or pinned.
        beginning: What it found when it began; None if that is not known, or too long ago to say anything.
    """

    token: int
    last_completed_epoch: int | None
    last_completed_id: int
    first_own_id: int
    named: frozenset[FileName]
    kept_ids: frozenset[int]
    beginning: InitialFiles | None = None

    def may_delete(self, name: FileName) -> bool:
        """Whether a file is the leader's to delete and nothing needs it."""
        if name in self.named:
            return False
        if name.token == self.token:
            return self.last_completed_epoch is not None and name.epoch <= self.last_completed_epoch
        return name.token < self.token

    def may_delete_checkpoint(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint's directory is the leader's to delete and nothing needs it."""
        if checkpoint_id in self.kept_ids:
            return False
        return checkpoint_id < self.first_own_id or checkpoint_id <= self.last_completed_id

    def unreferenced_since(self, name: FileName, now: int) -> int:
        """Since when nothing needs a file at the latest, as far as is known when it is noticed now."""
        found = self.beginning
        return now if found is None or name.token >= self.token or name in found.named else min(now, found.since)

    def checkpoint_unreferenced_since(self, checkpoint_id: int, now: int) -> int:
        """The same for a checkpoint's directory."""
        found = self.beginning
        is_own = checkpoint_id >= self.first_own_id
        return now if found is None or is_own or checkpoint_id in found.kept_ids else min(now, found.since)


@dataclass(frozen=True)
class Deletions:
    """What may go now.

    Attributes:
        files: Names of files, in the order of the listing.
        checkpoints: Ids of checkpoints whose directories may go.
        waiting: How many more may go when their grace period is over.
    """

    files: tuple[str, ...] = ()
    checkpoints: tuple[int, ...] = ()
    waiting: int = 0


@dataclass
class Retention:
    """Remembers since when nothing needs a file.

    Args:
        grace_period: Milliseconds.
    """

    grace_period: int
    _files: dict[FileName, int] = field(default_factory=dict)
    _checkpoints: dict[int, int] = field(default_factory=dict)

    def decide(self, view: RetentionView, files: Iterable[str], directories: Iterable[str], now: int) -> Deletions:
        """Decide about what was listed.

        Args:
            view: What the leader knows; made after it had raised its token and then read the register.
            files: Names of files; those that say nothing are passed over.
            directories: Names of directories in the job's directory.
            now: Milliseconds of a clock that never goes back.
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
        """Return a function that tells of files outside of the job directory whether they may go.

        Each file is remembered from the first time that the function was asked about it.
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


# Carries out deletions beside the epochs, a little at a time; who waits for them has them at once.

_log = get_logger(__name__)
_THREADS: Final = 4


class Deletion(NamedTuple):
    """One file or directory that is to go.

    Attributes:
        delete: Deletes it.
        path: Its path.
    """

    delete: Callable[[str], None]
    path: str


class Deleter:
    """Deletes what it is told to. What cannot be deleted is logged and stays.

    Args:
        parallel: Whether several files are deleted at a time.
        is_allowed: Asked before each deletion.
    """

    def __init__(self, parallel: bool, is_allowed: Callable[[], bool]) -> None:
        self._threads = _THREADS if parallel else 1
        self._is_allowed = is_allowed
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: list[Future[str | None]] = []
        self._hurry = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether something of what was begun is still to be done."""
        return not all(one.done() for one in self._under_way)

    def begin(self, deletions: Sequence[Deletion], seconds: float) -> None:
        """Delete beside what the caller goes on to do, spread evenly over some seconds. Does not block."""
        began, step = time.monotonic(), seconds / max(1, len(deletions))
        for number, one in enumerate(deletions):
            self._under_way.append(self._running().submit(self._delete_at, began + number * step, one))

    def finish(self) -> list[str]:
        """Wait for what was begun, and return the paths that went.

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
        """Give up what has not begun; the next leader deletes it. Blocks until nothing is deleted any more."""
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
            _log.warning("Could not delete %r: %s", deletion.path, translate(error, "delete", deletion.path))
            return None
        except fault.FaultInjectedError:
            raise
        except HoldfastError as error:
            _log.warning("Could not delete %r: %s", deletion.path, error)
            return None
        return deletion.path


# Deletes files that no checkpoint needs, by the rules of `holdfast.checkpoint.retention`.

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

    def _beginning(self, now: int) -> InitialFiles | None:
        """Return what there was when the lease was raised, for the first sweep; None if it cannot be told."""
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
        """Collect what is needed; None if a document cannot be read, because then nobody knows what it names."""
        documents = self._retained_documents(state)
        if documents is None:
            return None
        documents += [_document(pin.metadata) for pin in pins]
        named = {name for name in (FileName.parse(base_name(path)) for path in live) if name is not None}
        own = [document for document in documents if document.token == self._lease.token]
        return RetentionView(
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


# Deleting all checkpoints of a job that has ended, where the options say so.
#
# Their pointers go with the write of the terminal status; what is deleted after it was named by nothing that a recovery
# reads. A process that dies in between leaves files behind, and a job that is run again sweeps them.


def discards_checkpoints(configuration: Configuration, status: str) -> bool:
    """Whether checkpoints are deleted when the job ends with a status.

    By default they are always kept, also those of a job that has FINISHED, which Flink deletes.
    """
    policy = CoordinatorConfiguration.from_options(configuration).policy
    if policy is CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION or status == "SUSPENDED":
        return False
    return CheckpointProperties.for_checkpoint(policy).discard_on(status)


def discard_all(directory: JobDirectory, lease: Lease) -> None:
    """Delete the checkpoints and the files of a job that has ended; its register names none of them any more.

    Files of a higher token are left alone, and so is everything if the lease has ended. What cannot be deleted stays.
    """
    first_foreign_id = lease.check().next_checkpoint_id
    for place in (directory.shared_dir, directory.taskowned_dir):
        names = ((name, FileName.parse(name)) for name in directory.fs.list_names(place))
        own = [name for name, parsed in names if parsed is not None and parsed.token <= lease.token]
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
            _log.warning("Could not delete %r: %s", join(place, name), error)
