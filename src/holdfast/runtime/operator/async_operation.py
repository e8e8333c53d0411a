"""Asynchronous calls of a task: many elements are in flight at once, up to a capacity.

In a job by epochs these are the elements of a batch. In real time a call may be in flight while the task goes on.

The calls run in an event loop in a thread of the worker process, which outlives the batch: clients and connection pools
that a function has opened there stay usable.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from holdfast.errors import OutputTypeError
from holdfast.runtime.function.async_function import AsyncFunction, AsyncRetryStrategy
from holdfast.runtime.function.user_function import Function, RuntimeContext
from holdfast.types.row import CHANGES, current_value, originals

_loops: dict[int, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


class AsyncOperation(Function):
    """An asynchronous function, and how it is called.

    Args:
        function: The user's function.
        timeout: Milliseconds for an element, all attempts together; 0 for no limit.
        retry: Decides whether and when a call is retried.
        capacity: Number of elements in flight.
        is_ordered: Whether results have the order of their elements; otherwise that of their completion.
    """

    def __init__(
        self,
        function: AsyncFunction[Any, Any],
        timeout: int,
        retry: AsyncRetryStrategy,
        capacity: int,
        is_ordered: bool,
    ) -> None:
        self.function = function
        self._timeout = timeout
        self._retry = retry
        self.capacity = capacity
        self.is_ordered = is_ordered

    @property
    def program_functions(self) -> tuple[Any, ...]:
        """Functions of the program that it calls."""
        return (self.function,)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.function.open(runtime_context)

    def close(self) -> None:
        self.function.close()

    def invoke_all(self, elements: Sequence[Any]) -> list[tuple[int, list[Any]]]:
        """Call the function for a batch, and wait for all results. Blocks.

        Returns:
            The results of each element with its position in the batch.

        Raises:
            Exception: The error of the first call that failed and is not retried; other calls are cancelled then.
            OutputTypeError: A call did not return a list.
        """
        done = asyncio.run_coroutine_threadsafe(self._all(elements), _loop()).result()
        return [(place, originals(results)) for place, results in done] if CHANGES else done

    async def _all(self, elements: Sequence[Any]) -> list[tuple[int, list[Any]]]:
        free = asyncio.Semaphore(self.capacity)
        done: list[tuple[int, list[Any]]] = []

        async def one(place: int, element: Any) -> None:
            async with free:
                done.append((place, await self.call(element)))

        try:
            async with asyncio.TaskGroup() as group:
                for place, element in enumerate(elements):
                    group.create_task(one(place, element))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
        return sorted(done, key=lambda result: result[0]) if self.is_ordered else done

    async def call(self, element: Any) -> list[Any]:
        """Call the function, and turn cancellations and exits, which asyncio would swallow, into errors."""
        try:
            return await self._call_with_timeout(element)
        except (asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # cancelled because another call failed
            raise RuntimeError(
                f"the asynchronous call for {element!r:.200} ended with {type(error).__name__}"
            ) from error

    async def _call_with_timeout(self, element: Any) -> list[Any]:
        if not self._timeout:
            return await self._call_with_retries(element)
        deadline = asyncio.timeout(self._timeout / 1000)
        try:
            async with deadline:
                return await self._call_with_retries(element)
        except TimeoutError:
            if not deadline.expired():
                raise  # the function's own
        return _checked(self.function.timeout(element))

    async def _call_with_retries(self, element: Any) -> list[Any]:
        predicate = self._retry.get_retry_predicate()
        of_result, of_exception = predicate.result_predicate(), predicate.exception_predicate()
        attempts = 0
        while True:
            attempts += 1
            try:
                results = _checked(await self.function.async_invoke(element))
                if of_result is None or not of_result(results) or not self._retry.can_retry(attempts):
                    return results
            except Exception as error:
                if of_exception is None or not of_exception(error) or not self._retry.can_retry(attempts):
                    raise
            await asyncio.sleep(self._retry.get_backoff_time_millis(attempts) / 1000)


class CallsInFlight:
    """The asynchronous calls of a task that goes on while they wait. Used by the thread of the task.

    Args:
        operation: What is called.
        wake: Called by another thread when there are results, once until they are taken.

    Attributes:
        begun: Number of elements that were called.
    """

    def __init__(self, operation: AsyncOperation, wake: Callable[[], object]) -> None:
        self._operation = operation
        self._wake = wake
        self._changed = threading.Condition()
        # What was called and is not taken, in order: the event time of each element, by number.
        self._waiting: dict[int, Any] = {}
        self._results: dict[int, list[Any]] = {}
        self._failure: BaseException | None = None
        self._has_woken = False
        self._loop = _loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.begun = 0

    @property
    def oldest(self) -> int:
        """Number of the first element whose results were not taken; that of the next element if there is none."""
        return next(iter(self._waiting), self.begun)

    def add(self, elements: Sequence[Any], timestamps: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        """Call the function for elements. Blocks while as many as the capacity wait.

        Returns:
            The event time of each element whose results are there, with them.

        Raises:
            Exception: The error of the first call that failed and is not retried.
            OutputTypeError: A call did not return a list.
        """
        taken: list[tuple[Any, list[Any]]] = []
        at = 0
        while at < len(elements):
            free = self._operation.capacity - len(self._waiting)
            if free:
                several = elements[at : at + free]
                numbers = range(self.begun, self.begun + len(several))
                self._waiting.update(zip(numbers, timestamps[at : at + free], strict=True))
                self.begun += len(several)
                at += len(several)
                self._loop.call_soon_threadsafe(self._start, list(zip(numbers, several, strict=True)))
            else:
                taken += self._take(lambda: bool(self._ready()))
        return taken + self.take()

    def take(self) -> list[tuple[Any, list[Any]]]:
        """Return the results that are there; see `add`."""
        return self._take(lambda: True)

    def finish(self) -> list[tuple[Any, list[Any]]]:
        """Wait for all calls, and return the results; see `add`. Blocks."""
        return self._take(lambda: len(self._results) == len(self._waiting))

    def cancel(self) -> None:
        """Cancel what waits. Never raises."""
        with suppress(RuntimeError):  # the process ends
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def _take(self, is_enough: Callable[[], bool]) -> list[tuple[Any, list[Any]]]:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or is_enough())
            if self._failure is not None:
                raise self._failure
            self._has_woken = False
            done = [(self._waiting.pop(number), self._results.pop(number)) for number in self._ready()]
        return [(time, originals(results)) for time, results in done] if CHANGES else done

    def _ready(self) -> list[int]:
        if not self._operation.is_ordered:
            return list(self._results)
        return list(takewhile(self._results.__contains__, self._waiting))

    def _start(self, calls: Sequence[tuple[int, Any]]) -> None:
        for number, element in calls:
            task = self._loop.create_task(self._run(number, element))
            self._tasks.add(task)  # the loop refers to it only weakly
            task.add_done_callback(self._tasks.discard)

    async def _run(self, number: int, element: Any) -> None:
        results: list[Any] = []
        failure: BaseException | None = None
        try:
            results = await self._operation.call(element)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the thread of the task raises it
            failure = error
        with self._changed:
            if failure is None:
                self._results[number] = results
            else:
                self._failure = self._failure or failure
            has_woken, self._has_woken = self._has_woken, True
            self._changed.notify()
        if not has_woken:
            self._wake()


def _checked(results: Any) -> list[Any]:
    if results is None or isinstance(results, str | bytes | dict) or not hasattr(results, "__iter__"):
        raise OutputTypeError(None, f"an AsyncFunction must return a list of results, not {results!r:.200}")
    return [current_value(result) for result in results] if CHANGES else list(results)


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process; a forked process has its own."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="holdfast-async", daemon=True).start()
        return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # Raised by a call; the loop reports it to the waiter when it runs on.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
