"""All pointers of a state handle store in one compare-and-set unit.

For backends without transactions over several keys (memory, files). The map carries the highest term that wrote, so a
deposed leader's write is refused by the same comparison that makes the write atomic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Entry:
    """One pointer.

    Attributes:
        content: The pointer as text.
        version: The version of the map that wrote it.
    """

    content: str
    version: int


@dataclass(frozen=True)
class EntryMap:
    """One version of all pointers.

    Attributes:
        version: Counts the writes; 0 if nobody has written.
        term: The highest term of a leader that wrote, 0 if no leader has.
        entries: The pointers by name.
        base: What the implementation needs to write the next version.
    """

    version: int
    term: int
    entries: Mapping[str, Entry]
    base: Any = None

    def with_entry(self, name: str, content: str) -> EntryMap:
        """A map in which this entry is new or changed."""
        return self._changed({**self.entries, name: Entry(content, self.version + 1)})

    def without(self, *names: str) -> EntryMap:
        """A map without these entries."""
        return self._changed({name: entry for name, entry in self.entries.items() if name not in names})

    def with_term(self, term: int) -> EntryMap:
        """A map that only leaders of this term and later ones may change."""
        return EntryMap(self.version, term, self.entries, self.base)

    def _changed(self, entries: Mapping[str, Entry]) -> EntryMap:
        return EntryMap(self.version, self.term, entries, self.base)


EMPTY: Final = EntryMap(0, 0, {})


class EntryMapBackend(ABC):
    """Where the map of one store is."""

    @abstractmethod
    def load(self) -> EntryMap:
        """Read the newest version; must see every write that had ended before."""

    @abstractmethod
    def swap(self, base: EntryMap, new: EntryMap) -> None:
        """Write the next version, durably, if, and only if, the base is still the newest.

        Raises:
            ConflictError: It is not; nothing happened.
            PossibleInconsistentStateError: It is not known whether it happened.
            StorageError: It did not happen.
        """
