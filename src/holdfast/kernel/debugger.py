"""A debugger for functions that run in other processes: theirs talks to a terminal elsewhere, over a socket.

Who has a terminal listens (`DebuggerServer`), and says where in the environment before workers start. In a worker,
`breakpoint()` and an exception of a user's function begin a session of `pdb` then. One session has the terminal at a
time; others wait for it.
"""

from __future__ import annotations

import os
import pdb
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO

SOCKET: Final = "HOLDFAST_DEBUGGER"
_BREAKPOINT: Final = "PYTHONBREAKPOINT"
_CHUNK: Final = 4096


class DebuggerServer:
    """Gives debuggers in worker processes the terminal of this one.

    Args:
        path: Of the socket, in a directory that only this user can enter.
        read_line: Returns a line that was typed; empty at the end.
        output: Where debuggers write.
    """

    def __init__(self, path: str, read_line: Callable[[], str] | None = None, output: TextIO | None = None) -> None:
        self._path = path
        self._read_line = read_line or sys.stdin.readline
        self._output = output or sys.stdout
        self._socket = socket.socket(socket.AF_UNIX)
        self._before: dict[str, str | None] = {}

    @staticmethod
    def is_listening() -> bool:
        """Whether workers that start now would find a terminal."""
        return SOCKET in os.environ

    def __enter__(self) -> DebuggerServer:
        self._socket.bind(self._path)
        self._socket.listen()
        wanted = {SOCKET: self._path, _BREAKPOINT: f"{__name__}.set_trace"}
        self._before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        threading.Thread(target=self._serve, name="debugger", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # it was closed
            with connection, suppress(OSError):
                self._session(connection)

    def _session(self, connection: socket.socket) -> None:
        """Shows what a debugger writes; where it asks, which ends without a new line, sends the next line."""
        while chunk := connection.recv(_CHUNK):
            text = chunk.decode("utf-8", "replace")
            self._output.write(text)
            self._output.flush()
            if text.endswith(_PROMPT):
                line = self._read_line()
                connection.sendall((line or "quit\n").encode())


_PROMPT: Final = "(Pdb) "


class _RemotePdb(pdb.Pdb):
    """A debugger that has the terminal until it goes on without a breakpoint."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rw", encoding="utf-8", buffering=1)
        super().__init__(stdin=self._file, stdout=self._file, nosigint=True, readrc=False)
        self.use_rawinput = False
        self.prompt = _PROMPT

    def set_continue(self) -> None:
        super().set_continue()
        if not self.breaks:
            self.close()

    def set_quit(self) -> None:
        super().set_quit()
        self.close()

    def close(self) -> None:
        """Let go of the terminal."""
        with suppress(OSError):
            self._file.close()
        self._socket.close()


def set_trace(*_: Any, **__: Any) -> None:
    """Stop in the code that has called `breakpoint()`."""
    path = os.environ.get(SOCKET)
    if path is not None:
        _RemotePdb(path).set_trace(sys._getframe(1))


def post_mortem(error: BaseException) -> None:
    """Look at where an error was raised, if somebody listens; returns when the session is over."""
    path = os.environ.get(SOCKET)
    if path is None or error.__traceback__ is None:
        return
    with suppress(OSError):
        debugger = _RemotePdb(path)
        try:
            debugger.message(f"{type(error).__name__}: {error}")
            debugger.reset()
            debugger.interaction(None, error.__traceback__)
        finally:
            debugger.close()
