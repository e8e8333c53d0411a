"""Who connects to a query server and does not say who he is, or comes when it is full: others are answered."""

import asyncio
import logging
import socket
import struct
import time
from contextlib import suppress

import pytest

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.queryable import AsyncQueryableStateClient, QueryableStateClient
from holdfast.queryable.server.server import settings_from
from holdfast.queryable.wire.connection import server_context
from holdfast.queryable.wire.errors import LimitExceededError
from holdfast.queryable.wire.frame import FrameType, Limits, encode, to_header
from tests.unit.queryable.live_job import until
from tests.unit.queryable.test_safety import a_get, certificates, frames_from, job, plain_connection

__all__ = ["certificates", "job"]
ELSEWHERE = "127.0.0.2"
"""An address of the loopback too, but another one."""


@pytest.fixture
def connect():
    opened = []

    def connect(server, origin="127.0.0.1"):
        opened.append(socket.create_connection(server.get_server_address(), 60, (origin, 0)))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def value_from(server, **more):
    with QueryableStateClient(*server.get_server_address(), **more) as client:
        return client.get_kv_state("job", "text", "k1").value[:1]


def greeted(connection):
    connection.sendall(encode(FrameType.HELLO, 0, b"{}"))
    assert connection.recv(65536)
    return connection


@pytest.mark.parametrize("origin", ["127.0.0.1", ELSEWHERE])
def test_hundreds_of_silent_clients_do_not_block_others(job, bench, connect, origin):
    server = bench.server(job, token="secret")
    silent = [connect(server, origin) for _ in range(300)]
    assert [value_from(server, token="secret") for _ in range(20)] == ["x"] * 20
    [frame] = frames_from(silent[0])
    assert frame.fields()["error"] == "LimitExceededError", "who has waited longest goes first"
    assert "have not sent a greeting" in frame.fields()["message"]


def test_who_is_inside_stays_however_many_say_nothing(job, bench, connect):
    server = bench.server(job, limits=Limits(unauthenticated=3))
    inside = greeted(connect(server))
    for _ in range(30):
        connect(server)
    inside.sendall(a_get(job))
    assert frames_from(inside, 1)[0].type == FrameType.RESULT


def test_those_of_another_address_who_say_nothing_go_first(job, bench, connect):
    server = bench.server(job, limits=Limits(unauthenticated=4))
    slow = connect(server)
    for _ in range(20):
        connect(server, ELSEWHERE)
    assert value_from(server) == "x"
    greeted(slow)


def test_a_greeting_that_comes_byte_by_byte_ends_in_its_time(job, bench, connect):
    server = bench.server(job, limits=Limits(greeting_seconds=0.5))
    slow = connect(server)
    greeting = encode(FrameType.HELLO, 0, to_header({"token": "x" * 5000}))
    slow.settimeout(0.02)
    answer, ends = b"", time.monotonic() + 60
    for byte in greeting:
        assert time.monotonic() < ends
        with suppress(ConnectionError):
            slow.sendall(bytes([byte]))
        try:
            answer = slow.recv(65536)
            break
        except TimeoutError:
            assert not answer
        except ConnectionError:
            break
    assert not answer or b"QueryTimeoutError" in answer
    assert value_from(server) == "x"


def test_half_a_handshake_of_tls_takes_nobodys_place_and_ends(job, bench, connect, certificates):
    context = server_context(str(certificates / "server.pem"), None)
    trusted = str(certificates / "ca.pem")
    server = bench.server(job, tls=context, token="secret", limits=Limits(unauthenticated=8, greeting_seconds=1.0))
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    halves = [connect(server) for _ in range(40)]
    for half in halves:
        with suppress(ConnectionError):
            half.sendall(hello)
    assert [value_from(server, tls=trusted, token="secret") for _ in range(5)] == ["x"] * 5
    for half in halves:
        with suppress(ConnectionError):
            assert half.recv(65536) == b"", "in the middle of a handshake nothing can be said"
    assert value_from(server, tls=trusted, token="secret") == "x"
    bytewise = connect(server)
    with suppress(ConnectionError):
        for byte in hello + bytes(500):
            bytewise.sendall(bytes([byte]))
            time.sleep(0.01)
        assert bytewise.recv(65536) == b""


def test_connections_of_one_address_are_limited(job, bench, connect):
    server = bench.server(job, limits=Limits(connections=10, per_address=2))
    inside = [greeted(connect(server, ELSEWHERE)) for _ in range(2)]
    refused = connect(server, ELSEWHERE)
    refused.sendall(encode(FrameType.HELLO, 0, b"{}"))
    [frame] = frames_from(refused)
    assert frame.fields()["message"] == f"The server already has 2 connections from {ELSEWHERE}. Try again later."
    assert value_from(server) == "x"
    for connection in inside:
        connection.sendall(a_get(job))
        assert frames_from(connection, 1)[0].type == FrameType.RESULT
    inside[0].close()
    until(lambda: len(server._service._connections) == 1)
    greeted(connect(server, ELSEWHERE))


def test_a_full_server_takes_nobody_and_serves_those_inside(job, bench, connect):
    server = bench.server(job, limits=Limits(connections=2))
    inside = [greeted(connect(server)) for _ in range(2)]
    with pytest.raises(LimitExceededError, match="already has 2 connections"):
        value_from(server)
    inside[0].sendall(a_get(job))
    assert frames_from(inside[0], 1)[0].type == FrameType.RESULT


def test_an_idle_connection_ends_and_its_client_does_not_notice(job, bench, connect):
    server = bench.server(job, limits=Limits(idle_seconds=0.2))
    client = bench.client(server)
    assert client.get_kv_state("job", "text", "k1").value[:1] == "x"
    until(lambda: not server._service._connections)
    assert client.get_kv_state("job", "text", "k1").value[:1] == "x"
    assert greeted(connect(server)).recv(65536) == b"", "without a word"


def test_an_asyncio_client_does_not_notice_either(job, bench):
    server = bench.server(job, limits=Limits(idle_seconds=0.2))

    async def story():
        async with AsyncQueryableStateClient(*server.get_server_address()) as client:
            first = await client.get_kv_state("job", "text", "k1")
            await asyncio.to_thread(until, lambda: not server._service._connections)
            return [first.value[:1], (await client.get_kv_state("job", "text", "k1")).value[:1]]

    assert asyncio.run(story()) == ["x", "x"]


def test_who_waits_for_a_checkpoint_is_not_idle(job, bench):
    server = bench.server(job, limits=Limits(idle_seconds=0.1))
    waiting = plain_connection(server)
    waiting.sendall(a_get(job, consistency=["at_least", 2], deadline=60))
    time.sleep(0.8)
    job.checkpoint([("k1", lambda states: states.text.update("new"))])
    assert [frame.type for frame in frames_from(waiting)] == [FrameType.RESULT, FrameType.RESULT]


def test_resets_print_nothing(job, bench, connect, caplog, capfd):
    server = bench.server(job)
    caplog.set_level(logging.INFO)
    for data in (b"", b"\0", encode(FrameType.HELLO, 0, b"{}"), encode(FrameType.HELLO, 0, b"{}") + a_get(job)):
        connection = connect(server)
        connection.sendall(data)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert value_from(server) == "x"
    until(lambda: len(server._service._connections) == 0)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("field", ["deadline", "count", "hold", "batch_rows", "key_groups", "checkpoint"])
@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_numbers_beyond_all_measure_are_answered_by_name(job, bench, connect, caplog, field, number):
    server = bench.server(job)
    caplog.set_level(logging.INFO)
    fields = {"job": str(job.job_id), "state": "text", "count": 1, "deadline": 0}
    fields |= {"consistency": ["exactly", number]} if field == "checkpoint" else {field: number}
    for kind in (FrameType.GET, FrameType.SCAN):
        asking = greeted(connect(server))
        asking.sendall(encode(kind, 1, to_header(fields), b"12345678abc"))
        asking.sendall(encode(FrameType.PING, 2, b"{}"))
        answers = frames_from(asking, 2)
        assert {frame.request for frame in answers} == {1, 2}
        failures = [frame.fields()["error"] for frame in answers if frame.type == FrameType.FAILURE]
        assert "ServerFailureError" not in failures
    assert not [record for record in caplog.records if record.exc_info]
    assert value_from(server) == "x"


def test_json_that_is_nested_too_deep_is_no_header(job, bench, connect):
    server = bench.server(job)
    asking = greeted(connect(server))
    asking.sendall(encode(FrameType.GET, 1, b"[" * 60_000))
    [frame] = frames_from(asking)
    assert frame.fields()["error"] == "ProtocolError"
    assert value_from(server) == "x"


def test_options_set_the_bounds():
    def limits(**options):
        given = {f"queryable-state.{key.replace('_', '-')}": value for key, value in options.items()}
        return settings_from(Configuration(given)).limits

    found = limits(
        max_connections_per_address=7,
        max_unauthenticated_connections=5,
        handshake_timeout="3 s",
        idleness_timeout="1 min",
    )
    assert (found.per_address, found.unauthenticated, found.greeting_seconds, found.idle_seconds) == (7, 5, 3.0, 60.0)
    for name in ("max_connections", "max_unauthenticated_connections", "handshake_timeout"):
        with pytest.raises(ConfigurationError, match=r"must be more than 0"):
            limits(**{name: 0})
