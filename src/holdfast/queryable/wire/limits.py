"""What clients of a server may do, and what all of them together may hold in its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.queryable.wire.errors import LimitExceededError

TASK_BYTES: Final = 4096
"""What a request that waits takes besides its own bytes, about."""
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Limits:
    """What a server takes from one client, and from all of them.

    Attributes:
        message_bytes: Longest request, and longest answer.
        keys: Most keys of one request.
        in_flight: Most requests of one connection that wait for something.
        connections: Most connections of those who have greeted.
        of_one_address: The same, of one address.
        strangers: Most connections that have not greeted yet; one more, and the one that has waited longest ends.
        greeting_seconds: How long a greeting may take, and before it the handshake of TLS.
        idle_seconds: After so long without a request and with nothing to answer a connection ends, or twice as long at
            most.
        unread_bytes: Answers that a client may leave unread before nothing more is answered.
        stall_seconds: How long a client may read nothing of what waits for it.
        all_bytes: Requests that wait, and answers that wait to be read, of all connections; None for sixteen of the
            longest messages.
    """

    message_bytes: int = 16 * 1024 * 1024
    keys: int = 100_000
    in_flight: int = 256
    connections: int = 1_000
    of_one_address: int = 500
    strangers: int = 128
    greeting_seconds: float = 10.0
    idle_seconds: float = 1_800.0
    unread_bytes: int = 1024 * 1024
    stall_seconds: float = 60.0
    all_bytes: int | None = None

    @property
    def budget_bytes(self) -> int:
        """Requests that wait, and answers that wait to be read, of all connections."""
        return 16 * self.message_bytes if self.all_bytes is None else self.all_bytes

    @property
    def held_bytes(self) -> int:
        """Requests that wait, and answers that wait to be read, of one connection: four of the longest messages."""
        return 4 * self.message_bytes

    @property
    def shown(self) -> dict[str, int]:
        """What clients are told when they greet."""
        return {"message_bytes": self.message_bytes, "keys": self.keys, "in_flight": self.in_flight}

    def check_keys(self, count: int) -> None:
        """Check the number of keys of a request.

        Raises:
            LimitExceededError: There are too many.
        """
        if count > self.keys:
            raise LimitExceededError(f"{count} keys at once are more than the limit of {self.keys}.")

    def check_answer(self, size: int) -> None:
        """Check the length of an answer, in bytes.

        Raises:
            LimitExceededError: It is too long.
        """
        if size > self.message_bytes:
            raise LimitExceededError(
                f"The answer has at least {size} bytes, the limit is {self.message_bytes}. Ask for fewer keys."
            )


class Holder(Hashable, Protocol):
    """A connection, seen from the room."""

    def held_bytes(self) -> int:
        """Return how much of it waits in memory, in bytes."""


class MemoryBudget:
    """What all connections of a server hold together; belongs to one event loop.

    A connection says what it holds when that grows. That a client has read is noticed later, so everybody is counted
    again before the room counts as full.

    Args:
        most: Bytes that all may hold.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self._total = 0

    def is_full(self, without: int = 0) -> bool:
        """Whether nobody may hold more at the moment.

        Args:
            without: So many bytes that are held are about to go.
        """
        if self._total - without >= self._most:
            for holder in self._held:
                self.note(holder)
        return self._total - without >= self._most

    def note(self, holder: Holder) -> None:
        """Count what a connection holds now."""
        held = holder.held_bytes()
        self._total += held - self._held.get(holder, 0)
        self._held[holder] = held

    def add(self, holder: Holder, size: int) -> None:
        """Count more of a connection without counting all that it holds."""
        self._total += size
        self._held[holder] = self._held.get(holder, 0) + size

    def leave(self, holder: Holder) -> None:
        """Count a connection no more."""
        self._total -= self._held.pop(holder, 0)

    def check(self, without: int = 0) -> None:
        """Check that there is room, as `is_full` says.

        Raises:
            LimitExceededError: There is none.
        """
        if self.is_full(without):
            raise LimitExceededError(
                f"Requests and answers that wait in the server have {self._most} bytes together, which is its limit "
                "(queryable-state.max-waiting-size). Try again later."
            )

    async def until_free(self, seconds: float) -> None:
        """Wait until there is room.

        Raises:
            LimitExceededError: There is none in that time.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while self.is_full() and loop.time() < ends:
            await asyncio.sleep(_LOOK_SECONDS)
        self.check()
