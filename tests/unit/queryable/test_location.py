"""Where state is: the rules of registration, and how a proxy asks and asks again."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from holdfast.errors import StateError
from holdfast.kernel.ids import JobID, JobVertexID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable import KvStateClientProxyImpl, KvStateID, KvStateLocation, KvStateLocationOracle
from holdfast.queryable.server.proxy import KvStateRegistry, LocationCache, LocationOracles
from holdfast.queryable.wire.errors import UnknownJobError, UnknownKvStateLocation, UnknownLocationError
from holdfast.queryable.wire.location import KvStateLocationRegistry

JOB, VERTEX, OTHER = JobID.from_name("job"), JobVertexID(), JobVertexID()
LOW, HIGH = KeyGroupRange(0, 63), KeyGroupRange(64, 127)
HERE, THERE = ("127.0.0.1", 1001), ("127.0.0.1", 1002)


def registered(*placements):
    registry = KvStateLocationRegistry(JOB)
    for key_groups, address in placements:
        registry.notify_kv_state_registered(VERTEX, 128, key_groups, "state", KvStateID(), address)
    return registry


def test_a_location_says_who_holds_which_key_group():
    location = registered((LOW, HERE), (HIGH, THERE)).get_kv_state_location("state")
    assert location.get_num_key_groups() == location.get_num_registered_key_groups() == 128
    assert location.get_kv_state_server_address(63) == HERE
    assert location.get_kv_state_server_address(64) == THERE
    assert location.get_kv_state_id(0) != location.get_kv_state_id(127)
    assert KvStateLocation.from_json(location.to_json()) == location
    for beyond in (-1, 128):
        with pytest.raises(IndexError):
            location.get_kv_state_id(beyond)


def test_the_same_range_of_the_same_server_again_replaces_and_of_another_server_adds():
    registry = registered((LOW, HERE), (LOW, THERE))
    assert len(registry.get_kv_state_location("state").placements_of(5)) == 2
    new = KvStateID()
    registry.notify_kv_state_registered(VERTEX, 128, LOW, "state", new, HERE)
    found = registry.get_kv_state_location("state").placements_of(5)
    assert len(found) == 2 and new in [placed.kv_state_id for placed in found]


def test_a_name_belongs_to_the_operator_that_registered_it_first():
    registry = registered((LOW, HERE))
    with pytest.raises(StateError, match=r"Registration name clash\. KvState with name 'state' has already"):
        registry.notify_kv_state_registered(OTHER, 128, HIGH, "state", KvStateID(), THERE)
    with pytest.raises(StateError, match="Another operator"):
        registry.notify_kv_state_unregistered(OTHER, LOW, "state")
    assert registry.get_kv_state_location("state").get_job_vertex_id() == VERTEX


def test_a_location_without_key_groups_disappears():
    registry = registered((LOW, HERE), (HIGH, THERE))
    registry.notify_kv_state_unregistered(VERTEX, LOW, "state")
    assert registry.get_kv_state_location("state").get_kv_state_server_address(0) is None
    registry.notify_server_lost(THERE)
    assert registry.get_kv_state_location("state") is None
    with pytest.raises(StateError, match="unregistered before it was registered"):
        registry.notify_kv_state_unregistered(VERTEX, LOW, "state")
    with pytest.raises(IndexError):
        registry.notify_kv_state_registered(VERTEX, 64, HIGH, "state", KvStateID(), HERE)


def test_the_registry_answers_for_its_own_job_only():
    registry = registered((LOW, HERE))
    assert registry.request_kv_state_location(JOB, "state").result().get_job_id() == JOB
    with pytest.raises(UnknownKvStateLocation, match="No KvStateLocation found for KvState instance with name 'x'"):
        registry.request_kv_state_location(JOB, "x").result()
    with pytest.raises(UnknownJobError, match="Could not find job"):
        registry.request_kv_state_location(JobID.from_name("other"), "state").result()


def test_a_range_is_not_empty_and_there_are_as_many_key_groups_as_there_can_be():
    registry = KvStateLocationRegistry(JOB)
    for groups, held in ((128, KeyGroupRange(0, -1)), (0, LOW), (1 << 40, LOW)):
        with pytest.raises(IndexError):
            registry.notify_kv_state_registered(VERTEX, groups, held, "state", KvStateID(), HERE)
    assert registry.get_kv_state_location("state") is None


def test_tens_of_thousands_of_registrations_do_not_wait_for_each_other():
    """If one cost what all before it cost together, these would take longer than any test may."""
    count = 30_000
    registry, held = KvStateLocationRegistry(JOB), KvStateRegistry()
    for number in range(count):
        one, known_as = KeyGroupRange(number, number), KvStateID()
        registry.notify_kv_state_registered(VERTEX, 32768, one, "state", known_as, HERE)
        held.register_kv_state(JOB, VERTEX, 32768, one, "state")
    registry.notify_server_lost(THERE)
    assert len(registry.get_kv_state_location("state").placements) == count == len(held.registrations(JOB))


def test_a_location_is_the_same_object_until_it_changes():
    """By that proxies know that they need not look again who holds what."""
    registry = registered((LOW, HERE), (HIGH, THERE))
    location = registry.get_kv_state_location("state")
    registry.notify_kv_state_registered(VERTEX, 128, LOW, "other", KvStateID(), HERE)
    assert registry.get_kv_state_location("state") is location
    registry.notify_server_lost(HERE)
    assert [placed.address for placed in registry.get_kv_state_location("state").placements] == [THERE]
    assert registry.get_kv_state_location("other") is None


class ScriptedOracle(KvStateLocationOracle):
    """Answers with one thing after the other, and counts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    def request_kv_state_location(self, job_id, registration_name):
        self.asked += 1
        answer, future = self.answers.pop(0), Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


def location():
    return KvStateLocation(JOB, VERTEX, 128, "state")


def cache_for(oracle):
    oracles = LocationOracles()
    oracles.update(JOB, oracle)
    return oracles, LocationCache(oracles)


def test_a_location_is_asked_for_once_until_an_update_is_forced():
    async def story():
        first, second = location(), location()
        oracle = ScriptedOracle(first, second)
        _, cache = cache_for(oracle)
        assert await cache.locate(str(JOB), "state") is await cache.locate(str(JOB), "state") is first
        assert oracle.asked == 1
        assert await cache.locate(str(JOB), "state", force=True) is second
        assert await cache.locate(str(JOB), "state") is second
        assert oracle.asked == 2

    asyncio.run(story())


def test_a_lookup_that_failed_is_made_again_by_the_next_request():
    async def story():
        oracle = ScriptedOracle(UnknownKvStateLocation("not yet"), UnknownJobError("gone"), location())
        _, cache = cache_for(oracle)
        for error in (UnknownKvStateLocation, UnknownJobError):
            with pytest.raises(error):
                await cache.locate(str(JOB), "state")
            assert not cache._known
        assert await cache.locate(str(JOB), "state")

    asyncio.run(story())


def test_without_an_oracle_nobody_knows():
    async def story():
        oracles, cache = cache_for(None)
        with pytest.raises(UnknownLocationError, match="Potential reasons are: i\\) the state is not ready, or ii\\)"):
            await cache.locate(str(JOB), "state")
        oracles.update(JOB, ScriptedOracle(location()))
        assert await cache.locate(str(JOB), "state")

    asyncio.run(story())


def test_oracles_are_updated_by_other_threads_than_those_that_ask():
    proxy = KvStateClientProxyImpl()
    jobs = [JobID() for _ in range(50)]
    assert proxy.get_kv_state_location_oracle(jobs[0]) is None
    oracles = {job: KvStateLocationRegistry(job) for job in jobs}
    wrong = []

    def update():
        for job in jobs:
            proxy.update_kv_state_location_oracle(job, oracles[job])
        for job in jobs[::2]:
            proxy.update_kv_state_location_oracle(job, None)

    def ask():
        for _ in range(200):
            for job in jobs:
                found = proxy.get_kv_state_location_oracle(job)
                if found not in (None, oracles[job]):
                    wrong.append(found)

    threads = [threading.Thread(target=update), *(threading.Thread(target=ask) for _ in range(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [proxy.get_kv_state_location_oracle(job) for job in jobs] == [
        None if number % 2 == 0 else oracles[job] for number, job in enumerate(jobs)
    ]
    proxy.shutdown()
