"""The state machine of a process's leader elections: events in, instructions out, no I/O, no clock, no thread.

One driver campaigns for all components of the process, so there is one issued session id for all of them::

                    register (first)                        granted
    [no driver] ----------------------> [driver, candidate] --------> [driver, leader]
         ^                                |   ^                          |   |
         |          remove (last)         |   '--------- revoked --------'   |
         '--------------------------------+----------------------------------'

A component of a leading process goes through *granted* (it was told the session id) and *confirmed* (it gave its
address, which is published). Three rules carry the safety:

* On *revoked* nothing in the backend is touched: it may belong to the successor already.
* What is published is exactly what was confirmed in this session. From the grant on, anything else that shows up for
  a registered component is overwritten, with the empty information if nothing was confirmed.
* Every driver has a campaign number; events of a driver that was given up are ignored.

After Flink's DefaultLeaderElectionService (contract: leader election, the multiplexer).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from holdfast.ha.election.leader_information import LeaderInformation, LeaderInformationRegister


@dataclass(frozen=True)
class Register:
    """A contender of this component registers."""

    component_id: str


@dataclass(frozen=True)
class Remove:
    """The contender of this component leaves."""

    component_id: str


@dataclass(frozen=True)
class Granted:
    """The driver of this campaign was elected."""

    campaign: int
    session_id: uuid.UUID


@dataclass(frozen=True)
class NewcomerGranted:
    """The grant of a component that registered while the process was leading has come to its turn."""

    component_id: str
    session_id: uuid.UUID


@dataclass(frozen=True)
class Revoked:
    """The driver of this campaign leads no more."""

    campaign: int


@dataclass(frozen=True)
class Confirm:
    """A component confirms the session; ``leads`` is what the backend said a moment ago."""

    component_id: str
    session_id: uuid.UUID
    address: str
    leads: bool


@dataclass(frozen=True)
class InformationChanged:
    """The backend of this campaign now holds this information for one component."""

    campaign: int
    component_id: str
    information: LeaderInformation


@dataclass(frozen=True)
class RegisterChanged:
    """The backend of this campaign now holds exactly this information."""

    campaign: int
    register: LeaderInformationRegister


Event = Register | Remove | Granted | NewcomerGranted | Revoked | Confirm | InformationChanged | RegisterChanged


@dataclass(frozen=True)
class OpenDriver:
    """Make a driver; its events carry this campaign number."""

    campaign: int


@dataclass(frozen=True)
class CloseDriver:
    """Give up the driver of this campaign."""

    campaign: int


@dataclass(frozen=True)
class GrantNewcomer:
    """Put :class:`NewcomerGranted` behind the events that wait already."""

    component_id: str
    session_id: uuid.UUID


@dataclass(frozen=True)
class NotifyGrant:
    """Call ``grant_leadership`` of the component's contender."""

    component_id: str
    session_id: uuid.UUID


@dataclass(frozen=True)
class NotifyRevoke:
    """Call ``revoke_leadership`` of the component's contender."""

    component_id: str


@dataclass(frozen=True)
class Publish:
    """Write this information of the component to the backend."""

    component_id: str
    information: LeaderInformation


@dataclass(frozen=True)
class Withdraw:
    """Delete the component's information from the backend if the process still leads there."""

    component_id: str


Instruction = OpenDriver | CloseDriver | GrantNewcomer | NotifyGrant | NotifyRevoke | Publish | Withdraw


class ElectionMachine:
    """What one process knows about its elections; :meth:`handle` is the only way in.

    Attributes:
        issued_session_id: The session under which the process leads as far as it knows, else None.
        confirmed: What the process's components published in this session.
        campaign: The number of the current driver, None without one.
    """

    def __init__(self) -> None:
        self.issued_session_id: uuid.UUID | None = None
        self.confirmed = LeaderInformationRegister.empty()
        self.campaign: int | None = None
        self._campaigns = 0
        self._reported = LeaderInformationRegister.empty()  # what the backend held when it was last heard of
        # Components in the order of their registration, and whether each was told the issued session.
        self._components: dict[str, bool] = {}

    @property
    def components(self) -> tuple[str, ...]:
        """The registered components, in the order of their registration."""
        return tuple(self._components)

    def is_registered(self, component_id: str) -> bool:
        """Whether the component has a contender."""
        return component_id in self._components

    def is_issued(self, component_id: str, session_id: uuid.UUID) -> bool:
        """Whether this session was issued to this component and not revoked since, as far as the process knows."""
        return component_id in self._components and self.issued_session_id == session_id

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event and return what is to be done, in this order.

        Raises:
            RuntimeError: The event cannot happen in this state; the caller or the driver is wrong.
        """
        match event:
            case Register(component_id):
                return self._register(component_id)
            case Remove(component_id):
                return self._remove(component_id)
            case Granted(campaign, session_id):
                return self._granted(session_id) if campaign == self.campaign else []
            case NewcomerGranted(component_id, session_id):
                return self._newcomer_granted(component_id, session_id)
            case Revoked(campaign):
                return self._revoked() if campaign == self.campaign else []
            case Confirm(component_id, session_id, address, leads):
                return self._confirm(component_id, session_id, address) if leads else []
            case InformationChanged(campaign, component_id, information):
                return self._changed(component_id, information) if campaign == self.campaign else []
            case RegisterChanged(campaign, register):
                return self._register_changed(register) if campaign == self.campaign else []

    def _register(self, component_id: str) -> list[Instruction]:
        if component_id in self._components:
            raise RuntimeError(
                f"There is already a contender registered for component {component_id!r}; close its leader election "
                "before you start another one."
            )
        self._components[component_id] = False
        if self.campaign is None:
            self._campaigns += 1
            self.campaign = self._campaigns
            self._reported = LeaderInformationRegister.empty()
            return [OpenDriver(self.campaign)]
        if self.issued_session_id is not None:
            stale = self._write_back(component_id, self._reported.for_component_id_or_empty(component_id))
            return [GrantNewcomer(component_id, self.issued_session_id), *stale]
        return []

    def _remove(self, component_id: str) -> list[Instruction]:
        if component_id not in self._components:
            return []
        del self._components[component_id]
        instructions: list[Instruction] = []
        if self.issued_session_id is not None:
            self.confirmed = self.confirmed.clear(component_id)
            instructions += [Withdraw(component_id), NotifyRevoke(component_id)]
        if not self._components and self.campaign is not None:
            instructions.append(CloseDriver(self.campaign))
            self.campaign = None
            self.issued_session_id = None
        return instructions

    def _granted(self, session_id: uuid.UUID) -> list[Instruction]:
        if self.issued_session_id is not None:
            raise RuntimeError(
                f"Leadership was granted as {session_id} while the session {self.issued_session_id} is not revoked."
            )
        self.issued_session_id = session_id
        self._components = dict.fromkeys(self._components, True)
        grants = [NotifyGrant(component_id, session_id) for component_id in self._components]
        return [*grants, *self._write_back_all(self._reported)]

    def _newcomer_granted(self, component_id: str, session_id: uuid.UUID) -> list[Instruction]:
        # Somebody who left and came back has two grants waiting.
        if not self.is_issued(component_id, session_id) or self._components[component_id]:
            return []
        self._components[component_id] = True
        return [NotifyGrant(component_id, session_id)]

    def _revoked(self) -> list[Instruction]:
        if self.issued_session_id is None:
            raise RuntimeError("Leadership was revoked from a process that does not lead.")
        self.issued_session_id = None
        self.confirmed = LeaderInformationRegister.empty()
        self._components = dict.fromkeys(self._components, False)
        return [NotifyRevoke(component_id) for component_id in self._components]

    def _confirm(self, component_id: str, session_id: uuid.UUID, address: str) -> list[Instruction]:
        if not self.is_issued(component_id, session_id):
            return []
        if self.confirmed.has_leader_information(component_id):
            raise RuntimeError(
                f"Component {component_id!r} has confirmed its leadership in session {session_id} before; "
                "a session is confirmed once."
            )
        information = LeaderInformation.known(session_id, address)
        self.confirmed = self.confirmed.merge(component_id, information)
        return [Publish(component_id, information)]

    def _changed(self, component_id: str, information: LeaderInformation) -> list[Instruction]:
        self._reported = self._reported.merge(component_id, information)
        return self._write_back(component_id, information)

    def _register_changed(self, register: LeaderInformationRegister) -> list[Instruction]:
        self._reported = register
        return self._write_back_all(register)

    def _write_back(self, component_id: str, information: LeaderInformation) -> list[Instruction]:
        if self.issued_session_id is None:
            return []
        expected = self.confirmed.for_component_id_or_empty(component_id)
        return [] if information == expected else [Publish(component_id, expected)]

    def _write_back_all(self, register: LeaderInformationRegister) -> list[Instruction]:
        return [
            instruction
            for component_id in self._components
            for instruction in self._write_back(component_id, register.for_component_id_or_empty(component_id))
        ]
