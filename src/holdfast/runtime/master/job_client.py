"""The handle of a job that runs in this process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from holdfast.checkpoint.document.snapshot_type import SavepointFormatType
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.runtime.job.control import CompletableFuture, SnapshotRequest
from holdfast.runtime.job.status import JobExecutionResult, JobStatus
from holdfast.runtime.master.job_card import card_of
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_metrics import lags
from holdfast.runtime.master.notebook import is_notebook, show
from holdfast.storage.job.job_directory import JobDirectory

logger = get_logger(__name__)


class JobClient:
    """Controls one job; safe to use from any thread.

    Args:
        master: The job's master, which is started in a thread of its own.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{master.job.name}", daemon=True)
        self._failure: BaseException | None = None
        self._result: CompletableFuture[JobExecutionResult] = CompletableFuture()
        self._over = threading.Event()
        self._thread.start()

    def get_job_id(self) -> JobID:
        """The id that names the job's directory."""
        return self._master.job.job_id

    def get_job_status(self) -> JobStatus:
        """Where the job is in its life. Does not block."""
        return self._master.status

    def cancel(self) -> CompletableFuture[None]:
        """Ends the job for good after the current epoch, and keeps its checkpoints. Does not block.

        Returns:
            A future that is done: the job has been asked. `await_termination` waits for its end.
        """
        self._master.control.cancel()
        asked: CompletableFuture[None] = CompletableFuture()
        asked.set_result(None)
        return asked

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """A future of how the job ends; it has the error of a job that fails. Does not block."""
        return self._result

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """A future of nothing: functions have no accumulators here."""
        none: CompletableFuture[dict[str, Any]] = CompletableFuture()
        none.set_result({})
        return none

    def stop(self) -> None:
        """Ends the job after the current epoch, to be resumed later. Does not block."""
        self._master.control.stop()

    def trigger_checkpoint(self) -> CompletableFuture[int]:
        """Asks for a checkpoint at the next epoch boundary, at once if there is no input; the future gets its id."""
        return self._master.control.request(SnapshotRequest())

    def trigger_savepoint(
        self,
        savepoint_directory: str | os.PathLike[str] | None = None,
        format_type: SavepointFormatType | str = SavepointFormatType.CANONICAL,
    ) -> CompletableFuture[str]:
        """Asks for a savepoint; the future gets its path.

        It holds what the checkpoint of the same epoch boundary holds, all of it in its own directory, and is yours.

        Args:
            savepoint_directory: Where it is made; None for execution.checkpointing.savepoint-dir.
            format_type: What its document calls the format; both have all properties of a canonical one.

        Raises:
            ConfigurationError: The directory is no path, or there is no such format.
        """
        return self._master.control.request(_savepoint(savepoint_directory, format_type))

    def stop_with_savepoint(
        self,
        advance_to_end_of_event_time: bool = False,
        savepoint_directory: str | os.PathLike[str] | None = None,
        format_type: SavepointFormatType | str = SavepointFormatType.CANONICAL,
    ) -> CompletableFuture[str]:
        """Stops the job with a savepoint; the future gets its path when the job has stopped.

        If the savepoint fails, the job goes on. If the job fails after it, the future does with a
        `StopWithSavepointStoppingError`, which has the path.

        Args:
            advance_to_end_of_event_time: Whether all event-time timers fire before (drain).
            savepoint_directory: Where it is made; None for execution.checkpointing.savepoint-dir.
            format_type: What its document calls the format; both have all properties of a canonical one.

        Raises:
            ConfigurationError: The directory is no path, or there is no such format.
        """
        savepoint = _savepoint(savepoint_directory, format_type)
        return self._master.control.request(replace(savepoint, stop=True, drain=advance_to_end_of_event_time))

    def rescale(self, parallelism: int | Mapping[str, int]) -> CompletableFuture[None]:
        """Changes the parallelism from the next epoch on, without a restart; the future is done when it is in force.

        Args:
            parallelism: Of all keyed operators, or by uid. At most the max parallelism of the operator's state.

        Raises:
            ConfigurationError: One is no whole number of at least 1.
        """
        wanted = dict(parallelism) if isinstance(parallelism, Mapping) else {"": parallelism}
        for number in wanted.values():
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigurationError(f"a parallelism is a whole number of at least 1, not {number!r}")
        return self._master.control.rescale(wanted)

    def process_all_available(self) -> None:
        """Blocks until what the sources hold now has been processed and committed.

        Raises:
            ConfigurationError: The engine has no sources that grow.
            HoldfastError: The job failed.
        """
        process = getattr(self._master.job.engine, "process_all_available", None)
        if process is None:
            raise ConfigurationError("this engine has no sources that grow: use await_termination()")
        master = self._master
        while not master.ended.is_set():
            attempt = master.attempt
            process(master.ended)
            while master.attempt is attempt and not (attempt is not None and attempt.is_settled):
                if master.ended.wait(0.01):
                    break
            if master.attempt is attempt:
                break  # otherwise it has failed, and what it had not completed is processed again
        if master.ended.is_set():
            self.await_termination()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Blocks until the job has ended, at most `timeout` seconds; returns whether it has.

        Who interrupts the cell of a notebook that waits here cancels the job: it ends after the current epoch.

        Raises:
            HoldfastError: The job FAILED, or was fenced.
        """
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            if is_notebook():
                self.cancel()
            raise
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return True

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The record of the newest epoch, and what waits now in sources and before sinks; None before the first."""
        master = self._master
        recent, job = master.progress.recent, master.job
        if not recent:
            return None
        waiting = lags(master.metrics.numbers.sinks, job.engine.source_numbers(), job.clock.now_ms())
        return {**recent[-1].to_dict(), **waiting}

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """Records of the newest epochs, oldest first."""
        return [record.to_dict() for record in self._master.progress.recent]

    def exception(self) -> HoldfastError | None:
        """Why the job failed, None if it did not. Does not block."""
        return self._master.failure

    @property
    def name(self) -> str:
        """The job's name."""
        return self._master.job.name

    @property
    def job_directory(self) -> JobDirectory:
        """Where the job keeps its checkpoints."""
        return self._master.job.directory

    @property
    def has_run(self) -> bool:
        """Whether an attempt of this process has restored its state and begun to run. Does not block."""
        return JobStatus.RUNNING in self._master.history.entered

    @property
    def was_interrupted(self) -> bool:
        """Whether SIGTERM is what stopped the job."""
        return self._master.control.is_interrupted

    def run_to_end(self) -> JobStatus:
        """Blocks until the job has ended; SIGTERM and an interrupt from the keyboard end it after the current epoch.

        In a notebook an interrupt cancels it.

        Raises:
            HoldfastError: The job FAILED, or was fenced.
        """
        with self._stop_on_sigterm():
            try:
                while not self.await_termination(0.2):
                    pass
            except KeyboardInterrupt:
                self.cancel() if is_notebook() else self.stop()
                self.await_termination()
                raise
        return self.get_job_status()

    @contextmanager
    def _stop_on_sigterm(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            # Service managers send several, and a second one in the middle of this would wait for locks held here.
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            logger.info("SIGTERM: the job ends after the current epoch")
            self._master.control.is_interrupted = True
            self.stop()

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return card_of(self._master)

    def _ipython_display_(self) -> None:
        if is_notebook():
            show(lambda: card_of(self._master), self._over)
        else:
            print(card_of(self._master)["text/plain"])  # noqa: T201 - what a shell shows of an object

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._master.run()
        except BaseException as error:
            self._failure = error
            self._result.set_exception(error)
        else:
            took = round(1000 * (time.monotonic() - began))
            self._result.set_result(JobExecutionResult(self.get_job_id(), self.get_job_status(), took))
        finally:
            self._over.set()


def _savepoint(directory: str | os.PathLike[str] | None, format_type: SavepointFormatType | str) -> SnapshotRequest:
    """A wish for a savepoint, checked while whoever has it can still be told."""
    try:
        path = None if directory is None else os.fspath(directory)
    except TypeError:
        path = ""
    if path is not None and (not isinstance(path, str) or not path.strip()):
        raise ConfigurationError(f"the directory of a savepoint is a path, not {directory!r}")
    named = format_type.lower() if isinstance(format_type, str) else format_type
    try:
        return SnapshotRequest(is_savepoint=True, directory=path, format_type=SavepointFormatType(named))
    except ValueError:
        raise ConfigurationError(
            f"the format of a savepoint is CANONICAL or NATIVE, not {format_type!r}; both hold the same"
        ) from None
