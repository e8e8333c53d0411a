"""What a source does when a checkpoint is complete, beside what the checkpoint itself keeps of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from holdfast.runtime.function.source_numbers import SourceNumbers


class SourceListener(ABC):
    """Is told in the driver how far a source is. Nothing depends on it: positions are in checkpoints."""

    @abstractmethod
    def checkpoint_completed(self, offset: Any) -> None:
        """A checkpoint is complete, and its output committed. Must not block.

        Args:
            offset: Where the source stands in it, as JSON; None for one that is read once as a whole, and has been.
        """

    def numbers(self) -> SourceNumbers:
        """What it counts. May be asked at any time; does not block."""
        return SourceNumbers()

    def close(self) -> None:  # noqa: B027 - most have nothing under way
        """The attempt ends, and perhaps the process; another attempt may follow. Blocks for seconds at most."""
