"""The lease of a cluster in a directory that its processes share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.errors import CorruptFileError
from holdfast.ha.election.leadership import Leadership
from holdfast.ha.election.lease import LeaseForm
from holdfast.ha.file_system.versioned_file import FileVersion, VersionedFile
from holdfast.kernel.malformed import MALFORMED
from holdfast.storage.file_system.scheme import FileSystem

_KIND: Final = "leader-lease"
_FORMAT_VERSION: Final = 1


@dataclass(frozen=True)
class LeaderLease:
    """What the lease document says.

    Attributes:
        holder: Who leads, or led before the release.
        term: Counts the leaders; it never goes back.
        session_id: The leader's session id.
        duration: For how long it may be left without a renewal, in seconds.
        released: Whether the holder gave it up.
        information: What the components of the leader confirmed, as text by component.
    """

    holder: str
    term: int
    session_id: uuid.UUID
    duration: float
    released: bool = False
    information: Mapping[str, str] = field(default_factory=dict)

    def with_information(self, component_id: str, text: str) -> LeaderLease:
        """A lease that says this of one component; empty text withdraws what it says."""
        information = {**self.information, component_id: text}
        if not text:
            del information[component_id]
        return replace(self, information=information)

    def to_json(self) -> dict[str, Any]:
        """Return the lease as JSON."""
        return {
            "holder": self.holder,
            "term": self.term,
            "session_id": str(self.session_id),
            "duration": self.duration,
            "released": self.released,
            "information": dict(self.information),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> LeaderLease:
        """Read a lease.

        Raises:
            Any of `MALFORMED`: It is not one.
        """
        return cls(
            str(body["holder"]),
            int(body["term"]),
            uuid.UUID(body["session_id"]),
            float(body["duration"]),
            bool(body["released"]),
            {str(component): str(text) for component, text in body["information"].items()},
        )


class LeaderLeaseForm(LeaseForm[LeaderLease]):
    """A term has a session id; the number of the file's version makes each renewal another one.

    Args:
        new_session_id: Draws the session id of a term.
    """

    def __init__(self, new_session_id: Callable[[], uuid.UUID] = uuid.uuid4) -> None:
        self._new_session_id = new_session_id

    def acquired(self, identity: str, before: LeaderLease | None, duration: float) -> LeaderLease:
        """A new term, also after one's own."""
        return LeaderLease(identity, before.term + 1 if before is not None else 1, self._new_session_id(), duration)

    def renewed(self, lease: LeaderLease, duration: float) -> LeaderLease:
        """The same lease."""
        return replace(lease, duration=duration)

    def given_up(self, lease: LeaderLease) -> LeaderLease:
        """The same term without a leader that could be reached."""
        return replace(lease, released=True, information={})


class LeaseFile(Leadership):
    """Reads and writes the lease; safe to use from several threads."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._file = VersionedFile(fs, directory, _KIND, _FORMAT_VERSION)

    def read(self) -> tuple[FileVersion, LeaderLease | None]:
        """Read the newest version; the lease is None if nobody has ever led.

        Raises:
            CorruptFileError: It is damaged.
            FormatVersionError: It was written by a newer release.
            StorageError: It cannot be read.
        """
        found = self._file.load()
        if found.number == 0:
            return found, None
        try:
            return found, LeaderLease.from_json(found.body)
        except MALFORMED as error:
            raise CorruptFileError(self._file.directory, None, f"a field is missing or wrong: {error!r}.") from error

    def write(self, base: FileVersion, lease: LeaderLease) -> FileVersion:
        """Write the next version if the base is still the newest.

        Raises:
            ConflictError: It is not; nothing happened.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """
        return self._file.swap(base, lease.to_json())

    def term_of(self, lock_identity: str) -> int | None:
        """The term under which this identity holds the lease; one that ran out is held until it is taken over."""
        _, lease = self.read()
        holds = lease is not None and lease.holder == lock_identity and not lease.released
        return lease.term if lease is not None and holds else None

    def sweep(self) -> None:
        """Delete what dead writers left behind."""
        self._file.sweep()

    def remove(self) -> None:
        """Delete everything; only when nobody campaigns any more."""
        self._file.remove()

    def __repr__(self) -> str:
        return repr(self._file.directory)
