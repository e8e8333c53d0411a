"""A debugger for user functions, which run in worker processes: `pdb` there, the terminal here, a socket between.

The process with the terminal runs a `DebuggerServer`, whose address workers find in their environment. In a worker,
`breakpoint()` and an exception of a user function then start a session of `pdb`. One session has the terminal at a
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
_PROMPT: Final = "(Pdb) "


class DebuggerServer:
    """Lets debuggers in worker processes use the terminal of this process.

    Args:
        path: Path of the Unix socket, in a directory that only this user can enter.
        read_line: Returns a typed line, an empty text at the end of input. Default: standard input.
        output: Where the output of debuggers goes. Default: standard output.
    """

    def __init__(self, path: str, read_line: Callable[[], str] | None = None, output: TextIO | None = None) -> None:
        self._path = path
        self._read_line = read_line or sys.stdin.readline
        self._output = output or sys.stdout
        self._socket = socket.socket(socket.AF_UNIX)
        self._before: dict[str, str | None] = {}

    @staticmethod
    def is_listening() -> bool:
        """Return whether workers that start now find a terminal."""
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
                return  # closed by __exit__
            with connection, suppress(OSError):
                self._session(connection)

    def _session(self, connection: socket.socket) -> None:
        """Show the debugger's output. An output that ends with the prompt asks for a line: send the next one."""
        while chunk := connection.recv(_CHUNK):
            text = chunk.decode("utf-8", "replace")
            self._output.write(text)
            self._output.flush()
            if text.endswith(_PROMPT):
                line = self._read_line()
                connection.sendall((line or "quit\n").encode())


# Why not the package remote-pdb: its debugger listens on a TCP port of the worker, where any user of the machine may
# connect first and run code as the job's user, and one must find the port and start telnet. Here the terminal listens,
# in a directory that only its user can enter.


class _RemotePdb(pdb.Pdb):
    """A debugger that keeps the terminal until it continues without a breakpoint."""

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
        """Release the terminal."""
        with suppress(OSError):
            self._file.close()
        self._socket.close()


def set_trace(*_: Any, **__: Any) -> None:
    """Stop in the code that called `breakpoint()`; the value of PYTHONBREAKPOINT names this function."""
    path = os.environ.get(SOCKET)
    if path is not None:
        _RemotePdb(path).set_trace(sys._getframe(1))


def post_mortem(error: BaseException) -> None:
    """Start a session where an error was raised, if a `DebuggerServer` listens; return when the session ends."""
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
