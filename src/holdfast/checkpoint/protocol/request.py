"""Requests for checkpoints, and which of them is carried out when."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.snapshot_type import CheckpointProperties
from holdfast.errors import CheckpointFailureReason

_sequence = itertools.count()


@dataclass(eq=False)
class CheckpointTriggerRequest:
    """Somebody's wish for a checkpoint.

    Attributes:
        properties: What it is to be.
        external_location: Directory for a savepoint, None for the configured one.
        is_periodic: Whether the scheduler wishes it.
        timestamp: When it was wished, in milliseconds since 1970.
        epoch: The epoch whose end wishes it; None if somebody asked for it.
        future: Gets the completed checkpoint, or why there is none.
    """

    properties: CheckpointProperties
    external_location: str | None = None
    is_periodic: bool = False
    timestamp: int = 0
    epoch: int | None = None
    future: Future[CompletedCheckpoint] = field(default_factory=Future)
    sequence: int = field(default_factory=lambda: next(_sequence))

    @property
    def is_forced(self) -> bool:
        """Whether it is carried out however many others are under way."""
        return self.properties.force_checkpoint()

    @property
    def order(self) -> tuple[Any, ...]:
        """Savepoints first, then forced ones, then those that somebody asked for, then the older ones."""
        return (
            not self.properties.is_savepoint(),
            not self.is_forced,
            self.is_periodic,
            self.timestamp,
            self.sequence,
        )


@dataclass(frozen=True)
class Decision:
    """What the decider came to.

    Attributes:
        chosen: To be carried out now.
        rejected: Requests that are dropped, with the reason.
        retry_periodic_after: If a periodic request came too early, in how many milliseconds it is worth another try.
    """

    chosen: CheckpointTriggerRequest | None = None
    rejected: tuple[tuple[CheckpointTriggerRequest, CheckpointFailureReason], ...] = ()
    retry_periodic_after: int | None = None


class CheckpointRequestDecider:
    """A queue with priorities.

    In Flink requests also wait while too many checkpoints are being deleted. Here who completes a checkpoint deletes
    those that it replaced before it takes the next request, so there is nothing to wait for.

    Args:
        max_concurrent: How many checkpoints may be under way.
        min_pause: Milliseconds from the end of a checkpoint to the start of the next periodic one.
        capacity: How many requests may wait.
    """

    CAPACITY: Final = 1000

    def __init__(self, max_concurrent: int, min_pause: int, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"The queue must have room for a request, not {capacity!r}.")
        self._max_concurrent = max_concurrent
        self._min_pause = min_pause
        self._capacity = capacity
        self._queue: list[CheckpointTriggerRequest] = []

    def __len__(self) -> int:
        return len(self._queue)

    def choose(
        self,
        new: CheckpointTriggerRequest | None,
        *,
        is_triggering: bool,
        pending: int,
        since_last_completion: float | None,
    ) -> Decision:
        """Take a new request, if there is one, and decide.

        Args:
            new: The new request.
            is_triggering: Whether another is being triggered.
            pending: How many checkpoints are under way.
            since_last_completion: Milliseconds since a checkpoint completed; None if none ever did.
        """
        rejected: list[tuple[CheckpointTriggerRequest, CheckpointFailureReason]] = []
        if new is not None:
            loser = self._enqueue(new)
            if loser is not None:
                rejected.append((loser, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
        if is_triggering or not self._queue:
            return Decision(None, tuple(rejected))
        first = self._queue[0]
        if pending >= self._max_concurrent and not first.is_forced:
            return Decision(None, tuple(rejected))
        if first.is_periodic and not first.is_forced and since_last_completion is not None:
            missing = self._min_pause - since_last_completion
            if missing > 0:
                self._queue.pop(0)
                rejected.append((first, CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS))
                return Decision(None, tuple(rejected), max(1, round(missing)))
        return Decision(self._queue.pop(0), tuple(rejected))

    def drain(self) -> Collection[CheckpointTriggerRequest]:
        """Take all requests out of the queue."""
        waiting, self._queue = self._queue, []
        return waiting

    def _enqueue(self, new: CheckpointTriggerRequest) -> CheckpointTriggerRequest | None:
        """Insert a request and return the one for which there is no room."""
        evicted = None
        if len(self._queue) >= self._capacity:
            if not self._queue[-1].is_periodic:
                return new
            evicted = self._queue.pop()
        bisect.insort(self._queue, new, key=lambda request: request.order)
        return evicted
