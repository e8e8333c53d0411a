"""Carries out deletions beside the epochs, a little at a time; who waits for them has them at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.kernel import fault
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system.os_error import translate

_log = get_logger(__name__)
_THREADS: Final = 4


class Deletion(NamedTuple):
    """One file or directory that is to go.

    Attributes:
        delete: Deletes it.
        path: Its path.
    """

    delete: Callable[[str], None]
    path: str


class Deleter:
    """Deletes what it is told to. What cannot be deleted is logged and stays.

    Args:
        parallel: Whether several files are deleted at a time.
        is_allowed: Asked before each deletion.
    """

    def __init__(self, parallel: bool, is_allowed: Callable[[], bool]) -> None:
        self._threads = _THREADS if parallel else 1
        self._is_allowed = is_allowed
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: list[Future[str | None]] = []
        self._hurry = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether something of what was begun is still to be done."""
        return not all(one.done() for one in self._under_way)

    def begin(self, deletions: Sequence[Deletion], seconds: float) -> None:
        """Delete beside what the caller goes on to do, spread evenly over some seconds. Does not block."""
        began, step = time.monotonic(), seconds / max(1, len(deletions))
        for number, one in enumerate(deletions):
            self._under_way.append(self._running().submit(self._delete_at, began + number * step, one))

    def finish(self) -> list[str]:
        """Wait for what was begun, and return the paths that went.

        Raises:
            FaultInjectedError: A deletion was told to fail.
        """
        self._hurry.set()
        under_way, self._under_way = self._under_way, []
        try:
            return [path for path in (one.result() for one in under_way) if path is not None]
        finally:
            self._hurry.clear()

    def close(self) -> None:
        """Give up what has not begun; the next leader deletes it. Blocks until nothing is deleted any more."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            self._hurry.set()
            pool.shutdown()
        self._under_way.clear()

    def _running(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "holdfast-sweep")
        return self._pool

    def _delete_at(self, when: float, deletion: Deletion) -> str | None:
        self._hurry.wait(max(0.0, when - time.monotonic()))
        return self._delete(deletion)

    def _delete(self, deletion: Deletion) -> str | None:
        if not self._is_allowed():
            return None
        try:
            with fault.point("subsume.delete"):
                deletion.delete(deletion.path)
        except OSError as error:
            _log.warning("Could not delete %r: %s", deletion.path, translate(error, "delete", deletion.path))
            return None
        except fault.FaultInjectedError:
            raise
        except HoldfastError as error:
            _log.warning("Could not delete %r: %s", deletion.path, error)
            return None
        return deletion.path
