"""The newest lines of a process's log, kept in memory for the REST interface."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from holdfast.kernel.default_log import FORMAT

_PACKAGE: Final = "holdfast"
_MAX_BYTES: Final = 256 * 1024


class RecentLog(logging.Handler):
    """Keeps the newest records of this package's loggers, as text. Their credentials are hidden already.

    Offsets count from the first byte that was ever kept, as in a file that loses its beginning.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._guard = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._begin = self._end = 0

    def start(self) -> None:
        logging.getLogger(_PACKAGE).addHandler(self)

    def stop(self) -> None:
        logging.getLogger(_PACKAGE).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")[-_MAX_BYTES:]
        with self._guard:
            self._lines.append(line)
            self._end += len(line)
            while self._end - self._begin > _MAX_BYTES:
                self._begin += len(self._lines.popleft())

    def read(self, offset: int | None, tail: int | None) -> tuple[int, str, int]:
        """Return the offset of the first byte, the text, and the offset after it.

        Args:
            offset: Offset of the first byte; an earlier one than is kept is moved to the first that is.
            tail: Number of bytes from the end; takes precedence.
        """
        with self._guard:
            content, end = b"".join(self._lines), self._end
        wanted = offset or 0 if tail is None else end - tail
        begin = min(max(wanted, end - len(content)), end)
        return begin, content[len(content) - (end - begin) :].decode(errors="replace"), end
