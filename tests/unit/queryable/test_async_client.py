"""Asking from asyncio: many at once, each with its own answer or error."""

import asyncio
import inspect
from datetime import date

import pytest

from holdfast.errors import HoldfastError, OutputTypeError
from holdfast.queryable import (
    AsyncQueryableStateClient,
    QueryableStateClient,
    ServerSettings,
    StateServer,
    at_least,
    exactly,
)
from holdfast.queryable.wire.errors import (
    CheckpointNotAvailableError,
    LimitExceededError,
    QueryConnectionError,
    QueryTimeoutError,
    UnknownKeyOrNamespaceError,
    WrongKeyTypeError,
)
from holdfast.queryable.wire.frame import FrameType, Limits, encode
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.programs.written_job import WrittenJob


@pytest.fixture
def job(tmp_path):
    value, history = ValueStateDescriptor("value", "string"), ListStateDescriptor("history", "bigint")
    value.set_queryable("value")
    history.set_queryable("history")
    job = WrittenJob(tmp_path, [value, history])
    for epoch in range(3):
        write(job, epoch)
    return job


def write(job, epoch):
    def of(i):
        def change(states):
            states.value.update(f"{i} at {epoch}")
            states.history.add(epoch)

        return change

    return job.checkpoint([(f"k{i}", of(i)) for i in range(50)])


def run(server, story):
    async def main():
        async with AsyncQueryableStateClient(*server.get_server_address()) as client:
            return await story(client)

    return asyncio.run(main())


def test_many_gets_at_once_have_their_own_answers_and_errors(job, bench):
    async def story(client):
        await client.get_kv_state("job", "value", "k0")
        gets = [client.get_kv_state("job", "value", f"k{i}") for i in range(60)]
        gets += [client.get_kv_state("job", "history", f"k{i}") for i in range(3)]
        gets += [client.get_kv_state("job", "value", 5), client.get_kv_state("job", "value", "k1", key_type="bigint")]
        gets += [client.get_kv_state("job", "value", "k1", consistency=exactly(number)) for number in (1, 2, 99)]
        return await asyncio.gather(*gets, return_exceptions=True)

    found = run(bench.server(job), story)
    assert [answer.value for answer in found[:50]] == [f"{i} at 2" for i in range(50)]
    assert all(type(error) is UnknownKeyOrNamespaceError for error in found[50:60])
    assert "'k55'" in str(found[55])
    assert [answer.value for answer in found[60:63]] == [[0, 1, 2]] * 3
    assert [type(error) for error in found[63:65]] == [WrongKeyTypeError] * 2
    assert [answer.value for answer in found[65:67]] == ["1 at 0", "1 at 1"]
    assert type(found[67]) is CheckpointNotAvailableError


def test_more_gets_at_once_than_travel_together(job, bench):
    async def story(client):
        await client.get_kv_state("job", "value", "k0")
        return await asyncio.gather(*(client.get_kv_state("job", "value", f"k{i % 50}") for i in range(1000)))

    assert [answer.value for answer in run(bench.server(job), story)] == [f"{i % 50} at 2" for i in range(1000)]


def test_gets_that_are_too_large_together_are_answered_one_by_one(tmp_path, bench):
    value = ValueStateDescriptor("value", "string")
    value.set_queryable("value")
    job = WrittenJob(tmp_path, [value])
    sizes = {f"k{i}": 30_000 for i in range(9)} | {"huge": 100_000}
    job.checkpoint([(key, lambda states, size=size: states.value.update("x" * size)) for key, size in sizes.items()])

    async def story(client):
        await client.get_kv_state("job", "value", "k0")
        gets = (client.get_kv_state("job", "value", key) for key in sizes)
        return await asyncio.gather(*gets, return_exceptions=True)

    *found, huge = run(bench.server(job, limits=Limits(message_bytes=50_000)), story)
    assert [len(answer.value) for answer in found] == [30_000] * 9
    assert type(huge) is LimitExceededError


def test_a_value_that_python_has_not_is_an_error_of_its_own_get_and_cancels_nobody(tmp_path, bench):
    days = MapStateDescriptor("days", "date", "bigint")
    days.set_queryable("days")
    job = WrittenJob(tmp_path, [days])

    def far(states):
        states.days.put(date(2024, 2, 29), 1)
        states.days._write(5_000_000, 2)  # as a program of another language may have it

    job.checkpoint([("near", lambda states: states.days.put(date(2024, 2, 29), 1)), ("far", far)])
    server = bench.server(job)
    with pytest.raises(OutputTypeError, match="The key 5000000 is not of type date") as blocking:
        bench.client(server).get_kv_state("job", "days", "far")

    async def story(client):
        await client.get_kv_state("job", "days", "near")
        gets = [client.get_kv_state("job", "days", key) for key in ("near", "far", "near", "far")]
        return await asyncio.gather(*gets, return_exceptions=True)

    near, far, *rest = run(server, story)
    assert [near.value, rest[0].value] == [{date(2024, 2, 29): 1}] * 2
    assert [(type(error), str(error)) for error in (far, rest[1])] == [(OutputTypeError, str(blocking.value))] * 2


def test_who_waits_for_a_checkpoint_holds_up_nobody(job, bench):
    async def story(client):
        await client.get_kv_state("job", "value", "k0")
        waiting = [
            asyncio.create_task(client.get_kv_state("job", "value", f"k{i}", consistency=at_least(4))) for i in range(5)
        ]
        late = asyncio.create_task(client.get_kv_state("job", "value", "k0", consistency=at_least(9), deadline=0.2))
        for _ in range(20):
            assert (await client.get_kv_state("job", "value", "k3")).checkpoint_id == 3
        assert not any(task.done() for task in waiting)
        await asyncio.get_running_loop().run_in_executor(None, write, job, 3)
        found = await asyncio.gather(*waiting)
        with pytest.raises(QueryTimeoutError):
            await late
        return found

    found = run(bench.server(job), story)
    assert [(answer.value, answer.checkpoint_id) for answer in found] == [(f"{i} at 3", 4) for i in range(5)]


def test_several_keys_scans_and_descriptions(job, bench):
    async def story(client):
        many = await client.get_many("job", "value", ["k1", "none", "k2"])
        head, batches = await client.scan("job", "value", where=[("key", "==", "k7")])
        rows = [row async for batch in batches for row in batch.to_pylist()]
        return many.values, head.origin.checkpoint_id, rows, await client.states("job"), await client.jobs()

    values, checkpoint, rows, states, [known] = run(bench.server(job), story)
    assert values == ["1 at 2", None, "2 at 2"]
    assert checkpoint == known["checkpoint_id"] == 3
    assert rows == [{"key": "k7", "value": "7 at 2"}]
    assert [(state.name, state.kind.value) for state in states] == [("history", "list"), ("value", "value")]


def test_a_checkpoint_is_held(job, bench):
    server = bench.server(job)

    async def ask():
        async with AsyncQueryableStateClient(*server.get_server_address()) as client:
            [state, *_] = await client.states(job.job_id)
            return await client.hold(job.job_id, state.name, 5)

    held = asyncio.run(ask())
    assert server.follower(job.job_id).replica._held.keys() == {held.checkpoint_id}


def test_a_client_finds_a_server_that_was_started_again(job, bench):
    async def story(client):
        nonlocal server
        assert (await client.get_kv_state("job", "value", "k1")).checkpoint_id == 3
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, server.shutdown)
        with pytest.raises(QueryConnectionError):
            await client.get_kv_state("job", "value", "k1")
        server = await loop.run_in_executor(None, lambda: bench.server(job, ports=(port,)))
        assert (await client.get_kv_state("job", "value", "k1")).checkpoint_id == 3

    server = bench.server(job)
    port = server.get_server_address()[1]
    run(server, story)


def test_a_get_that_nobody_waits_for_any_more_harms_nobody(job, bench):
    async def story(client):
        await client.get_kv_state("job", "value", "k0")
        gets = [asyncio.create_task(client.get_kv_state("job", "value", f"k{i}")) for i in range(10)]
        await asyncio.sleep(0)
        for task in gets[::2]:
            task.cancel()
        return await asyncio.gather(*gets, return_exceptions=True)

    found = run(bench.server(job), story)
    assert [answer.value for answer in found[1::2]] == [f"{i} at 2" for i in range(1, 10, 2)]


def test_a_state_whose_type_has_changed_with_a_new_program_is_read_by_its_new_type(tmp_path, bench):
    """A known description is renewed when the answer says that it is of another."""

    def of(type_info, value, lease_of=None):
        descriptor = ValueStateDescriptor("v" if lease_of is None else "w", type_info)
        descriptor.set_queryable("value")
        job = WrittenJob(tmp_path, [descriptor], name="changing")
        number = job.checkpoint([("k", lambda states: vars(states)[descriptor.name].update(value))])
        return job, number

    job, _ = of("bigint", 5)
    server = bench.server(job)

    async def story(client):
        assert (await client.get_kv_state("changing", "value", "k")).value == 5
        _, number = await asyncio.get_running_loop().run_in_executor(None, of, "string", "five", True)
        found = await client.get_kv_state("changing", "value", "k", consistency=at_least(number))
        return found.value, (await client.get_kv_state("changing", "value", "k")).value

    assert run(server, story) == ("five", "five")
    assert bench.client(server).get_kv_state("changing", "value", "k").value == "five"


def test_nobody_listens(bench):
    server = StateServer(ServerSettings())
    server.start()
    address = server.get_server_address()
    server.shutdown()

    async def story():
        async with AsyncQueryableStateClient(*address) as client:
            await client.jobs()

    with pytest.raises(QueryConnectionError, match="No connection to 127"):
        asyncio.run(story())


@pytest.mark.parametrize("host", ["query..example", "x" * 70 + ".example", "query\0example"])
def test_no_host_can_have_that_name(host):
    async def story():
        async with AsyncQueryableStateClient(host, 9000) as client:
            await client.jobs()

    with pytest.raises(QueryConnectionError, match="No connection to"):
        asyncio.run(story())
    with pytest.raises(QueryConnectionError, match="No connection to"):
        QueryableStateClient(host, 9000).jobs()


def test_both_clients_have_the_same_methods_with_the_same_arguments():
    def surface(client):
        methods = {name: kind for name, kind in vars(client).items() if not name.startswith("_")}
        return {name: list(inspect.signature(method).parameters.values()) for name, method in methods.items()}

    assert surface(AsyncQueryableStateClient) == surface(QueryableStateClient)


def test_both_clients_raise_the_same_errors(job, bench):
    server = bench.server(job)
    blocking = bench.client(server)
    asks = [
        ("get_kv_state", ("job", "value", "nobody"), {}),
        ("get_kv_state", ("job", "value", 7), {}),
        ("get_kv_state", ("job", "value", "k1"), {"map_key": 1}),
        ("get_kv_state", ("job", "value", "k1"), {"namespace": b"x"}),
        ("get_kv_state", ("job", "value", "k1"), {"namespace": 5}),
        ("get_kv_state", ("job", "value", "k1"), {"key_type": "bigint"}),
        ("get_kv_state", ("job", "value", "k1"), {"consistency": at_least(99), "deadline": 0.05}),
        ("get_kv_state", ("job", "value", "k1"), {"consistency": exactly(99)}),
        ("get_kv_state", ("job", "value", "k1"), {"deadline": -1}),
        ("get_kv_state", ("job", "nothing", "k1"), {}),
        ("get_kv_state", ("nobody", "value", "k1"), {}),
        ("get_many", ("job", "value", []), {}),
        ("get_many", ("job", "value", ["k1", None]), {}),
        ("scan", ("job", "value"), {"where": [("nothing", ">", 1)]}),
        ("scan", ("job", "value"), {"batch_rows": 0}),
        ("scan", ("job", "value"), {"consistency": exactly(99)}),
        ("scan", ("job", "value"), {"deadline": -1}),
        ("hold", ("job", "value", 99_999), {}),
        ("describe", ("job", "nothing"), {}),
        ("states", ("nobody",), {}),
    ]

    def failure(error):
        return type(error).__name__, str(error)

    async def story(client):
        found = []
        await client.describe("job", "value")
        for method, arguments, more in asks * 2:  # the second time what the state is is known
            with pytest.raises(HoldfastError) as raised:
                await getattr(client, method)(*arguments, **more)
            found.append(failure(raised.value))
        return found

    expected = []
    for method, arguments, more in asks * 2:
        with pytest.raises(HoldfastError) as raised:
            getattr(blocking, method)(*arguments, **more)
        expected.append(failure(raised.value))
    assert run(server, story) == expected


def test_a_server_that_says_nothing_is_not_waited_for_longer_than_asked(monkeypatch):
    """It takes the greeting, and hangs."""
    monkeypatch.setattr("holdfast.queryable.client.client_core.PATIENCE", 0.2)

    async def story():
        async def greet(reader, writer):
            await reader.read(1000)
            writer.write(encode(FrameType.RESULT, 0, b"{}"))

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        async with AsyncQueryableStateClient(*address) as client:
            for ask in (client.scan("job", "value", deadline=0), client.hold("job", "value", 5, deadline=0)):
                with pytest.raises(QueryTimeoutError):
                    await ask
        with QueryableStateClient(*address) as blocking, pytest.raises(QueryTimeoutError):
            await asyncio.to_thread(lambda: blocking.scan("job", "value", deadline=0))
        server.close()

    asyncio.run(story())


def test_a_scan_that_nobody_reads_is_closed(job, bench):
    async def story(client):
        head, batches = await client.scan("job", "value")
        assert head.origin.checkpoint_id == 3
        await client.close()
        assert len(server._service._connections) == 1
        await batches.aclose()
        while server._service._connections:
            await asyncio.sleep(0.01)

    server = bench.server(job)
    run(server, story)
