"""A connection to a query server for clients that block."""

from __future__ import annotations

import socket
import ssl as tls_module
from collections.abc import Iterator
from typing import Any, Final

from holdfast.queryable.connection import CONNECT_TIMEOUT, MAX_ANSWER, greeting, raise_failure, shown_limit
from holdfast.queryable.errors import QueryConnectionError, QueryTimeoutError
from holdfast.queryable.frame import Frame, FrameReader, FrameType, encode
from holdfast.queryable.location import Address

_CHUNK: Final = 256 * 1024


class BlockingConnection:
    """A connection with one request at a time.

    Raises:
        QueryConnectionError: Nobody listens there or answers in time, or the TLS of both sides does not fit.
        UnauthorizedError: The token is missing or wrong.
    """

    def __init__(self, address: Address, token: str | None, ssl: tls_module.SSLContext | None) -> None:
        self._reader = FrameReader(MAX_ANSWER, header_limit=None)
        self._arrived: list[Frame] = []
        try:
            plain = socket.create_connection(address, CONNECT_TIMEOUT)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if ssl is None else ssl.wrap_socket(plain, server_hostname=address[0])
        except OSError as error:
            raise QueryConnectionError(f"No connection to {address[0]}:{address[1]}: {error}.") from error
        try:
            self._send(greeting(token))
            self._most_bytes = shown_limit(raise_failure(self.receive(CONNECT_TIMEOUT)), "message_bytes")
        except QueryTimeoutError as error:
            self.close()
            raise QueryConnectionError(
                f"{address[0]}:{address[1]} did not answer within {CONNECT_TIMEOUT} seconds."
            ) from error
        except BaseException:
            self.close()
            raise

    def request(self, kind: FrameType, header: bytes, *body: Any, timeout: float) -> Frame:
        """Send a request and wait for its answer."""
        self._send(encode(kind, 1, header, *body, limit=self._most_bytes))
        return raise_failure(self.receive(timeout))

    def stream(self, kind: FrameType, header: bytes, timeout: float) -> Iterator[Frame]:
        """Send a request and yield the parts of its answer."""
        self._send(encode(kind, 1, header, limit=self._most_bytes))
        while (frame := raise_failure(self.receive(timeout))).type != FrameType.END:
            yield frame

    def receive(self, timeout: float) -> Frame:
        """Wait for the next frame."""
        try:
            self._socket.settimeout(timeout)
            while not self._arrived:
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise QueryConnectionError("The server closed the connection.")
                self._arrived = self._reader.feed(data)
            return self._arrived.pop(0)
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
