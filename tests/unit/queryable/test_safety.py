"""Whoever talks to a server: strangers, slow readers, the greedy and the broken get an error, others notice nothing."""

import os
import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.configuration import Configuration
from holdfast.queryable import AsyncQueryableStateClient, QueryableStateClient, ServerSettings, StateServer, at_least
from holdfast.queryable.replica.checkpoint_view import RunningScan, StateView
from holdfast.queryable.server.server import settings_from
from holdfast.queryable.server.server_connection import ports_from
from holdfast.queryable.wire.connection import server_context
from holdfast.queryable.wire.errors import (
    LimitExceededError,
    QueryConnectionError,
    QueryError,
    UnauthorizedError,
    from_wire,
)
from holdfast.queryable.wire.frame import VERSION, FrameReader, FrameType, Limits, encode, to_header
from holdfast.queryable.wire.request import ScanRequest
from holdfast.runtime.job.options import QUERY_HOST, QUERY_PORTS
from holdfast.state.descriptor import ValueStateDescriptor
from tests.examples import examples
from tests.programs.written_job import WrittenJob

ANSWERS = {FrameType.RESULT, FrameType.FAILURE, FrameType.SERVER_FAILURE, FrameType.BATCH, FrameType.END}


@pytest.fixture
def job(tmp_path):
    descriptor = ValueStateDescriptor("text", "string")
    descriptor.set_queryable("text")
    job = WrittenJob(tmp_path, [descriptor])
    job.checkpoint([(f"k{i}", lambda states: states.text.update("x" * 10_000)) for i in range(200)])
    return job


def plain_connection(server, token=None):
    connection = socket.create_connection(server.get_server_address(), timeout=60)
    connection.sendall(encode(FrameType.HELLO, 0, to_header({} if token is None else {"token": token})))
    return connection


def frames_from(connection, count=None, among=None):
    """All frames until the server closes, or until as many have come as are wanted, of some types if they are named."""
    return frames_of_each([connection], count, among)[0]


def frames_of_each(connections, count=None, among=None):
    """The frames of several connections until so many have come in all; what comes a moment later belongs to them."""
    readers = {connection: (FrameReader(1 << 28), []) for connection in connections}
    opened, moment = set(connections), 60.0
    while opened and (ready := select.select(list(opened), (), (), moment)[0]):
        for connection in ready:
            try:
                data = connection.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                opened.remove(connection)
            readers[connection][1].extend(readers[connection][0].feed(data))
        found = [frame for _, frames in readers.values() for frame in frames]
        if count is not None and sum(among is None or frame.type in among for frame in found) >= count:
            moment = 0.3
    return [frames for _, frames in readers.values()]


def a_get(job, keys=("k1",), number=7, **more):
    codec = job._codec
    array = codec.storage_array(list(keys))
    from holdfast.queryable.wire.request import encode_column

    header = to_header({"job": str(job.job_id), "state": "text", "count": len(keys), **more})
    return encode(FrameType.GET, number, header, codec.hashes(list(keys)), *encode_column(array))


def test_a_token_is_required_and_checked(job, bench):
    server = bench.server(job, token="secret")
    assert bench.client(server, token="secret").get_kv_state("job", "text", "k1").value
    for wrong in (None, "", "Secret", "secret ", "sécret"):
        with pytest.raises(UnauthorizedError, match="bearer token is missing or wrong"):
            bench.client(server, token=wrong).get_kv_state("job", "text", "k1")


def test_requests_before_the_handshake_are_not_answered(job, bench):
    server = bench.server(job, token="secret")
    connection = socket.create_connection(server.get_server_address(), timeout=60)
    connection.sendall(a_get(job))
    [frame] = frames_from(connection)
    assert frame.type == FrameType.SERVER_FAILURE and frame.fields()["error"] == "UnauthorizedError"


def test_an_unauthenticated_client_cannot_send_much(job, bench):
    server = bench.server(job, token="secret")
    connection = socket.create_connection(server.get_server_address(), timeout=60)
    connection.sendall(struct.pack(">IIBQI", 1 << 20, VERSION, FrameType.HELLO, 0, 0))
    [frame] = frames_from(connection)
    assert frame.fields()["error"] == "LimitExceededError"


def test_a_silent_client_is_disconnected(job, bench):
    server = bench.server(job, limits=Limits(greeting_seconds=0.1))
    connection = socket.create_connection(server.get_server_address(), timeout=60)
    [frame] = frames_from(connection)
    assert frame.fields()["error"] == "QueryTimeoutError"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    trustme = pytest.importorskip("trustme")
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    own = authority.issue_cert("127.0.0.1", "localhost")
    own.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    trustme.CA().cert_pem.write_to_path(directory / "other-ca.pem")
    return directory


def test_tls_protects_blocking_and_asyncio_clients(job, bench, certificates):
    import asyncio

    context = server_context(str(certificates / "server.pem"), None)
    server = bench.server(job, tls=context, token="secret")
    trusted = str(certificates / "ca.pem")
    client = bench.client(server, tls=trusted, token="secret")
    assert client.get_kv_state("job", "text", "k1").value == "x" * 10_000
    assert client.scan("job", "text").to_table().num_rows == 200

    async def story():
        async with AsyncQueryableStateClient(*server.get_server_address(), tls=trusted, token="secret") as asking:
            return (await asking.get_kv_state("job", "text", "k1")).value

    assert asyncio.run(story()) == "x" * 10_000
    with pytest.raises(QueryConnectionError, match="certificate verify failed"):
        bench.client(server, tls=str(certificates / "other-ca.pem"), token="secret").jobs()
    with pytest.raises(QueryError):
        bench.client(server, token="secret").jobs()
    with pytest.raises(ConfigurationError, match=r"cannot be read"):
        QueryableStateClient("localhost", 1, tls=str(certificates / "nothing.pem"))
    with pytest.raises(ConfigurationError, match="is set without"):
        server_context(None, str(certificates / "server.pem"))


def test_servers_use_tls_between_each_other(job, bench, certificates):
    tls = {
        "tls": server_context(str(certificates / "server.pem"), None),
        "peer_tls": ssl.create_default_context(cafile=str(certificates / "ca.pem")),
        "token": "secret",
    }
    leader = bench.server(job, share=lambda maximum: (), **tls)
    bench.server(job, leader=leader.get_server_address(), **tls)
    client = bench.client(leader, tls=str(certificates / "ca.pem"), token="secret")
    deadline = time.monotonic() + 60
    while leader.get_kv_state_location_oracle(job.job_id).get_kv_state_location("text") is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert client.get_kv_state("job", "text", "k1").value == "x" * 10_000


def test_requests_and_answers_above_the_limits_are_rejected(job, bench):
    server = bench.server(job, limits=Limits(message_bytes=50_000, keys=20))
    client = bench.client(server)
    assert client.get_many("job", "text", ["k1", "k2"]).values == ["x" * 10_000] * 2
    with pytest.raises(LimitExceededError, match="more than the limit of 20"):
        client.get_many("job", "text", [f"k{i}" for i in range(21)])
    with pytest.raises(LimitExceededError, match=r"the limit is 50000\. Request fewer keys"):
        client.get_many("job", "text", [f"k{i}" for i in range(15)])
    with pytest.raises(LimitExceededError, match="above the limit of 50000"):
        client.get_many("job", "text", ["y" * 60_000])
    rows = client.scan("job", "text")
    assert sum(batch.num_rows for batch in rows) == 200
    assert max(batch.num_rows for batch in client.scan("job", "text")) <= 4


def test_an_answer_that_is_far_above_the_limit_is_not_made(job, bench, monkeypatch):
    """It would be half a gigabyte, in the process of the job."""
    made, find_many = [], StateView.find_many
    monkeypatch.setattr(StateView, "find_many", lambda *given: made.append(find_many(*given)) or made[-1])
    client = bench.client(bench.server(job))
    with pytest.raises(LimitExceededError, match="Request fewer keys"):
        client.get_many("job", "text", ["k1"] * 50_000)
    assert sum(part.nbytes for part in made) < 32 << 20
    found = client.get_many("job", "text", [f"k{i}" for i in range(5_000)]).values
    assert found == ["x" * 10_000] * 200 + [None] * 4_800


def test_a_request_that_is_far_above_the_limit_is_refused_by_name_and_not_by_a_lost_connection(job, bench):
    """The server would end the connection while most of it is still on its way."""
    import asyncio

    server = bench.server(job, limits=Limits(message_bytes=50_000))
    keys = ["y" * 10_000] * 2_000
    client = bench.client(server)
    with pytest.raises(LimitExceededError, match="above the limit of 50000"):
        client.get_many("job", "text", keys)

    async def story():
        async with AsyncQueryableStateClient(*server.get_server_address()) as asking:
            waiting = asyncio.ensure_future(
                asking.get_many("job", "text", ["k1"], consistency=at_least(2), deadline=60)
            )
            await asyncio.sleep(0.1)
            with pytest.raises(LimitExceededError, match="above the limit of 50000"):
                await asking.get_many("job", "text", keys)
            await asyncio.to_thread(job.checkpoint, [("k1", lambda states: states.text.update("new"))])
            return (await waiting).values

    assert asyncio.run(story()) == ["new"], "what was asked on the same connection has failed as well"


def test_a_row_that_is_larger_than_a_message_ends_a_scan_with_an_error(job, bench):
    client = bench.client(bench.server(job, limits=Limits(message_bytes=8_000)))
    with pytest.raises(LimitExceededError, match="One row has"):
        client.scan("job", "text").to_table()


def test_too_many_requests_in_flight_are_refused_and_the_rest_are_answered(job, bench):
    server = bench.server(job, limits=Limits(in_flight=5))
    connection = plain_connection(server)
    for number in range(1, 11):
        connection.sendall(a_get(job, number=number, consistency=["at_least", 2], deadline=30))
    connection.sendall(a_get(job, number=99))
    # The greeting, five refusals and the one answer.
    refused = {frame.request: frame for frame in frames_from(connection, 7)}
    assert {n for n, frame in refused.items() if frame.type == FrameType.FAILURE} == {6, 7, 8, 9, 10}
    assert refused[99].type == FrameType.RESULT
    job.checkpoint([("k1", lambda states: states.text.update("new"))])
    answered = frames_from(connection, 5)
    assert {frame.request for frame in answered if frame.type == FrameType.RESULT} == {1, 2, 3, 4, 5}


def test_there_is_a_limit_to_connections(job, bench):
    server = bench.server(job, limits=Limits(connections=2))
    first, second = plain_connection(server), plain_connection(server)
    assert frames_from(first, 1) and frames_from(second, 1)
    with pytest.raises(LimitExceededError, match="already has 2 connections"):
        bench.client(server).jobs()
    first.close()
    deadline = time.monotonic() + 60
    while True:
        try:
            assert bench.client(server).jobs()
            return
        except LimitExceededError:
            assert time.monotonic() < deadline


def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_does_not_read_uses_no_memory_and_is_disconnected(job, bench):
    """Two thousand requests for two megabytes each are four gigabytes of answers that nobody takes."""
    server = bench.server(job, limits=Limits(unread_bytes=1 << 20, stall_seconds=1.0))
    keys = [f"k{i}" for i in range(200)]
    bench.client(server).get_many("job", "text", keys)
    before = memory()
    connection = plain_connection(server)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.setblocking(False)
    data = a_get(job, keys) * 2000
    sent, most, ends = 0, 0, time.monotonic() + 60
    gone = False
    while time.monotonic() < ends and not gone:
        try:
            sent += connection.send(data[sent : sent + 65536])
        except BlockingIOError:
            time.sleep(0.02)
        except (ConnectionResetError, BrokenPipeError):
            gone = True
        most = max(most, memory() - before)
    assert gone, "the server keeps a client that reads nothing"
    assert most < 100 << 20
    assert bench.client(server).get_kv_state("job", "text", "k1").value == "x" * 10_000


def most_memory_while_nobody_reads(connection, data, seconds):
    """The growth while somebody asks for all of this and takes no answer."""
    before, most = memory(), 0
    connection.sendall(data)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        most = max(most, memory() - before)
        time.sleep(0.05)
    return most


def test_scans_that_nobody_reads_hold_one_batch_together(job, bench):
    """Two hundred scans of two megabytes, on one connection."""
    server = bench.server(job)
    header = to_header({"job": str(job.job_id), "state": "text"})
    scans = b"".join(encode(FrameType.SCAN, number + 1, header) for number in range(200))
    connection = plain_connection(server)
    assert most_memory_while_nobody_reads(connection, scans, 3) < 50 << 20
    frames = frames_from(connection, 200, among={FrameType.END})
    assert sum(frame.type == FrameType.END for frame in frames) == 200
    assert sum(frame.type == FrameType.BATCH and bool(frame.body) for frame in frames) >= 200


def test_gets_that_waited_for_the_same_checkpoint_and_are_not_read_hold_few_answers(job, bench):
    server = bench.server(job)
    connection = plain_connection(server)
    keys = [f"k{i}" for i in range(200)]
    waiting = (a_get(job, keys, number + 1, consistency=["at_least", 2], deadline=60) for number in range(200))
    connection.sendall(b"".join(waiting))
    job.checkpoint([("k1", lambda states: states.text.update("new"))])
    assert most_memory_while_nobody_reads(connection, b"", 3) < 50 << 20
    frames = frames_from(connection, 201, among={FrameType.RESULT})
    assert sum(frame.type == FrameType.RESULT for frame in frames) == 201  # with that of the greeting


def test_requests_that_wait_are_limited_by_their_length_too(job, bench):
    server = bench.server(job, limits=Limits(message_bytes=100_000))
    connection = plain_connection(server)
    assert connection.recv(65536), "the greeting, before which nobody may send much"
    for number in range(1, 9):
        connection.sendall(a_get(job, ["y" * 90_000], number, consistency=["at_least", 2], deadline=60))
    refused = [frame for frame in frames_from(connection, 4) if frame.type == FrameType.FAILURE]
    assert {frame.request for frame in refused} == {5, 6, 7, 8}
    assert {frame.fields()["error"] for frame in refused} == {"LimitExceededError"}


def test_a_client_that_reads_slowly_is_not_sent_away(job, bench):
    """It takes several times as long as a client may read nothing."""
    server = bench.server(job, limits=Limits(unread_bytes=1 << 16, stall_seconds=2))
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.connect(server.get_server_address())
    connection.sendall(encode(FrameType.HELLO, 0, b"{}"))
    assert connection.recv(65536), "the greeting, before which nobody may send much"
    keys = [f"k{i % 200}" for i in range(1500)]
    connection.sendall(a_get(job, keys))
    reader, frames = FrameReader(1 << 28), []
    while not frames:
        data = connection.recv(600_000)
        assert data, "it was sent away"
        frames += reader.feed(data)
        time.sleep(0.1)
    assert len(frames[0].body) > 15_000_000


def test_a_token_that_is_no_text_is_wrong_like_any_other(job, bench):
    server = bench.server(job, token="secret")
    connection = socket.create_connection(server.get_server_address(), timeout=60)
    connection.sendall(encode(FrameType.HELLO, 0, b'{"token":"\\ud800"}'))
    [frame] = frames_from(connection)
    assert (frame.type, frame.fields()["error"]) == (FrameType.SERVER_FAILURE, "UnauthorizedError")


def test_a_slow_scan_holds_a_batch_and_not_the_state(job, bench):
    server = bench.server(job, limits=Limits(unread_bytes=1 << 16))
    scan = bench.client(server).scan("job", "text", batch_rows=5)
    batches = iter(scan)
    next(batches)
    job.checkpoint([(f"k{i}", lambda states: states.text.update("other")) for i in range(200)])
    assert bench.client(server).get_kv_state("job", "text", "k7", consistency=at_least(2)).value == "other"
    rest = [value for batch in batches for value in batch["value"].to_pylist()]
    assert set(rest) == {"x" * 10_000} and 190 <= len(rest) < 200


@pytest.mark.parametrize(("limit", "rows"), [(100_000, 64 * 1024), (16 << 20, 10)])
def test_a_scan_makes_no_more_at_a_time_than_a_message_and_a_batch_have(job, bench, limit, rows):
    """What was made and has not left yet is held for as long as the client likes. The two subtasks' runs have no hash
    in common."""
    state = bench.server(job).follower(job.job_id).replica.newest.states["text"]
    assert len(state.layers) == 2
    scan = RunningScan(state, ScanRequest(str(job.job_id), "text", batch_rows=rows), limit)
    made = [sum(part.size for part in parts) for parts in iter(scan.next, None)]
    assert sum(made) > 200 * 10_000
    assert max(made) < 200_000


def test_ports_are_tried_in_turn_and_a_full_range_is_an_error(job, bench):
    first = bench.server(job)
    _, taken = first.get_server_address()
    second = bench.server(job, ports=(taken, 0))
    assert second.get_server_address()[1] != taken
    with pytest.raises(ConfigurationError, match="All ports in provided range are occupied"):
        StateServer(ServerSettings(ports=(taken,))).start()
    assert ports("9069") == (9069,)
    assert ports("9069,9071") == (9069, 9071)
    assert ports("9069-9071") == (9069, 9070, 9071)
    for wrong in ("", "x", "9-", "70000", "5-1", "-1", "9069,5-1", "0-99999999999"):
        with pytest.raises(ConfigurationError, match=f"'{QUERY_PORTS.key}': '{wrong}' is not a list of ports"):
            ports(wrong)


def ports(text):
    return ports_from(Configuration({QUERY_PORTS.key: text}), QUERY_PORTS)


def test_a_server_listens_on_the_loopback_by_default(job, bench):
    def reached(server):
        found = []
        for address in ("127.0.0.1", "127.0.0.2", "::1"):
            with suppress(OSError), socket.create_connection((address, server.get_server_address()[1]), timeout=60):
                found.append(address)
        return found

    def of_a_job(**options):
        return bench.server(job, **vars(settings_from(Configuration({QUERY_PORTS.key: "0"} | options))))

    assert reached(bench.server(job)) == reached(of_a_job()) == ["127.0.0.1"]
    assert reached(of_a_job(**{QUERY_HOST.key: "0.0.0.0"})) == ["127.0.0.1", "127.0.0.2"]


def test_a_server_starts_once_and_ends_as_often_as_one_likes(job, bench):
    server = StateServer()
    with pytest.raises(StateError, match="was not started"):
        server.get_server_address()
    server.start()
    assert server.get_server_address()[0] == "127.0.0.1"
    with pytest.raises(StateError, match="was started before"):
        server.start()
    server.shutdown()
    server.shutdown()


def test_errors_cross_the_wire_by_name_and_unknown_ones_as_failures_of_the_server():
    assert type(from_wire("UnauthorizedError", "x")) is UnauthorizedError
    assert type(from_wire("KeyboardInterrupt", "x")).__name__ == "ServerFailureError"
    assert type(from_wire(["x"], None)).__name__ == "ServerFailureError"


# Malformed messages.

SCRAPS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.just("text"),
    st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=4),
)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["job", "state", "count", "consistency", "deadline", "namespace", "map_keys", "id", "where", "key_groups",
         "batch_rows", "local", "waits", "address", "states", "token"]
    ),
    SCRAPS,
    max_size=8,
)  # fmt: skip


class Target:
    """A server under fire, and a neighbour who wants to be answered all the while."""

    def __init__(self, directory):
        descriptor = ValueStateDescriptor("text", "string")
        descriptor.set_queryable("text")
        self.job = WrittenJob(directory, [descriptor])
        self.job.checkpoint([("k1", lambda states: states.text.update("value"))])
        self.server = StateServer(ServerSettings(limits=Limits(message_bytes=100_000, stall_seconds=30)))
        self.server.start()
        self.server.serve_job(self.job.directory, self.job.register)
        self.neighbour = QueryableStateClient(*self.server.get_server_address())
        self.connection = None

    def open(self):
        if self.connection is None:
            self.connection = plain_connection(self.server)
            self.reader = FrameReader(1 << 28)
            self.answers(1)
        return self.connection

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def answers(self, count):
        """Frames until so many are there, or the server has closed."""
        frames = []
        self.connection.settimeout(10)
        while len(frames) < count:
            try:
                data = self.connection.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                self.close()
                break
            frames += self.reader.feed(data)
        return frames

    def check(self):
        assert self.neighbour.get_kv_state("job", "text", "k1").value == "value"

    def end(self):
        self.close()
        self.neighbour.close()
        self.server.shutdown()


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    target = Target(tmp_path_factory.mktemp("target"))
    yield target
    target.end()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.integers(0, 255),
    fields=FIELDS,
    right=st.sets(st.sampled_from(["job", "state", "count", "deadline"])),
    body=st.binary(max_size=200),
    raw=st.one_of(st.none(), st.binary(max_size=60)),
)
def test_a_malformed_message_ends_only_its_own_connection(target, kind, fields, right, body, raw):
    fitting = {"job": str(target.job.job_id), "state": "text", "count": 1, "deadline": 0}
    fields = fields | {"deadline": 0} | {name: fitting[name] for name in right}
    header = to_header(fields) if raw is None else raw
    target.open().sendall(encode(kind, 5, header, body))
    frames = target.answers(1)
    assert frames, "the connection ended without a word"
    assert all(frame.type in ANSWERS for frame in frames)
    if frames[0].type == FrameType.SERVER_FAILURE or frames[0].type == FrameType.BATCH:
        target.close()
    target.check()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(noise=st.binary(min_size=1, max_size=400), greeted=st.booleans(), cut=st.integers(0, 60))
def test_noise_and_broken_messages_hurt_nobody(target, noise, greeted, cut):
    target.close()
    connection = target.open() if greeted else socket.create_connection(target.server.get_server_address(), 5)
    with suppress(ConnectionError):
        connection.sendall(a_get(target.job)[:cut] + noise)
    connection.close()
    target.connection = None
    target.check()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(position=st.integers(0, 200), change=st.integers(1, 255))
def test_a_get_with_a_flipped_byte_is_answered_or_refused(target, position, change):
    data = bytearray(a_get(target.job, keys=("k1", "k2", "k3")))
    data[position % len(data)] ^= change
    target.close()
    target.open().sendall(bytes(data))
    target.connection.shutdown(socket.SHUT_WR)
    frames = frames_from(target.connection)
    assert all(frame.type in ANSWERS for frame in frames)
    target.close()
    target.check()
