"""The wall clocks of processes, which can be moved one by one."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final, Self

_SOURCE: Final = Path(__file__).with_name("clock.c")
_LARGEST: Final = Path("/proc/sys/kernel/pid_max")
_ENTRY: Final = struct.Struct("q")


class Clocks:
    """A library that all processes of a site load first, and the file in which it looks how wrong a clock is.

    Args:
        directory: For both.
        compiler: A C compiler.
    """

    def __init__(self, directory: Path, compiler: str) -> None:
        library, self._file = directory / "clock.so", directory / "clocks"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True)
        with self._file.open("wb") as file:
            file.truncate(_ENTRY.size * (int(_LARGEST.read_text()) + 1))  # sparse
        self.variables: Final = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._file)}
        """What the processes have in their environment."""

    @classmethod
    def in_directory(cls, directory: Path) -> Self | None:
        """Clocks that can be moved; None where there is no C compiler."""
        compiler = shutil.which("cc")
        return None if compiler is None else cls(directory, compiler)

    def move(self, pid: int, seconds: int) -> None:
        """Let the clock of a process be wrong by so much."""
        with self._file.open("r+b") as file:
            file.seek(_ENTRY.size * pid)
            file.write(_ENTRY.pack(seconds))
