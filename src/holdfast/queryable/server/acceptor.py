"""Takes the connections of a query server. Each counts from its first packet, also while its TLS handshake lasts."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl as tls_module
from collections.abc import Callable, Coroutine
from typing import Any, Final

from holdfast.kernel.connection_quota import ConnectionQuota
from holdfast.kernel.secret import get_logger
from holdfast.queryable.server.server_connection import ServerConnection
from holdfast.queryable.wire.errors import LimitExceededError
from holdfast.queryable.wire.limits import Limits

_log = get_logger(__name__)
_BACKLOG: Final = 1024
_TLS_END_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 1.0
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Listens; belongs to one event loop.

    Args:
        make: Makes the server's side of a connection.
        quota: Counts them.
        limits: How long strangers may take, and how many there may be.
        tls: None for none.
    """

    def __init__(
        self,
        make: Callable[[], ServerConnection],
        quota: ConnectionQuota[ServerConnection],
        limits: Limits,
        tls: tls_module.SSLContext | None,
    ) -> None:
        self._make = make
        self._quota = quota
        self._limits = limits
        self._tls = tls
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen at all addresses of a host from now on; returns the port.

        Raises:
            OSError: It is not possible.
        """
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(asyncio.Protocol, host, port, reuse_address=True, start_serving=False)
        self._listening = [one.dup() for one in bound.sockets]
        bound.close()
        for one in self._listening:
            one.setblocking(False)
            one.listen(_BACKLOG)
            self._keep(self._accept(one))
        return int(self._listening[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no more; what has been taken stays."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._listening:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                plain, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    _log.warning("No connection can be taken for the moment: %s", error)
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            connection = self._make()
            connection.arrived(plain)
            longest = self._quota.arrived(connection, str(address[0]))
            if longest is not None:
                longest.send_away(
                    LimitExceededError(
                        f"More than {self._limits.strangers} connections wait for a greeting. Greet at once."
                    )
                )
            self._keep(self._take(connection, plain))
            await asyncio.sleep(0)  # others have their turn, however many connect

    async def _take(self, connection: ServerConnection, plain: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._tls is None:
                await loop.connect_accepted_socket(lambda: connection, plain)
            else:
                await loop.connect_accepted_socket(
                    lambda: connection,
                    plain,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._limits.greeting_seconds,
                    ssl_shutdown_timeout=_TLS_END_SECONDS,
                )
        except OSError as error:
            _log.debug("A connection ended before it was one: %s", error)
            connection.connection_lost(error)

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
