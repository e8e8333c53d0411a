"""Which files may be deleted: a pure decision.

A leader deletes only what it fenced. A file of the job directory may go if all of this holds:

- its name says that it was written under a token below the leader's own, or under its own in an epoch up to the one of
  its last completed checkpoint (anything later may still be on its way into a checkpoint);
- no document of a retained or pinned checkpoint names it, and nothing that the leader has in memory;
- that has been so for the grace period, as this leader saw it. Never by the age of the file.

A directory ``chk-<n>`` may go if its id was handed out before the leader raised its token, or is not above its last
completed checkpoint, and the checkpoint is neither retained nor pending nor pinned. Files of a higher token, and files
whose names say nothing, are nobody's to delete.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.storage.job_directory import checkpoint_id_of
from holdfast.storage.naming import FileName

K = TypeVar("K", bound=Hashable)


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
    """

    token: int
    last_completed_epoch: int | None
    last_completed_id: int
    first_own_id: int
    named: frozenset[FileName]
    kept_ids: frozenset[int]

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
        self._files = {parsed: self._files.get(parsed, now) for parsed in deletable.values()}
        self._checkpoints = {number: self._checkpoints.get(number, now) for number in old}
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
            return self._is_over(asked.setdefault(name, now), now)

        return is_dead

    _outside: dict[FileName, int] = field(default_factory=dict)

    def _is_over(self, since: int, now: int) -> bool:
        return now - since >= self.grace_period
