"""When a job attempt sweeps: deleting what no checkpoint needs, but not in each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.checkpoint.config.options import GRACE_PERIOD
from holdfast.checkpoint.retention.sweeper import Sweeper
from holdfast.runtime.job.job import Job
from holdfast.storage.job.naming import FileName
from holdfast.storage.register.fenced_register import Lease

SWEEP_EVERY: Final = 20
"""Checkpoints between two sweeps: a sweep lists directories, which costs more than every epoch should pay."""
_LONGEST_PAUSE: Final = 10.0  # seconds


class PacedSweeper:
    """Sweeps once in a while.

    Args:
        job: The job.
        lease: The right to write its register.
    """

    def __init__(self, job: Job, lease: Lease) -> None:
        self._clock = job.clock
        self._sweeper = Sweeper(job.directory, lease, job.configuration, job.clock)
        # A sweep looks at each file that waits for its grace period, so fast epochs must not make it more often than
        # this period can notice.
        self._pause = min(_LONGEST_PAUSE, job.configuration.get(GRACE_PERIOD) / 60_000)
        self._swept_at = -math.inf
        self._until_next = 0

    def sweep(
        self, live: Iterable[str], elsewhere: Callable[[Callable[[FileName], bool]], object], *, now: bool = False
    ) -> None:
        """Called after each checkpoint; sweeps after each 20th of them, and at most every ten seconds.

        Args:
            live: Paths of the runs of the current versions.
            elsewhere: Sweeps files outside of the job directory.
            now: Whether it is done in any case, and waited for; otherwise files are deleted beside the epochs.

        Raises:
            FencedError: Another leader took over; nothing was deleted.
        """
        self._until_next -= 1
        started = self._clock.monotonic()
        if now or (self._until_next <= 0 and started - self._swept_at >= self._pause):
            self._until_next, self._swept_at = SWEEP_EVERY, started
            self._sweeper.sweep(live, is_dead_elsewhere=elsewhere, wait=now)

    def close(self) -> None:
        """Ends what an earlier sweep still deletes."""
        self._sweeper.close()
