"""The handle of a job that runs in this process."""

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
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.runtime.job.control import CompletableFuture, JobExecutionResult, JobStatus, SnapshotRequest
from holdfast.runtime.job.progress import EpochProgress, first_line
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.master.job_metrics import lags
from holdfast.storage.job_directory import JobDirectory

# A job as a notebook shows it: how it is, its last epochs, and where its page is. Text and HTML, nothing to load.

_EPOCHS: Final = 5
_COLOURS: Final = {
    JobStatus.RUNNING: "#1a7f37",
    JobStatus.FINISHED: "#1a7f37",
    JobStatus.FAILED: "#cf222e",
    JobStatus.RESTARTING: "#9a6700",
    JobStatus.CANCELED: "#9a6700",
}
_HEADINGS: Final = ("epoch", "rows", "rows/s", "took", "state", "checkpoint")


def card_of(master: JobMaster) -> dict[str, str]:
    """Return what is to be seen of a job now, by media type."""
    epochs = master.progress.recent[-_EPOCHS:]
    failure = None if master.failure is None else redacted_message(master.failure)
    return {"text/plain": _text(master, epochs, failure), "text/html": _html(master, epochs, failure)}


def _text(master: JobMaster, epochs: Sequence[EpochProgress], failure: str | None) -> str:
    last = f", {epochs[-1].line()}" if epochs else ""
    said = f": {first_line(failure)}" if failure else last
    return f"<job {master.job.name!r} {master.job.job_id}, {master.status.value}{said}>"


def _html(master: JobMaster, epochs: Sequence[EpochProgress], failure: str | None) -> str:
    colour = _COLOURS.get(master.status, "inherit")
    place = master.rest_url
    # A job that has ended serves nothing any more.
    link = (
        f' &middot; <a href="{escape(place)}/" target="_blank">page</a>' if place and not master.ended.is_set() else ""
    )
    status = f'<b style="color:{colour}">{master.status.value}</b>'
    name = f"<b>{escape(master.job.name)}</b>"
    parts = [f"<div>{name} &middot; {status} &middot; <code>{master.job.job_id}</code>{link}</div>"]
    if failure:
        summary = f"<summary>{escape(first_line(failure))}</summary>"
        parts.append(f"<details>{summary}<pre>{escape(failure)}</pre></details>")
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


# Jobs in the kernel of a notebook: where we are, how something is shown that changes, and which job a cell means.
#
# IPython is looked at where it runs, and never imported: it is no dependency.

_log = get_logger(__name__)
_REFRESH_SECONDS: Final = 1.0
_SESSION: Final = "JPY_SESSION_NAME"


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return hasattr(_shell(), "kernel")


class NotebookNames:
    """The names of jobs that were given none: a cell that is run again means the job that it meant before.

    A cell is known by the id that the notebook sends, else by what is in it.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._execution: Any = None
        self._number = 0

    def next(self, base: str | None = None) -> str:
        """Return the name of the next job of the cell that runs now.

        Args:
            base: What names are made of; None for the name of the notebook's file.
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
    """Show something in the cell that runs now, and again every second until it is over. Does not block.

    Args:
        bundle: What is shown, by media type.
        over: Set when it changes no more.
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
                except Exception as error:  # the notebook is gone; the job is not
                    _log.debug("a job is not shown any more: %r", error)
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
            while master.attempt is attempt and not (attempt is not None and attempt.is_all_committed):
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
