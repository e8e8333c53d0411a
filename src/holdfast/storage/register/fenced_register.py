"""The fenced register: the one place that decides what is true about a job.

Each job has one register in one compare-and-set unit: the token, the pointers of completed checkpoints, the next
checkpoint id, the terminal status. A job attempt first raises the token, then reads; each later write is conditional
on the version before it::

    register.raise_token("driver 1")            version 7, token 3   (fences everybody with a token below 3)
        |
        v
      Lease 3 --write(change)--> version 8 --write(change)--> version 9 ...
        |
        +-- somebody raised the token:      FencedError                      the lease ends; nothing happened
        +-- a version came in between:      ConflictError                    nothing happened; the lease goes on
        +-- nobody knows:                   PossibleInconsistentStateError   the lease ends; raise the token again

A write carries a random nonce, and each version the nonces of the last 64 writes. After a refusal or a lost answer the
writer reads back and looks for its own nonce, so that its own lost answer is told from another's write, and a writer
that slept while others went on learns what became of its write.

What implementations provide is `_load` and `_swap`; everything else is common. Nothing depends on clocks, or on a
leader knowing that it was deposed.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from holdfast.errors import ConflictError, FencedError, HoldfastError, PossibleInconsistentStateError
from holdfast.kernel import fault
from holdfast.kernel.ids import new_nonce
from holdfast.storage.file_system.os_error import translate
from holdfast.storage.register.register_state import GENESIS, CheckpointPointer, RegisterRecord, RegisterState
from holdfast.storage.register.written_version import WINDOW, look_back

__all__ = [
    "GENESIS",
    "WINDOW",
    "CheckpointPointer",
    "FencedRegister",
    "Lease",
    "RegisterRecord",
    "RegisterState",
    "RemovableRegister",
]

_ATTEMPTS: Final = 100
_ADVICE: Final = " Nothing is deleted; raise the token again once the storage works."


class FencedRegister(ABC):
    """A job's register. Safe to use from several threads, processes and hosts, as far as its store is shared."""

    @abstractmethod
    def _load(self) -> RegisterRecord:
        """Return the newest version, `GENESIS` if there is none; must see every write that had ended before."""

    @abstractmethod
    def _swap(self, base: RegisterRecord, new: RegisterRecord) -> None:
        """Make a version the newest if, and only if, its base is the newest now; durably.

        Raises:
            ConflictError: Another version is there; or this one, by an answer that got lost.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """

    def _make_durable(self, found: RegisterRecord) -> None:  # noqa: B027 - most stores show only what is durable
        """See to it that a version which was found, and whose writer never heard an answer, survives a power failure.

        Raises:
            PossibleInconsistentStateError: It may not survive.
        """

    def read(self) -> RegisterState:
        """Return the newest version.

        Raises:
            CorruptFileError: It is damaged.
            StorageError: It cannot be read.
        """
        return self._load().state

    def raise_token(self, owner: str) -> Lease:
        """Fence everybody who has written so far, and return the right to write.

        Args:
            owner: Who it is, for messages: host and process, say.

        Raises:
            ConflictError: Others raised the token again and again, without an end.
            PossibleInconsistentStateError: The storage failed, and it is not known whether the token was raised.
        """
        for _ in range(_ATTEMPTS):
            base = self._load()
            if base.number:
                # Its writer may have died before it was durable, and nothing may stand upon what a power failure takes.
                self._make_durable(base)
            raised = replace(base.state, token=base.state.token + 1, owner=owner)
            record = base.successor(raised, new_nonce())
            with suppress(FencedError):  # it was removed in between, by who cleans up after the job before
                if self._commit(base, record) is None:
                    return Lease(self, record)
        raise ConflictError(
            f"{owner!r} could not raise the token in {_ATTEMPTS} attempts, because others kept writing. "
            "Two leaders are fighting over this job: stop one of them."
        )

    def _commit(self, base: RegisterRecord, new: RegisterRecord) -> RegisterRecord | None:
        """Write a version and find out what became of it.

        Returns:
            None if it was recorded; otherwise the newest version, in whose history it is not.

        Raises:
            PossibleInconsistentStateError: It cannot be found out.
            StorageError: It was not recorded.
        """
        try:
            self._swap(base, new)
            return None
        except (ConflictError, PossibleInconsistentStateError, fault.AnswerLostError) as error:
            return self._look_back(base, new, error)

    def _look_back(self, base: RegisterRecord, new: RegisterRecord, error: HoldfastError) -> RegisterRecord | None:
        newest = look_back(new, self._load, error, "of the register", _ADVICE)
        if newest is None:
            self._make_durable(new)
        if newest is not None and newest.state.version < base.state.version:
            raise FencedError(
                f"The register went back from version {base.state.version} to {newest.state.version}: somebody removed "
                "or replaced it. This leader stops and changes nothing."
            ) from error
        return newest


class RemovableRegister(FencedRegister):
    """A register that can be removed when its job is over; one of files goes with the directory of its job instead.

    Needs no leadership, because a removal is conditional as a write is: what anybody has written before it stays, and
    whoever writes after it with a lease from before is fenced.
    """

    def remove(self) -> bool:
        """Remove the register, unless it names checkpoints; may be repeated. Blocks.

        Returns:
            False if nothing was removed: it names checkpoints, or somebody has begun to lead the job meanwhile.

        Raises:
            ConflictError: Others wrote again and again, without an end; nothing was removed.
            PossibleInconsistentStateError: It is not known whether it was removed.
            StorageError, CorruptFileError: It cannot be read, or not be removed.
        """
        token = self.read().token
        for _ in range(_ATTEMPTS):
            base = self._load()
            if base.state.checkpoints or base.state.token > token:
                return False
            with suppress(ConflictError):
                self._remove(base)
                return True
        raise ConflictError(f"{self!r} was not removed in {_ATTEMPTS} attempts, because others kept writing.")

    @abstractmethod
    def _remove(self, base: RegisterRecord) -> None:
        """Remove all of the register if, and only if, this is its newest version now; fine if nothing is there.

        Raises:
            ConflictError: Another version is there; nothing happened.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """


class Lease:
    """The right to write a register under one token, until somebody raises a higher one.

    Safe to use from several threads: writes queue up.

    Attributes:
        token: The token.
        owner: Who raised it.
    """

    def __init__(self, register: FencedRegister, record: RegisterRecord) -> None:
        self._register = register
        self._record = record
        self._lock = threading.Lock()
        self._ended: HoldfastError | None = None
        self.token: Final = record.state.token
        self.owner: Final = record.state.owner

    @property
    def state(self) -> RegisterState:
        """The version that this lease wrote or read last."""
        return self._record.state

    @property
    def has_ended(self) -> bool:
        """Whether a write was fenced or its outcome is unknown; from then on its owner deletes nothing."""
        return self._ended is not None

    def write(self, change: Callable[[RegisterState], RegisterState]) -> RegisterState:
        """Write the next version.

        Args:
            change: Gets the newest version and returns what it is to become; version, token and owner are set for it.
                A change that returns the same version writes nothing.

        Returns:
            The version that was written.

        Raises:
            FencedError: A higher token was raised; this and every later write does nothing.
            ConflictError: Another version came in between; nothing happened, and the next write sees it.
            PossibleInconsistentStateError: It is not known whether it was written; so does every later write raise.
            StorageError: It could not be written; nothing happened.
            ValueError: The change makes no valid version.
        """
        with self._lock:
            self._require_going()
            base = self._record
            changed = change(base.state)
            if changed == base.state:
                return changed
            record = base.successor(self._checked(base.state, changed), new_nonce())
            try:
                newest = self._commit(base, record)
            except (FencedError, PossibleInconsistentStateError) as error:
                self._ended = error
                raise
            if newest is None or self._has_recorded(newest, record):
                self._record = record
                return record.state
            self._require_own(newest)
            self._record = newest
            raise ConflictError(
                f"Version {newest.state.version} of the register was written meanwhile; nothing was changed. Try again."
            )

    def check(self) -> RegisterState:
        """Read the newest version and make sure that nobody has raised a higher token.

        Raises:
            FencedError: Somebody has.
        """
        with self._lock:
            self._require_going()
            newest = self._register._load()
            self._require_own(newest)
            self._record = newest
            return newest.state

    def _commit(self, base: RegisterRecord, record: RegisterRecord) -> RegisterRecord | None:
        if record.state.checkpoints == base.state.checkpoints:
            return self._register._commit(base, record)
        has_ended = False
        try:
            with fault.point("pointer.write"):
                newest = self._register._commit(base, record)
                has_ended = True
            return newest
        except fault.AnswerLostError as error:
            return self._register._look_back(base, record, error)
        except (fault.FaultInjectedError, OSError) as error:
            if has_ended:
                raise PossibleInconsistentStateError(f"A fault struck after the write: {error}") from error
            if isinstance(error, OSError):
                raise translate(error, "write", "the register") from error
            raise

    def _has_recorded(self, newest: RegisterRecord, record: RegisterRecord) -> bool:
        found = newest.has_recorded(record)
        if found is None:
            self._ended = PossibleInconsistentStateError(
                f"Whether version {record.state.version} of the register was written is no longer known: it is at "
                f"version {newest.state.version}, written by {newest.state.owner!r}. Nothing is deleted."
            )
            raise self._ended
        return found

    def _checked(self, old: RegisterState, new: RegisterState) -> RegisterState:
        if new.next_checkpoint_id < old.next_checkpoint_id or new.notified < old.notified:
            raise ValueError(f"A register never goes back: {old!r} cannot become {new!r}.")
        return replace(new, token=self.token, owner=self.owner)

    def _require_going(self) -> None:
        if isinstance(self._ended, FencedError):
            raise FencedError(f"Leader {self.owner!r} with token {self.token} was fenced before: {self._ended}")
        if self._ended is not None:
            raise PossibleInconsistentStateError(
                f"The outcome of an earlier write of {self.owner!r} is unknown; raise the token again: {self._ended}"
            )

    def _require_own(self, newest: RegisterRecord) -> None:
        state = newest.state
        ahead = state.version - self._record.state.version
        # One that was removed and begun anew counts its tokens from 1 again: the same token may be somebody else's.
        is_another = ahead < 0 or (ahead < WINDOW and self._record.nonce not in newest.history)
        if state.token != self.token or is_another:
            begun_anew = " in a register that was removed and begun anew" if is_another else ""
            self._ended = FencedError(
                f"Leader {self.owner!r} with token {self.token} is fenced: {state.owner!r} leads with token "
                f"{state.token}{begun_anew}. This process stops; it has changed and deletes nothing."
            )
            raise self._ended

    def __repr__(self) -> str:
        return f"Lease(token={self.token}, owner={self.owner!r}, version={self._record.state.version})"
