"""When the coordinator's state machine has something to do by itself."""

from __future__ import annotations

import random

from holdfast.checkpoint.config.checkpoint_config import NEVER, CoordinatorConfiguration
from holdfast.kernel.clock import Clock


class Schedule:
    """Periodic triggers and the deadlines of checkpoints, in whole milliseconds of the clock's monotonic time.

    Args:
        configuration: The options.
        clock: Time.
        is_driven: Whether a job master says when an epoch ends; nothing is then triggered by time alone.

    Attributes:
        is_on: Whether periodic checkpoints are taken.
    """

    def __init__(self, configuration: CoordinatorConfiguration, clock: Clock, *, is_driven: bool) -> None:
        self._configuration = configuration
        self._clock = clock
        self._is_driven = is_driven
        self._next: int | None = None
        self._last_trigger = self.now()
        self._last_epoch: int | None = None
        self._last_completion: int | None = None
        self._deadlines: dict[int, int] = {}
        self.is_on = is_driven

    def now(self) -> int:
        """Return the time."""
        return round(self._clock.monotonic() * 1000)

    def start(self) -> None:
        """Begin: the first periodic trigger comes at a random time within the interval."""
        self.is_on = True
        if 0 < self._configuration.interval < NEVER and not self._is_driven:
            shortest = self._configuration.min_pause
            self._next = self.now() + random.randint(shortest, self._configuration.interval)

    def stop(self) -> None:
        """End periodic triggers."""
        self.is_on = False
        self._next = None

    def next_deadline(self) -> int | None:
        """Return when there is something to do, None for never."""
        times = [*self._deadlines.values()]
        if self._next is not None:
            times.append(self._next)
        return min(times, default=None)

    def take_periodic(self) -> bool:
        """Whether a periodic trigger is due; if so the next one is an interval from now."""
        if self._next is None or self._next > self.now():
            return False
        self._next = self.now() + self._configuration.interval
        return True

    def delay_periodic(self, ms: int) -> None:
        """Try the next periodic trigger in this time."""
        if self._next is not None:
            self._next = self.now() + ms

    def is_due_at(self, epoch: int) -> bool:
        """Whether the end of an epoch is to complete a checkpoint that nobody asked for; once for each epoch."""
        if epoch == self._last_epoch or not self.is_on:
            return False
        pause = self.since_last_completion()
        if pause is not None and pause < self._configuration.min_pause:
            return False
        return self.now() - self._last_trigger >= self._configuration.interval

    def triggered_at(self, epoch: int) -> None:
        """The end of an epoch completes a checkpoint."""
        self._last_trigger = self.now()
        self._last_epoch = epoch

    def begin(self, checkpoint_id: int) -> None:
        """The time of a checkpoint is running."""
        self._deadlines[checkpoint_id] = self.now() + self._configuration.timeout

    def end(self, checkpoint_id: int) -> None:
        """A checkpoint can no longer expire."""
        self._deadlines.pop(checkpoint_id, None)

    def expired(self) -> list[int]:
        """Return the checkpoints whose time is over."""
        now = self.now()
        return [checkpoint_id for checkpoint_id, deadline in self._deadlines.items() if deadline <= now]

    def completed(self) -> None:
        """A checkpoint or savepoint has completed."""
        self._last_completion = self.now()

    def since_last_completion(self) -> int | None:
        """Return the time since one has completed, None if none ever has."""
        return None if self._last_completion is None else self.now() - self._last_completion
