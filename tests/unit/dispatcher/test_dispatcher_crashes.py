"""Job managers that die at each durable step, just before and just after it, or never learn the outcome.

The stores are real ones, in memory and in a directory, and outlive the processes that use them. Judged from outside:
a job that was acknowledged runs to its end once, and nothing of it is left.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.dispatcher import dispatcher_machine as events
from holdfast.dispatcher import dispatcher_machine as instructions
from holdfast.dispatcher.dispatcher_machine import DispatcherMachine
from holdfast.dispatcher.options import process_restarts
from holdfast.dispatcher.store import DispatcherStores, EndedJobs, SubmittedProgram
from holdfast.errors import HoldfastError, PossibleInconsistentStateError
from holdfast.ha import EmbeddedCluster, EmbeddedHaServices, LeaderContender
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.restart_strategy import FixedDelayRestartStrategy
from holdfast.storage.local import LocalFileSystem
from holdfast.testing.leader_election_contract import eventually

JOB: Final = JobID.from_name("tides")
STEPS: Final = (
    "put blob",
    "put plan",
    "store result",
    "remove plan",
    "delete blob",
    "clean up job",
    "keep ended",
    "mark clean",
)


class Died(BaseException):
    """The process is gone."""


class CallingExecutor(Executor):
    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Contender(LeaderContender):
    def __init__(self) -> None:
        self.session: uuid.UUID | None = None

    def grant_leadership(self, leader_session_id: uuid.UUID) -> None:
        self.session = leader_session_id

    def revoke_leadership(self) -> None:
        self.session = None

    def handle_error(self, error: BaseException) -> None:
        raise error


class World:
    """What outlives a process: the stores, the job's register, and what a client was told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = EmbeddedCluster()
        self.worked = 0
        self.is_finished = False
        self.was_acknowledged = False

    def job_process(self) -> events.ProcessOutcome:
        """A process of the job: whoever starts it again finds in its register that it has finished."""
        if not self.is_finished:
            self.worked += 1
            self.is_finished = True
        return events.ProcessOutcome("FINISHED", has_run=True)


class Manager:
    """One job manager, doing one instruction after the other."""

    def __init__(self, world: World, fault: Callable[[str, Callable[[], Any]], Any]) -> None:
        self.world = world
        executor = CallingExecutor()
        self.services = EmbeddedHaServices(Configuration(), executor, world.cluster)
        self.election = self.services.get_dispatcher_leader_election()
        contender = Contender()
        self.election.start_leader_election(contender)
        eventually(lambda: contender.session is not None, "elected", 30)
        ended = EndedJobs(LocalFileSystem(), str(world.directory), 100)
        _wrap(ended, "add", "keep ended", fault)
        self.stores = DispatcherStores(self.services, world.directory, executor, ended)
        self.stores.start()
        _wrap(self.stores._blobs, "put", "put blob", fault)
        _wrap(self.stores._blobs, "delete", "delete blob", fault)
        _wrap(self.stores._blobs, "delete_all", "delete blob", fault)
        _wrap(self.stores._plans, "put_execution_plan", "put plan", fault)
        _wrap(self.stores._plans, "global_cleanup_async", "remove plan", fault)
        _wrap(self.services, "global_cleanup_async", "clean up job", fault)
        self.results = self.stores._results = _Results(self.stores._results, fault)  # type: ignore[assignment]
        clock = ManualClock()
        self.machine = DispatcherMachine(
            clock, lambda: process_restarts(clock), lambda: FixedDelayRestartStrategy(5, 0)
        )
        self.todo = deque(self.machine.begin())

    def work(self) -> None:
        """Until there is nothing to be done."""
        while self.todo:
            event = self.done(self.todo.popleft())
            if event is not None:
                self.todo += self.machine.handle(event)

    def submit(self) -> None:
        files = {"job.py": b"print('tides')", "moon.csv": b"1,2"}
        submission = uuid.uuid4().hex
        keys = self.stores.stage_files(submission, files)
        plan = SubmittedProgram(submission, "job.py", keys, ("--all",), {}).to_plan(JOB, "tides")
        self.todo += self.machine.handle(events.JobSubmitted(plan, "client"))
        self.work()

    def done(self, instruction: instructions.Instruction) -> events.Event | None:
        match instruction:
            case instructions.ReadStores():
                return self.stores.read()
            case instructions.LookUpResult():
                return events.ResultLookedUp(JOB, self.stores.has_result(JOB))
            case instructions.StorePlan():
                try:
                    self.stores.store_plan(instruction.plan)
                except HoldfastError as error:
                    return events.SubmissionFailed(JOB, str(error))
                return events.PlanStored(JOB)
            case instructions.StartProcess():
                assert not self.stores.has_result(JOB), "a job that has ended runs again"
                self.stores.fetch_files(instruction.plan, self.world.directory / uuid.uuid4().hex)
                return events.ProcessEnded(JOB, instruction.start, self.world.job_process())
            case instructions.StoreResult():
                self.stores.put_result(instruction.result)
                return events.ResultStored(JOB)
            case instructions.CleanUp():
                try:
                    self.stores.clean_up(JOB, instruction.plan, instruction.was_accepted)
                except HoldfastError as error:
                    return events.CleanUpFailed(JOB, str(error))
                return events.CleanedUp(JOB)
            case instructions.MarkClean():
                self.stores.mark_clean(instruction.result)
                return events.MarkedClean(JOB)
            case instructions.ScheduleWakeup():
                return events.WaitElapsed(JOB, instruction.wait)
            case instructions.Reply():
                self.world.was_acknowledged |= instruction.status == 202
                return None
        raise AssertionError(instruction)

    def end(self) -> None:
        self.election.close()
        self.services.close()


class _Results:
    """The results, which all processes share, as one of them reaches them."""

    def __init__(self, results: Any, fault: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._results, self._fault = results, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def create_dirty_result_async(self, entry: Any) -> Any:
        return self._fault("store result", lambda: self._results.create_dirty_result_async(entry))

    def mark_result_as_clean_async(self, job_id: JobID) -> Any:
        return self._fault("mark clean", lambda: self._results.mark_result_as_clean_async(job_id))


def _wrap(of: Any, method: str, step: str, fault: Callable[[str, Callable[[], Any]], Any]) -> None:
    real = getattr(of, method)
    setattr(of, method, lambda *args: fault(step, lambda: real(*args)))


def nothing_happens(step: str, call: Callable[[], Any]) -> Any:
    return call()


def once(wanted: str, how: str, number: int = 1) -> Callable[[str, Callable[[], Any]], Any]:
    left = [number]

    def fault(step: str, call: Callable[[], Any]) -> Any:
        if step != wanted:
            return call()
        left[0] -= 1
        if left[0] != 0:
            return call()
        if how == "before":
            raise Died(step)
        done = call()
        if how == "after":
            raise Died(step)
        if isinstance(done, Future):
            done.result()
        raise PossibleInconsistentStateError(f"nobody knows what became of: {step}")

    return fault


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("how", ["before", "after", "lost"])
@pytest.mark.parametrize("step", STEPS)
def test_an_acknowledged_job_runs_once_to_its_end_and_nothing_of_it_is_left(
    tmp_path: Path, step: str, how: str, number: int
) -> None:
    world = World(tmp_path)
    first = Manager(world, once(step, how, number))
    try:
        first.work()
        first.submit()
    except (Died, PossibleInconsistentStateError):
        pass  # the process is gone, or gives itself up
    first.end()
    acknowledged = world.was_acknowledged

    second = Manager(world, nothing_happens)
    second.work()
    if acknowledged:
        assert world.is_finished, "an acknowledged job is lost"
    elif not world.is_finished:
        second.submit()  # as the client does that was not told
    assert world.worked == 1
    assert second.stores._plans.get_job_ids() == []
    assert world.cluster.job_results.get_dirty_results() == set()
    assert second.stores.has_result(JOB)
    left = list((tmp_path / "blobs").rglob("blob_*"))
    is_orphan = how != "lost" and step in ("put blob", "put plan") and not acknowledged
    assert is_orphan or left == [], "only what was put and never named by a plan may remain"
    second.end()

    third = Manager(world, nothing_happens)
    third.work()
    assert [entry.status for entry in third.machine.jobs.values()] == ["FINISHED"], "a later leader knows of it"
    assert world.worked == 1
    third.end()
