"""What other threads ask of a running job: stop, cancel, a checkpoint now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from holdfast.errors import CheckpointError, CheckpointFailureReason

Request = Callable[[Any], Any]


class JobControl:
    """Requests to a job; safe to use from any thread.

    The job master looks at it between epochs, and waits on it when there is nothing to do.
    """

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._checkpoints: list[Future[int]] = []
        self._ended = False
        self.stop_requested = False
        self.cancel_requested = False

    @property
    def stopping(self) -> bool:
        """Whether no further epoch may start."""
        return self.stop_requested or self.cancel_requested

    def stop(self) -> None:
        """Asks the job to end after the current epoch and to keep everything."""
        self.stop_requested = True
        self._wake.set()

    def cancel(self) -> None:
        """Asks the job to end after the current epoch, for good."""
        self.cancel_requested = True
        self._wake.set()

    def request_checkpoint(self) -> Future[int]:
        """Asks for a checkpoint; the future gets its id."""
        future: Future[int] = Future()
        with self._lock:
            if self._ended:
                future.set_exception(_shut_down())
            else:
                self._checkpoints.append(future)
        self._wake.set()
        return future

    @property
    def checkpoint_requested(self) -> bool:
        """Whether somebody waits for a checkpoint."""
        return bool(self._checkpoints)

    def take_checkpoint_requests(self) -> list[Future[int]]:
        """The waiting requests; whoever takes them answers them."""
        with self._lock:
            taken, self._checkpoints = self._checkpoints, []
        return taken

    def wait(self, seconds: float) -> None:
        """Waits until something is asked for, at most `seconds`."""
        self._wake.wait(seconds)
        self._wake.clear()
        if self.stopping:
            self._wake.set()

    def end(self) -> None:
        """The job runs no more: answers what is still waiting."""
        with self._lock:
            self._ended = True
            waiting, self._checkpoints = self._checkpoints, []
        for future in waiting:
            future.set_exception(_shut_down())


def _shut_down() -> CheckpointError:
    return CheckpointError(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
