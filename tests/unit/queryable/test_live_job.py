"""Readers of a job that is killed, resumed, restored to an earlier checkpoint and taken over by another process."""

import threading

import pytest

from holdfast.checkpoint.completed_checkpoint import try_read_retained
from holdfast.errors import ConfigurationError
from holdfast.kernel.ids import JobID
from holdfast.queryable import QueryableStateClient, at_least
from holdfast.queryable.wire.errors import QueryConnectionError, UnknownKvStateLocationError
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import FileRegister
from tests.programs.queried_job import ACCOUNTS, NAME, balance_after, job_master
from tests.stories.process import kill_group, start
from tests.unit.queryable.live_job import Witness, contradictions, free_port, read_by_scan, read_many, read_one, until


@pytest.fixture
def directory(tmp_path):
    directory = JobDirectory(LocalFileSystem(), str(tmp_path / "checkpoints"), JobID.from_name(NAME))
    directory.create()
    return directory


def test_no_reader_sees_anything_but_completed_checkpoints_whatever_happens_to_the_job(tmp_path, bench, directory):
    register = FileRegister(directory.fs, directory.register_dir)
    server = bench.server()
    server.serve_job(directory, register)
    client = bench.client(server)
    log = tmp_path / "log"

    def newest():
        jobs = client.jobs()
        return jobs[0]["checkpoint_id"] if jobs else 0

    def beyond(more):
        start_at = newest()
        return lambda: newest() >= start_at + more

    def begin(*options, fault=None):
        return start("queried_job.py", directory.root, *options, fault=fault, log=log)

    first = begin(fault="after:pointer.write:12=kill")
    until(beyond(2))
    witnesses = [Witness(bench.client(server), read) for read in (read_many, read_one, read_by_scan)]
    for witness in witnesses:
        witness.start()
    first.wait(60)
    begin(fault="before:pointer.write:3=kill").wait(60)
    # Two drivers at once: the second one is the new leader, and fences the first.
    deposed = begin()
    until(beyond(3))
    leader = begin()
    deposed.wait(60)
    until(beyond(3))
    kill_group(leader)
    # Back to the oldest checkpoint that is retained: this is announced by a new lineage.
    lineage_before = client.jobs()[0]["lineage"]
    pointer, _ = try_read_retained(directory, register.read())[0]
    restored = begin("-D", f"execution.state-recovery.path={directory.absolute(pointer.path)}")
    until(lambda: client.jobs()[0]["lineage"] != lineage_before)
    until(beyond(3))
    until(lambda: all(w.wrong or (w.reads > 50 and len(w.seen) > 8 and len(w.lineages) == 2) for w in witnesses))
    kill_group(restored)
    for witness in witnesses:
        witness.end()

    assert [witness.wrong for witness in witnesses] == [[], [], []], log.read_text()[-2000:]
    assert contradictions(witnesses) == {}
    assert [len(witness.lineages) for witness in witnesses] == [2, 2, 2]
    last = client.get_many(NAME, "balances", ACCOUNTS)
    assert last.as_dict() == {a: (last[0][0], balance_after(a, last[0][0])) for a in ACCOUNTS}


def test_the_process_of_a_job_answers_queries_while_the_job_runs(tmp_path):
    port = free_port()
    options = {"queryable-state.enable": "true", "queryable-state.token": "secret"}
    master = job_master(str(tmp_path), 10_000, 0.02, options | {"queryable-state.proxy.ports": str(port)})

    thread = threading.Thread(target=master.run)
    thread.start()
    with QueryableStateClient("127.0.0.1", port, token="secret") as client:

        def first_answer():
            try:
                return client.get_kv_state(NAME, "balances", ACCOUNTS[0])
            except (QueryConnectionError, UnknownKvStateLocationError):
                return None

        until(first_answer)
        first = first_answer()
        later = client.get_many(NAME, "balances", ACCOUNTS, consistency=at_least(first.checkpoint_id + 5))
        epochs = later[0].epochs
        assert later.as_dict() == {account: (epochs, balance_after(account, epochs)) for account in ACCOUNTS}
        assert client.get_kv_state(NAME, "kinds", ACCOUNTS[1], map_key="odd").value % 2 == 1
        assert len(client.get_kv_state(NAME, "recent", ACCOUNTS[1]).value) == min(3, epochs)
        master.control.stop()
        thread.join()
        with pytest.raises(QueryConnectionError):
            client.jobs()


def test_a_job_runs_although_its_query_server_cannot_listen(tmp_path, bench, caplog):
    taken = bench.server().get_server_address()[1]
    options = {"queryable-state.enable": "true", "queryable-state.proxy.ports": str(taken)}
    master = job_master(str(tmp_path), 2, 0, options)
    assert master.run().value == "SUSPENDED"
    assert "runs without EmbeddedQueryServer" in caplog.text


def test_a_job_with_an_option_that_no_server_could_have_is_refused_before_it_runs(tmp_path):
    for wrong in (
        {"queryable-state.enable": "true", "queryable-state.proxy.ports": "x"},
        {"rest.enable": "true", "rest.bind-port": "x"},
        {"rest.enable": "true", "rest.server.numThreads": "0"},
        {"metrics.reporter.otel.exporter.endpoint": "collector:4317"},
    ):
        with pytest.raises(ConfigurationError, match=list(wrong)[-1].replace("proxy", "(proxy|server)")):
            job_master(str(tmp_path), 2, 0, wrong).run()
