"""Bad weather: failures at random tasks and fault points, the same for the same seed."""

from __future__ import annotations

import random

from holdfast.kernel import fault

POINTS = ("run.write", "metadata.write", "pointer.write", "sink.stage", "sink.commit", "notify", "subsume.delete")
MOMENTS = ("before", "after", "lost")


class Weather:
    """The interceptor of an epoch runner: lets tasks fail, and arms fault points that the epoch will come to.

    Args:
        seed: Of everything random.
        rate: How likely a failure is, for each task.
    """

    def __init__(self, seed: int, rate: float) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self.struck: dict[str, int] = {}

    def __call__(self, stage: int, partition: int) -> None:
        if self._random.random() >= self._rate:
            return
        if self._random.random() < 0.25:
            self._count("task")
            raise fault.FaultInjectedError(f"the task {partition} of stage {stage} fails")
        spec = f"{self._random.choice(MOMENTS)}:{self._random.choice(POINTS)}:{self._random.randint(1, 2)}=raise"
        self._count(spec.split(":")[1])
        fault.install(spec)

    def _count(self, what: str) -> None:
        self.struck[what] = self.struck.get(what, 0) + 1
