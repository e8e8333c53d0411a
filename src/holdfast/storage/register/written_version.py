"""What the versions of a compare-and-set document have in common, whatever store holds it.

Each write carries a random nonce, and each version the nonces of the last 64 writes. After a refusal or a lost answer
the writer reads back and looks for its own nonce, so that its own lost answer is told from another's write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from holdfast.errors import ConflictError, HoldfastError, PossibleInconsistentStateError

WINDOW: Final = 64
"""How many versions back a writer can be told for certain whether its write was recorded."""


class WrittenVersion(Protocol):
    """One version: its number, counted from 1, and the nonces of it and of up to 63 before it, newest first."""

    @property
    def number(self) -> int:
        """Counts the writes; 0 if nobody has written."""

    @property
    def history(self) -> tuple[str, ...]:
        """The nonces, newest first."""

    @property
    def nonce(self) -> str:
        """The nonce of the write that made this version; empty if nobody has written."""


V = TypeVar("V", bound=WrittenVersion)


def look_back(new: V, load: Callable[[], V], error: HoldfastError, document: str, advice: str = "") -> V | None:
    """Find out what became of a write that was refused, or whose answer got lost.

    Args:
        new: What was to be written.
        load: Reads the newest version.
        error: What came instead of an answer.
        document: What it is a version of, for messages, with its preposition: ``of the register``.
        advice: What to do while nobody knows, for messages; begins with a space.

    Returns:
        None if it was recorded; otherwise the newest version, in whose history it is not.

    Raises:
        PossibleInconsistentStateError: It cannot be found out.
    """
    try:
        newest = load()
    except HoldfastError as second:
        raise PossibleInconsistentStateError(
            f"It is not known whether version {new.number} {document} was written ({error}), and it could not be read "
            f"back ({second}).{advice}"
        ) from error
    if new.nonce in newest.history:
        return None
    if newest.number < new.number and not isinstance(error, ConflictError):
        # The request may still be on its way.
        raise PossibleInconsistentStateError(
            f"It is not known whether version {new.number} {document} is still going to be written ({error}).{advice}"
        ) from error
    return newest
