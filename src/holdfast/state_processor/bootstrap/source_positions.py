"""Where the sources of a job are to begin, as a savepoint that is made says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourcePositions:
    """Positions of sources that somebody else has read, for `SavepointWriter.with_source_positions`.

    `SparkQueryReader.source_positions` makes them.

    Attributes:
        streaming: As a checkpoint has them, but for the files.
        files: What the sources remember beside that, by name.
    """

    streaming: Mapping[str, Any]
    files: Mapping[str, bytes]
