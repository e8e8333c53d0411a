"""The most memory that this process has held since somebody looked; `ru_maxrss` is that of its whole life."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Final

_RESET: Final = Path("/proc/self/clear_refs")
_STATUS: Final = Path("/proc/self/status")
_OF_THE_PEAK: Final = "5"


def peak_begun_anew() -> int:
    """Forget the peak so far; returns what is held now, in KiB. Only Linux can: elsewhere the peak of all times."""
    if _RESET.exists():
        _RESET.write_text(_OF_THE_PEAK)
    return peak()


def peak() -> int:
    """The most that was held since then, in KiB."""
    found = re.search(r"VmHWM:\s+(\d+)", _STATUS.read_text()) if _STATUS.exists() else None
    return int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
