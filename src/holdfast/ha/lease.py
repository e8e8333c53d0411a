"""The state machine of a candidate that campaigns for a lease: events in, instructions out.

The lease is one document that candidates write by compare-and-set. It names its holder, and the holder renews it by
writing the next version. Nobody compares the clocks of two machines: a candidate measures, on its own monotonic clock,
for how long it has seen the same version, and takes the lease over when that is longer than the lease says::

                             acquired (a version with my name)
                 [follower] -----------------------------------> [leader] --renewed--> [leader]
                     ^                                             |  |
                     |   another name is in the lease (deposed)    |  |  not renewed within the deadline
                     '---------------------------------------------'--'

The leader counts from before its write began, the others from after they saw it, and the deadline is shorter than the
lease; so a leader that runs knows before anybody takes over. One that was stopped for longer does not. It finds out at
its next step, and until then everything it writes is refused, because every term has a number and every store keeps
the highest one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import ConfigurationError


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
        if not 0 < self.retry_period < self.renew_deadline < self.lease_duration:
            raise ConfigurationError(
                f"Of a lease, the retry period ({self.retry_period} s) must be shorter than the renew deadline "
                f"({self.renew_deadline} s), and that shorter than the lease duration ({self.lease_duration} s)."
            )


@dataclass(frozen=True)
class Lease:
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
    def from_json(cls, body: Mapping[str, Any]) -> Lease:
        """Read a lease.

        Raises:
            KeyError, TypeError or ValueError: It is not one.
        """
        return cls(
            str(body["holder"]),
            int(body["term"]),
            uuid.UUID(body["session_id"]),
            float(body["duration"]),
            bool(body["released"]),
            {str(component): str(text) for component, text in body["information"].items()},
        )


@dataclass(frozen=True)
class Grant:
    """Tell the process that it leads under this session."""

    session_id: uuid.UUID


@dataclass(frozen=True)
class Revoke:
    """Tell the process that it leads no more."""


@dataclass(frozen=True)
class Write:
    """Write this lease on the version that was seen last, and report what came of it."""

    lease: Lease


class LeaseMachine:
    """What one candidate knows; times are seconds of its own monotonic clock.

    The adapter repeats: read the document, :meth:`observe`, :meth:`decide`; carry out a :class:`Write` and report it
    with :meth:`wrote`, or not at all if it failed or its fate is unknown: the next observation tells.

    Args:
        identity: The candidate's name; no two processes ever have the same.
        timing: How leases are held.
    """

    def __init__(self, identity: str, timing: LeaseTiming) -> None:
        self.identity = identity
        self.timing = timing
        self._version = -1
        self._lease: Lease | None = None
        self._seen_at = 0.0
        self._tried_at: float | None = None  # when the first write began of which nothing was heard yet
        self._renewed_at = 0.0
        self._term: int | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease that was seen last."""
        return self._lease

    @property
    def term(self) -> int | None:
        """The term under which the candidate leads as far as it knows, else None."""
        return self._term

    def leads_at(self, now: float) -> bool:
        """Whether the candidate may still think that it leads."""
        return self._term is not None and now - self._renewed_at < self.timing.renew_deadline

    def observe(self, now: float, version: int, lease: Lease | None) -> list[Grant | Revoke]:
        """Take note of what the document says; ``now`` is the time after it was read."""
        changed = version != self._version
        if changed:
            self._version, self._lease, self._seen_at = version, lease, now
        if self._term is None:
            return []
        if lease is None or not self._holds(lease, self._term):
            self._term = None
            return [Revoke()]
        if changed and self._tried_at is not None:
            # A renewal of mine whose answer did not arrive, perhaps the first of several.
            self._renewed_at = max(self._renewed_at, self._tried_at)
            self._tried_at = None
        return []

    def decide(self, now: float, session_id: uuid.UUID) -> list[Grant | Revoke | Write]:
        """Say what is to be done now.

        Args:
            now: The time; a write counts as begun then.
            session_id: A new random id, in case the candidate acquires the lease.
        """
        instructions: list[Grant | Revoke | Write] = []
        if self._term is not None and not self.leads_at(now):
            self._term = None
            instructions.append(Revoke())
        if self._term is not None:
            assert self._lease is not None
            if now - self._renewed_at >= self.timing.retry_period:
                self._begin(now)
                instructions.append(Write(replace(self._lease, duration=self.timing.lease_duration)))
        elif self._may_acquire(now):
            self._begin(now)
            term = self._lease.term + 1 if self._lease is not None else 1
            instructions.append(Write(Lease(self.identity, term, session_id, self.timing.lease_duration)))
        return instructions

    def publish(self, now: float, component_id: str, text: str) -> list[Write]:
        """Change the information of one component; nothing if the candidate does not lead. Empty text withdraws it."""
        if self._lease is None or not self.leads_at(now):
            return []
        information = {**self._lease.information, component_id: text}
        if not text:
            del information[component_id]
        if information == self._lease.information:
            return []
        self._begin(now)
        return [Write(replace(self._lease, information=information))]

    def wrote(self, now: float, version: int, lease: Lease) -> list[Grant | Revoke]:
        """Take note of a write that was recorded as this version; ``now`` is the time after it ended."""
        self._version, self._lease, self._seen_at = version, lease, now
        if self._tried_at is not None:
            self._renewed_at, self._tried_at = self._tried_at, None
        if self._term is not None or lease.released or now - self._renewed_at >= self.timing.renew_deadline:
            return []  # of a lease that took so long to write, somebody else may be the holder by now
        self._term = lease.term
        return [Grant(lease.session_id)]

    def resign(self) -> list[Write]:
        """Give the lease up, if the candidate leads as far as it knows."""
        if self._term is None or self._lease is None:
            return []
        self._term = None
        self._tried_at = None
        return [Write(replace(self._lease, released=True, information={}))]

    def pause(self, now: float) -> float:
        """Seconds until the adapter should look again."""
        if self._term is not None:
            return max(0.0, self._renewed_at + self.timing.retry_period - now)
        if self._lease is None or self._lease.released:
            return self.timing.retry_period
        expiry = self._seen_at + self._lease.duration - now
        return min(self.timing.retry_period, expiry) if expiry > 0 else self.timing.retry_period

    def _begin(self, now: float) -> None:
        if self._tried_at is None:
            self._tried_at = now

    def _holds(self, lease: Lease, term: int) -> bool:
        return lease.holder == self.identity and lease.term == term and not lease.released

    def _may_acquire(self, now: float) -> bool:
        lease = self._lease
        if self._version < 0:
            return False  # nothing was read yet
        if lease is None or lease.released or lease.holder == self.identity:
            return True
        return now - self._seen_at >= lease.duration
