"""The dispatcher of one term: it passes events to the state machine and executes its instructions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from holdfast.dispatcher import dispatcher_machine as events
from holdfast.dispatcher import dispatcher_machine as instructions
from holdfast.dispatcher.dispatcher_machine import DispatcherMachine, JobEntry
from holdfast.dispatcher.store import DispatcherStores
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.execution_plan_store import ExecutionPlan
from holdfast.ha.job_result_store import FailureCause, JobResult
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.kernel.secret import get_logger, redacted_message

logger = get_logger(__name__)
_THREADS: Final = 8
_RETRY_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 120.0


class JobProcesses(Protocol):
    """The processes of the jobs of one term; see `LocalProcesses`."""

    def prepare(self, plan: ExecutionPlan, start: int) -> None:
        """Register a process that will be started, so that it can be ended. Does not block."""

    def run(self, plan: ExecutionPlan, start: int, on_launched: Callable[[str], None]) -> events.ProcessOutcome:
        """Run a prepared process to its end. Blocks."""

    def cancel(self, job_id: JobID) -> None:
        """Send a running process the request to cancel its job. Blocks until it was received."""

    def end(self, job_id: JobID, *, at_once: bool) -> None:
        """End a process, also one that was only prepared. Does not block."""

    def forget(self, job_id: JobID) -> None:
        """Remove the files of a job from the working directory, except its log."""


class Dispatcher:
    """The dispatcher of one term. Thread-safe.

    Args:
        machine: Makes the decisions.
        stores: Durable plans and results.
        processes: Runs jobs.
        leads: Returns whether the election confirms that this term lasts. Blocks.
        on_finished: Called when the term has ended and no process of a job runs any more.
        on_fatal: Called with the reason when this process cannot lead.
    """

    def __init__(
        self,
        machine: DispatcherMachine,
        stores: DispatcherStores,
        processes: JobProcesses,
        leads: Callable[[], bool],
        on_finished: Callable[[], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._stores = stores
        self._processes = processes
        self._leads = leads
        self._on_over = on_finished
        self._on_broken = on_fatal
        self._lock = threading.RLock()
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-dispatcher")
        self._answers: dict[str, Future[tuple[int, str]]] = {}
        self._timers: set[threading.Timer] = set()
        self._ended = threading.Event()

    def begin(self) -> None:
        """Take over the jobs of earlier leaders. Does not block."""
        self._execute_all(self._machine.begin())

    def submit(self, plan: ExecutionPlan) -> tuple[int, str]:
        """Submit a job whose files are staged; return the HTTP status and the reason of a refusal. Blocks."""
        return self._ask(lambda request: events.JobSubmitted(plan, request))

    def cancel(self, job_id: JobID) -> tuple[int, str]:
        """Cancel a job; return the HTTP status and the reason of a refusal. Blocks."""
        return self._ask(lambda request: events.CancelRequested(job_id, request))

    def end(self, *, at_once: bool) -> None:
        """End the term and all processes of jobs. Does not block; calls `on_finished` at the end."""
        self._ended.set()
        for timer in list(self._timers):
            timer.cancel()
        self._post(events.TermEnded(at_once))

    @property
    def is_ready(self) -> bool:
        """Whether jobs are accepted."""
        return self._machine.is_ready and not self._machine.is_over

    def jobs(self) -> list[JobEntry]:
        """Return the jobs in the order of their submission or takeover."""
        with self._lock:
            return list(self._machine.jobs.values())

    def job(self, job_id: JobID) -> JobEntry | None:
        with self._lock:
            return self._machine.jobs.get(job_id)

    def _ask(self, event: Callable[[str], events.Event]) -> tuple[int, str]:
        request = new_nonce()
        future = self._answers[request] = Future()
        try:
            self._post(event(request))
            return future.result(_ANSWER_SECONDS)
        except TimeoutError:
            return 503, "The request is not completed yet. Check its outcome with `holdfast list`."
        finally:
            self._answers.pop(request, None)

    def _post(self, event: events.Event) -> None:
        with self._lock:
            todo = self._machine.handle(event)
            for instruction in todo:
                if isinstance(instruction, instructions.StartProcess):
                    self._processes.prepare(instruction.plan, instruction.start)
        self._execute_all(todo)

    def _execute_all(self, todo: list[instructions.Instruction]) -> None:
        for instruction in todo:
            self._execute(instruction)

    def _execute(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Reply():
                future = self._answers.get(instruction.request)
                if future is not None and not future.done():
                    future.set_result((instruction.status, instruction.message))
            case instructions.ScheduleWakeup():
                self._wake_after(instruction)
            case instructions.StartProcess():
                run = partial(self._run, instruction)
                threading.Thread(target=run, name=f"job-{instruction.plan.job_id}", daemon=True).start()
            case instructions.EndProcess():
                self._processes.end(instruction.job_id, at_once=instruction.at_once)
            case instructions.AbortProcess():
                self._on_broken(instruction.message)
            case instructions.TermFinished():
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._on_over()
            case _:
                try:
                    self._executor.submit(self._execute_blocking, instruction)
                except RuntimeError:
                    logger.debug("The term is over; skipped: %s", type(instruction).__name__)

    def _execute_blocking(self, instruction: instructions.Instruction) -> None:
        """Execute an instruction that needs a store; every outcome is an event."""
        try:
            event = self._outcome(instruction)
        except Exception as error:
            logger.exception("%s failed", type(instruction).__name__)
            event = events.FatalFailure(f"{type(error).__name__}: {redacted_message(error)}")
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
            self._stores.store_plan(plan)
        except HoldfastError as error:
            return events.SubmissionFailed(plan.job_id, f"{type(error).__name__}: {redacted_message(error)}")
        logger.info("job %s (%s) was submitted", plan.job_id, plan.job_name)
        return events.PlanStored(plan.job_id)

    def _cleaned_up(self, instruction: instructions.CleanUp) -> events.Event:
        try:
            self._stores.clean_up(instruction.job_id, instruction.plan, instruction.was_accepted)
        except HoldfastError as error:
            logger.warning("job %s cannot be cleaned up yet: %s", instruction.job_id, redacted_message(error))
            return events.CleanUpFailed(instruction.job_id, redacted_message(error))
        self._processes.forget(instruction.job_id)
        return events.CleanedUp(instruction.job_id)

    def _marked_clean(self, result: JobResult) -> events.Event:
        try:
            self._stores.mark_clean(result)
        except HoldfastError as error:
            logger.warning("The result of job %s stays dirty for the next leader: %s", result.job_id, error)
        return events.MarkedClean(result.job_id)

    def _wait_until_led(self) -> bool:
        """Wait until the election, which may be unreachable, confirms this term; return False if the term has ended."""
        while not self._ended.is_set():
            if self._leads():
                return True
            self._ended.wait(_RETRY_SECONDS)
        return False

    def _cancel(self, job_id: JobID) -> None:
        try:
            self._processes.cancel(job_id)
        except HoldfastError as error:
            logger.warning(
                "job %s cannot be cancelled by request, its process is ended: %s", job_id, redacted_message(error)
            )
            self._processes.end(job_id, at_once=False)

    def _run(self, instruction: instructions.StartProcess) -> None:
        job_id, start = instruction.plan.job_id, instruction.start

        def launched(name: str) -> None:
            self._post(events.JobLaunched(job_id, start, name))

        try:
            outcome = self._processes.run(instruction.plan, start, launched)
        except (HoldfastError, OSError) as error:
            # The cause is this host or the storage, not the program, so the job is restarted.
            outcome = events.ProcessOutcome(None, failure=FailureCause(type(error).__name__, redacted_message(error)))
            if isinstance(error, ConfigurationError):
                outcome = events.ProcessOutcome("FAILED", failure=outcome.failure)
        status = "without a report" if outcome.status is None else outcome.status
        cause = "" if outcome.failure is None else f": {outcome.failure.type_name}: {outcome.failure.message:.500}"
        logger.info("process %d of job %s has ended %s%s", start, job_id, status, cause)
        self._post(events.ProcessEnded(job_id, start, outcome))

    def _wake_after(self, instruction: instructions.ScheduleWakeup) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self._post(events.WaitElapsed(instruction.job_id, instruction.wait))

        timer = threading.Timer(instruction.seconds, due)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()
        if self._ended.is_set():
            timer.cancel()
