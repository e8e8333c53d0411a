"""`holdfast query` and `holdfast state-server`, as somebody types them."""

import base64
import datetime
import json
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.query import plain
from holdfast.queryable import QueryableStateClient, ServerSettings, StateServer
from holdfast.queryable.wire.errors import UnknownJobError, UnknownLocationError
from holdfast.state.descriptor import MapStateDescriptor, ValueStateDescriptor
from holdfast.types.row import Row
from holdfast.types.types import Types
from tests.programs.written_job import WrittenJob
from tests.unit.queryable.live_job import free_port, until


def job_of(directory, key_type="string", name="flights"):
    value, entries = (
        ValueStateDescriptor("total", "struct<n: bigint, at: date>"),
        MapStateDescriptor("by", "int", "double"),
    )
    value.set_queryable("aircraft")
    entries.set_queryable("by-month")
    return WrittenJob(directory, [value, entries], key_type, name=name)


def write(n):
    def of(states):
        states.total.update((n, datetime.date(2013, 1, n)))
        states.by.put(n, n / 2)

    return of


class Server:
    """`holdfast state-server` in a process of its own."""

    def __init__(self, *arguments):
        command = [sys.executable, "-c", "from holdfast.cli import main; main()", "state-server"]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.address = self.process.stdout.readline().rpartition(" ")[2].strip()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.terminate()
        assert self.process.wait(20) == 0
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    job = job_of(directory)
    job.checkpoint([("N14228", write(1)), ("N24211", write(2))])
    composite = job_of(directory, "struct<origin: string, day: date>", name="days")
    composite.checkpoint([(("EWR", datetime.date(2013, 1, 1)), write(7))])
    spans = job_of(directory, "struct<line: string, late: interval day to second>", name="spans")
    spans.checkpoint([(("S1", datetime.timedelta(days=1, seconds=0.5)), write(3))])
    delays = job_of(directory, "interval day to second", name="delays")
    delays.checkpoint([(datetime.timedelta(seconds=-90), write(4))])
    untyped = job_of(directory, None, name="untyped")
    untyped.checkpoint([(5, write(5)), ("five", write(6))])
    with Server(directory, "--port", 0) as server:
        yield job, server.address


def holdfast(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    return result.exit_code, result.stdout, result.stderr


def query(address, *arguments):
    code, out, err = holdfast("query", "--address", address, *arguments)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()] if "--json" in arguments else out


def test_the_state_of_some_keys_is_printed(served):
    _, address = served
    rows = query(address, "flights", "aircraft", "N14228", "N0", "N24211", "--json")
    assert [row["value"] for row in rows] == [{"n": 1, "at": "2013-01-01"}, None, {"n": 2, "at": "2013-01-02"}]
    assert [row["key"] for row in rows] == ["N14228", "N0", "N24211"]
    assert {row["checkpoint_id"] for row in rows} == {1}
    line = query(address, "flights", "aircraft", "N14228")
    assert "checkpoint 1  N14228" in line and '{"n": 1, "at": "2013-01-01"}' in line


def test_a_map_and_the_id_of_a_job(served):
    job, address = served
    assert query(address, job.job_id, "by-month", "N14228", "--json")[0]["value"] == {"1": 0.5}


def test_keys_of_several_columns_and_without_a_type(served):
    _, address = served
    assert query(address, "days", "aircraft", '["EWR", "2013-01-01"]', "--json")[0]["value"]["n"] == 7
    found = query(address, "untyped", "aircraft", "5", "five", '"5"', "--json")
    assert [row["value"] and row["value"]["n"] for row in found] == [5, 6, None]


def test_a_key_that_is_an_interval_is_written_in_seconds(served):
    _, address = served
    assert query(address, "--json", "delays", "aircraft", "--", "-90")[0]["value"]["n"] == 4
    assert query(address, "spans", "aircraft", '["S1", 86400.5]', "--json")[0]["value"]["n"] == 3
    code, _, err = holdfast("query", "--address", address, "delays", "aircraft", "1 day")
    assert code == 2 and "'1 day' is no key of this state" in err


def test_bytes_that_only_the_program_can_read_are_explained_and_still_json(tmp_path):
    states = (
        ValueStateDescriptor("whole"),
        ValueStateDescriptor("part", Types.ROW_NAMED(["n", "thing"], [Types.LONG(), Types.PICKLED_BYTE_ARRAY()])),
    )
    for state in states:
        state.set_queryable(state.name)
    job = WrittenJob(tmp_path, states, name="things")
    job.checkpoint([("a", lambda s: (s.whole.update({1, 2}), s.part.update((7, {1, 2}))))])
    with StateServer(ServerSettings()) as server:
        server.serve_job(job.directory, job.register)
        address = "{}:{}".format(*server.get_server_address())
        for more in ((), ("--json",)):
            code, out, err = holdfast("query", "things", "whole", "a", "--address", address, *more)
            assert code == 0 and "no declared type: only the program that wrote them" in err
            assert pickle.loads(base64.b64decode(out.split('"')[-2])) == {1, 2}
            code, out, err = holdfast("query", "things", "part", "a", "--address", address, *more)
            assert code == 0 and "Of the values value.thing has no declared type" in err
            assert "declared" not in out and '"n": 7' in out
        with QueryableStateClient(*server.get_server_address()) as client:
            assert client.describe("things", "whole").explanation
    declared = job_of(tmp_path)
    declared.checkpoint([("N14228", write(1))])
    with StateServer(ServerSettings()) as server:
        server.serve_job(declared.directory, declared.register)
        address = "{}:{}".format(*server.get_server_address())
        assert holdfast("query", "flights", "aircraft", "N14228", "--address", address)[2] == ""


def test_at_least_waits_for_the_first_checkpoint(tmp_path):
    job = job_of(tmp_path)
    with StateServer(ServerSettings(poll=0.01)) as server:
        follower = server.serve_job(job.directory, job.register)
        address = "{}:{}".format(*server.get_server_address())
        options = ("--address", address, "--at-least", 1, "--deadline", 60, "--json")
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(holdfast, "query", "flights", "aircraft", "N14228", *options)
            until(lambda: follower.replica._waiting or answer.done())
            job.checkpoint([("N14228", write(3))])
            code, out, err = answer.result(60)
    assert code == 0, err
    assert json.loads(out)["value"]["n"] == 3


def test_a_state_server_drops_a_job_whose_directory_is_removed_and_finds_it_when_it_begins_anew(tmp_path):
    job = job_of(tmp_path)
    for _ in range(3):
        job.checkpoint([("N14228", write(1))])
    other = job_of(tmp_path, name="others")
    other.checkpoint([("N14228", write(3))])
    with Server(tmp_path, "--port", 0) as server:
        host, port = server.address.split(":")
        with QueryableStateClient(host, int(port)) as client:
            assert client.get_kv_state("flights", "aircraft", "N14228").checkpoint_id == 3
            shutil.rmtree(job.directory.path)
            until(lambda: {known["job_name"] for known in client.jobs()} == {"others"})
            with pytest.raises((UnknownJobError, UnknownLocationError)):
                client.states("flights")
            time.sleep(1.5)  # the server has looked for jobs
            job_of(tmp_path).checkpoint([("N14228", write(2))])
            until(lambda: len(client.jobs()) == 2)
            found = client.get_kv_state("flights", "aircraft", "N14228")
            assert (found.checkpoint_id, found.value.n) == (1, 2)
        server.process.terminate()
        assert f"job {job.job_id} is gone" in server.process.stderr.read()


def test_a_server_at_all_addresses_says_under_which_name_it_is_reached(tmp_path):
    """The leader would send others to 0.0.0.0, which is themselves."""
    job = job_of(tmp_path)
    job.checkpoint([("N14228", write(1))])
    with StateServer(ServerSettings()) as leader:
        leader.serve_job(job.directory, job.register, share=lambda maximum: ())
        registry = leader.get_kv_state_location_oracle(job.job_id)

        def hosts():
            location = registry.get_kv_state_location("aircraft")
            return {placed.address[0] for placed in location.placements} if location is not None else set()

        told = ("--host", "0.0.0.0", "--port", 0, "--leader", "{}:{}".format(*leader.get_server_address()))
        with Server(tmp_path, *told):
            until(lambda: hosts() == {socket.gethostname()})
        with Server(tmp_path, *told, "--advertise", "127.0.0.1"):
            until(lambda: hosts() == {"127.0.0.1"})
            found = query("{}:{}".format(*leader.get_server_address()), "flights", "aircraft", "N14228", "--json")
            assert found[0]["value"]["n"] == 1


def test_watching_shows_each_checkpoint_until_it_is_interrupted(served):
    job, address = served
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "query", "flights", "aircraft", "N14228"]
    watching = subprocess.Popen(
        [*command, "--watch", "--json", "--address", address], stdout=subprocess.PIPE, text=True
    )
    try:
        shown = [json.loads(watching.stdout.readline())]
        for n in (3, 4, 5):
            job.checkpoint([("N14228", write(n))])
            shown.append(json.loads(watching.stdout.readline()))
    finally:
        watching.kill()
        watching.wait()
        watching.stdout.close()
    assert [row["value"]["n"] for row in shown] == [1, 3, 4, 5]
    assert [row["checkpoint_id"] for row in shown] == list(
        range(shown[0]["checkpoint_id"], shown[0]["checkpoint_id"] + 4)
    )
    code, _, err = holdfast("query", "flights", "aircraft", "N14228", "--address", address, "--checkpoint", 99)
    assert code == 1 and "CheckpointNotAvailableError" in err
    old = shown[-1]["checkpoint_id"] - 1
    assert query(address, "flights", "aircraft", "N14228", "--json", "--checkpoint", old)[0]["value"]["n"] == 4


def test_watching_waits_for_a_server_and_goes_on_when_it_comes_back(tmp_path):
    job, port = job_of(tmp_path), free_port()
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "query", "flights", "aircraft", "N14228"]
    watching = subprocess.Popen(
        [*command, "--watch", "--json", "--address", f"127.0.0.1:{port}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert "No connection" in watching.stderr.readline()
        shown = []
        for n in (1, 2):
            job.checkpoint([("N14228", write(n))])
            with StateServer(ServerSettings(ports=(port,))) as server:
                server.serve_job(job.directory, job.register)
                shown.append(json.loads(watching.stdout.readline())["value"]["n"])
    finally:
        watching.kill()
        watching.communicate()
    assert shown == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nobody", "aircraft", "k"), 1, "Potential reasons are"),
        (("flights", "nothing", "k"), 1, "Registered are: 'aircraft', 'by-month'"),
        (("days", "aircraft", "EWR"), 2, "is no key of this state"),
        (("days", "aircraft", '["EWR", "yesterday"]'), 2, "is no key of this state"),
        (("flights", "aircraft"), 2, "Missing argument"),
        (("flights", "aircraft", "k", "--checkpoint", "1", "--watch"), 2, "goes with neither"),
        (("flights", "aircraft", "k", "--at-least", "99", "--deadline", "0.1"), 1, "did not complete within"),
    ],
)
def test_what_is_wrong_is_said(served, arguments, code, words):
    _, address = served
    found, _, err = holdfast("query", "--address", address, *arguments)
    assert found == code
    assert words in err


def test_nobody_listens():
    code, _, err = holdfast("query", "--address", "127.0.0.1:1", "flights", "aircraft", "k")
    assert code == 1
    assert "No connection to 127.0.0.1:1" in err
    assert "holdfast state-server DIR" in err


def test_a_server_follows_jobs_that_begin_later_and_wants_the_token(tmp_path):
    with Server(tmp_path / "later", "--port", 0, "--token", "secret") as server:
        job = job_of(tmp_path / "later")
        job.checkpoint([("N1", write(1))])
        ready = threading.Event()
        for _ in range(100):
            code, out, err = holdfast(
                "query", "--address", server.address, "--token", "secret", "flights", "aircraft", "N1"
            )
            if code == 0:
                break
            ready.wait(0.1)
        assert '"n": 1' in out, err
        code, _, err = holdfast("query", "--address", server.address, "flights", "aircraft", "N1")
        assert code == 1 and "UnauthorizedError" in err


def test_a_server_takes_the_options_of_a_job(tmp_path):
    """Else a token among them would protect nothing."""
    job = job_of(tmp_path)
    job.checkpoint([("N14228", write(1)), ("N24211", write(2))])
    options = {"proxy.ports": 0, "token": "secret", "max-keys": 1}
    with Server(tmp_path, *(part for key, v in options.items() for part in ("-D", f"queryable-state.{key}={v}"))) as to:
        asked = ("query", "--address", to.address, "flights", "aircraft", "N14228")
        code, _, err = holdfast(*asked)
        assert code == 1 and "UnauthorizedError" in err
        assert holdfast(*asked, "--token", "secret")[0] == 0
        code, _, err = holdfast(*asked, "N24211", "--token", "secret")
        assert code == 1 and "2 keys at once are more than the limit of 1" in err
    with Server(tmp_path, "--port", 0, "--token", "other", "-D", "queryable-state.token=secret") as to:
        asked = ("query", "--address", to.address, "flights", "aircraft", "N14228")
        assert [holdfast(*asked, "--token", token)[0] for token in ("secret", "other")] == [1, 0]


@pytest.mark.parametrize(
    "arguments", [("--part", "1/2"), ("--part", "x", "--leader", "a:1"), ("--part", "1/2", "--key-groups", "0-1")]
)
def test_a_server_of_a_part_needs_a_leader_and_one_way_to_say_which(tmp_path, arguments):
    code, _, _ = holdfast("state-server", tmp_path, *arguments)
    assert code == 2


def test_values_are_printed_as_json_has_them():
    value = Row(a=1, b=[b"\x00\x01", None], c={2: Decimal("1.50")}, d=datetime.timedelta(seconds=1), e=(True, 1.5))
    assert plain(value) == {"a": 1, "b": ["AAE=", None], "c": {"2": "1.50"}, "d": "0:00:01", "e": [True, 1.5]}
    assert json.dumps(plain(value))
