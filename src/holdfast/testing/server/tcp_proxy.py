"""A TCP proxy that cuts, stalls and delays connections and loses answers, to test network failures."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 65536


class _Mode(Enum):
    PASS = "bytes pass"
    CUT = "connections are closed, and new ones as well"
    STALL = "connections stay open and nothing passes"
    LOSE_ANSWERS = "requests pass, answers are thrown away"


@dataclass(frozen=True)
class _Watch:
    """The action at the next request that matches."""

    matches: Callable[[bytes], bool]
    call: Callable[[], object]
    loses_answer: bool


class TcpProxy:
    """Listens on a free local port and forwards to one server. Safe to use from several threads.

    >>> import socket
    >>> server = socket.create_server(("127.0.0.1", 0))
    >>> with TcpProxy("127.0.0.1", server.getsockname()[1]) as proxy:
    ...     with socket.create_connection((proxy.host, proxy.port)) as client:
    ...         accepted, _ = server.accept()
    ...         proxy.cut()
    ...         client.recv(1)
    b''
    >>> server.close()

    Args:
        host: The server's host.
        port: The server's port.

    Attributes:
        address: Host and port of the proxy, for clients; also `host` and `port`.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._changed = threading.Condition()
        self._mode = _Mode.PASS
        self._delay = 0.0
        self._answers_until_loss = -1
        self._watch: _Watch | None = None
        self._is_closed = False
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.host: Final = "127.0.0.1"
        self.port: Final[int] = self._listener.getsockname()[1]
        self.address: Final = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and each new one, until `mend`."""
        self._set(_Mode.CUT)
        self._drop()

    def stall(self) -> None:
        """Forward nothing in either direction, and keep connections open, until `mend`."""
        self._set(_Mode.STALL)

    def lose_answers(self) -> None:
        """Forward requests and discard the server's answers, until `mend`."""
        self._set(_Mode.LOSE_ANSWERS)

    def lose_next_answer(self, after: int = 0) -> None:
        """Discard one answer of the server, close that connection, and then forward everything.

        Args:
            after: Number of answers that are forwarded before.
        """
        with self._changed:
            self._answers_until_loss = after

    def before_request(self, matches: Callable[[bytes], bool], call: Callable[[], object]) -> None:
        """Call a function once, before the next matching request is forwarded.

        Args:
            matches: Called with what clients send, chunk by chunk.
            call: Blocks that connection while it runs.
        """
        self._look_for(_Watch(matches, call, loses_answer=False))

    def lose_answer_to(self, matches: Callable[[bytes], bool], call: Callable[[], object] = lambda: None) -> None:
        """Discard the first answer after the next matching request, and close that connection.

        Args:
            matches: As for `before_request`.
            call: Called once, when the answer has reached the proxy.
        """
        self._look_for(_Watch(matches, call, loses_answer=True))

    def delay(self, seconds: float) -> None:
        """Delay everything in both directions."""
        with self._changed:
            self._delay = seconds

    def mend(self) -> None:
        """Forward everything again. Stalled data is delivered; lost answers stay lost."""
        with self._changed:
            lost = self._mode is _Mode.LOSE_ANSWERS
            self._mode, self._delay, self._answers_until_loss, self._watch = _Mode.PASS, 0.0, -1, None
            self._changed.notify_all()
        if lost:
            self._drop()  # a stream that lacks some bytes is of no use to anybody

    def close(self) -> None:
        """Close the proxy and its connections."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        # Shut down first: closing alone does not wake a thread that accepts.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set(self, mode: _Mode) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify_all()

    def _look_for(self, watch: _Watch) -> None:
        with self._changed:
            self._watch = watch

    def _drop(self) -> None:
        with self._changed:
            sockets, self._sockets = self._sockets, set()
        for connection in sockets:
            _hang_up(connection)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._mode is not _Mode.STALL or self._is_closed)
            refused = self._mode is _Mode.CUT or self._is_closed
        if refused:
            _hang_up(client)
            return
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            _hang_up(client)
            return
        server.settimeout(None)
        for connection in (client, server):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            # It may have been cut since it was accepted; `cut` has not seen these sockets.
            refused = self._mode is _Mode.CUT or self._is_closed
            if not refused:
                self._sockets |= {client, server}
        if refused:
            _hang_up(client)
            _hang_up(server)
            return
        lost: list[_Watch] = []
        threading.Thread(target=self._pump, args=(server, client, self._answer_passes, lost), daemon=True).start()
        self._pump(client, server, self._request_passes, lost)

    def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        passes: Callable[[bytes, list[_Watch]], bool],
        lost: list[_Watch],
    ) -> None:
        try:
            while data := source.recv(_CHUNK):
                with self._changed:
                    delay = self._delay
                if delay:
                    time.sleep(delay)
                with self._changed:
                    self._changed.wait_for(lambda: self._mode is not _Mode.STALL or self._is_closed)
                    if self._mode is _Mode.CUT or self._is_closed:
                        break
                if passes(data, lost):
                    target.sendall(data)
        except OSError:
            pass
        finally:
            for connection in (source, target):
                _hang_up(connection)
            with self._changed:
                self._sockets -= {source, target}

    def _request_passes(self, data: bytes, lost: list[_Watch]) -> bool:
        """Return whether to forward it; `lost` makes the other direction discard its answer."""
        with self._changed:
            watch = self._watch
            if watch is None or not watch.matches(data):
                return True
            self._watch = None
        if watch.loses_answer:
            lost.append(watch)
        else:
            watch.call()
        return True

    def _answer_passes(self, data: bytes, lost: list[_Watch]) -> bool:
        """Return whether to forward it.

        Raises:
            ConnectionAbortedError: It is discarded, and the connection is to be closed.
        """
        if lost:
            lost.pop().call()
            raise ConnectionAbortedError
        with self._changed:
            if self._mode is _Mode.LOSE_ANSWERS:
                return False
            if self._answers_until_loss >= 0:
                self._answers_until_loss -= 1
                if self._answers_until_loss < 0:
                    raise ConnectionAbortedError
        return True

    def __repr__(self) -> str:
        return f"TcpProxy({self.address} -> {self._target[0]}:{self._target[1]}, {self._mode.value})"


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
