"""A file of an input as formats read it, and what is told if it is not what it was."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import NotExistError
from holdfast.runtime.job.engine import InputError, InputGoneError
from holdfast.storage.file_system.path import local_path
from holdfast.storage.file_system.scheme import file_system_for

_CODECS: Final = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}


@dataclass(frozen=True)
class InputFile:
    """A file as it was when an epoch was planned.

    Attributes:
        path: The path or URI.
        time: Of its last change, in milliseconds since 1970.
        length: In bytes.
    """

    path: str
    time: int
    length: int

    @classmethod
    def of(cls, path: str) -> InputFile:
        """The file as it is now. Blocks.

        Raises:
            InputGoneError: It is not there.
            StorageError: The storage does not say.
        """
        try:
            status = file_system_for(path).status(path)
        except NotExistError as error:
            raise InputGoneError(
                f"the file {path!r} is gone, which was listed and has not been read: put it back and run the job "
                "again. A job reads each file once, whole: do not delete or move what it may not have read"
            ) from error
        return cls(path, status.mtime, status.size)

    def require_same(self) -> None:
        """Makes sure that it is still what it was. Blocks.

        Raises:
            InputGoneError: It is not there.
            InputError: It has another length, or was changed.
        """
        now = InputFile.of(self.path)
        if now != self:
            raise self.changed(now)

    def changed(self, now: InputFile) -> InputError:
        """What to raise if it is another one now."""
        what = "changed"
        if now.length != self.length:
            what = "truncated" if now.length < self.length else "appended to"
        return InputError(
            f"the file {self.path!r} was {what} after it was listed: it had {self.length} bytes and was last changed "
            f"at {_told(self.time)}, and has {now.length} of {_told(now.time)}. A job reads each file once, whole: let "
            "a file be complete when it gets its name (write it elsewhere, then rename it), and leave it as it is"
        )

    @property
    def codec(self) -> str | None:
        """How it is compressed as a whole, by the end of its name; None if it is not."""
        return next((codec for ending, codec in _CODECS.items() if self.path.endswith(ending)), None)

    def open(self) -> Any:
        """The file for Arrow; its reader closes it. Blocks."""
        local = local_path(self.path)
        # Not mapped into memory: of a file that somebody truncates, that kills the process.
        return (
            pa.OSFile(local) if local is not None else pa.PythonFile(file_system_for(self.path).open_input(self.path))
        )

    def open_text(self) -> Any:
        """The file for Arrow, uncompressed. Blocks."""
        return self.open() if self.codec is None else pa.CompressedInputStream(self.open(), self.codec)


def _told(time: int) -> str:
    try:
        return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
    except (ArithmeticError, OSError, ValueError):  # file systems take times that are in no calendar
        return f"{time} ms since 1970"
