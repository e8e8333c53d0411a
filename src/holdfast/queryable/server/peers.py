"""The connections of a server to others: those to which it forwards requests, and the leader."""

from __future__ import annotations

import asyncio
import ssl as tls_module
from collections.abc import Callable
from typing import Final

from holdfast.queryable.wire.connection import ClientConnection, connect
from holdfast.queryable.wire.errors import QueryConnectionError
from holdfast.queryable.wire.frame import Frame
from holdfast.queryable.wire.location import Address

PING_SECONDS: Final = 1.0
"""Between two signs of life of servers that have a connection."""
_CONNECT_SECONDS: Final = 3.0  # for a connection to another server; its client waits meanwhile
_SUSPECTED_SECONDS: Final = 10.0


class Peers:
    """Connections to other servers; belongs to one event loop.

    There is one to each server, and another while all requests that may be in flight on it are: they are of many
    clients. A server that gives no sign of life counts as lost, and is asked last for a while.
    """

    def __init__(self, token: str | None, ssl: tls_module.SSLContext | None) -> None:
        self._token = token
        self._ssl = ssl
        self._open: dict[Address, list[asyncio.Task[ClientConnection]]] = {}
        self._suspected: dict[Address, float] = {}

    async def to(self, address: Address) -> ClientConnection:
        """Return a connection.

        Raises:
            QueryConnectionError: There is none.
        """
        self._forget_lost_ones()
        for task in list(self._open.get(address, ())):
            connection = await asyncio.shield(task)
            if connection.has_room and connection.is_open:
                return connection
        while True:
            # Others may have waited for the same one, and have filled it.
            task = asyncio.get_running_loop().create_task(self.fresh(address))
            self._open.setdefault(address, []).append(task)
            connection = await asyncio.shield(task)
            if connection.has_room:
                return connection

    def _forget_lost_ones(self) -> None:
        """Servers come and go, each with an address of its own."""
        for address, known in list(self._open.items()):
            known[:] = [task for task in known if not task.done() or _is_usable(task)]
            if not known:
                del self._open[address]

    async def fresh(self, address: Address, on_notification: Callable[[Frame], None] | None = None) -> ClientConnection:
        """Return a new connection, for a stream or for notifications; it ends when the server is silent.

        Raises:
            QueryConnectionError: There is none.
        """
        try:
            connection = await connect(
                address, token=self._token, ssl=self._ssl, on_notification=on_notification, timeout=_CONNECT_SECONDS
            )
        except QueryConnectionError:
            self.suspect(address)
            raise
        self._suspected.pop(address, None)
        connection.keep_alive(PING_SECONDS)
        return connection

    def suspect(self, address: Address) -> None:
        """A server has not answered: it is asked after others, for a while or until there is a connection again."""
        now = asyncio.get_running_loop().time()
        self._suspected = {known: until for known, until in self._suspected.items() if until > now}
        self._suspected[address] = now + _SUSPECTED_SECONDS

    def is_suspected(self, address: Address) -> bool:
        """Whether others are asked first."""
        until = self._suspected.get(address)
        return until is not None and until > asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Close all of them."""
        for task in [task for tasks in self._open.values() for task in tasks]:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            task.cancel()
        self._open.clear()


def _is_usable(task: asyncio.Task[ClientConnection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open
