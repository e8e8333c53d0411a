"""Savepoints and checkpoints that somebody asked for over REST, until their outcome was fetched or is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.kernel.clock import Clock
from holdfast.kernel.secret import without_credentials

Start = Callable[[], "Future[Any]"]


class AsyncOperations:
    """Operations by the id that the client chose. Safe to use from several threads.

    An operation that is under way is never forgotten, one that has ended after `store_ms`.

    Args:
        clock: Time.
        store_ms: How long an outcome is kept, in milliseconds; 0 for ever.
    """

    def __init__(self, clock: Clock, store_ms: int) -> None:
        self._clock = clock
        self._store_ms = store_ms
        self._lock = threading.Condition()
        self._futures: dict[str, Future[Any]] = {}
        self._ended: dict[str, float] = {}
        self._fetched: set[str] = set()

    def start(self, trigger_id: str, start: Start) -> None:
        """Start an operation, unless one with this id has been started before.

        Raises:
            HoldfastError: It cannot be started; nothing is remembered.
        """
        with self._lock:
            self._forget()
            if trigger_id in self._futures:
                return
            self._futures[trigger_id] = future = start()
        future.add_done_callback(lambda _: self._end(trigger_id))

    def status(self, trigger_id: str, describe: Callable[[Any], dict[str, Any]]) -> dict[str, Any] | None:
        """Return the status of an operation in Flink's form; None if there is no such operation.

        Args:
            trigger_id: The operation.
            describe: Makes JSON of its result.
        """
        with self._lock:
            self._forget()
            future = self._futures.get(trigger_id)
        if future is None:
            return None
        if not future.done():
            return {"status": {"id": "IN_PROGRESS"}, "operation": None}
        error = future.exception()
        outcome = describe(future.result()) if error is None else {"failure-cause": cause_of(error)}
        return {"status": {"id": "COMPLETED"}, "operation": outcome}

    def fetched(self, trigger_id: str) -> None:
        """The client has the outcome of an operation."""
        with self._lock:
            self._fetched.add(trigger_id)
            self._lock.notify_all()

    def wait_until_fetched(self, seconds: float) -> None:
        """Wait until clients have the outcomes of all operations, at most for some seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self._futures.keys() <= self._fetched, seconds)

    def _end(self, trigger_id: str) -> None:
        with self._lock:
            self._ended[trigger_id] = self._clock.monotonic() * 1000

    def _forget(self) -> None:
        if self._store_ms:
            before = self._clock.monotonic() * 1000 - self._store_ms
            for trigger_id in [name for name, ended in self._ended.items() if ended <= before]:
                del self._ended[trigger_id], self._futures[trigger_id]
                self._fetched.discard(trigger_id)


def cause_of(error: BaseException) -> dict[str, str]:
    """Return an error as JSON."""
    kind = type(error).__name__
    notes = getattr(error, "__notes__", ()) if isinstance(error, HoldfastError) else ()
    return {"class": kind, "message": without_credentials(" ".join([str(error), *notes]))}
