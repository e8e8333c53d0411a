"""The lease as it stands in the annotation of a ConfigMap that holder and candidates write under optimistic locking.

It has the form of client-go's leader election, so that people and tools can read it. Its times are for people only:
`holdfast.ha.election.lease` says how it is decided who leads.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from holdfast.ha.election.lease import LeaseForm
from holdfast.kernel.clock import Clock
from holdfast.kernel.malformed import MALFORMED


@dataclass(frozen=True)
class LeaseRecord:
    """What the annotation says. An empty holder means that the lease was released.

    The number of renewals makes each record different from the one before: an update that changes nothing is no
    update, and a wall clock that stands still must not make a renewal invisible.
    """

    holder: str
    duration: float
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0
    renewals: int = 0

    @property
    def term(self) -> int:
        """Counts the leaders."""
        return self.transitions

    @property
    def released(self) -> bool:
        """Whether nobody holds it."""
        return not self.holder

    @classmethod
    def parse(cls, text: str | None) -> LeaseRecord | None:
        """Read an annotation; one that cannot be read counts as none."""
        if not text:
            return None
        try:
            fields: dict[str, Any] = json.loads(text)
            duration = float(fields.get("leaseDurationSeconds") or 0)
            if not math.isfinite(duration):
                return None
            return cls(
                str(fields.get("holderIdentity") or ""),
                duration,
                str(fields.get("acquireTime") or ""),
                str(fields.get("renewTime") or ""),
                int(fields.get("leaderTransitions") or 0),
                int(fields.get("renewals") or 0),
            )
        except MALFORMED:
            return None

    def encode(self) -> str:
        """The text of the annotation."""
        fields = {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(1, math.ceil(self.duration)),
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
            "leaderTransitions": self.transitions,
            "renewals": self.renewals,
        }
        return json.dumps(fields)


class LeaseRecordForm(LeaseForm[LeaseRecord]):
    """Counts transitions from one holder to another, and renewals by the same one.

    Args:
        clock: Tells the time of day, for the record's readers.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def acquired(self, identity: str, before: LeaseRecord | None, duration: float) -> LeaseRecord:
        """A new holder; one that finds a record of its own goes on with it."""
        if before is not None and before.holder == identity:
            return self.renewed(before, duration)
        transitions = before.transitions + 1 if before is not None else 0
        now = self._now()
        return LeaseRecord(identity, duration, now, now, transitions)

    def renewed(self, lease: LeaseRecord, duration: float) -> LeaseRecord:
        """The same holder, with one more renewal."""
        return replace(lease, duration=duration, renewed=self._now(), renewals=lease.renewals + 1)

    def given_up(self, lease: LeaseRecord) -> LeaseRecord:
        """Nobody."""
        return LeaseRecord("", 1.0, transitions=lease.transitions)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
