"""What a leader publishes about itself: its session id and its address."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class LeaderInformation:
    """Session id and address of a confirmed leader; :meth:`empty` says that nobody leads.

    There is one empty instance a process; both fields are None in it alone.
    """

    leader_session_id: uuid.UUID | None
    leader_address: str | None

    _EMPTY: ClassVar[LeaderInformation]

    def __post_init__(self) -> None:
        """Refuse half an information."""
        if (self.leader_session_id is None) != (self.leader_address is None):
            raise ValueError(
                f"Leader information needs both a session id and an address, got {self.leader_session_id!r} and "
                f"{self.leader_address!r}; use LeaderInformation.empty() if nobody leads."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the empty instance single across copies and processes."""
        if self.is_empty:
            return LeaderInformation.empty, ()
        return LeaderInformation, (self.leader_session_id, self.leader_address)

    @classmethod
    def known(cls, leader_session_id: uuid.UUID, leader_address: str) -> LeaderInformation:
        """The information of a confirmed leader."""
        return cls(leader_session_id, leader_address)

    @classmethod
    def empty(cls) -> LeaderInformation:
        """The information that nobody leads; always the same object."""
        return cls._EMPTY

    @property
    def is_empty(self) -> bool:
        """Whether nobody leads."""
        return self.leader_session_id is None

    def get_leader_session_id(self) -> uuid.UUID | None:
        """The fencing token of the leader's term, None if nobody leads."""
        return self.leader_session_id

    def get_leader_address(self) -> str | None:
        """Where the leader can be reached, None if nobody leads."""
        return self.leader_address

    def encode(self) -> str:
        """The text ``<session id>,<address>`` that the stores hold, empty if nobody leads."""
        return "" if self.is_empty else f"{self.leader_session_id},{self.leader_address}"

    @classmethod
    def decode(cls, text: str) -> LeaderInformation:
        """Read what :meth:`encode` wrote; a text that cannot be read counts as no leader."""
        session, comma, address = text.partition(",")
        if not comma:
            return cls._EMPTY
        try:
            return cls(uuid.UUID(session), address)
        except ValueError:
            return cls._EMPTY


LeaderInformation._EMPTY = LeaderInformation(None, None)


class LeaderInformationRegister(Mapping[str, LeaderInformation]):
    """Which component has which confirmed leader; an immutable mapping without empty entries."""

    def __init__(self, entries: Mapping[str, LeaderInformation] | None = None) -> None:
        self._entries = {name: entry for name, entry in (entries or {}).items() if not entry.is_empty}

    @classmethod
    def empty(cls) -> LeaderInformationRegister:
        """A register without any leader."""
        return cls()

    @classmethod
    def of(cls, component_id: str, information: LeaderInformation) -> LeaderInformationRegister:
        """A register of one component."""
        return cls({component_id: information})

    def merge(self, component_id: str, information: LeaderInformation) -> LeaderInformationRegister:
        """A register with this entry replaced; empty information removes it."""
        return LeaderInformationRegister({**self._entries, component_id: information})

    def clear(self, component_id: str) -> LeaderInformationRegister:
        """A register without this entry."""
        return self.merge(component_id, LeaderInformation.empty())

    def for_component_id(self, component_id: str) -> LeaderInformation | None:
        """The entry of a component, None if it has none."""
        return self._entries.get(component_id)

    def for_component_id_or_empty(self, component_id: str) -> LeaderInformation:
        """The entry of a component, the empty information if it has none."""
        return self._entries.get(component_id, LeaderInformation.empty())

    def has_leader_information(self, component_id: str) -> bool:
        """Whether the component has a confirmed leader."""
        return component_id in self._entries

    def get_registered_component_ids(self) -> frozenset[str]:
        """The components that have a confirmed leader."""
        return frozenset(self._entries)

    def __getitem__(self, component_id: str) -> LeaderInformation:
        return self._entries[component_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"LeaderInformationRegister({self._entries!r})"
