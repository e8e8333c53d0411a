"""The state machine of a candidate that campaigns for a lease: events in, instructions out. No I/O, no threads.

The lease is one record that candidates write by compare-and-set. It names its holder, and the holder renews it by
writing the next version. Nobody compares the clocks of two machines: a candidate measures, on its own monotonic clock,
for how long it has seen the same version, and takes the lease over when that is longer than the lease says::

                             acquired (a version with my name)
                 [follower] -----------------------------------> [leader] --renewed--> [leader]
                     ^                                             |  |
                     |   another name is in the lease (deposed)    |  |  not renewed within the deadline
                     '---------------------------------------------'--'

The leader counts from before its write began, the others from after they saw it, and the deadline is not longer than
the lease; so a leader that runs, on a clock of the same speed, has stopped before anybody may take over. One that was
stopped for longer does not know. It finds out at its next step, and until then everything it writes is refused, because
every term has a number and every store keeps the highest one.

What a backend writes into a lease beside this is its own matter: its `LeaseForm` says it. After client-go's leader
election (LeaseDuration, RenewDeadline, RetryPeriod).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from holdfast.errors import ConfigurationError

_NOTHING_READ: Final = object()


@dataclass(frozen=True)
class LeaseTiming:
    """How leases are held, in seconds.

    Attributes:
        lease_duration: A lease that has not been renewed for so long may be taken over.
        renew_deadline: A leader that could not renew for so long stops leading by itself.
        retry_period: How often a leader renews and the others look.
    """

    lease_duration: float
    renew_deadline: float
    retry_period: float

    def __post_init__(self) -> None:
        """Refuse timings with which two could lead at once."""
        if not 0 < self.retry_period < self.renew_deadline <= self.lease_duration:
            raise ConfigurationError(
                "The times of leader election must be 0 < retry period < renew deadline <= lease duration, not "
                f"{self.retry_period} s, {self.renew_deadline} s, {self.lease_duration} s. Otherwise two processes "
                "could believe that they lead."
            )

    @property
    def renew_period(self) -> float:
        """How often a leader renews: several times before the deadline, whatever the retry period is."""
        return min(self.retry_period, self.renew_deadline / 3)


class LeaseContent(Protocol):
    """What the machine reads in a lease."""

    @property
    def holder(self) -> str:
        """Who leads, or led before the release."""

    @property
    def term(self) -> int:
        """Counts the leaders."""

    @property
    def duration(self) -> float:
        """For how long it may be left without a renewal, in seconds."""

    @property
    def released(self) -> bool:
        """Whether the holder gave it up."""


L = TypeVar("L", bound=LeaseContent)


class LeaseForm(ABC, Generic[L]):
    """How a backend writes its leases.

    Where a version has no number of its own, no two leases in a row may be equal, or a renewal could not be seen.
    """

    @abstractmethod
    def acquired(self, identity: str, before: L | None, duration: float) -> L:
        """Make the lease by which a candidate begins to lead.

        Args:
            identity: The candidate.
            before: The lease that it takes over, None if there is none. It may be its own, of which it did not know.
            duration: For how long it may be left without a renewal, in seconds.
        """

    @abstractmethod
    def renewed(self, lease: L, duration: float) -> L:
        """Make the lease by which its holder goes on."""

    @abstractmethod
    def given_up(self, lease: L) -> L:
        """Make the lease by which its holder lets others lead at once."""


@dataclass(frozen=True)
class Grant(Generic[L]):
    """Tell the process that it leads under this lease."""

    lease: L


@dataclass(frozen=True)
class Revoke:
    """Tell the process that it leads no more."""


@dataclass(frozen=True)
class Write(Generic[L]):
    """Write this lease on the version that was seen last, and report it if it was recorded.

    Attributes:
        lease: The lease.
        began: When the write began, by the machine's clock.
    """

    lease: L
    began: float


class LeaseMachine(Generic[L]):
    """What one candidate knows; times are seconds of its own monotonic clock.

    The adapter repeats: read the lease, :meth:`observe`, :meth:`decide`; carry out a :class:`Write` and report it with
    :meth:`wrote`, or not at all if it failed or its fate is unknown: the next observation tells. Whoever wants a leader
    to stop while a request hangs calls :meth:`expire` at the :attr:`deadline`.

    Args:
        identity: The candidate's name; no two processes ever have the same.
        timing: How leases are held.
        form: How the backend writes them.
    """

    def __init__(self, identity: str, timing: LeaseTiming, form: LeaseForm[L]) -> None:
        self.identity = identity
        self.timing = timing
        self._form = form
        self._version: Hashable = _NOTHING_READ
        self._lease: L | None = None
        self._seen_at = -math.inf
        self._tried_at: float | None = None  # when the first write began of which nothing was heard yet
        self._renewed_at = -math.inf
        self._term: int | None = None

    @property
    def lease(self) -> L | None:
        """The lease that was seen last."""
        return self._lease

    @property
    def term(self) -> int | None:
        """The term under which the candidate leads as far as it knows, else None."""
        return self._term

    @property
    def is_leading(self) -> bool:
        """Whether the candidate leads as far as it knows."""
        return self._term is not None

    @property
    def deadline(self) -> float:
        """Until when the candidate leads if it does not renew before; endless if it does not lead."""
        return self._renewed_at + self.timing.renew_deadline if self.is_leading else math.inf

    def leads_at(self, now: float) -> bool:
        """Whether the candidate may still think that it leads."""
        return self.is_leading and now < self.deadline

    def expire(self, now: float) -> list[Revoke]:
        """End the leadership if its deadline is over."""
        if now < self.deadline:
            return []
        self._term = None
        return [Revoke()]

    def observe(self, now: float, version: Hashable, lease: L | None) -> list[Revoke]:
        """Take note of what the store says.

        Args:
            now: The time after it was read.
            version: What tells this version from those before it.
            lease: The lease, None if there is none.
        """
        changed = version != self._version
        if changed:
            self._version, self._lease, self._seen_at = version, lease, now
        if self._term is None:
            return []
        if lease is None or not self._is_mine(lease) or lease.term != self._term:
            self._term = None
            return [Revoke()]
        if changed and self._tried_at is not None:
            # A renewal of mine whose answer did not arrive, perhaps the first of several.
            self._renewed_at = max(self._renewed_at, self._tried_at)
            self._tried_at = None
        return []

    def decide(self, now: float) -> list[Revoke | Write[L]]:
        """Say what is to be done now; a write counts as begun then."""
        instructions: list[Revoke | Write[L]] = [*self.expire(now)]
        duration = self.timing.lease_duration
        if self.is_leading:
            assert self._lease is not None
            if now - self._renewed_at >= self.timing.renew_period:
                instructions.append(self._write(now, self._form.renewed(self._lease, duration)))
        elif self._version is not _NOTHING_READ and now >= self._free_from():
            instructions.append(self._write(now, self._form.acquired(self.identity, self._lease, duration)))
        return instructions

    def change(self, now: float, change: Callable[[L], L]) -> list[Write[L]]:
        """Write something else into the lease; nothing if it says so already, or the candidate does not lead."""
        if self._lease is None or not self.leads_at(now):
            return []
        changed = change(self._lease)
        return [self._write(now, changed)] if changed != self._lease else []

    def wrote(self, now: float, version: Hashable, write: Write[L]) -> list[Grant[L]]:
        """Take note of a write that was recorded.

        Args:
            now: The time after it ended.
            version: What tells its version from those before it.
            write: What was written.
        """
        lease = write.lease
        self._version, self._lease, self._seen_at = version, lease, now
        self._tried_at = None
        if now >= write.began + self.timing.renew_deadline:
            return []  # of a lease that took so long to write, somebody else may be the holder by now
        self._renewed_at = write.began
        if self.is_leading or lease.released:
            return []
        self._term = lease.term
        return [Grant(lease)]

    def resign(self) -> list[Write[L]]:
        """Lead no more, and give the lease up if the one that was seen last is in the candidate's name."""
        self._term = None
        self._tried_at = None
        if self._lease is None or not self._is_mine(self._lease):
            return []
        # Begun long ago, so that nothing is granted by it.
        return [Write(self._form.given_up(self._lease), -math.inf)]

    def pause(self, now: float) -> float:
        """Seconds until the adapter should look again; more than none, so that failures do not make it spin."""
        period = self.timing.renew_period if self.is_leading else self.timing.retry_period
        left = (self._renewed_at + period if self.is_leading else self._free_from()) - now
        return min(period, left) if left > 0 else period

    def _write(self, now: float, lease: L) -> Write[L]:
        if self._tried_at is None:
            self._tried_at = now
        return Write(lease, now)

    def _is_mine(self, lease: L) -> bool:
        return lease.holder == self.identity and not lease.released

    def _free_from(self) -> float:
        """From when on the candidate may take the lease."""
        lease = self._lease
        if lease is None or lease.released or lease.holder == self.identity:
            return -math.inf
        # The longer of two durations counts, where processes are configured differently.
        return self._seen_at + max(lease.duration, self.timing.lease_duration)
