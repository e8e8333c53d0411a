"""Asynchronous calls of a task: the elements of a batch are in flight at once, up to a capacity.

The calls run in an event loop in a thread of the worker process, which outlives the batch: clients and connection pools
that a function has opened there stay usable.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
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
        self._capacity = capacity
        self._is_ordered = is_ordered

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
        free = asyncio.Semaphore(self._capacity)
        done: list[tuple[int, list[Any]]] = []

        async def one(place: int, element: Any) -> None:
            async with free:
                done.append((place, await self._call(element)))

        try:
            async with asyncio.TaskGroup() as group:
                for place, element in enumerate(elements):
                    group.create_task(one(place, element))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
        return sorted(done, key=lambda result: result[0]) if self._is_ordered else done

    async def _call(self, element: Any) -> list[Any]:
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
