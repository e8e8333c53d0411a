"""What a seed decides: a sequence of numbers in which 0 always means that nothing special happens.

So a history is told by the few draws that were not 0, and replaying some of them alone is a history too, a calmer one.
That is what shrinking needs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping


class Choices:
    """Draws by a seed, or from what an earlier history has drawn.

    Args:
        seed: Of the history.
        recorded: What its draws are, by their number; those that are missing are 0. None draws them at random.
    """

    def __init__(self, seed: int, recorded: Mapping[int, int] | None = None) -> None:
        self.seed = seed
        self._recorded = recorded
        self._random = random.Random(seed)
        self._count = 0
        self.drawn: dict[int, int] = {}

    @property
    def count(self) -> int:
        """How many numbers were drawn."""
        return self._count

    def chance(self, probability: float) -> bool:
        """Whether something special happens."""
        self._count += 1
        if self._recorded is None:
            happens = self._random.random() < probability
        else:
            happens = self._recorded.get(self._count, 0) > 0
        if happens:
            self.drawn[self._count] = 1
        return happens

    def below(self, limit: int) -> int:
        """A number from 0 up to, not including, a limit."""
        self._count += 1
        if self._recorded is None:
            value = int(self._random.random() * limit)
        else:
            value = min(self._recorded.get(self._count, 0), limit - 1)
        if value:
            self.drawn[self._count] = value
        return value
