"""How many files wait in a source of files: those that lie there, and that Spark has not listed for an epoch.

Spark does not say it. It is counted when somebody asks, and for that the place is listed once more: so seldom that it
takes a twentieth of the time of a thread that asks all the time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.kernel.malformed import MALFORMED
from holdfast.runtime.function.source_numbers import SourceNumbers
from holdfast.runtime.function.splits import SplitInput
from holdfast.spark.input.file_listing import plain

_COMPACT: Final = ".compact"
_SHORTEST: Final = 1.0
_SHARE: Final = 20


class WaitingFiles:
    """The files that wait in one place of a source; safe to ask from any thread.

    Args:
        source: The source.
        place: Number of the place among those of the source.
        log: The folder in which Spark's source keeps what it has listed.
    """

    def __init__(self, source: SplitInput, place: int, log: Path) -> None:
        self._source = source
        self._place = place
        self._log = log
        self._lock = threading.Lock()
        self._last = -1
        self._newest: int | None = None
        self._read: set[int] = set()  # hashes, because paths of years are many
        self._counted = SourceNumbers()
        self._again = 0.0

    def count(self) -> SourceNumbers:
        """Count them, or say again what was counted a moment ago. Blocks while it lists."""
        with self._lock:
            began = time.monotonic()
            if began >= self._again:
                try:
                    self._catch_up()
                    self._counted = self._waiting()
                except (OSError, *MALFORMED):  # Spark writes the log, and cleans it up, at the same time
                    self._counted = SourceNumbers()
                ended = time.monotonic()
                self._again = ended + max(_SHORTEST, _SHARE * (ended - began))
            return self._counted

    def _waiting(self) -> SourceNumbers:
        files = size = 0
        listed = self._source.listed(self._place, self._newest)
        if listed is None:
            return SourceNumbers()
        for file in listed:
            if hash(file.path) not in self._read:
                files += 1
                size += file.size
        return SourceNumbers(files=files, bytes=size)

    def _catch_up(self) -> None:
        for number, entry in self._new_entries():
            for line in entry.read_text("utf-8").splitlines()[1:]:
                said = json.loads(line)
                self._read.add(hash(plain(said["path"], is_encoded=True)))
                self._newest = max(int(said["timestamp"]), self._newest or 0)
            self._last = number

    def _new_entries(self) -> Iterator[tuple[int, Path]]:
        """The entries of the log that were not read yet, in order; the newest that holds all before it comes first."""
        found: dict[int, Path] = {}
        for entry in self._log.iterdir():
            number = entry.name.removesuffix(_COMPACT)
            if number.isdecimal() and int(number) > self._last:
                found[int(number)] = entry
        whole = max((number for number, entry in found.items() if entry.name.endswith(_COMPACT)), default=-1)
        return iter(sorted(item for item in found.items() if item[0] >= whole))
