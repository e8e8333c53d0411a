"""The client of a job that runs in this process, and how a notebook shows it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any, Final

import humanfriendly

from holdfast.checkpoint.snapshot_type import SavepointFormatType
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.failure_text import summary
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.runtime.job.control import CompletableFuture, JobExecutionResult, JobStatus, SnapshotRequest
from holdfast.runtime.job.progress import EpochProgress
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_metrics import lags
from holdfast.storage.job_directory import JobDirectory

logger = get_logger(__name__)
# Display of a job in a notebook: status, last epochs and the link to its page, as text and HTML without scripts.
_EPOCHS: Final = 5
_COLOURS: Final = {
    JobStatus.RUNNING: "#1a7f37",
    JobStatus.FINISHED: "#1a7f37",
    JobStatus.FAILED: "#cf222e",
    JobStatus.RESTARTING: "#9a6700",
    JobStatus.CANCELED: "#9a6700",
}
_HEADINGS: Final = ("epoch", "rows", "rows/s", "took", "state", "checkpoint")
_REFRESH_SECONDS: Final = 1.0
_SESSION: Final = "JPY_SESSION_NAME"


class JobClient:
    """Controls one job. Safe to use from any thread.

    Args:
        master: The job's master, which runs in its own thread.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{master.job.name}", daemon=True)
        self._failure: BaseException | None = None
        self._result: CompletableFuture[JobExecutionResult] = CompletableFuture()
        self._over = threading.Event()
        self._thread.start()

    def get_job_id(self) -> JobID:
        """Return the id of the job, which names its directory."""
        return self._master.job.job_id

    def get_job_status(self) -> JobStatus:
        """Return the status of the job. Does not block."""
        return self._master.status

    def cancel(self) -> CompletableFuture[None]:
        """End the job for good after the current epoch; its checkpoints are kept. Does not block.

        Returns:
            A completed future; `await_termination` waits for the end of the job.
        """
        self._master.control.cancel()
        done: CompletableFuture[None] = CompletableFuture()
        done.set_result(None)
        return done

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """Return a future of the job's result; it has the error of a failed job. Does not block."""
        return self._result

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Return a completed future of an empty dictionary: functions have no accumulators."""
        none: CompletableFuture[dict[str, Any]] = CompletableFuture()
        none.set_result({})
        return none

    def stop(self) -> None:
        """End the job after the current epoch, to be resumed later. Does not block."""
        self._master.control.stop()

    def trigger_checkpoint(self) -> CompletableFuture[int]:
        """Request a checkpoint at the end of the next epoch; at once if there is no input. Does not block.

        Returns:
            A future of the checkpoint's id; it fails with a `CheckpointError`.
        """
        return self._master.control.request(SnapshotRequest())

    def trigger_savepoint(
        self,
        savepoint_directory: str | os.PathLike[str] | None = None,
        format_type: SavepointFormatType | str = SavepointFormatType.CANONICAL,
    ) -> CompletableFuture[str]:
        """Request a savepoint. Does not block.

        It has the state of the checkpoint of the same epoch, with all files in its own directory, and belongs to the
        user.

        Args:
            savepoint_directory: Directory of savepoints; None for execution.checkpointing.savepoint-dir.
            format_type: Format that its document states; both have all properties of a canonical one.

        Returns:
            A future of its path; it fails with a `CheckpointError` or a `ConfigurationError`.

        Raises:
            ConfigurationError: The directory is no path, or the format is unknown.
        """
        return self._master.control.request(_savepoint(savepoint_directory, format_type))

    def stop_with_savepoint(
        self,
        advance_to_end_of_event_time: bool = False,
        savepoint_directory: str | os.PathLike[str] | None = None,
        format_type: SavepointFormatType | str = SavepointFormatType.CANONICAL,
    ) -> CompletableFuture[str]:
        """Stop the job with a savepoint. Does not block.

        If the savepoint fails, the job goes on.

        Args:
            advance_to_end_of_event_time: Whether all event-time timers fire first (drain).
            savepoint_directory: Directory of savepoints; None for execution.checkpointing.savepoint-dir.
            format_type: Format that its document states; both have all properties of a canonical one.

        Returns:
            A future of the savepoint's path, completed when the job has stopped. If the job fails after the savepoint,
            it fails with a `StopWithSavepointStoppingError`, which has the path.

        Raises:
            ConfigurationError: The directory is no path, or the format is unknown.
        """
        savepoint = _savepoint(savepoint_directory, format_type)
        return self._master.control.request(replace(savepoint, stop=True, drain=advance_to_end_of_event_time))

    def rescale(self, parallelism: int | Mapping[str, int]) -> CompletableFuture[None]:
        """Change the parallelism from the next epoch on, without a restart. Does not block.

        Args:
            parallelism: Parallelism of all keyed operators, or by uid; at most the max parallelism of the operator's
                state.

        Returns:
            A future that completes when the parallelism is in force.

        Raises:
            ConfigurationError: A parallelism is not an integer of at least 1.
        """
        wanted = dict(parallelism) if isinstance(parallelism, Mapping) else {"": parallelism}
        for number in wanted.values():
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigurationError(f"A parallelism must be an integer of at least 1, not {number!r}.")
        return self._master.control.rescale(wanted)

    def process_all_available(self) -> None:
        """Block until the present input of all sources is processed and committed.

        Raises:
            ConfigurationError: The engine has no sources that grow.
            HoldfastError: The job failed.
        """
        process = getattr(self._master.job.engine, "process_all_available", None)
        if process is None:
            raise ConfigurationError("This engine has no sources that grow: use await_termination().")
        master = self._master
        while not master.ended.is_set():
            attempt = master.attempt
            process(master.ended)
            while master.attempt is attempt and not (attempt is not None and attempt.is_all_committed):
                if master.ended.wait(0.01):
                    break
            if master.attempt is attempt:
                break  # otherwise the attempt has failed, and its unfinished input is processed again
        if master.ended.is_set():
            self.await_termination()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Block until the job has ended, at most `timeout` seconds; returns whether it has.

        Interrupting a notebook cell that waits here cancels the job after the current epoch.

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
        """The report of the newest epoch, with pending input and output; None before the first."""
        master = self._master
        recent, job = master.progress.recent, master.job
        if not recent:
            return None
        waiting = lags(master.metrics.numbers.sinks, job.engine.source_metrics(), job.clock.now_ms())
        return {**recent[-1].to_dict(), **waiting}

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """Reports of the newest epochs, oldest first."""
        return [record.to_dict() for record in self._master.progress.recent]

    def exception(self) -> HoldfastError | None:
        """Return why the job failed; None if it did not. Does not block."""
        return self._master.failure

    @property
    def name(self) -> str:
        return self._master.job.name

    @property
    def job_directory(self) -> JobDirectory:
        """Directory of the job's checkpoints."""
        return self._master.job.directory

    @property
    def has_run(self) -> bool:
        """Whether an attempt of this process has restored its state and begun to run."""
        return JobStatus.RUNNING in self._master.history.entered

    @property
    def was_interrupted(self) -> bool:
        """Whether SIGTERM stopped the job."""
        return self._master.control.is_interrupted

    def run_to_end(self) -> JobStatus:
        """Block until the job has ended. SIGTERM and Ctrl-C end it after the current epoch.

        In a notebook an interrupt cancels it.

        Raises:
            HoldfastError: The job FAILED, or was fenced.
            KeyboardInterrupt: Ctrl-C has ended it.
        """
        signals = [signal.SIGTERM] if is_notebook() else [signal.SIGTERM, signal.SIGINT]
        with self._stop_on(signals) as received:
            try:
                while not self.await_termination(0.2):
                    pass
            except KeyboardInterrupt:
                if signal.SIGINT in received:  # pressed again
                    raise
                self.cancel() if is_notebook() else self.stop()
                self.await_termination()
                raise
        if signal.SIGINT in received:
            words = f": {self.ending}" if self.ending else ""
            raise KeyboardInterrupt(f"Interrupted. Job {self.name!r} ended {self.get_job_status().value}{words}.")
        return self.get_job_status()

    @contextmanager
    def _stop_on(self, signals: Sequence[signal.Signals]) -> Iterator[set[int]]:
        """Stop the job at the first of some signals, and yield those that came. A second SIGINT interrupts the wait.

        Without this PySpark's handler of SIGINT cancels all jobs of Spark, and so aborts the current epoch.
        """
        received: set[int] = set()
        if threading.current_thread() is not threading.main_thread():
            yield received
            return

        def stop(number: int, frame: FrameType | None) -> None:
            # Service managers send several signals; a second one in here would wait for locks held here.
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            name = signal.Signals(number).name
            logger.info("%s: the job ends after the current epoch", name)
            received.add(number)
            self._master.control.is_interrupted = True
            self.stop()
            if number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)

        before = {each: signal.getsignal(each) for each in signals}
        for each, handler in before.items():
            if handler is not signal.SIG_IGN or each == signal.SIGTERM:
                signal.signal(each, stop)
        try:
            yield received
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    @property
    def ending(self) -> str:
        """Why the job has ended SUSPENDED, in words; empty for other statuses."""
        return self._master.ending

    def __repr__(self) -> str:
        return notebook_display(self._master)["text/plain"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return notebook_display(self._master)

    def _ipython_display_(self) -> None:
        if is_notebook():
            show(lambda: notebook_display(self._master), self._over)
        else:
            print(notebook_display(self._master)["text/plain"])  # noqa: T201 - display in a shell

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._master.run()
        except BaseException as error:  # noqa: BLE001 - the caller of the future gets it
            self._failure = error
            self._result.set_exception(error)
        else:
            took = round(1000 * (time.monotonic() - began))
            self._result.set_result(
                JobExecutionResult(self.get_job_id(), self.get_job_status(), took, self._master.ending)
            )
        finally:
            self._over.set()


def _savepoint(directory: str | os.PathLike[str] | None, format_type: SavepointFormatType | str) -> SnapshotRequest:
    """Return a request for a savepoint, with valid arguments."""
    try:
        path = None if directory is None else os.fspath(directory)
    except TypeError:
        path = ""
    if path is not None and (not isinstance(path, str) or not path.strip()):
        raise ConfigurationError(f"The directory of a savepoint must be a path, not {directory!r}.")
    named = format_type.lower() if isinstance(format_type, str) else format_type
    try:
        return SnapshotRequest(is_savepoint=True, directory=path, format_type=SavepointFormatType(named))
    except ValueError:
        raise ConfigurationError(
            f"The format of a savepoint must be CANONICAL or NATIVE, not {format_type!r}; both have the same content."
        ) from None


def notebook_display(master: JobMaster) -> dict[str, str]:
    """Return the display of a job by media type: plain text and HTML."""
    epochs = master.progress.recent[-_EPOCHS:]
    failure = None if master.failure is None else redacted_message(master.failure)
    return {"text/plain": _text(master, epochs, failure), "text/html": _html(master, epochs, failure)}


def _text(master: JobMaster, epochs: Sequence[EpochProgress], failure: str | None) -> str:
    last = f", {epochs[-1].line()}" if epochs else ""
    suffix = f": {summary(failure)}" if failure else last
    return f"<job {master.job.name!r} {master.job.job_id}, {master.status.value}{suffix}>"


def _html(master: JobMaster, epochs: Sequence[EpochProgress], failure: str | None) -> str:
    colour = _COLOURS.get(master.status, "inherit")
    place = master.rest_url
    # A job that has ended serves no page.
    link = (
        f' &middot; <a href="{escape(place)}/" target="_blank">page</a>' if place and not master.ended.is_set() else ""
    )
    status = f'<b style="color:{colour}">{master.status.value}</b>'
    name = f"<b>{escape(master.job.name)}</b>"
    parts = [f"<div>{name} &middot; {status} &middot; <code>{master.job.job_id}</code>{link}</div>"]
    if failure:
        first = f"<summary>{escape(summary(failure))}</summary>"
        parts.append(f"<details>{first}<pre>{escape(failure)}</pre></details>")
    if epochs:
        head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
        rows = "".join(f"<tr>{_cells(epoch)}</tr>" for epoch in epochs)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    return "".join(parts)


def _cells(epoch: EpochProgress) -> str:
    checkpoint = "-" if epoch.checkpoint_id is None else str(epoch.checkpoint_id)
    cells = (
        str(epoch.epoch),
        f"{epoch.rows:,}",
        f"{epoch.rows_per_second:,.0f}",
        f"{epoch.duration_ms / 1000:.1f} s",
        humanfriendly.format_size(epoch.state_bytes, binary=True),
        checkpoint,
    )
    return "".join(f"<td>{cell}</td>" for cell in cells)


# IPython is used only where it is already running, and never imported: it is no dependency.


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return hasattr(_shell(), "kernel")


class NotebookNames:
    """Names of jobs without a name in a notebook: a cell that runs again gets the same job name.

    A cell is identified by the id that the notebook sends, else by its content.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._execution: Any = None
        self._number = 0

    def next(self, base: str | None = None) -> str:
        """Return the name of the next job of the running cell.

        Args:
            base: Base of the names; None for the name of the notebook's file.
        """
        shell = _shell()
        execution = getattr(shell, "execution_count", None)
        self._number = self._number + 1 if execution == self._execution else 1
        self._execution = execution
        key = (_cell(shell), self._number)
        if key not in self._names:
            base = base or Path(os.environ.get(_SESSION, "")).stem or "notebook"
            taken = set(self._names.values())
            number, name = 1, base
            while name in taken:
                number += 1
                name = f"{base}-{number}"
            self._names[key] = name
        return self._names[key]


def show(bundle: Callable[[], Mapping[str, str]], over: threading.Event) -> None:
    """Show something in the running cell and refresh it every second. Does not block.

    Args:
        bundle: Returns the display by media type.
        over: Set when it does not change any more.
    """
    display = sys.modules["IPython"].display.display
    handle = display(bundle(), raw=True, display_id=True)

    def refresh() -> None:
        shown = bundle()
        while True:
            is_over = over.wait(_REFRESH_SECONDS)
            current = bundle()
            if current != shown:
                shown = current
                try:
                    handle.update(shown, raw=True)
                except Exception as error:  # noqa: BLE001 - the notebook was closed; the job goes on
                    logger.debug("cannot refresh the display of a job: %r", error)
                    return
            if is_over:
                return

    threading.Thread(target=refresh, name="holdfast-notebook", daemon=True).start()


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _cell(shell: Any) -> str:
    try:
        told = shell.get_parent().get("metadata", {})
        found = told.get("cellId") or told.get("cell_id")
    except (AttributeError, TypeError):
        found = None
    if found:
        return f"id {found}"
    history = getattr(shell, "history_manager", None)
    inputs = getattr(history, "input_hist_raw", None) or [""]
    return f"text {str(inputs[-1]).strip()}"
