"""The state machine of one candidate for a lease: what it saw and when, and what it may do. No I/O, no threads.

The lease is a record in the annotation of a ConfigMap that holder and candidates write under optimistic locking::

                 free, released, or not renewed for a lease duration: write
    [candidate] -----------------------------------------------------------> [leader]
         ^                                                                      |
         '--- another holder was read, or not renewed for a renew deadline -----'

Two rules carry the safety, and neither compares the clocks of two machines:

* A candidate takes the record from another holder only after it has itself seen it unchanged for a whole lease
  duration, by its own monotonic clock. The times in the record are for people.
* A leader counts its renew deadline from the moment before it sent the write that was confirmed. As long as the renew
  deadline is not longer than the lease duration, it has stopped before anybody may take over.

That holds while clocks run at the same speed; if they do not, or a process sleeps between a check and a write, the
fenced registers still hold. After client-go's leader election (LeaseDuration, RenewDeadline, RetryPeriod).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import ConfigurationError


@dataclass(frozen=True)
class LeaseTimes:
    """How long a lease lasts, in seconds."""

    lease_duration: float = 15.0
    renew_deadline: float = 15.0
    retry_period: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_period < self.renew_deadline <= self.lease_duration:
            raise ConfigurationError(
                "The times of leader election on Kubernetes must be 0 < retry period < renew deadline <= lease "
                f"duration, not {self.retry_period} s, {self.renew_deadline} s, {self.lease_duration} s. Otherwise two "
                "processes could believe that they lead."
            )


@dataclass(frozen=True)
class LeaseRecord:
    """What the annotation says. An empty holder means that the lease was released.

    The number of renewals makes each record different from the one before: an update that changes nothing is no
    update, and a wall clock that stands still must not make a renewal invisible.
    """

    holder: str
    lease_seconds: float
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0
    renewals: int = 0

    @classmethod
    def parse(cls, text: str | None) -> LeaseRecord | None:
        """Read an annotation; one that cannot be read counts as none."""
        if not text:
            return None
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(
                str(fields.get("holderIdentity") or ""),
                float(fields.get("leaseDurationSeconds") or 0),
                str(fields.get("acquireTime") or ""),
                str(fields.get("renewTime") or ""),
                int(fields.get("leaderTransitions") or 0),
                int(fields.get("renewals") or 0),
            )
        except (ValueError, TypeError, AttributeError):
            return None

    def encode(self) -> str:
        """The text of the annotation."""
        fields = {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(1, math.ceil(self.lease_seconds)),
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
            "leaderTransitions": self.transitions,
            "renewals": self.renewals,
        }
        return json.dumps(fields)


class LeaseMachine:
    """One candidate.

    Args:
        identity: Who it is; must be unique.
        times: The lease's times.

    Attributes:
        leading: Whether it may act as the leader.
    """

    def __init__(self, identity: str, times: LeaseTimes) -> None:
        self.identity = identity
        self.times = times
        self.leading = False
        self._seen: str | None = None
        self._seen_at = -math.inf
        self._renewed_at = -math.inf

    @property
    def deadline(self) -> float:
        """Until when it leads, by the monotonic clock, if it does not renew before."""
        return self._renewed_at + self.times.renew_deadline if self.leading else math.inf

    def next_look(self, now: float) -> float:
        """How many seconds may pass before the annotation is read again."""
        retry = self.times.retry_period
        if self.leading:
            # Several tries before the deadline, whatever the retry period is.
            return min(retry, self.times.renew_deadline / 3)
        record = LeaseRecord.parse(self._seen)
        if record is None or not record.holder or record.holder == self.identity:
            return retry
        left = self._seen_at + max(record.lease_seconds, self.times.lease_duration) - now
        return min(retry, left) if left > 0 else retry

    def expire(self, now: float) -> bool:
        """The time is now; whether it has just lost leadership by that."""
        if self.leading and now >= self.deadline:
            self.leading = False
            return True
        return False

    def observe(self, text: str | None, now: float, wall_ms: int) -> tuple[bool, LeaseRecord | None]:
        """The annotation was read.

        Args:
            text: What it says, None if there is none.
            now: The monotonic time after the read.
            wall_ms: The wall-clock time, for the record's readers.

        Returns:
            Whether it has just lost leadership, and the record that it may write now, under the version that it read.
        """
        if text != self._seen:
            self._seen, self._seen_at = text, now
        record = LeaseRecord.parse(text)
        mine = record is not None and record.holder == self.identity
        lost = self.expire(now)
        if self.leading and not mine:
            self.leading = False
            lost = True
        if record is not None and record.holder and not mine:
            lasts = max(record.lease_seconds, self.times.lease_duration)
            if now < self._seen_at + lasts:
                return lost, None
        return lost, self._next(record, mine, wall_ms)

    def wrote(self, record: LeaseRecord, started: float, now: float) -> bool:
        """A record of its own was written.

        Args:
            record: The record.
            started: The monotonic time before the write was sent.
            now: The monotonic time after its answer.

        Returns:
            Whether it has just become the leader.
        """
        self._seen, self._seen_at = record.encode(), now
        if now >= started + self.times.renew_deadline:
            return False  # the answer came too late to be of use
        self._renewed_at = started
        if self.leading:
            return False
        self.leading = True
        return True

    def released(self) -> LeaseRecord:
        """The record by which it gives the lease back, so that others need not wait."""
        record = LeaseRecord.parse(self._seen)
        transitions = record.transitions if record is not None else 0
        self.leading = False
        return LeaseRecord("", 1.0, transitions=transitions)

    def _next(self, record: LeaseRecord | None, mine: bool, wall_ms: int) -> LeaseRecord:
        now = datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
        if record is not None and mine:
            return replace(record, lease_seconds=self.times.lease_duration, renewed=now, renewals=record.renewals + 1)
        transitions = record.transitions + 1 if record is not None else 0
        return LeaseRecord(self.identity, self.times.lease_duration, now, now, transitions)
