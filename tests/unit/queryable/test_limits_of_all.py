"""What all clients of a server together may hold: greedy ones by the dozen fill no memory, and others are told so."""

import threading
import time
from contextlib import suppress

import pytest

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.queryable import at_least
from holdfast.queryable.server.server import settings_from
from holdfast.queryable.wire.errors import LimitExceededError
from holdfast.queryable.wire.frame import FrameReader, FrameType, Limits, encode, to_header
from tests.unit.queryable.live_job import until
from tests.unit.queryable.test_safety import a_get, frames_from, frames_of_each, job, memory, plain_connection

__all__ = ["job"]
WAITS = {"consistency": ["at_least", 2], "deadline": 60}


def greeted(server):
    connection = plain_connection(server)
    assert connection.recv(65536), "the greeting, before which nobody may send much"
    return connection


def errors(frames):
    return [frame.fields()["error"] for frame in frames if frame.type in (FrameType.FAILURE, FrameType.SERVER_FAILURE)]


def test_requests_that_wait_on_many_connections_are_limited_together(job, bench):
    server = bench.server(job, limits=Limits(message_bytes=100_000, all_bytes=500_000))
    connections = [greeted(server) for _ in range(10)]
    for connection in connections:
        connection.sendall(a_get(job, ["y" * 90_000], **WAITS))
    refused = [errors(frames) for frames in frames_of_each(connections, 4)]
    assert sorted(refused) == [[]] * 6 + [["LimitExceededError"]] * 4
    client = bench.client(server)
    job.checkpoint([("k1", lambda states: states.text.update("new"))])
    found = frames_of_each([c for c, before in zip(connections, refused, strict=True) if not before], 6)
    assert all(frame.type == FrameType.RESULT for [frame] in found)
    assert client.get_kv_state("job", "text", "k1", consistency=at_least(2)).value == "new"


def test_many_small_requests_that_wait_count_as_well(job, bench):
    """Each of them is a task, which is more than its bytes."""
    server = bench.server(job, limits=Limits(message_bytes=100_000, all_bytes=500_000))
    connections = [greeted(server) for _ in range(4)]
    for connection in connections:
        connection.sendall(b"".join(a_get(job, number=number + 1, **WAITS) for number in range(60)))
    refused = [errors(frames) for frames in frames_of_each(connections, 116)]
    assert 115 < sum(map(len, refused)) < 130


def test_clients_that_read_nothing_share_one_memory_limit(job, bench):
    """Fifteen answers of fifteen megabytes are 225 MB; those beyond the room are errors, and the neighbour is
    answered as soon as somebody has read."""
    server = bench.server(job, limits=Limits(all_bytes=20 << 20))
    keys = [f"k{i % 200}" for i in range(1500)]
    bench.client(server).get_many("job", "text", keys)
    before = memory()
    connections = [greeted(server) for _ in range(15)]
    for connection in connections:
        connection.sendall(a_get(job, keys))
    time.sleep(1)
    assert memory() - before < 100 << 20
    with pytest.raises(LimitExceededError, match=r"queryable-state\.max-waiting-size.*Try again later"):
        bench.client(server).get_kv_state("job", "text", "k1")
    found = frames_of_each(connections, 15)
    assert 2 <= [frame.type for [frame] in found].count(FrameType.RESULT) <= 8
    assert errors(frame for [frame] in found) == ["LimitExceededError"] * len([None for [f] in found if not f.body])
    assert bench.client(server).get_kv_state("job", "text", "k1").value == "x" * 10_000


def test_unfinished_requests_share_one_memory_limit(job, bench):
    server = bench.server(job, limits=Limits(message_bytes=1 << 20, all_bytes=4 << 20))
    begun = encode(FrameType.GET, 1, to_header({"job": str(job.job_id), "state": "text", "count": 1}), bytes(1_000_000))
    connections = [greeted(server) for _ in range(12)]
    ended = 0
    for connection in connections:
        connection.sendall(begun[:-1])
    for connection in connections:
        reader = FrameReader(1 << 20)
        connection.settimeout(0.3)
        with suppress(TimeoutError):
            ended += errors(reader.feed(connection.recv(65536))) == ["LimitExceededError"]
    assert 7 <= ended <= 9
    for connection in connections:
        connection.close()
    until(lambda: not server._service._connections)
    assert bench.client(server).get_kv_state("job", "text", "k1").value == "x" * 10_000


def test_who_is_refused_while_he_sends_hears_why(job, bench):
    """He would find a lost connection, if nobody took the rest of what he sends."""
    server = bench.server(job, limits=Limits(all_bytes=16 << 20))
    holder = greeted(server)
    holder.sendall(a_get(job, ["y" * (15 << 20)], **WAITS))
    until(lambda: server._budget._total > 15 << 20)
    client = greeted(server)
    client.sendall(a_get(job, ["y" * (15 << 20)]))
    assert errors(frames_from(client)) == ["LimitExceededError"]


def test_a_scan_that_has_begun_waits_for_room(job, bench):
    server = bench.server(job, limits=Limits(message_bytes=1 << 20, unread_bytes=1 << 14, all_bytes=3 << 20))
    scan = bench.client(server).scan("job", "text", batch_rows=5)
    batches = iter(scan)
    rows = next(batches).num_rows
    holders = [greeted(server) for _ in range(2)]
    for holder in holders:
        holder.sendall(b"".join(a_get(job, ["y" * 50_000], number + 1, **WAITS) for number in range(40)))
    until(server._budget.is_full)
    with pytest.raises(LimitExceededError):
        bench.client(server).scan("job", "text")
    timer = threading.Timer(0.5, lambda: [holder.close() for holder in holders])
    timer.start()
    assert rows + sum(batch.num_rows for batch in batches) == 200
    timer.join()


def test_servers_that_show_that_they_live_are_answered_in_a_full_house(job, bench):
    limits = Limits(message_bytes=100_000, all_bytes=200_000)
    leader = bench.server(job, share=lambda maximum: (), limits=limits)
    holders = [greeted(leader) for _ in range(3)]
    replica = bench.server(job, leader=leader.get_server_address())
    until(lambda: leader.get_kv_state_location_oracle(job.job_id).get_kv_state_location("text"))
    for holder in holders:
        holder.sendall(a_get(job, ["y" * 90_000], **WAITS))
    pinger = greeted(leader)
    pinger.sendall(encode(FrameType.PING, 1, b"{}"))
    [answer] = FrameReader(1 << 20).feed(pinger.recv(65536))
    assert answer.type == FrameType.RESULT
    late = bench.server(job, leader=leader.get_server_address())
    registry = leader.get_kv_state_location_oracle(job.job_id)
    until(lambda: {late.get_server_address(), replica.get_server_address()} <= {
        placed.address for placed in registry.get_kv_state_location("text").placements})  # fmt: skip


def test_the_room_is_free_again_when_everybody_has_gone(job, bench):
    server = bench.server(job, limits=Limits(message_bytes=100_000))
    for _ in range(3):
        connections = [greeted(server) for _ in range(5)]
        for connection in connections:
            connection.sendall(a_get(job, ["y" * 90_000], **WAITS))
            connection.sendall(a_get(job, ["y" * 90_000])[:-10])
        until(lambda: server._budget._total > 800_000)
        for connection in connections:
            connection.close()
        until(lambda: server._budget._total == 0)
    assert not server._budget._held


def test_options_set_the_limits_of_all(tmp_path):
    def limits(**options):
        return settings_from(Configuration({f"queryable-state.{key}": value for key, value in options.items()})).limits

    assert limits() == Limits() and limits().budget_bytes == 256 << 20 and limits().connections == 1000
    assert limits(**{"max-message-size": "1 mb"}).budget_bytes == 16 << 20
    given = limits(**{"max-waiting-size": "1 gb", "max-connections": "7"})
    assert (given.budget_bytes, given.connections) == (1 << 30, 7)
    with pytest.raises(ConfigurationError, match=r"max-waiting-size.*is smaller than one message"):
        limits(**{"max-waiting-size": "1 mb"})
