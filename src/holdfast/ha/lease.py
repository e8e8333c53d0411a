"""The state machine of a candidate that campaigns for a lease: events in, instructions out. No I/O, no threads.

The lease is one record that candidates write by compare-and-set. It names its holder, and the holder renews it by
writing the next version. The clocks of two machines are never compared: a candidate measures, on its own monotonic
clock, for how long it has seen the same version, and takes the lease over when that is longer than the lease's
duration::

                             acquired (a version with my name)
                 [follower] -----------------------------------> [leader] --renewed--> [leader]
                     ^                                             |  |
                     |   another name is in the lease (deposed)    |  |  not renewed within the deadline
                     '---------------------------------------------'--'

The leader counts from before its write began, the others from after they saw it, and the deadline is not longer than
the lease; so a leader that runs, on a clock of the same speed, has stopped before another process may take over. A
process that was stopped for longer does not know. It finds out at its next step, and until then everything it writes is
refused, because every term has a number and every store keeps the highest one.

A backend may write more into a lease: its `LeaseForm` builds the records. After client-go's leader election
(LeaseDuration, RenewDeadline, RetryPeriod).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import ConfigOption, Configuration

_NOTHING_READ: Final = object()


@dataclass(frozen=True)
class LeaseTiming:
    """Duration, deadline and period of leases, in seconds.

    Attributes:
        lease_duration: A lease that has not been renewed for so long may be taken over.
        renew_deadline: A leader that could not renew for so long stops leading by itself.
        retry_period: How often a leader renews and the others read.

    Raises:
        ConfigurationError: Two processes could lead at once with this timing.
    """

    lease_duration: float
    renew_deadline: float
    retry_period: float

    def __post_init__(self) -> None:
        if not 0 < self.retry_period < self.renew_deadline <= self.lease_duration:
            raise ConfigurationError(
                "The times of leader election must be 0 < retry period < renew deadline <= lease duration, not "
                f"{self.retry_period} s, {self.renew_deadline} s, {self.lease_duration} s. Otherwise two processes "
                "could believe that they lead."
            )

    @classmethod
    def of(
        cls,
        configuration: Configuration,
        duration: ConfigOption[int],
        deadline: ConfigOption[int],
        period: ConfigOption[int],
    ) -> LeaseTiming:
        """Return the configured timing.

        Args:
            configuration: The configuration.
            duration: The option of `lease_duration`, as the other two in milliseconds.
            deadline: The option of `renew_deadline`.
            period: The option of `retry_period`.

        Raises:
            ConfigurationError: Two processes could lead at once with this timing.
        """
        return cls(*(configuration.get(option) / 1000 for option in (duration, deadline, period)))

    @property
    def renew_period(self) -> float:
        """Seconds between two renewals: several fit into the deadline, whatever the retry period is."""
        return min(self.retry_period, self.renew_deadline / 3)


class LeaseContent(Protocol):
    """The part of a lease that the machine reads.

    Attributes:
        holder: The leader, or the last one before the release.
        term: Counts the leaders.
        duration: Seconds for which it may be left without a renewal.
        released: Whether the holder gave it up.
    """

    @property
    def holder(self) -> str: ...

    @property
    def term(self) -> int: ...

    @property
    def duration(self) -> float: ...

    @property
    def released(self) -> bool: ...


L = TypeVar("L", bound=LeaseContent)


class LeaseForm(ABC, Generic[L]):
    """Builds the leases of a backend.

    If a version has no number of its own, two leases in a row must differ, or a renewal could not be seen.
    """

    @abstractmethod
    def acquired(self, identity: str, before: L | None, duration: float) -> L:
        """Return the lease by which a candidate begins to lead.

        Args:
            identity: The candidate.
            before: The lease that it takes over, None if there is none. It may be an own one that the candidate did not
                know.
            duration: Seconds for which it may be left without a renewal.
        """

    @abstractmethod
    def renewed(self, lease: L, duration: float) -> L:
        """Return the lease by which its holder goes on."""

    @abstractmethod
    def given_up(self, lease: L) -> L:
        """Return the lease by which its holder lets others lead at once."""


@dataclass(frozen=True)
class Grant(Generic[L]):
    """Notify the process that it leads under this lease."""

    lease: L


@dataclass(frozen=True)
class Revoke:
    """Notify the process that it does not lead any more."""


@dataclass(frozen=True)
class Write(Generic[L]):
    """Write this lease on the version that was read last, and call `wrote` if it was recorded.

    Attributes:
        lease: The lease.
        began: When the write began, by the machine's clock.
    """

    lease: L
    began: float


class LeaseMachine(Generic[L]):
    """The knowledge of one candidate; times are seconds of its own monotonic clock.

    The driver repeats: read the lease, `observe`, `decide`; execute a `Write` and report it with `wrote`, or not at all
    if it failed or its outcome is unknown: the next observation decides. A driver that must stop leading while a
    request hangs calls `expire` at the `deadline`.

    Args:
        identity: The candidate's name; no two processes ever have the same.
        timing: Duration, deadline and period of leases.
        form: Builds the leases.
    """

    def __init__(self, identity: str, timing: LeaseTiming, form: LeaseForm[L]) -> None:
        self.identity = identity
        self.timing = timing
        self._form = form
        self._version: Hashable = _NOTHING_READ
        self._lease: L | None = None
        self._seen_at = -math.inf
        self._tried_at: float | None = None  # when the first write began that has no answer yet
        self._renewed_at = -math.inf
        self._term: int | None = None

    @property
    def lease(self) -> L | None:
        """The lease that was read last."""
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
        """The time at which the candidate stops leading if it does not renew before; infinite if it does not lead."""
        return self._renewed_at + self.timing.renew_deadline if self.is_leading else math.inf

    def leads_at(self, now: float) -> bool:
        """Return whether the candidate may still assume that it leads."""
        return self.is_leading and now < self.deadline

    def expire(self, now: float) -> list[Revoke]:
        """End the leadership if its deadline is over."""
        if now < self.deadline:
            return []
        self._term = None
        return [Revoke()]

    def observe(self, now: float, version: Hashable, lease: L | None) -> list[Revoke]:
        """Process a version that was read.

        Args:
            now: The time after the read.
            version: Differs between any two versions.
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
            # An own renewal whose answer did not arrive, perhaps the first of several.
            self._renewed_at = max(self._renewed_at, self._tried_at)
            self._tried_at = None
        return []

    def decide(self, now: float) -> list[Revoke | Write[L]]:
        """Return the instructions of this moment; a write counts as begun now."""
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
        """Return the write of a changed lease; none if it is unchanged, or the candidate does not lead."""
        if self._lease is None or not self.leads_at(now):
            return []
        changed = change(self._lease)
        return [self._write(now, changed)] if changed != self._lease else []

    def wrote(self, now: float, version: Hashable, write: Write[L]) -> list[Grant[L]]:
        """Process a write that was recorded.

        Args:
            now: The time after the write.
            version: Differs between any two versions.
            write: The write.
        """
        lease = write.lease
        self._version, self._lease, self._seen_at = version, lease, now
        self._tried_at = None
        if now >= write.began + self.timing.renew_deadline:
            return []  # after so long a write another process may have taken the lease
        self._renewed_at = write.began
        if self.is_leading or lease.released:
            return []
        self._term = lease.term
        return [Grant(lease)]

    def resign(self) -> list[Write[L]]:
        """Stop leading, and give the lease up if the one that was read last is the candidate's."""
        self._term = None
        self._tried_at = None
        if self._lease is None or not self._is_mine(self._lease):
            return []
        # Begun long ago, so that nothing is granted by it.
        return [Write(self._form.given_up(self._lease), -math.inf)]

    def pause(self, now: float) -> float:
        """Return the seconds until the driver should read again; more than 0, so that failures do not make it spin."""
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
        """Return the time from which the candidate may take the lease."""
        lease = self._lease
        if lease is None or lease.released or lease.holder == self.identity:
            return -math.inf
        # The longer of two durations counts, where processes are configured differently.
        return self._seen_at + max(lease.duration, self.timing.lease_duration)
