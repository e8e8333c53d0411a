"""How the driver lets a source wait: who plans the epochs of the source asks here, and says what it has left.

Spark plans the epochs of a source in Python in a process of its own, on the machine of the driver. So what the two tell
each other is whether a file is there. Nothing of it is durable: what an epoch reads is in its plan, and an attempt
begins with open gates.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.kernel.watermark import WatermarkAlignment

_CLOSED: Final = "closed"
_MORE: Final = "more"


def _new_place() -> str:
    return str(Path(tempfile.gettempdir()) / f"holdfast-gate-{uuid.uuid4().hex}")


@dataclass(frozen=True)
class EpochGate:
    """The gate of one source. It can be pickled, and stays the same gate.

    Attributes:
        place: A directory of its own; it is there as long as something is said.
    """

    place: str = field(default_factory=_new_place)

    def begin(self) -> None:
        """An attempt begins, or has ended: the gate is open, and nothing is known of its source."""
        shutil.rmtree(self.place, ignore_errors=True)

    def close(self) -> None:
        """The source reads nothing in epochs that are planned from now on."""
        self._put(_CLOSED)

    def open(self) -> None:
        """The source reads again."""
        self._take(_CLOSED)

    @property
    def is_closed(self) -> bool:
        """Whether the source is to read nothing."""
        return (Path(self.place) / _CLOSED).exists()

    def tell(self, has_more: bool) -> None:
        """Who plans an epoch says whether the source has something to read that is not in it."""
        self._put(_MORE) if has_more else self._take(_MORE)

    @property
    def has_more(self) -> bool:
        """Whether the source has left something unread in the epoch that was planned last."""
        return (Path(self.place) / _MORE).exists()

    def _put(self, name: str) -> None:
        # Made each time: whoever cleans directories of temporary files may have taken it.
        Path(self.place).mkdir(mode=0o700, exist_ok=True)
        (Path(self.place) / name).touch()

    def _take(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (Path(self.place) / name).unlink()


@dataclass(frozen=True)
class AlignedSource:
    """What a clock at a source that waits for others goes by."""

    alignment: WatermarkAlignment
    gate: EpochGate
