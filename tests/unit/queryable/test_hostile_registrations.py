"""A server that has the token of servers, and registers nonsense: it can show wrong values, or errors, and no more."""

import json
import math
import socket
from contextlib import contextmanager

import pytest

from holdfast.kernel.ids import JobID, JobVertexID, OperatorID
from holdfast.queryable import QueryableStateClient, ServerSettings, StateServer
from holdfast.queryable.wire.errors import QueryError
from holdfast.queryable.wire.frame import FrameReader, FrameType, encode
from tests.unit.queryable.live_job import until
from tests.unit.queryable.test_consistency import KEYS, Books, bank
from tests.unit.queryable.test_replicas import let_ask

HUGE = 10**400
TOKENS = {"token": "read", "server_token": "serve"}
NOTHING = lambda max_parallelism: ()  # noqa: E731
VERTEX = str(JobVertexID())
DEEP = b"[" * 60_000
NO_PORTS = (0, -1, 70_000, HUGE, None, "1", 1.5, True)
NO_NUMBERS = (None, 0, -1, HUGE, "many", [], math.nan, math.inf, 40_000, True, 128.5)


class Cluster:
    """A leader that holds nothing, a server that holds everything, and proxies that ask the leader where that is."""

    def __init__(self, root, bench):
        self.books = Books(bank(root))
        self.books.write()
        self.job = self.books.job
        self.leader = bench.server(self.job, share=NOTHING, **TOKENS)
        self.holder = bench.server(self.job, leader=self.leader.get_server_address(), **TOKENS)
        self.vertex = OperatorID.from_uid("operator").to_hex()
        until(self.is_right)

    @contextmanager
    def neighbour(self):
        """Who asks a proxy that has not asked the leader before, and so hears what is registered now."""
        with StateServer(ServerSettings(**TOKENS)) as proxy:
            let_ask(proxy, self.leader, self.job)
            with QueryableStateClient(*proxy.get_server_address(), token="read") as client:
                yield client

    def is_right(self):
        """Whether a neighbour is told all values as they are; an error is none."""
        with self.neighbour() as client:
            try:
                found = client.get_many("bank", "balance", KEYS).as_dict()
                rows = client.scan("bank", "balance").to_table().to_pylist()
            except QueryError:
                return False
        return found == self.books.accounts == {row["key"]: row["value"] for row in rows}

    def asks(self):
        """A neighbour asks in every way while somebody lies: values or errors of queries, nothing else."""
        with self.neighbour() as client:
            for ask in (
                lambda: client.get_many("bank", "balance", KEYS),
                lambda: client.get_kv_state("bank", "balance", KEYS[0]),
                lambda: client.scan("bank", "balance").to_table(),
                lambda: client.describe("bank", "balance"),
                lambda: client.describe("bank", "nothing"),
            ):
                try:
                    ask()
                except QueryError as error:
                    assert type(error).__name__ != "ServerFailureError", error

    @contextmanager
    def hostile(self):
        """What registers on a connection of somebody who has the token of servers."""
        with socket.create_connection(self.leader.get_server_address(), timeout=60) as connection:
            reader = FrameReader(1 << 28)

            def send(kind, header, body=b""):
                connection.sendall(encode(kind, 1, header, body))
                frames = []
                while not frames:
                    data = connection.recv(65536)
                    assert data, "the connection has ended"
                    frames = reader.feed(data)
                return frames[0]

            send(FrameType.HELLO, json.dumps({"token": "serve"}).encode())

            def register(states, address=("127.0.0.1", 1), job=None):
                header = json.dumps({"job": str(job or self.job.job_id), "address": address}).encode()
                body = states if type(states) is bytes else json.dumps(states).encode()
                answer = send(FrameType.REGISTER, header, body)
                assert send(FrameType.PING, b"{}").type == FrameType.RESULT
                return None if answer.type == FrameType.RESULT else answer.fields()["error"]

            yield register


@pytest.fixture
def cluster(tmp_path, bench):
    return Cluster(tmp_path, bench)


def entry(**changed):
    fields = {"vertex": VERTEX, "groups": 128, "start": 0, "end": 127, "name": "balance", "state": "x"} | changed
    return list(fields.values())


REFUSED = {
    "no list": [None, {}, 7, "text", True, b"", b"{", DEEP, b"\xff\xfe"],
    "no entries": [[None], [7], ["abcdef"], [[]], [entry()[:5]], [[*entry(), 1]], [{}]],
    "no vertex": [[entry(vertex=wrong)] for wrong in (None, "", "x", 7, "0" * 31, [VERTEX])],
    "no key groups": [[entry(groups=wrong)] for wrong in NO_NUMBERS],
    "no range": [
        [entry(**{side: wrong})] for side in ("start", "end")
        for wrong in (None, -1, HUGE, -HUGE, "0", [], math.nan, 0.5, 128, True)
    ],
    "a range that is empty": [[entry(start=5, end=4)]],
    "no name": [[entry(name=wrong)] for wrong in (None, 7, [], {}, True)],
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_an_invalid_registration_is_rejected_as_a_whole(cluster, what):
    for states in REFUSED[what]:
        with cluster.hostile() as register:
            assert register(states) == "BadRequestError", states
            cluster.asks()
        until(cluster.is_right)


@pytest.mark.parametrize(
    "address",
    [None, 7, "text", [], ["127.0.0.1"], ["127.0.0.1", 1, 2], *(["127.0.0.1", port] for port in NO_PORTS), ["", 1],
     [None, 1], [["127.0.0.1"], 1], ["x" * 10_000, 1]],
)  # fmt: skip
def test_what_is_no_address_is_refused_by_name(cluster, address):
    with cluster.hostile() as register:
        assert register([entry(vertex=cluster.vertex)], address) == "BadRequestError"
        cluster.asks()
    until(cluster.is_right)


@pytest.mark.parametrize(
    "address", [("127.0.0.1", 1), ("127.0.0.1", 65_535), ("no host\n", 1), ("a..b", 1), ("\0", 1), ("::", 1), ("%", 1)]
)
def test_who_registers_a_place_where_nobody_is_shows_errors_until_he_goes(cluster, address):
    for vertex in (cluster.vertex, VERTEX):
        with cluster.hostile() as register:
            assert register([entry(vertex=vertex)], address) in (None, "BadRequestError")
            cluster.asks()
        until(cluster.is_right)


def test_a_job_that_nobody_leads_here_is_refused_and_a_name_of_another_job_is_only_a_name(cluster):
    for job in (JobID.from_name("another"), "x", "../../etc", "0" * 33):
        with cluster.hostile() as register:
            assert register([entry()], job=job) == "UnknownJobError"
    with cluster.hostile() as register:
        others = [entry(name=name) for name in (str(JobID.from_name("another")), "", "x" * 10_000, "\0", "../balance")]
        assert register(others) is None
        cluster.asks()
    until(cluster.is_right)


@pytest.mark.parametrize("groups", [1, 2, 127, 32_768])
def test_a_registered_number_of_key_groups_ends_with_its_connection(cluster, groups):
    with cluster.hostile() as register:
        assert register([entry(vertex=cluster.vertex, groups=groups, end=groups - 1)]) is None
        cluster.asks()
    until(cluster.is_right)


def test_ten_thousand_registered_names_and_ranges_do_not_block_others(cluster):
    names = [entry(name=f"name {number}") for number in range(10_000)]
    with cluster.hostile() as register:
        assert register(names) is None
        assert register(names) is None
        cluster.asks()
    until(cluster.is_right)
    ranges = [(start, end) for start in range(128) for end in range(start, 128)]
    with cluster.hostile() as register:
        most = [entry(vertex=cluster.vertex, start=start, end=end) for start, end in ranges[:128]]
        assert register(most) is None
        cluster.asks()
        more = [entry(vertex=cluster.vertex, start=start, end=end) for start, end in ranges]
        assert register(more) == "BadRequestError"
        cluster.asks()
    until(cluster.is_right)


def test_a_registration_under_another_servers_address_ends_with_its_connection(cluster):
    true = cluster.holder.get_server_address()
    for states in ([], [entry(vertex=cluster.vertex)], [entry()]):
        with cluster.hostile() as register:
            assert register(states, true) in (None, "BadRequestError")
            cluster.asks()
        until(cluster.is_right)


def test_the_address_of_the_leader_itself_sends_nobody_in_a_circle(cluster):
    with cluster.hostile() as register:
        assert register([entry(vertex=cluster.vertex)], cluster.leader.get_server_address()) is None
        cluster.asks()
    until(cluster.is_right)
