"""Which files may be deleted: a pure decision.

A leader deletes only what it fenced. A file of the job directory may go if all of this holds:

- its name says that it was written under a token below the leader's own, or under its own in an epoch up to the one of
  its last completed checkpoint (anything later may still be on its way into a checkpoint);
- no document of a retained or pinned checkpoint names it, and nothing that the leader has in memory;
- that has been so for the grace period, as this leader saw it, or as the checkpoints that it found tell: what none of
  them named when it began has not been named since the newest of them was completed. Never by the age of the file.

A directory ``chk-<n>`` may go if its id was handed out before the leader raised its token, or is not above its last
completed checkpoint, and the checkpoint is neither retained nor pending nor pinned. Files of a higher token, and files
whose names say nothing, are nobody's to delete.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.storage.job.job_directory import checkpoint_id_of
from holdfast.storage.job.naming import FileName

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Beginning:
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
class View:
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
    beginning: Beginning | None = None

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

    def needless_since(self, name: FileName, now: int) -> int:
        """Since when nothing needs a file at the latest, as far as is known when it is noticed now."""
        found = self.beginning
        return now if found is None or name.token >= self.token or name in found.named else min(now, found.since)

    def checkpoint_needless_since(self, checkpoint_id: int, now: int) -> int:
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

    def decide(self, view: View, files: Iterable[str], directories: Iterable[str], now: int) -> Deletions:
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
            name: seen[name] if name in seen else view.needless_since(name, now) for name in deletable.values()
        }
        self._checkpoints = {
            number: seen_ids[number] if number in seen_ids else view.checkpoint_needless_since(number, now)
            for number in old
        }
        due = [name for name, parsed in deletable.items() if self._is_over(self._files[parsed], now)]
        due_ids = [number for number in old if self._is_over(self._checkpoints[number], now)]
        waiting = len(deletable) - len(due) + len(old) - len(due_ids)
        return Deletions(tuple(due), tuple(due_ids), waiting)

    def dead(self, view: View, now: int) -> Callable[[FileName], bool]:
        """Return a function that tells of files outside of the job directory whether they may go.

        Each file is remembered from the first time that the function was asked about it.
        """
        asked: dict[FileName, int] = self._outside

        def is_dead(name: FileName) -> bool:
            if not view.may_delete(name):
                asked.pop(name, None)
                return False
            return self._is_over(asked.setdefault(name, view.needless_since(name, now)), now)

        return is_dead

    _outside: dict[FileName, int] = field(default_factory=dict)

    def _is_over(self, since: int, now: int) -> bool:
        return now - since >= self.grace_period
