"""Notes in `~/.holdfast/jobmanagers`: the working directories of this user's job managers, for clients on this host.

A job manager writes a note while it runs, if its working directory was set by the option
`process.jobmanager.working-dir`. Clients without the option find the job manager by it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def announced_directories() -> list[Path]:
    """Return the working directories of job managers of this user on this host that were set by the option."""
    found = []
    with suppress(OSError, RuntimeError, ValueError):
        for note in sorted(_announcements().iterdir()):
            if note.suffix:
                continue  # it is being written
            directory = Path(note.read_text(encoding="utf-8"))
            if directory.is_absolute() and directory.is_dir():
                found.append(directory)
            else:  # its job manager was killed
                note.unlink(missing_ok=True)
    return found


@contextmanager
def announced(directory: Path) -> Iterator[None]:
    """Let clients that do not know the option find a working directory, while the block runs.

    Where the home directory cannot be written, they do not find it.
    """
    note = None
    with suppress(OSError, RuntimeError):
        folder = _announcements()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        note = folder / hashlib.sha256(str(directory).encode()).hexdigest()[:16]
        draft = note.with_suffix(f".{os.getpid()}")
        draft.write_text(str(directory), encoding="utf-8")
        draft.replace(note)
    try:
        yield
    finally:
        if note is not None:
            with suppress(OSError):
                note.unlink(missing_ok=True)


def _announcements() -> Path:
    return Path.home() / ".holdfast" / "jobmanagers"
