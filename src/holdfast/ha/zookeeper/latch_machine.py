"""The state machine of a candidate at the leader latch: events in, instructions out.

::

    [no node] --create--> [waiting] --lowest number--> [leader]
        ^                     |                           |
        |                     | connection suspended: stays in line, and does not lead
        '---- session lost ---'---------------------------'

A create whose answer got lost may have made a node, so each candidate marks its nodes with a random guid and looks for
it in the list before it creates another; of two it keeps the lower. Each waits for the node right before its own only,
so that the end of a leader wakes one candidate.

After ZooKeeper's leader election recipe, with the protection of Curator's LeaderLatch.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.ha.zookeeper.latch_nodes import latch_prefix, sequence_number


@dataclass(frozen=True)
class List:
    """List the candidates, and report them with :meth:`LatchMachine.listed`.

    Attributes:
        period: The stretch of an unbroken connection in which the list is asked for.
    """

    period: int


@dataclass(frozen=True)
class Create:
    """Create an ephemeral, sequential node whose name begins so, then list."""

    prefix: str


@dataclass(frozen=True)
class Delete:
    """Delete a node of this candidate that it does not need."""

    name: str


@dataclass(frozen=True)
class WatchNode:
    """Wait for the end of a node, then list; list at once if it is gone already."""

    name: str


@dataclass(frozen=True)
class GrantLeadership:
    """Tell the process that it leads under this session."""

    session_id: uuid.UUID


@dataclass(frozen=True)
class RevokeLeadership:
    """Tell the process that it leads no more."""


Instruction = List | Create | Delete | WatchNode | GrantLeadership | RevokeLeadership


class LatchMachine:
    """What one candidate knows of its place in the line.

    Attributes:
        node: Name of its node, None if it has none as far as it knows.
        leads: Whether it leads as far as it knows.
    """

    def __init__(self, guid: str, *, tolerates_suspension: bool = False) -> None:
        self._guid = guid
        self._tolerates_suspension = tolerates_suspension
        self.node: str | None = None
        self.leads = False
        self._is_suspended = True
        self._period = 0

    @property
    def period(self) -> int:
        """Counts the stretches of unbroken connection."""
        return self._period

    def owns(self, name: str) -> bool:
        """Whether a node is one of this candidate."""
        return name.startswith(latch_prefix(self._guid))

    def connected(self) -> list[Instruction]:
        """The connection stands, for the first time or again, with the same session or another."""
        self._is_suspended = False
        self._period += 1
        return [List(self._period)]

    def suspended(self) -> list[Instruction]:
        """The connection is lost; the session may live on."""
        self._is_suspended = True
        return [] if self._tolerates_suspension else self._revoke()

    def lost(self) -> list[Instruction]:
        """The session is over, or has been silent for so long that it may be; its nodes are gone, or soon will be."""
        self._is_suspended = True
        self.node = None
        return self._revoke()

    def listed(self, period: int, names: Sequence[str], session_id: uuid.UUID) -> list[Instruction]:
        """These are the candidates' nodes, lowest first.

        Args:
            period: That of the :class:`List`.
            names: Their names.
            session_id: A new random id, in case this candidate leads now.
        """
        if self._is_suspended or period != self._period:
            return []  # an old answer: the session may have ended since, and the next connection lists again
        own = [name for name in names if self.owns(name)]
        if not own:
            self.node = None
            return [*self._revoke(), Create(latch_prefix(self._guid))]
        self.node = own[0]
        instructions: list[Instruction] = [Delete(name) for name in own[1:]]
        before = [name for name in names if sequence_number(name) < sequence_number(self.node)]
        if before:
            instructions += [*self._revoke(), WatchNode(before[-1])]
        elif not self.leads:
            self.leads = True
            instructions.append(GrantLeadership(session_id))
        return instructions

    def _revoke(self) -> list[Instruction]:
        if not self.leads:
            return []
        self.leads = False
        return [RevokeLeadership()]
