"""Several servers that share a job's key groups: added, lost and replaced, and readers notice no more than a retry."""

import asyncio
import json
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import StorageError
from holdfast.kernel.ids import JobVertexID
from holdfast.kernel.key_group import KeyGroupRange, key_group_of
from holdfast.queryable import AsyncQueryableStateClient, at_least, exactly
from holdfast.queryable.server.proxy import RemoteLocationOracle
from holdfast.queryable.server.server import share_of
from holdfast.queryable.wire.errors import (
    LimitExceededError,
    QueryConnectionError,
    QueryTimeoutError,
    UnauthorizedError,
    UnknownJobError,
    UnknownKeyOrNamespaceError,
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    UnknownLocationError,
)
from holdfast.queryable.wire.frame import FrameReader, FrameType, Limits, encode
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.types.types import Types
from tests.programs.written_job import WrittenJob
from tests.unit.cli.test_query import Server as StateServerProcess
from tests.unit.queryable.live_job import free_port, until
from tests.unit.queryable.test_consistency import KEYS, TOTAL, Books, bank

NOTHING = lambda max_parallelism: ()  # noqa: E731


@pytest.fixture
def books(tmp_path):
    books = Books(bank(tmp_path))
    books.write()
    return books


@pytest.fixture
def leader(bench, books):
    """The job master's process: knows where everything is, and holds nothing itself."""
    return bench.server(books.job, share=NOTHING)


def let_ask(proxy, server, job):
    """Let a server ask another one where the states of a job are."""
    oracle = RemoteLocationOracle(server.get_server_address(), proxy._peers, proxy._loop)
    proxy.update_kv_state_location_oracle(job.job_id, oracle)


def groups_held(leader, job):
    oracle = leader.get_kv_state_location_oracle(job.job_id)
    location = oracle.get_kv_state_location("balance")
    return 0 if location is None else location.get_num_registered_key_groups()


def test_two_halves_answer_as_one_from_any_of_the_servers(bench, books, leader):
    halves = [
        bench.server(books.job, share=share_of(index, 2), leader=leader.get_server_address()) for index in range(2)
    ]
    until(lambda: groups_held(leader, books.job) == 128)
    for server in (leader, *halves):
        client = bench.client(server)
        assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
        assert client.get_many("bank", "history", KEYS).as_dict() == {key: [1] for key in KEYS}
        assert {client.get_kv_state("bank", "balance", key).value for key in KEYS} == set(books.accounts.values())
        rows = client.scan("bank", "balance").to_table().to_pylist()
        assert {row["key"]: row["value"] for row in rows} == books.accounts and len(rows) == len(KEYS)
        assert client.scan("bank", "balance", where=[("key", "==", KEYS[7])]).to_table().num_rows == 1


@pytest.mark.parametrize("ask", [0, 1, 2])
def test_at_least_waits_for_the_first_checkpoint_at_any_of_several_servers(tmp_path, bench, ask):
    books = Books(bank(tmp_path))
    leader = bench.server(books.job)
    address = leader.get_server_address()
    servers = [leader, *(bench.server(books.job, share=share_of(part, 2), leader=address) for part in range(2))]
    client = bench.client(servers[ask])
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.get_many, "bank", "balance", KEYS, consistency=at_least(1), deadline=60)
        scan = pool.submit(lambda: client.scan("bank", "balance", consistency=at_least(1), deadline=60).to_table())
        replica = servers[ask].follower(books.job.job_id).replica
        until(lambda: answer.done() or scan.done() or len(replica._waiting) == 2)
        books.write()
        assert answer.result(60).as_dict() == books.accounts
        assert scan.result(60).num_rows == len(KEYS)


def test_at_least_waits_until_all_servers_have_registered_a_first_checkpoint(bench, books, leader):
    client, address = bench.client(leader), leader.get_server_address()
    bench.server(books.job, share=share_of(0, 2), leader=address)
    until(lambda: servers_known(leader, books))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.get_many, "bank", "balance", KEYS, consistency=at_least(1), deadline=60)
        time.sleep(0.2)
        bench.server(books.job, share=share_of(1, 2), leader=address)
        assert answer.result(60).as_dict() == books.accounts


def test_at_least_waits_until_another_server_has_registered_a_first_checkpoint(bench, books, leader):
    client = bench.client(leader)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.get_many, "bank", "balance", KEYS, consistency=at_least(1), deadline=60)
        scan = pool.submit(lambda: client.scan("bank", "balance", consistency=at_least(1), deadline=60).to_table())
        time.sleep(0.2)
        bench.server(books.job, leader=leader.get_server_address())
        assert answer.result(60).as_dict() == books.accounts
        assert scan.result(60).num_rows == len(KEYS)


def test_entries_of_maps_and_namespaces_are_answered_by_several_servers_as_by_one(tmp_path, bench):
    spaced = Types.STRING().create_serializer()
    states = (MapStateDescriptor("m", "string", "bigint"), ListStateDescriptor("l", "bigint"))
    for state in states:
        state.set_queryable(state.name)
    job = WrittenJob(tmp_path, states, name="parts", namespace=("a", spaced))

    def write(n):
        def of(states):
            states.m.put("one", n)
            states.m.put("none", None)
            states.l.add(n)

        return of

    keys = [f"k{n}" for n in range(30)]
    for epoch in range(3):
        job.checkpoint([(key, write(n + epoch)) for n, key in enumerate(keys)])
    leader = bench.server(job, share=NOTHING)
    for index in range(3):
        bench.server(job, share=share_of(index, 3), leader=leader.get_server_address())
    registry = leader.get_kv_state_location_oracle(job.job_id)
    until(lambda: all(
        (found := registry.get_kv_state_location(name)) and found.get_num_registered_key_groups() == 128
        for name in ("m", "l")
    ))  # fmt: skip
    asked, entries = [*keys, "nobody", "k0"], ["one", "none", "never"] * 10 + ["one", "one"]
    answers = []
    for server in (leader, bench.server(job)):
        client, space = bench.client(server), {"namespace": "a", "namespace_serializer": spaced}
        found = client.get_many("parts", "m", asked, map_keys=entries, **space)
        assert client.get_kv_state("parts", "m", "k1", map_key="none", **space).value is None
        with pytest.raises(UnknownKeyOrNamespaceError):
            client.get_kv_state("parts", "m", "k1", map_key="never", **space)
        whole = client.get_many("parts", "m", asked, **space)
        lists = client.get_many("parts", "l", asked, **space)
        assert client.get_many("parts", "l", asked, namespace=b"none").values == [None] * len(asked)
        answers.append((found.values, found.there, whole.values, lists.values))
    assert answers[0] == answers[1]
    assert answers[0][1] == [entry != "never" and key != "nobody" for key, entry in zip(asked, entries, strict=True)]
    assert answers[0][0][0] == 2 and answers[0][2][0] == {"one": 2, "none": None} and answers[0][3][0] == [0, 1, 2]


def test_a_proxy_that_holds_nothing_of_the_job_forwards(bench, books):
    holder = bench.server(books.job)
    proxy = bench.server()
    let_ask(proxy, holder, books.job)
    client = bench.client(proxy)
    assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
    assert client.get_kv_state("bank", "balance", KEYS[0], consistency=exactly(1)).checkpoint_id == 1


def test_what_several_servers_hold_is_answered_from_one_checkpoint(bench, books, leader):
    for index in range(3):
        bench.server(books.job, share=share_of(index, 3), leader=leader.get_server_address(), poll=0.02 * (index + 1))
    until(lambda: groups_held(leader, books.job) == 128)
    stopping, wrong, reads = threading.Event(), [], Counter()

    def read(client):
        last = 0
        while not stopping.is_set():
            key = KEYS[reads["all"] % len(KEYS)]
            try:
                found = client.get_many("bank", "balance", KEYS)
                one = client.get_kv_state("bank", "balance", key)
                with client.scan("bank", "balance", batch_rows=3) as scan:
                    rows = {row["key"]: row["value"] for row in scan.to_table().to_pylist()}
            except Exception as error:
                wrong.append(repr(error))
                return
            reads["all"] += 1
            if sum(found.values) != TOTAL or found.as_dict() != books.of[found.checkpoint_id][1]:
                wrong.append((found.checkpoint_id, sum(found.values)))
            if one.value != books.of[one.checkpoint_id][1][key] or rows != books.of[scan.origin.checkpoint_id][1]:
                wrong.append((one, rows))
            # The servers see a checkpoint at different times, whoever asks does not.
            if not last <= found.checkpoint_id <= one.checkpoint_id <= scan.origin.checkpoint_id:
                wrong.append(("back", last, found.checkpoint_id, one.checkpoint_id, scan.origin.checkpoint_id))
            last = scan.origin.checkpoint_id

    readers = [threading.Thread(target=read, args=(bench.client(leader),)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(15):
        number = books.write()
        time.sleep(0.03)
    found = bench.client(leader).get_many("bank", "balance", KEYS, consistency=at_least(number))
    until(lambda: wrong or reads["all"] > 20)
    stopping.set()
    for reader in readers:
        reader.join()
    assert found.checkpoint_id == number and found.as_dict() == books.accounts
    assert wrong == []


class HeldUp:
    """A register that is read when it is let go on."""

    def __init__(self, register):
        self.register, self.goes = register, threading.Event()
        self.goes.set()

    def read(self):
        assert self.goes.wait(60)
        return self.register.read()


def two_halves(bench, books, leader):
    """A client, the register that the server of the second half reads, and a key of each half."""
    register = HeldUp(books.job.register)
    bench.server(books.job, share=share_of(0, 2), leader=leader.get_server_address())
    late = bench.server()
    late.serve_job(books.job.directory, register, share=share_of(1, 2), leader=leader.get_server_address())
    until(lambda: groups_held(leader, books.job) == 128)
    groups = {key: key_group_of(books.job._codec.hash(key), 128) for key in KEYS}
    return bench.client(leader), register, min(groups, key=groups.get), max(groups, key=groups.get)


@pytest.mark.parametrize("late", [0, 1])
def test_servers_of_which_one_has_dropped_what_the_other_has_answer_from_what_both_have_in_the_end(
    bench, books, leader, late
):
    register = HeldUp(books.job.register)
    for index in range(2):
        half = bench.server()
        register_of_half = register if index == late else books.job.register
        address = leader.get_server_address()
        half.serve_job(books.job.directory, register_of_half, share=share_of(index, 2), leader=address)
    until(lambda: groups_held(leader, books.job) == 128)
    client = bench.client(leader)
    for ask in (by_keys, by_scan):
        register.goes.clear()
        for _ in range(5):
            books.write()
        waiting = threading.Timer(0.3, register.goes.set)
        waiting.start()
        origin, rows = ask(client)
        assert rows == books.of[origin.checkpoint_id][1]
        waiting.join()


def by_keys(client):
    found = client.get_many("bank", "balance", KEYS, deadline=60)
    return found.origin, found.as_dict()


def by_scan(client):
    scan = client.scan("bank", "balance", deadline=60)
    return scan.origin, {row["key"]: row["value"] for row in scan.to_table().to_pylist()}


def refuses_to_go_back(client, here):
    for ask in (lambda: client.get_kv_state("bank", "balance", here, deadline=0.1),
                lambda: client.scan("bank", "balance", deadline=0.1).to_table()):  # fmt: skip
        with pytest.raises(QueryTimeoutError):
            ask()


def test_nobody_is_shown_an_older_checkpoint_by_a_server_that_is_late(bench, books, leader):
    client, register, there, here = two_halves(bench, books, leader)
    assert client.hold("bank", "balance", 60).checkpoint_id == 1  # by both
    register.goes.clear()
    number = books.write()
    until(lambda: client.get_kv_state("bank", "balance", there).checkpoint_id == number)
    refuses_to_go_back(client, here)
    assert client.get_kv_state("bank", "balance", here, consistency=exactly(1)).checkpoint_id == 1
    threading.Timer(0.1, register.goes.set).start()
    assert client.get_kv_state("bank", "balance", here, deadline=60).checkpoint_id == number


def test_a_server_that_has_not_seen_a_restore_is_late_and_not_of_a_job_that_began_anew(bench, books, leader):
    client, register, there, here = two_halves(bench, books, leader)
    register.goes.clear()
    books.job.restore(books.job.runs)
    number = books.write()
    until(lambda: client.get_kv_state("bank", "balance", there).checkpoint_id == number)
    refuses_to_go_back(client, here)
    register.goes.set()
    assert client.get_kv_state("bank", "balance", here, deadline=60).checkpoint_id == number


def test_a_job_that_begins_anew_in_an_empty_directory_is_read_again(tmp_path, bench):
    """Checkpoints begin with 1 again: not an older one, but another job's, which the lineage says."""
    books = Books(bank(tmp_path / "first"))
    for _ in range(3):
        books.write()
    proxy = bench.server()
    holder = bench.server(books.job)
    let_ask(proxy, holder, books.job)
    client = bench.client(proxy)
    before = client.get_kv_state("bank", "balance", KEYS[0])
    assert before.checkpoint_id == 3
    assert client.scan("bank", "balance").origin.checkpoint_id == 3
    again = Books(bank(tmp_path / "second"))
    again.job.epoch = 9  # by its clock it is later
    again.write()
    second = bench.server(again.job)
    holder.shutdown()
    let_ask(proxy, second, again.job)
    shown = dict(proxy._service._router.high_water_marks._shown)
    found = client.get_kv_state("bank", "balance", KEYS[0], deadline=0.2)
    assert found.checkpoint_id == 1 and found.origin.lineage != before.origin.lineage
    assert client.get_kv_state("bank", "balance", KEYS[0]).checkpoint_id == 1
    proxy._service._router.high_water_marks._shown = shown  # somebody who only scans, as Spark does
    rows = client.scan("bank", "balance", deadline=0.2).to_table().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == again.accounts
    assert client.scan("bank", "balance").origin.checkpoint_id == 1


def test_a_key_group_that_nobody_holds_is_an_error_until_somebody_does(bench, books, leader):
    bench.server(books.job, share=share_of(0, 2), leader=leader.get_server_address())
    until(lambda: groups_held(leader, books.job) == 64)
    client = bench.client(leader)
    codec = books.job._codec
    there = [key for key in KEYS if key_group_of(codec.hash(key), 128) < 64]
    missing = next(key for key in KEYS if key not in there)
    assert client.get_many("bank", "balance", there).values == [books.accounts[key] for key in there]
    with pytest.raises(UnknownKvStateKeyGroupLocationError, match="No server serves key group"):
        client.get_kv_state("bank", "balance", missing)
    with pytest.raises(UnknownKvStateKeyGroupLocationError):
        client.scan("bank", "balance").to_table()

    async def together():
        async with AsyncQueryableStateClient(*leader.get_server_address()) as asking:
            await asking.get_kv_state("bank", "balance", there[0])
            gets = (asking.get_kv_state("bank", "balance", key) for key in KEYS)
            return await asyncio.gather(*gets, return_exceptions=True)

    for key, found in zip(KEYS, asyncio.run(together()), strict=True):
        if key in there:
            assert found.value == books.accounts[key]
        else:
            assert type(found) is UnknownKvStateKeyGroupLocationError
    bench.server(books.job, share=share_of(1, 2), leader=leader.get_server_address())
    until(lambda: groups_held(leader, books.job) == 128)
    assert client.get_kv_state("bank", "balance", missing).value == books.accounts[missing]


def test_replicas_come_and_go_and_no_read_fails(bench, books, leader):
    """Each half is held twice; one after the other is lost and replaced while readers read."""

    def replica(index):
        return bench.server(books.job, share=share_of(index, 2), leader=leader.get_server_address())

    servers = [replica(0), replica(1), replica(0), replica(1)]
    registry = leader.get_kv_state_location_oracle(books.job.job_id)

    def servers_known():
        return {placed.address for placed in registry.get_kv_state_location("balance").placements}

    until(lambda: groups_held(leader, books.job) == 128 and len(servers_known()) == 4)
    stopping, failures, reads = threading.Event(), [], Counter()

    def read(client):
        while not stopping.is_set():
            try:
                found = client.get_many("bank", "balance", KEYS)
                assert found.as_dict() == books.of[found.checkpoint_id][1]
                client.get_kv_state("bank", "balance", KEYS[reads["all"] % len(KEYS)])
                scanned(client)
                reads["all"] += 1
            except Exception as error:
                failures.append(repr(error))

    def scanned(client, servers_to_lose=4):
        try:
            with client.scan("bank", "balance") as scan:
                rows = {row["key"]: row["value"] for row in scan.to_table().to_pylist()}
        except QueryConnectionError:  # a server was lost in the middle of its rows
            if not servers_to_lose:
                return failures.append("more scans in a row were cut off than servers were lost")
            return scanned(client, servers_to_lose - 1)
        assert rows == books.of[scan.origin.checkpoint_id][1]
        return None

    readers = [threading.Thread(target=read, args=(bench.client(leader),)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for position in range(4):
        books.write()
        lost = servers[position]
        address = lost.get_server_address()
        lost.shutdown()
        until(lambda gone=address: gone not in servers_known())
        servers[position] = replica(position % 2)
        until(lambda new=servers[position]: new.get_server_address() in servers_known())
    until(lambda: failures or reads["all"] > 20)
    stopping.set()
    for reader in readers:
        reader.join()
    assert failures == []


def test_the_only_server_comes_back_elsewhere_and_a_cached_location_is_corrected(bench, books, leader):
    first = bench.server(books.job, leader=leader.get_server_address())
    until(lambda: groups_held(leader, books.job) == 128)
    client = bench.client(leader)
    assert client.get_kv_state("bank", "balance", KEYS[0]).value == books.accounts[KEYS[0]]
    first.shutdown()
    until(lambda: groups_held(leader, books.job) == 0)
    with pytest.raises(UnknownKvStateLocationError):
        client.get_kv_state("bank", "balance", KEYS[0])
    bench.server(books.job, leader=leader.get_server_address())
    until(lambda: groups_held(leader, books.job) == 128)
    assert client.get_kv_state("bank", "balance", KEYS[0]).value == books.accounts[KEYS[0]]


def test_servers_hear_of_a_checkpoint_from_the_leader_without_polling(bench, books, leader):
    bench.server(books.job, leader=leader.get_server_address(), poll=3600)
    until(lambda: groups_held(leader, books.job) == 128)
    number = books.write()
    found = bench.client(leader).get_kv_state("bank", "balance", KEYS[0], consistency=at_least(number), deadline=5)
    assert found.checkpoint_id == number


def test_a_server_knows_which_key_groups_it_does_not_hold(bench, books):
    half = bench.server(books.job, share=share_of(0, 2))
    view = half.follower(books.job.job_id).replica.newest.states["balance"]
    assert list(view.key_groups) == [KeyGroupRange(0, 63)]
    with pytest.raises(UnknownKvStateIdError):
        view.scan(KeyGroupRange(60, 64))


def test_a_job_that_could_not_be_served_is_not_taken_for_one_that_is(bench, books):
    """Somebody who looks for new jobs tries it again."""

    class Unreachable:
        def start(self, listener):
            raise StorageError("nobody there")

        def stop(self):
            pass

    server = bench.server()
    with pytest.raises(StorageError, match="nobody there"):
        server.serve_job(books.job.directory, books.job.register, leader=Unreachable())
    assert server.jobs() == []
    server.serve_job(books.job.directory, books.job.register)
    assert bench.client(server).get_many("bank", "balance", KEYS).as_dict() == books.accounts


def test_another_oracle_is_asked_though_the_locations_of_the_one_before_still_answer(bench, books):
    first, second, proxy = bench.server(books.job), bench.server(books.job), bench.server()
    client, asked = bench.client(proxy), Counter()
    for server in (first, second):
        answer = server._service._get
        server._service._get = lambda frame, connection, of=server, answer=answer: (
            asked.update([of]) or answer(frame, connection)
        )
    for server in (first, second):
        asked.clear()
        let_ask(proxy, server, books.job)
        assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
        assert list(asked) == [server]
    proxy.update_kv_state_location_oracle(books.job.job_id, None)
    assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts


def test_who_cannot_register_says_so_once_and_not_five_times_a_second(bench, books, caplog):
    server = bench.server(books.job, leader=("127.0.0.1", free_port()))
    until(lambda: "Not registered with" in caplog.text)
    time.sleep(1)
    assert caplog.text.count("Not registered with") == 1
    assert bench.client(server).get_kv_state("bank", "balance", KEYS[0]).checkpoint_id == 1


def test_more_servers_than_key_groups_hold_all_between_them(tmp_path, bench):
    for groups in (1, 2, 3, 128):
        parts = [held for index in range(3) for held in share_of(index, 3)(groups)]
        assert sorted(group for held in parts for group in held) == list(range(groups))
    books = Books(bank(tmp_path, max_parallelism=2, parallelism=1))
    books.write()
    leader = bench.server(books.job, share=NOTHING)
    servers = [bench.server(books.job, share=share_of(n, 3), leader=leader.get_server_address()) for n in range(3)]
    until(lambda: groups_held(leader, books.job) == 2)
    for server in servers:
        assert bench.client(server).get_many("bank", "balance", KEYS).as_dict() == books.accounts


def test_a_leader_that_is_replaced_is_followed(bench, books):
    """Leader retrieval names the query server of the leading job master; servers and proxies turn to the new one."""
    import uuid

    from holdfast.ha.leader_election import DefaultLeaderRetrievalService, LeaderInformation

    handlers = []

    class Driver:
        def close(self):
            pass

    def make(handler):
        handlers.append(handler)
        return Driver()

    def announce(server):
        host, port = server.get_server_address()
        for handler in handlers:
            handler.notify_leader_address(LeaderInformation.known(uuid.uuid4(), f"{host}:{port}"))

    first, second = bench.server(books.job, share=NOTHING), bench.server(books.job, share=NOTHING)
    replica = bench.server(books.job, leader=DefaultLeaderRetrievalService(make))
    announce(first)
    until(lambda: groups_held(first, books.job) == 128)
    assert bench.client(first).get_many("bank", "balance", KEYS).as_dict() == books.accounts

    announce(second)
    until(lambda: groups_held(second, books.job) == 128 and groups_held(first, books.job) == 0)
    first.shutdown()
    number = books.write()
    for server in (second, replica):
        found = bench.client(server).get_many("bank", "balance", KEYS, consistency=at_least(number))
        assert found.as_dict() == books.accounts


def test_a_client_says_that_nobody_listens(bench, books):
    server = bench.server(books.job)
    client = bench.client(server)
    client.jobs()
    server.shutdown()
    with pytest.raises(QueryConnectionError):
        client.jobs()


def servers_known(leader, books):
    location = leader.get_kv_state_location_oracle(books.job.job_id).get_kv_state_location("balance")
    return {placed.address for placed in location.placements} if location is not None else set()


def test_the_leader_dies_with_all_that_it_held_and_replicas_answer_at_once(bench, books):
    """The process of a job holds everything. When it is gone nobody can be asked where state is, and no read fails."""
    leader = bench.server(books.job)
    halves = [
        bench.server(books.job, share=share_of(index % 2, 2), leader=leader.get_server_address()) for index in range(4)
    ]
    until(lambda: len(servers_known(leader, books)) == 5)
    clients = [bench.client(half) for half in halves]
    for client in clients:
        assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
    leader.shutdown()
    number = books.write()
    for client in clients:
        assert client.get_many("bank", "balance", KEYS, consistency=at_least(number)).as_dict() == books.accounts
        assert {client.get_kv_state("bank", "balance", key).value for key in KEYS} == set(books.accounts.values())
        rows = client.scan("bank", "balance").to_table().to_pylist()
        assert {row["key"]: row["value"] for row in rows} == books.accounts
    # Another one of them ends while nobody leads.
    halves[3].shutdown()
    for client in clients[:3]:
        assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts


def test_a_replica_that_hangs_is_not_waited_for_and_comes_back_when_it_goes_on(bench, books, leader):
    """A stopped process keeps its connections: nothing but its silence tells."""
    arguments = (books.job.directory.path, "--port", 0, "--leader", "{}:{}".format(*leader.get_server_address()))
    with StateServerProcess(*arguments) as first, StateServerProcess(*arguments) as second:
        until(lambda: len(servers_known(leader, books)) == 2)
        client = bench.client(leader)
        assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
        for replica in (first, second):
            replica.process.send_signal(signal.SIGSTOP)
            try:
                for _ in range(3):
                    assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
                    assert client.scan("bank", "balance").to_table().num_rows == len(KEYS)
                until(lambda: len(servers_known(leader, books)) == 1)
            finally:
                replica.process.send_signal(signal.SIGCONT)
            until(lambda: len(servers_known(leader, books)) == 2)


def test_more_clients_wait_at_a_proxy_than_one_connection_may_have_requests_in_flight(bench, books, leader):
    bench.server(books.job, leader=leader.get_server_address(), limits=Limits(in_flight=5))
    until(lambda: groups_held(leader, books.job) == 128)
    proxy = bench.server()
    let_ask(proxy, leader, books.job)

    async def story():
        async with AsyncQueryableStateClient(*proxy.get_server_address()) as client:
            waiting = [
                asyncio.ensure_future(client.get_many("bank", "balance", [key], consistency=at_least(2), deadline=60))
                for key in KEYS * 2
            ]
            await asyncio.sleep(0.3)
            await asyncio.to_thread(books.write)
            return [(found.values[0], found.checkpoint_id) for found in await asyncio.gather(*waiting)]

    assert asyncio.run(story()) == [(books.accounts[key], 2) for key in KEYS * 2]


def test_limits_hold_for_what_several_servers_answer_together(bench, books):
    small = Limits(keys=len(KEYS) - 1)
    leader = bench.server(books.job, share=NOTHING, limits=small)
    for index in range(2):
        bench.server(books.job, share=share_of(index, 2), leader=leader.get_server_address(), limits=small)
    until(lambda: groups_held(leader, books.job) == 128)
    client = bench.client(leader)
    assert client.get_many("bank", "balance", KEYS[1:]).values == [books.accounts[key] for key in KEYS[1:]]
    with pytest.raises(LimitExceededError, match="20 keys at once are more than the limit of 19"):
        client.get_many("bank", "balance", KEYS)
    for _ in range(20):
        number = books.write()
    narrow = bench.server(limits=Limits(message_bytes=1500))
    let_ask(narrow, leader, books.job)
    with pytest.raises(LimitExceededError, match=r"The answer has .* the limit is 1500\. Request fewer keys"):
        bench.client(narrow).get_many("bank", "history", KEYS[:15], consistency=at_least(number))


def test_a_message_that_grows_on_its_way_ends_no_connection_between_servers(bench, books, leader):
    """Of texts that are not ASCII the header that a proxy sends on is three times as long as the one that it got."""
    bench.server(books.job, leader=leader.get_server_address())
    until(lambda: groups_held(leader, books.job) == 128)
    proxy = bench.server()
    let_ask(proxy, leader, books.job)
    neighbour = bench.client(proxy)
    job = str(books.job.job_id)

    def ask(name):
        with socket.create_connection(proxy.get_server_address(), timeout=60) as connection:
            header = json.dumps({"job": job, "state": name}, ensure_ascii=False).encode()
            for frame in (encode(FrameType.HELLO, 0, b"{}"), encode(FrameType.DESCRIBE, 1, header)):
                connection.sendall(frame)
                reader, answers = FrameReader(1 << 20), []
                while not answers:
                    data = connection.recv(65536)
                    assert data, "the proxy has ended the connection"
                    answers = reader.feed(data)
            return answers[0].fields()

    assert neighbour.get_kv_state("bank", "balance", KEYS[0]).checkpoint_id == 1
    between = list(proxy._peers._open.values())
    assert ask("é" * 30_000)["error"] == "LimitExceededError"
    assert ask("\x80" * 9_000)["error"] == "UnknownKvStateLocationError"
    assert all(task.result().is_open for tasks in between for task in tasks)
    assert neighbour.get_kv_state("bank", "balance", KEYS[0]).checkpoint_id == 1


def test_a_request_that_is_too_long_for_another_server_fails_alone(bench, books, leader):
    """Proxies have one connection for all of their clients; it does not end with the request of one of them."""
    bench.server(books.job, leader=leader.get_server_address(), limits=Limits(message_bytes=20_000))
    until(lambda: groups_held(leader, books.job) == 128)
    proxy = bench.server()
    let_ask(proxy, leader, books.job)
    neighbour, waited = bench.client(proxy), []

    def wait():
        waited.append(neighbour.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(2), deadline=60))

    neighbour.get_kv_state("bank", "balance", KEYS[0])
    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    with pytest.raises(LimitExceededError, match="above the limit of 20000"):
        bench.client(proxy).get_kv_state("bank", "balance", "y" * 30_000)
    books.write()
    waiting.join()
    assert [found.checkpoint_id for found in waited] == [2]


def test_a_replica_of_everything_asks_nobody_whoever_leads(bench, books):
    """It would load the process of the job with its reads, and fail while that is down or does not know the job yet."""
    leader = bench.server(books.job)
    asked = []
    answer = leader._service.answer
    leader._service.answer = lambda frame, connection: asked.append(frame.type) or answer(frame, connection)
    replica = bench.server(books.job, leader=leader.get_server_address())
    nobody = bench.server(books.job, leader=("127.0.0.1", free_port()))
    elsewhere = bench.server(books.job, leader=bench.server().get_server_address())  # where another job runs
    for server in (replica, nobody, elsewhere):
        client = bench.client(server)
        assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
        assert client.get_kv_state("bank", "balance", KEYS[0]).value == books.accounts[KEYS[0]]
        assert client.scan("bank", "balance").to_table().num_rows == len(KEYS)
    assert not {FrameType.GET, FrameType.SCAN, FrameType.LOCATE} & set(asked)


def begin_anew(tmp_path, books):
    """Somebody has removed the job's directory, and starts the job under the same name."""
    shutil.rmtree(books.job.directory.path)
    again = Books(bank(tmp_path), seed=1)
    again.job.epoch = 9  # by its clock it is later
    again.write()
    return again


@pytest.mark.parametrize("ask", ["get", "scan"])
def test_a_replica_that_forwarded_once_reads_a_job_that_began_anew(tmp_path, bench, ask):
    books = Books(bank(tmp_path))
    for _ in range(3):
        books.write()
    replica, holder = bench.server(), bench.server(books.job)
    client = bench.client(replica)
    let_ask(replica, holder, books.job)
    assert client.get_many("bank", "balance", KEYS).checkpoint_id == 3
    replica.serve_job(books.job.directory, books.job.register)
    again = begin_anew(tmp_path, books)

    def read(deadline):
        if ask == "get":
            return client.get_many("bank", "balance", KEYS, deadline=deadline).as_dict()
        rows = client.scan("bank", "balance", deadline=deadline).to_table().to_pylist()
        return {row["key"]: row["value"] for row in rows}

    follower = replica.follower(books.job.job_id)
    until(lambda: follower.replica.newest is not None and follower.replica.newest.lineage == again.job.incarnation)
    assert read(0.3) == again.accounts
    # Longer than any test may take: nobody waits for a checkpoint that is not to come.
    assert read(3600) == again.accounts


def test_a_job_that_is_dropped_leaves_nothing_behind(bench, books):
    leader = bench.server(books.job)
    replica = bench.server(books.job, share=share_of(0, 2), leader=leader.get_server_address())
    client, failures = bench.client(replica), []
    until(lambda: len(servers_known(leader, books)) == 2)
    assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
    job_id, service = books.job.job_id, replica._service
    assert replica._locations._known and service._router.high_water_marks._shown, "this test is about nothing"

    def wait():
        try:
            client.get_kv_state("bank", "balance", KEYS[0], consistency=at_least(99), deadline=60)
        except Exception as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    follower = replica.follower(job_id)
    until(lambda: follower.replica._waiting)
    replica.drop_job(job_id)
    waiting.join(60)
    assert [type(error) for error in failures] == [UnknownJobError], failures
    assert not follower._thread.is_alive()
    until(lambda: len(servers_known(leader, books)) == 1)
    assert replica.get_kv_state_location_oracle(job_id) is None
    for rest in (replica._registrations, replica._retrievals, replica._local.followers, replica._locations._last,
                 replica._locations._known, service.registries,
                 service._router.high_water_marks._shown, replica._local.registry._registrations,
                 replica._local.registry._ids, replica._local.registry._listeners):  # fmt: skip
        assert not rest
    with pytest.raises(UnknownLocationError):
        client.get_kv_state("bank", "balance", KEYS[0])
    replica.drop_job(job_id)  # once more is fine
    replica.serve_job(books.job.directory, books.job.register, leader=leader.get_server_address())
    until(lambda: len(servers_known(leader, books)) == 2)
    assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts


def test_a_leader_that_drops_a_job_knows_no_locations_of_it_any_more(bench, books):
    leader = bench.server(books.job, share=NOTHING)
    replica = bench.server(books.job, leader=leader.get_server_address())
    until(lambda: groups_held(leader, books.job) == 128)
    leader.drop_job(books.job.job_id)
    with pytest.raises(UnknownLocationError):
        bench.client(leader).get_kv_state("bank", "balance", KEYS[0])
    with pytest.raises(UnknownLocationError):
        bench.client(leader).scan("bank", "balance")
    assert bench.client(replica).get_many("bank", "balance", KEYS).as_dict() == books.accounts


def test_connections_to_servers_that_are_gone_are_forgotten(bench, books, leader):
    """Each one that comes has another port."""
    client = bench.client(leader)
    for _ in range(4):
        with bench.server(books.job, leader=leader.get_server_address()):
            until(lambda: groups_held(leader, books.job) == 128)
            assert client.get_many("bank", "balance", KEYS).as_dict() == books.accounts
        until(lambda: groups_held(leader, books.job) == 0)
    assert len(leader._peers._open) <= 1


def test_a_name_that_has_gone_over_to_another_operator_is_found_there(tmp_path, bench):
    """A program has given its operator another uid, so its state begins anew, under the same name."""

    def job(uid):
        value = ValueStateDescriptor("value", "bigint")
        value.set_queryable("value")
        return WrittenJob(tmp_path, [value], uid=uid)

    first = job("before")
    first.checkpoint([("k", lambda states: states.value.update(1))])
    server = bench.server(first)
    client = bench.client(server)
    assert client.get_kv_state("job", "value", "k").value == 1
    second = job("after")
    for n in (2, 3):
        number = second.checkpoint([("k", lambda states, n=n: states.value.update(n))])
        until(lambda number=number: server.follower(first.job_id).replica.newest.checkpoint_id == number)

    def answer():
        try:
            return client.get_kv_state("job", "value", "k").value
        except UnknownKvStateLocationError:  # while the one goes and the other comes
            return None

    until(lambda: answer() == 3, 10)


def test_what_a_connection_has_registered_goes_with_it(bench, books, leader):
    states = json.dumps([(str(JobVertexID()), 128, 0, 127, "balance", "x")]).encode()

    def register(port):
        header = json.dumps({"job": str(books.job.job_id), "address": ["127.0.0.1", port]}).encode()
        connection.sendall(encode(FrameType.REGISTER, port, header, states))
        [answer] = reader.feed(connection.recv(65536))
        return answer

    with socket.create_connection(leader.get_server_address(), timeout=60) as connection:
        reader = FrameReader(1 << 20)
        connection.sendall(encode(FrameType.HELLO, 0, b"{}"))
        reader.feed(connection.recv(65536))
        assert [register(port).type for port in (1, 1)] == [FrameType.RESULT] * 2
        assert register(2).fields()["error"] == "BadRequestError"
        assert groups_held(leader, books.job) == 128
    until(lambda: groups_held(leader, books.job) == 0)


def test_the_token_of_readers_cannot_register_a_server(bench, books):
    """Others would read from him what he likes."""
    tokens = {"token": "read", "server_token": "serve"}
    leader = bench.server(books.job, share=NOTHING, **tokens)
    stranger = bench.server(books.job, token="read", leader=leader.get_server_address())
    states = json.dumps([(str(JobVertexID()), 128, 0, 127, "balance", "x")]).encode()
    header = json.dumps({"job": str(books.job.job_id), "address": ["127.0.0.1", 1]}).encode()

    def register(token):
        with socket.create_connection(leader.get_server_address(), timeout=60) as connection:
            reader, answers = FrameReader(1 << 20), []
            greeting = encode(FrameType.HELLO, 0, json.dumps({"token": token}).encode())
            for frame in (greeting, encode(FrameType.REGISTER, 1, header, states)):
                connection.sendall(frame)
                answers = reader.feed(connection.recv(65536))
            return answers[0]

    refused = register("read")
    assert (refused.type, refused.fields()["error"]) == (FrameType.SERVER_FAILURE, "UnauthorizedError")
    assert register("serve").type == FrameType.RESULT
    until(lambda: groups_held(leader, books.job) == 0)
    bench.server(books.job, share=share_of(0, 2), leader=leader.get_server_address(), **tokens)
    bench.server(books.job, share=share_of(1, 2), leader=leader.get_server_address(), token="x", server_token="serve")
    until(lambda: groups_held(leader, books.job) == 128)
    assert stranger.get_server_address() not in servers_known(leader, books)
    for token in ("read", "serve"):
        assert bench.client(leader, token=token).get_many("bank", "balance", KEYS).as_dict() == books.accounts
    with pytest.raises(UnauthorizedError):
        bench.client(leader, token="x").get_many("bank", "balance", KEYS)


def test_where_anybody_may_read_a_token_of_servers_still_says_who_registers(bench, books):
    leader = bench.server(books.job, share=NOTHING, server_token="serve")
    bench.server(books.job, leader=leader.get_server_address())
    time.sleep(0.3)
    assert groups_held(leader, books.job) == 0
    bench.server(books.job, leader=leader.get_server_address(), server_token="serve")
    until(lambda: groups_held(leader, books.job) == 128)
    assert bench.client(leader).get_many("bank", "balance", KEYS).as_dict() == books.accounts


def test_names_that_do_not_exist_leave_nothing_behind(bench, books, leader):
    bench.server(books.job, leader=leader.get_server_address())
    until(lambda: groups_held(leader, books.job) == 128)
    proxy = bench.server()
    let_ask(proxy, leader, books.job)
    client = bench.client(proxy)
    for number in range(50):
        with pytest.raises(UnknownKvStateLocationError):
            client.describe("bank", f"nothing {number}")
        with pytest.raises(UnknownLocationError):
            client.describe(f"no job {number}", "balance")
    assert client.get_kv_state("bank", "balance", KEYS[0]).checkpoint_id == 1
    assert [name for _, name in proxy._locations._known] == ["balance"]
