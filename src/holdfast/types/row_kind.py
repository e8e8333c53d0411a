"""What a row does to a table: Flink's `RowKind`."""

from __future__ import annotations

from enum import Enum


class RowKind(Enum):
    """What a row of a stream of changes does, as in PyFlink; its text is `+I`, `-U`, `+U` or `-D`."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return _WORDS[self.value]


_WORDS = ("+I", "-U", "+U", "-D")
