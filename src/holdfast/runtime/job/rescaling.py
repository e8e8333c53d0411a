"""What became of the wishes for another parallelism, for those who ask later."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Rescale:
    """One wish and its outcome; times in milliseconds since 1970.

    Attributes:
        number: Of the wish in this process, from 1.
        wanted: Parallelism that was asked for, by uid; the empty uid stands for all operators with state.
        before: Parallelism of each operator with state when the wish was met.
        after: That afterwards; the same if it was refused.
        started: When it was met, between two epochs.
        ended: When it was in force, or refused.
        refusal: Why it was refused; None if it was not.
        id: Names it.
    """

    number: int
    wanted: Mapping[str, int]
    before: Mapping[str, int]
    after: Mapping[str, int]
    started: int
    ended: int
    refusal: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class RescaleHistory:
    """The rescales of a job in this process. Safe to use from several threads."""

    SIZE: Final = 16

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rescales: deque[Rescale] = deque(maxlen=self.SIZE)
        self._durations: deque[int] = deque(maxlen=10_000)
        self._latest: dict[bool, Rescale] = {}
        self._counts = {True: 0, False: 0}

    def met(
        self,
        wanted: Mapping[str, int],
        before: Mapping[str, int],
        after: Mapping[str, int],
        times: tuple[int, int],
        refusal: str | None = None,
    ) -> None:
        """Note a wish that was met or refused; the arguments are those of `Rescale`."""
        with self._lock:
            is_done = refusal is None
            number = sum(self._counts.values()) + 1
            rescale = Rescale(number, dict(wanted), dict(before), dict(after), *times, refusal)
            self._counts[is_done] += 1
            self._latest[is_done] = rescale
            self._rescales.append(rescale)
            if is_done:
                self._durations.append(times[1] - times[0])

    @property
    def completed(self) -> int:
        """How many were done."""
        return self._counts[True]

    @property
    def failed(self) -> int:
        """How many were refused."""
        return self._counts[False]

    @property
    def durations(self) -> list[int]:
        """Milliseconds that those took which were done."""
        with self._lock:
            return list(self._durations)

    def latest(self, *, done: bool) -> Rescale | None:
        """Return the newest one that was done, or that was refused."""
        with self._lock:
            return self._latest.get(done)

    def newest_first(self) -> list[Rescale]:
        """Return those that are remembered."""
        with self._lock:
            return list(reversed(self._rescales))

    def find(self, rescale_id: str) -> Rescale | None:
        """Return one by its id, None if it is unknown or forgotten."""
        known = [*self.newest_first(), self.latest(done=True), self.latest(done=False)]
        return next((rescale for rescale in known if rescale is not None and rescale.id == rescale_id), None)
