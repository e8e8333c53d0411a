"""Connections that are lost, or belong to somebody else: how often is asked again, and who may use them."""

import asyncio
import os
import signal
import tracemalloc
from concurrent.futures import Future

import pytest

from holdfast.kernel.key_group import KeyGroupRange
from holdfast.queryable import AsyncQueryableStateClient
from holdfast.queryable.wire.errors import QueryConnectionError
from holdfast.queryable.wire.frame import FrameReader, FrameType, encode
from holdfast.queryable.wire.location import KvStateID, KvStateLocation, KvStateLocationOracle, Placement
from tests.unit.queryable.live_job import free_port
from tests.unit.queryable.test_consistency import KEYS, Books, bank

ALL = KeyGroupRange(0, 127)
SIZE = 64 << 20


@pytest.fixture
def books(tmp_path):
    books = Books(bank(tmp_path))
    books.write()
    return books


class Stale(KvStateLocationOracle):
    """Says that a server where nobody listens has everything, and counts how often it is asked."""

    def __init__(self, vertex):
        self.vertex, self.asked, self.nobody = vertex, 0, ("127.0.0.1", free_port())

    def request_kv_state_location(self, job_id, registration_name):
        self.asked += 1
        placed = [Placement(ALL, KvStateID(), self.nobody)]
        answer = Future()
        answer.set_result(KvStateLocation(job_id, self.vertex, 128, registration_name, placed))
        return answer


def vertex_of(server, job):
    return server.get_kv_state_location_oracle(job.job_id).get_kv_state_location("balance").job_vertex_id


@pytest.mark.parametrize("ask", [
    lambda client: client.describe("bank", "balance"),
    lambda client: client.get_kv_state("bank", "balance", KEYS[0]),
    lambda client: client.get_many("bank", "balance", KEYS),
    lambda client: client.scan("bank", "balance").to_table(),
])  # fmt: skip
def test_a_server_that_nobody_reaches_is_looked_up_once_more_and_not_twice(bench, books, ask):
    """The proxy repeats the read with a fresh location; the client, whose own connection stands, repeats nothing."""
    holder, proxy = bench.server(books.job), bench.server()
    oracle = Stale(vertex_of(holder, books.job))
    proxy.update_kv_state_location_oracle(books.job.job_id, oracle)
    with pytest.raises(QueryConnectionError, match=f"No connection to 127.0.0.1:{oracle.nobody[1]}"):
        ask(bench.client(proxy))
    assert oracle.asked == 2


def test_an_asyncio_client_repeats_nothing_either(bench, books):
    holder, proxy = bench.server(books.job), bench.server()
    oracle = Stale(vertex_of(holder, books.job))
    proxy.update_kv_state_location_oracle(books.job.job_id, oracle)

    async def story():
        async with AsyncQueryableStateClient(*proxy.get_server_address()) as client:
            with pytest.raises(QueryConnectionError, match="No connection to"):
                await client.get_kv_state("bank", "balance", KEYS[0])

    asyncio.run(story())
    assert oracle.asked == 2


def in_child(act):
    """What a forked child says; it leaves by the shortest way, so that nothing of the test's own ends twice."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends one that waits for what only its parent can do
        try:
            said = str(act())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        said = told.read().decode()
    os.waitpid(child, 0)
    return said


def test_a_forked_child_asks_on_a_connection_of_its_own(bench, books):
    server = bench.server(books.job)
    client = bench.client(server)
    key = KEYS[0]
    assert client.get_kv_state("bank", "balance", key).value == books.accounts[key]
    [kept] = client._idle
    assert in_child(lambda: [client.get_kv_state("bank", "balance", k).value for k in KEYS]) == str(
        [books.accounts[k] for k in KEYS]
    )
    assert client._idle == [kept]
    assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts


def test_a_child_that_is_forked_while_a_thread_takes_a_connection_does_not_wait_for_it(bench, books):
    client = bench.client(bench.server(books.job))
    client.jobs()
    with client._lock:  # as another thread of the parent has it for a moment
        assert in_child(lambda: (client.get_kv_state("bank", "balance", KEYS[0]).value, client.close())[0]) == str(
            books.accounts[KEYS[0]]
        )


def test_a_forked_child_is_refused_the_scan_that_its_parent_has_begun(bench, books):
    scan = bench.client(bench.server(books.job)).scan("bank", "balance", batch_rows=2)
    told = in_child(lambda: next(iter(scan)))
    assert told.startswith("QueryConnectionError: The connection to 127.0.0.1:")
    assert f"belongs to process {os.getpid()}, and this is its child" in told
    rows = scan.to_table().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == books.accounts


def test_an_asyncio_client_in_a_forked_child_leaves_the_connection_of_its_parent_alone(bench, books):
    server = bench.server(books.job)
    client = AsyncQueryableStateClient(*server.get_server_address())

    async def ask():
        return (await client.get_many("bank", "balance", KEYS)).as_dict()

    async def story():
        before = await ask()
        told = await asyncio.to_thread(in_child, lambda: asyncio.run(ask()))
        after = await ask()
        await client.close()
        return before, told, after

    assert asyncio.run(story()) == (books.accounts, str(books.accounts), books.accounts)


def test_a_long_answer_is_kept_once_while_it_arrives():
    """It was three times: what had arrived, the same as bytes, and its body."""
    sent = encode(FrameType.BATCH, 5, b"{}", bytes(SIZE))
    reader = FrameReader(256 << 20, header_limit=None)
    tracemalloc.start()
    try:
        [frame] = [
            frame
            for at in range(0, len(sent), 256 * 1024)
            for frame in reader.feed(memoryview(sent)[at : at + 256 * 1024])
        ]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (frame.type, frame.request, frame.header, len(frame.body)) == (FrameType.BATCH, 5, b"{}", SIZE)
    assert most < 1.5 * SIZE


def test_a_short_answer_does_not_keep_what_arrived_beside_it():
    long, short = (encode(FrameType.BATCH, number, b"{}", bytes(size)) for number, size in ((1, 1 << 20), (2, 100)))
    arrived = long + short
    reader = FrameReader(256 << 20, header_limit=None)
    first, second = [*reader.feed(arrived[:1000]), *reader.feed(arrived[1000:])]
    assert first.body == bytes(1 << 20) and second.body == bytes(100)
    assert type(second.body) is bytes
