"""Single gets that travel together.

Gets of one state that are made in the same turn of the event loop become one request: a message costs as much as
twenty keys in it. Nobody waits for others, and each get has its own answer or error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import repeat
from typing import Any, Final

from holdfast.errors import OutputTypeError
from holdfast.queryable.client.client_request import ClientRequest, origin_of
from holdfast.queryable.client.result import StateResult
from holdfast.queryable.wire.description import StateDescription
from holdfast.queryable.wire.errors import LimitExceededError, QueryError, UnknownKvStateKeyGroupLocationError
from holdfast.queryable.wire.frame import Frame

MOST: Final = 256
Ask = Callable[[ClientRequest], Awaitable[tuple[Frame, StateDescription]]]
_Waiting = list[tuple[Any, "asyncio.Future[StateResult[Any]]"]]


class RequestBatcher:
    """Collects gets for one turn of the event loop.

    Args:
        ask: Asks the server.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: dict[tuple[Any, ...], _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, client_request: ClientRequest) -> asyncio.Future[StateResult[Any]]:
        """Return the future of the state of a request's only key.

        Args:
            client_request: Without map keys, and checked against the state's description.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StateResult[Any]] = loop.create_future()
        group = (
            client_request.job_id,
            client_request.state,
            client_request.consistency,
            client_request.deadline,
            client_request.namespace,
        )
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = []
            loop.call_soon(self._send, group)
        waiting.append((client_request.keys[0], answer))
        if len(waiting) >= MOST:
            self._send(group)
        return answer

    def _send(self, group: tuple[Any, ...]) -> None:
        waiting = self._waiting.pop(group, None)
        if waiting:
            task = asyncio.get_running_loop().create_task(self._answer(group, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, group: tuple[Any, ...], waiting: _Waiting) -> None:
        job_id, state, consistency, deadline, namespace = group
        keys = [key for key, _ in waiting]
        client_request = ClientRequest(job_id, state, keys, None, namespace, consistency, deadline)
        try:
            answer, what = await self._ask(client_request)
            origin = origin_of(answer)
            values, there = client_request.values(answer, what)
        except (LimitExceededError, UnknownKvStateKeyGroupLocationError, OutputTypeError) as error:
            if len(waiting) == 1:
                _fail(waiting, error)
                return
            # Each of them may be answered alone: there is room for it, a server for its key group, or a value that
            # Python has.
            await asyncio.gather(*(self._answer(group, [one]) for one in waiting))
            return
        except Exception as error:
            _fail(waiting, error)
            return
        except BaseException:
            for _, future in waiting:
                future.cancel()
            raise
        for (key, future), value, is_there in zip(waiting, values, there or repeat(True), strict=False):
            if future.done():
                continue
            if not is_there:
                future.set_exception(client_request.missing(key, origin))
            else:
                future.set_result(StateResult(value, origin, what))


def _fail(waiting: _Waiting, error: Exception) -> None:
    for _, future in waiting:
        if not future.done():
            future.set_exception(_own(error))


def _own(error: Exception) -> Exception:
    """An error of a query for one of several who get it; others, which are made in other ways, are shared."""
    if not isinstance(error, QueryError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
