"""What is known of a source beside the rows that its epochs have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceNumbers:
    """The numbers of one source now; None for what it does not count.

    Attributes:
        records: That wait to be read.
        files: That wait to be read.
        bytes: Of these files.
        commits: How often where it stands was committed to its consumer group, since the process runs.
        failed_commits: How often it was not.
    """

    records: int | None = None
    files: int | None = None
    bytes: int | None = None
    commits: int | None = None
    failed_commits: int | None = None

    def __add__(self, other: SourceNumbers) -> SourceNumbers:
        """The numbers of two parts of a source."""
        return SourceNumbers(*(_sum(getattr(self, name), getattr(other, name)) for name in self.__match_args__))

    def waiting(self) -> dict[str, Any]:
        """What waits, as progress says it."""
        found = {"behind": self.records, "files_behind": self.files, "bytes_behind": self.bytes}
        return {name: number for name, number in found.items() if number is not None}


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
