"""A directory in memory, where there is one that is large enough for what the tests write."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path("/dev/shm")
_BYTES: Final = 4 << 30
"""The tests keep less than half of it at a time."""
_WITH_PROCESSES: Final = 8 << 30
"""The same and what the processes of `make test` take."""


def has_room(directory: Path = DIRECTORY, meminfo: Path = Path("/proc/meminfo")) -> bool:
    """Whether tests can keep their files there; containers often have 64 MB, and some run no programs from it."""
    try:
        is_usable = os.access(directory, os.W_OK | os.X_OK) and not os.statvfs(directory).f_flag & os.ST_NOEXEC
        available = re.search(r"MemAvailable: +(\d+) kB", meminfo.read_text())
    except OSError:
        return False
    if not is_usable or available is None:
        return False
    return shutil.disk_usage(directory).free >= _BYTES and int(available[1]) << 10 >= _WITH_PROCESSES
