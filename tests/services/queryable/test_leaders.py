"""Readers of a job whose leader is elected by ZooKeeper, killed, replaced by another process, and restored."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from holdfast.checkpoint.completed_checkpoint import try_read_retained
from holdfast.checkpoint.options import RECOVERY_PATH
from holdfast.ha.zookeeper import ZooKeeperLeaderElectionHaServices
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.queryable import QueryableStateClient, ServerSettings, StateServer
from holdfast.queryable.server.proxy import parse_address
from holdfast.queryable.server.server import all_key_groups
from holdfast.queryable.wire.errors import (
    QueryConnectionError,
    QueryTimeoutError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    UnknownLocationError,
)
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.leader_election_contract import RecordingRetrievalListener
from holdfast.testing.server.zookeeper import ZooKeeperServer
from tests.programs.queried_job import ACCOUNTS, NAME, balance_after
from tests.stories.process import kill_group, start
from tests.unit.cli.test_query import Server
from tests.unit.queryable.live_job import (
    Witness,
    contradictions,
    free_port,
    read_by_scan,
    read_many,
    read_one,
    until,
)

pytestmark = pytest.mark.services

# While nobody leads, a proxy that holds nothing itself cannot answer; that is an error, and never a wrong answer.
NOBODY_LEADS = (
    QueryConnectionError,
    QueryTimeoutError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    UnknownLocationError,
)


def test_a_leader_is_killed_and_another_process_goes_on_and_no_reader_sees_anything_else(tmp_path):
    checkpoints, job_id = tmp_path / "checkpoints", JobID.from_name(NAME)
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer())
        options = {
            "high-availability.type": "zookeeper",
            "high-availability.storageDir": str(tmp_path / "ha"),
            "high-availability.zookeeper.quorum": zookeeper.connect_string,
            "high-availability.zookeeper.client.session-timeout": "4 s",
            "high-availability.zookeeper.client.tolerate-suspended-connections": "true",
            "execution.checkpointing.dir": str(checkpoints),
        }
        services = ZooKeeperLeaderElectionHaServices(Configuration(options), ThreadPoolExecutor(2))
        stack.callback(services.close)
        directory = JobDirectory(LocalFileSystem(), str(checkpoints), job_id)
        directory.create()
        register = services.get_checkpoint_recovery_factory().get_register(job_id)
        log = tmp_path / "log"
        arguments = [part for key, value in options.items() for part in ("-D", f"{key}={value}")]

        def candidate(*more):
            """A driver of the job; its query server is what it publishes as its address."""
            port = free_port()
            serves = ("-D", "queryable-state.enable=true", "-D", f"queryable-state.proxy.ports={port}")
            process = start("queried_job.py", checkpoints, "--epochs", 20_000, *arguments, *serves, *more, log=log)
            processes[f"127.0.0.1:{port}"] = process

        processes = {}
        stack.callback(lambda: [kill_group(process) for process in processes.values() if process.poll() is None])
        candidate()
        candidate()
        who_leads = RecordingRetrievalListener()
        retrieval = services.get_job_manager_leader_retriever(job_id)
        stack.callback(retrieval.stop)
        retrieval.start(who_leads)

        def served(share):
            server = stack.enter_context(StateServer(ServerSettings(poll=0.02)))
            server.serve_job(directory, register, share=share, leader=services.get_job_manager_leader_retriever(job_id))
            return stack.enter_context(QueryableStateClient(*server.get_server_address())), server

        proxy, _ = served(lambda maximum: ())
        replica, replica_server = served(all_key_groups)
        # A process of its own that holds a half, and finds the leader, who has the rest, by itself.
        half = stack.enter_context(Server(checkpoints, "--port", 0, "--part", "1/2", *arguments))
        half_client = stack.enter_context(QueryableStateClient(*parse_address(half.address)))

        def newest():
            found = replica_server.follower(job_id).replica.newest
            return found.checkpoint_id if found is not None else 0

        def beyond(more, since):
            return lambda: newest() >= since + more

        until(beyond(3, 0), 60)
        until(lambda: _answers(replica))
        # A replica of everything answers all the while, whoever leads and whether anybody does.
        witnesses = [Witness(_another(client), read, patient) for client, read, patient in (
            (proxy, read_many, NOBODY_LEADS), (proxy, read_one, NOBODY_LEADS), (replica, read_many, ()),
            (replica, read_by_scan, ()), (half_client, read_many, NOBODY_LEADS))]  # fmt: skip
        for witness in witnesses:
            witness.start()
        for _ in range(2):
            since = newest()
            until(beyond(5, since), 60)
            until(lambda: who_leads.address in processes)
            kill_group(processes.pop(who_leads.address))
            candidate()
            until(beyond(4, newest()), 60)
            reads = [witness.reads for witness in witnesses]
            # Those who ask a proxy without anything of its own are answered by the new leader's server.
            until(
                lambda before=reads: all(w.wrong or w.reads > r + 5 for w, r in zip(witnesses, before, strict=True)),
                60,
                lambda: told(witnesses, log),
            )
        # All are killed, and another process leads that goes back to the oldest checkpoint that is retained. That is
        # announced: by a new lineage.
        for address in list(processes):
            kill_group(processes.pop(address))
        until(lambda: who_leads.address is None)  # where to start counts for a process that leads at once
        pointer, _ = try_read_retained(directory, register.read())[0]
        candidate("-D", f"{RECOVERY_PATH.key}={directory.absolute(pointer.path)}")
        until(lambda: all(w.wrong or len(w.lineages) == 2 for w in witnesses), 60, lambda: told(witnesses, log))
        until(beyond(4, newest()), 60)
        for witness in witnesses:
            witness.end()

        assert [witness.wrong for witness in witnesses] == [[]] * 5, told(witnesses, log)
        assert contradictions(witnesses) == {}
        assert all(len(witness.seen) > 8 for witness in witnesses)
        assert [len(witness.lineages) for witness in witnesses] == [2] * 5
        last = proxy.get_many(NAME, "balances", ACCOUNTS)
        assert last.as_dict() == {a: (last[0].epochs, balance_after(a, last[0].epochs)) for a in ACCOUNTS}


def told(witnesses, log):
    """What each has seen at last, and what the processes have said."""
    last = [(witness.reads, witness.seen[-1:], witness.wrong, repr(witness.failure)) for witness in witnesses]
    return f"{last}\n{log.read_text()[-2000:]}"


def _another(client):
    return QueryableStateClient(*client._address)


def _answers(client):
    try:
        return client.get_kv_state(NAME, "balances", ACCOUNTS[0])
    except NOBODY_LEADS:
        return None
