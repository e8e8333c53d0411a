"""A driver that is elected before its factory has returned it: the first grant must not get lost by that."""

from __future__ import annotations

import threading
import uuid

from holdfast.ha.election_service import LeaderElectionService
from holdfast.ha.leader_election import (
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
    LeaderInformation,
)
from holdfast.testing.leader_election_contract import RecordingContender, eventually


class PublishingDriver(LeaderElectionDriver):
    """Leads from the beginning."""

    def __init__(self) -> None:
        self.published: dict[str, LeaderInformation] = {}

    def has_leadership(self) -> bool:
        return True

    def publish_leader_information(self, component_id: str, leader_information: LeaderInformation) -> None:
        self.published[component_id] = leader_information

    def delete_leader_information(self, component_id: str) -> None:
        self.published.pop(component_id, None)

    def close(self) -> None:
        pass


class EagerFactory(LeaderElectionDriverFactory):
    """Grants leadership and lets the service work on that for a while before it returns the driver."""

    def __init__(self) -> None:
        self.driver = PublishingDriver()
        self.session_id = uuid.uuid4()

    def create(self, leader_election_listener: LeaderElectionListener) -> LeaderElectionDriver:
        leader_election_listener.on_grant_leadership(self.session_id)
        threading.Event().wait(0.2)
        return self.driver


def test_a_confirmation_during_the_making_of_the_driver_is_published() -> None:
    factory = EagerFactory()
    service = LeaderElectionService(factory)
    election = service.create_leader_election("dispatcher")
    election.start_leader_election(RecordingContender("host:1", election))
    expected = LeaderInformation.known(factory.session_id, "host:1")
    eventually(lambda: factory.driver.published.get("dispatcher") == expected, "the address is published", 10.0)
    assert election.has_leadership_async(factory.session_id).result(10)
    election.close()
    service.close()
