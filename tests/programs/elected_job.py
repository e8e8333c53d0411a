"""A candidate for the leadership of the job of queried_job.py: runs it while ZooKeeper says so, and ends after that.

Its query server is what it publishes as its address.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.checkpoint.options import RECOVERY_PATH
from holdfast.ha.checkpoint_recovery import RegisterCheckpointRecoveryFactory
from holdfast.ha.leader_election import LeaderContender
from holdfast.ha.zookeeper import ZooKeeperLeaderElectionHaServices
from holdfast.kernel.configuration import Configuration
from holdfast.queryable import ServerSettings, StateServer
from holdfast.runtime.job_master import JobMaster
from tests.programs.queried_job import job_master


class Candidate(LeaderContender):
    def __init__(self) -> None:
        self.session: uuid.UUID | None = None
        self.granted = threading.Event()

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        self.session = leader_session_id
        self.granted.set()

    def revoke_leadership(self) -> None:
        os._exit(3)

    def handle_error(self, error: BaseException) -> None:
        os._exit(4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints")
    parser.add_argument("-D", dest="options", action="append", default=[])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    configuration = Configuration.from_properties(arguments.options)
    services = ZooKeeperLeaderElectionHaServices(configuration, ThreadPoolExecutor(2))
    chosen = {key: value for key, value in configuration.to_dict().items() if key == RECOVERY_PATH.key}
    job = job_master(arguments.checkpoints, 5000, 0.02, chosen).job
    factory = services.get_checkpoint_recovery_factory()
    assert isinstance(factory, RegisterCheckpointRecoveryFactory)
    job = replace(job, register=factory.get_register(job.job_id))
    candidate = Candidate()
    election = services.get_job_manager_leader_election(job.job_id)
    with StateServer(ServerSettings()) as server:
        election.start_leader_election(candidate)
        candidate.granted.wait()
        assert candidate.session is not None
        server.serve_job(job.directory, job.register)
        host, port = server.get_server_address()
        print(f"leading {port} {os.getpid()}", flush=True)
        election.confirm_leadership_async(candidate.session, f"{host}:{port}").result(30)
        JobMaster(job).run()


if __name__ == "__main__":
    main()
