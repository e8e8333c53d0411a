"""Who may change what only a leader may."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.errors import FencedError


class Leadership(ABC):
    """Who leads, as the backend knows it."""

    @abstractmethod
    def term_of(self, lock_identity: str) -> int | None:
        """The term under which this identity leads right now, None if it does not; terms only grow.

        Raises:
            StorageError: The backend does not answer.
        """

    def require_term_of(self, lock_identity: str) -> int:
        """The term under which this identity leads right now.

        Raises:
            FencedError: It does not lead.
        """
        term = self.term_of(lock_identity)
        if term is None:
            raise FencedError(
                f"{lock_identity!r} does not lead any more, so it may not change anything. This process stops; "
                "whoever leads goes on."
            )
        return term
