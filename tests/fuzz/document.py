"""Documents whose checksum is right whatever is in them: what somebody who may write to the storage can make."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path

PATH = "/checkpoints/job/file-0d1e"
"""Where a target says its input came from; what is refused must name it."""


def sealed(kind: str, version: int, body: bytes) -> bytes:
    """A document of bytes that begin as a JSON object does; what comes later in it wins over what is put first."""
    rest = f',"format_version":{version},"kind":"{kind}",'.encode() + body.removeprefix(b"{") + b"\n"
    return b'{"checksum":"sha256:' + hashlib.sha256(rest).hexdigest().encode() + b'"' + rest


@cache
def directory() -> Path:
    """A directory for the files of this process; they are in memory where the machine has such a place."""
    memory = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="holdfast-fuzz-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def replaced(path: Path, data: bytes) -> str:
    """Write a file anew; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)
