"""A connection to a query server for clients that block."""

from __future__ import annotations

import socket
import ssl as tls_module
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from holdfast.queryable.wire.client_session import CONNECT_TIMEOUT, ClientSession, raise_failure
from holdfast.queryable.wire.errors import QueryConnectionError, QueryTimeoutError
from holdfast.queryable.wire.frame import Frame, FrameType
from holdfast.queryable.wire.location import Address

_CHUNK: Final = 256 * 1024


class BlockingConnection:
    """A connection with one request at a time.

    Raises:
        QueryConnectionError: Nobody listens there or answers in time, or the TLS of both sides does not fit.
        UnauthorizedError: The token is missing or wrong.
    """

    def __init__(self, address: Address, token: str | None, ssl: tls_module.SSLContext | None) -> None:
        self._session = ClientSession(address)
        self._arrived: deque[Frame] = deque()
        try:
            plain = socket.create_connection(address, CONNECT_TIMEOUT)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if ssl is None else ssl.wrap_socket(plain, server_hostname=address[0])
        except (OSError, ValueError) as error:  # a name that no host can have is a ValueError
            raise self._session.unreachable(error) from error
        try:
            self._send(self._session.greeting(token))
            self._session.greeted(self.receive(CONNECT_TIMEOUT))
        except QueryTimeoutError as error:
            self.close()
            raise self._session.silent(CONNECT_TIMEOUT) from error
        except BaseException:
            self.close()
            raise

    def request(self, kind: FrameType, header: bytes, body: Sequence[Any], timeout: float) -> Frame:
        """Send a request and wait for its answer."""
        self._session.check_ours()
        self._send(self._session.request(kind, header, body)[1])
        return raise_failure(self.receive(timeout))

    def stream(self, kind: FrameType, header: bytes, timeout: float) -> Iterator[Frame]:
        """Send a request and yield the parts of its answer."""
        self._session.check_ours()
        self._send(self._session.request(kind, header)[1])
        while (frame := raise_failure(self.receive(timeout))).type != FrameType.END:
            yield frame

    def receive(self, timeout: float) -> Frame:
        """Wait for the next frame."""
        self._session.check_ours()
        try:
            self._socket.settimeout(timeout)
            while not self._arrived:
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise QueryConnectionError("The server closed the connection.")
                self._arrived.extend(self._session.feed(data))
            return self._arrived.popleft()
        except TimeoutError:
            raise QueryTimeoutError(f"No answer within {timeout} seconds.") from None
        except OSError as error:
            raise QueryConnectionError(f"The connection was lost: {error}.") from error

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise QueryConnectionError(f"The connection was lost: {error}.") from error
