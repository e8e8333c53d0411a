"""Documents whose checksum is right whatever is in them: what somebody who may write to the storage can make."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

_PREFIX = "holdfast-fuzz-"
PATH = "/checkpoints/job/file-0d1e"
"""Where a target says its input came from; what is refused must name it."""


def sealed(kind: str, version: int, body: bytes) -> bytes:
    """A document of bytes that begin as a JSON object does; what comes later in it wins over what is put first."""
    rest = f',"format_version":{version},"kind":"{kind}",'.encode() + body.removeprefix(b"{") + b"\n"
    return b'{"checksum":"sha256:' + hashlib.sha256(rest).hexdigest().encode() + b'"' + rest


@cache
def directory() -> Path:
    """A directory for the files of this process, in memory where the machine has such a place.

    A fuzzer ends without a word, so each process removes what those before it have left.
    """
    memory = Path("/dev/shm")
    above = memory if memory.is_dir() else Path(tempfile.gettempdir())
    for left in above.glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not _is_alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=above)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def replaced(path: Path, data: bytes) -> str:
    """Write a file anew; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)
