"""What somebody sends to a job manager who has its token: method and path, an empty line, a body.

A program that it takes is stored as ever, and read again by what would start its process.
"""

import json
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from holdfast.dispatcher.dispatcher_machine import JobEntry, Phase
from holdfast.dispatcher.job_manager_api import JobManagerApi, Term
from holdfast.dispatcher.process import LocalProcesses, ProcessStart
from holdfast.dispatcher.store import DispatcherStores, EndedJobs
from holdfast.errors import HoldfastError
from holdfast.ha import EmbeddedCluster, EmbeddedHaServices, LeaderContender
from holdfast.ha.execution_plan_store import ExecutionPlan, execution_plan_serializer
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.restart_strategy import FixedDelayRestartStrategy
from holdfast.rest.client import RestError
from holdfast.rest.http import HttpError, parse_body
from holdfast.rest.server import _encoded
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import PATH as PLACE
from tests.fuzz.document import directory

ROOT = directory() / "job-manager"
RUNNING = JobID("0" * 31 + "1")
PLANS = execution_plan_serializer()


class Client:
    """Takes the part of the process of a job, which answers whatever it is asked."""

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        json.dumps(body).encode()
        if not path.isascii():
            raise RestError("the client does not send this")
        return 200, {"state": "RUNNING", "restarts": 0}

    def get(self, path: str, timeout: float) -> Any:
        return []


class Processes(LocalProcesses):
    """The processes as they are, but that none is started."""

    def client_of(self, job_id: JobID, patience: float = 0.0) -> Any:
        return Client()


class Dispatcher:
    """Takes the part of what leads jobs: it stores a plan, and reads it as the next leader does."""

    is_ready = True

    def __init__(self, stores: DispatcherStores, processes: Processes) -> None:
        self._stores, self._processes = stores, processes
        never = FixedDelayRestartStrategy(0, 0)
        self._running = JobEntry(RUNNING, "running", None, never, never, 0, Phase.RUNNING)

    def jobs(self) -> list[JobEntry]:
        return [self._running]

    def job(self, job_id: JobID) -> JobEntry | None:
        return self._running if job_id == RUNNING else None

    def submit(self, plan: ExecutionPlan) -> tuple[int, str]:
        again = PLANS.from_bytes(PLANS.to_bytes(plan), PLACE)
        assert (again.job_id, again.job_name, again.document) == (plan.job_id, plan.job_name, plan.document)
        self._stores.store_plan(again)
        place = ROOT / "jobs" / str(plan.job_id)
        self._stores.fetch_files(again, place)
        start = self._processes._make_start(again, place)
        start.write(place)
        assert ProcessStart.read(place) == start
        self._stores.clean_up(plan.job_id, again, was_accepted=True)
        shutil.rmtree(place)
        return 202, ""

    def cancel(self, job_id: JobID) -> tuple[int, str]:
        return 202, ""


class Leader(LeaderContender):
    """Nobody else wants to lead."""

    def __init__(self, led: threading.Event) -> None:
        self._led = led

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        self._led.set()

    def revoke_leadership(self) -> None: ...

    def handle_error(self, error: BaseException) -> None: ...


@cache
def api() -> JobManagerApi:
    """A job manager that leads one job."""
    executor = ThreadPoolExecutor(1)
    services = EmbeddedHaServices(Configuration(), executor, EmbeddedCluster())
    led = threading.Event()
    services.get_dispatcher_leader_election().start_leader_election(Leader(led))
    assert led.wait(30)
    stores = DispatcherStores(services, ROOT, executor, EndedJobs(LocalFileSystem(), str(ROOT), 10))
    stores.start()
    nothing: Any = None
    processes = Processes(Configuration(), stores, ROOT, str(uuid.UUID(int=0)), (), nothing)
    dispatcher: Any = Dispatcher(stores, processes)
    return JobManagerApi(lambda: Term("session", 0, dispatcher, stores, processes))


def parse(data: bytes) -> None:
    head, _, body = data.partition(b"\n\n")
    method, _, target = head.decode("latin-1").partition(" ")
    try:
        answer = api().answer(method, target, parse_body(body))
    except HttpError as error:
        assert 400 <= error.status < 500 or error.status in (501, 503), error
        raise HoldfastError(str(error)) from error
    except HoldfastError as error:
        raise AssertionError(f"it is answered as if the server were to blame: {error}") from error
    assert _encoded(answer)
    left = [path for path in ROOT.rglob("*") if path.is_file()]
    assert not left, f"{left} are left behind"
