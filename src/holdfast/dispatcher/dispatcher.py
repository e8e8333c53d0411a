"""One term of a dispatcher: brings the state machine its events, and does what it says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from holdfast.dispatcher import protocol as events
from holdfast.dispatcher import protocol as instructions
from holdfast.dispatcher.protocol import DispatcherMachine, JobEntry
from holdfast.dispatcher.store import DispatcherStores
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.execution_plan_store import ExecutionPlan
from holdfast.ha.job_result_store import FailureCause, JobResult
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.kernel.secret import get_logger, redacted_message

_log = get_logger(__name__)
_THREADS: Final = 8
_LOOK_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 120.0


class JobProcesses(Protocol):
    """The processes of the jobs of one term."""

    def prepare(self, plan: ExecutionPlan, start: int) -> None:
        """Note that a process is about to be started, so that it can be ended. Does not block."""

    def run(self, plan: ExecutionPlan, start: int, on_launched: Callable[[str], None]) -> events.ProcessOutcome:
        """Run a prepared process to its end. Blocks."""

    def cancel(self, job_id: JobID) -> None:
        """Have the job of a running process cancelled. Blocks until it was told."""

    def end(self, job_id: JobID, *, at_once: bool) -> None:
        """End a process, also one that is only prepared. Does not block."""

    def forget(self, job_id: JobID) -> None:
        """Nothing of the job is needed in the working directory but its log."""


class Dispatcher:
    """One term; safe to use from several threads.

    Args:
        machine: Decides.
        stores: What is durable.
        processes: Runs jobs.
        leads: Whether the backend says right now that this term lasts. Blocks.
        on_over: Called when the term has ended and no process of a job runs any more.
        on_broken: Called with the reason when this process cannot lead.
    """

    def __init__(
        self,
        machine: DispatcherMachine,
        stores: DispatcherStores,
        processes: JobProcesses,
        leads: Callable[[], bool],
        on_over: Callable[[], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._stores = stores
        self._processes = processes
        self._leads = leads
        self._on_over = on_over
        self._on_broken = on_broken
        self._lock = threading.RLock()
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-dispatcher")
        self._answers: dict[str, Future[tuple[int, str]]] = {}
        self._timers: set[threading.Timer] = set()
        self._ended = threading.Event()

    def begin(self) -> None:
        """Take over from the leaders before. Does not block."""
        self._do_all(self._machine.begin())

    def submit(self, plan: ExecutionPlan) -> tuple[int, str]:
        """Take a job whose files the stores have taken; returns the status and why it was refused. Blocks."""
        return self._ask(lambda request: events.Submitted(plan, request))

    def cancel(self, job_id: JobID) -> tuple[int, str]:
        """End a job for good; returns the status and why that cannot be. Blocks."""
        return self._ask(lambda request: events.CancelRequested(job_id, request))

    def end(self, *, at_once: bool) -> None:
        """End the term, and all processes of jobs. Does not block; `on_over` is called."""
        self._ended.set()
        for timer in list(self._timers):
            timer.cancel()
        self._post(events.TermEnded(at_once))

    @property
    def is_ready(self) -> bool:
        """Whether it takes jobs."""
        return self._machine.is_ready and not self._machine.is_over

    def jobs(self) -> list[JobEntry]:
        """Return what is known of the jobs, in the order in which they came."""
        with self._lock:
            return list(self._machine.jobs.values())

    def job(self, job_id: JobID) -> JobEntry | None:
        """Return what is known of a job."""
        with self._lock:
            return self._machine.jobs.get(job_id)

    def _ask(self, event: Callable[[str], events.Event]) -> tuple[int, str]:
        request = new_nonce()
        future = self._answers[request] = Future()
        try:
            self._post(event(request))
            return future.result(_ANSWER_SECONDS)
        except TimeoutError:
            return 503, "There is no answer yet; look with `holdfast list` what became of it."
        finally:
            self._answers.pop(request, None)

    def _post(self, event: events.Event) -> None:
        with self._lock:
            todo = self._machine.handle(event)
            for instruction in todo:
                if isinstance(instruction, instructions.StartProcess):
                    self._processes.prepare(instruction.plan, instruction.start)
        self._do_all(todo)

    def _do_all(self, todo: list[instructions.Instruction]) -> None:
        for instruction in todo:
            self._do(instruction)

    def _do(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Reply():
                future = self._answers.get(instruction.request)
                if future is not None and not future.done():
                    future.set_result((instruction.status, instruction.message))
            case instructions.WakeAfter():
                self._wake_after(instruction)
            case instructions.StartProcess():
                run = partial(self._run, instruction)
                threading.Thread(target=run, name=f"job-{instruction.plan.job_id}", daemon=True).start()
            case instructions.EndProcess():
                self._processes.end(instruction.job_id, at_once=instruction.at_once)
            case instructions.GiveUp():
                self._on_broken(instruction.message)
            case instructions.TermOver():
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._on_over()
            case _:
                try:
                    self._executor.submit(self._block, instruction)
                except RuntimeError:
                    _log.debug("The term is over; not done any more: %s", type(instruction).__name__)

    def _block(self, instruction: instructions.Instruction) -> None:
        """What needs a store; every outcome is an event."""
        try:
            event = self._outcome(instruction)
        except Exception as error:
            _log.exception("%s failed", type(instruction).__name__)
            event = events.Broken(f"{type(error).__name__}: {redacted_message(error)}")
        if event is not None:
            self._post(event)

    def _outcome(self, instruction: instructions.Instruction) -> events.Event | None:
        match instruction:
            case instructions.ReadStores():
                return self._stores.read()
            case instructions.LookUpResult():
                return self._looked_up(instruction.job_id)
            case instructions.StorePlan():
                return self._stored(instruction.plan)
            case instructions.CancelJob():
                self._cancel(instruction.job_id)
                return None
        if not self._wait_until_led():
            return None
        match instruction:
            case instructions.StoreResult():
                self._stores.put_result(instruction.result)
                return events.ResultStored(instruction.result.job_id)
            case instructions.CleanUp():
                return self._cleaned_up(instruction)
            case instructions.MarkClean():
                return self._marked_clean(instruction.result)
        raise AssertionError(instruction)

    def _looked_up(self, job_id: JobID) -> events.Event:
        try:
            return events.ResultLookedUp(job_id, self._stores.has_result(job_id))
        except HoldfastError as error:
            return events.SubmissionFailed(job_id, f"The results of jobs cannot be read: {redacted_message(error)}")

    def _stored(self, plan: ExecutionPlan) -> events.Event:
        try:
            self._stores.put(plan)
        except HoldfastError as error:
            return events.SubmissionFailed(plan.job_id, f"{type(error).__name__}: {redacted_message(error)}")
        _log.info("job %s (%s) was submitted", plan.job_id, plan.job_name)
        return events.PlanStored(plan.job_id)

    def _cleaned_up(self, instruction: instructions.CleanUp) -> events.Event:
        try:
            self._stores.clean_up(instruction.job_id, instruction.plan, instruction.was_accepted)
        except HoldfastError as error:
            _log.warning("job %s cannot be cleaned up yet: %s", instruction.job_id, redacted_message(error))
            return events.CleanUpFailed(instruction.job_id, redacted_message(error))
        self._processes.forget(instruction.job_id)
        return events.CleanedUp(instruction.job_id)

    def _marked_clean(self, result: JobResult) -> events.Event:
        try:
            self._stores.mark_clean(result)
        except HoldfastError as error:
            _log.warning("The result of job %s stays dirty: the next leader cleans up again. %s", result.job_id, error)
        return events.MarkedClean(result.job_id)

    def _wait_until_led(self) -> bool:
        """Whether this term lasts; one that the backend does not confirm may still be confirmed later."""
        while not self._ended.is_set():
            if self._leads():
                return True
            self._ended.wait(_LOOK_SECONDS)
        return False

    def _cancel(self, job_id: JobID) -> None:
        try:
            self._processes.cancel(job_id)
        except HoldfastError as error:
            _log.warning("job %s cannot be told to cancel; its process is ended: %s", job_id, redacted_message(error))
            self._processes.end(job_id, at_once=False)

    def _run(self, instruction: instructions.StartProcess) -> None:
        job_id, start = instruction.plan.job_id, instruction.start

        def launched(name: str) -> None:
            self._post(events.JobLaunched(job_id, start, name))

        try:
            outcome = self._processes.run(instruction.plan, start, launched)
        except (HoldfastError, OSError) as error:
            # Of this host, or of the storage: nothing that the program could help.
            outcome = events.ProcessOutcome(None, failure=FailureCause(type(error).__name__, redacted_message(error)))
            if isinstance(error, ConfigurationError):
                outcome = events.ProcessOutcome("FAILED", failure=outcome.failure)
        told = "without a word" if outcome.status is None else outcome.status
        cause = "" if outcome.failure is None else f": {outcome.failure.type_name}: {outcome.failure.message:.500}"
        _log.info("process %d of job %s has ended %s%s", start, job_id, told, cause)
        self._post(events.ProcessEnded(job_id, start, outcome))

    def _wake_after(self, instruction: instructions.WakeAfter) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self._post(events.Due(instruction.job_id, instruction.wait))

        timer = threading.Timer(instruction.seconds, due)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()
        if self._ended.is_set():
            timer.cancel()
