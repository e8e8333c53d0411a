"""Calls into code of users that may never return, made in a thread of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, TypeVar

T = TypeVar("T")
_END: Final = None


class SilentHookError(Exception):
    """A call has not returned in time; it may still be at it."""


class HookThread:
    """Makes the calls of one hook in order, in one thread, and waits for each no longer than it is told to.

    A thread cannot be ended from outside. So one that is stuck is given up: it does not keep the process alive, and
    further calls are refused until it has come back.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        self._name = name
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], timeout: float | None) -> T:
        """Return what a function returns, or raise what it raises; blocks for at most `timeout` seconds.

        Raises:
            SilentHookError: It has not returned in time, or an earlier call has not returned yet.
        """
        if self._last is not None and not self._last.done():
            raise SilentHookError("it has not come back from an earlier call")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        answer: Future[T] = Future()
        self._last = answer
        self._calls.put((answer, function))
        try:
            return answer.result(timeout)
        except FutureTimeoutError:
            if answer.done():
                raise  # it was the function's own
        raise SilentHookError(f"it has not answered in {timeout:g} s")

    def end(self) -> None:
        """Let the thread end when it has come back."""
        self._calls.put(_END)

    def _run(self) -> None:
        while (call := self._calls.get()) is not _END:
            answer, function = call
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)
