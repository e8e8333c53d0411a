"""Several worker processes in one, as far as decoded state is concerned: each task runs in whichever is free."""

from __future__ import annotations

import random

from holdfast.state.version import STATE_CACHE, StateCache


class Workers:
    """An interceptor of an epoch runner: each task finds what the worker that it got remembers, which may be old.

    Args:
        seed: Of everything random.
        weights: How likely each worker is to get a task. One that is seldom asked has missed most when it is.
    """

    def __init__(self, seed: int, weights: tuple[int, ...] = (8, 4, 1)) -> None:
        self._random = random.Random(seed)
        self._weights = weights
        self._memories = [StateCache() for _ in weights]
        self._at_work = self._memories[0]

    def __call__(self, stage: int, partition: int) -> None:
        (chosen,) = self._random.choices(self._memories, self._weights)
        STATE_CACHE.swap(self._at_work)
        STATE_CACHE.swap(chosen)
        self._at_work = chosen
