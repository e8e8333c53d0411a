"""The checkpoints of one job that a server can answer from, and who waits for the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from holdfast.kernel.clock import Clock, SystemClock
from holdfast.queryable.replica.checkpoint_view import CheckpointView
from holdfast.queryable.wire.consistency import Consistency, ConsistencyKind
from holdfast.queryable.wire.errors import CheckpointNotAvailableError, LimitExceededError

MAX_HELD: Final = 1000


@dataclass
class Waiting:
    """Somebody who waits for a checkpoint; `wake` is called once, from any thread."""

    checkpoint_id: int
    wake: Callable[[], None]


@dataclass(frozen=True)
class Content:
    """What a replica has at one moment; replaced as a whole, so a reader sees one or the other.

    Attributes:
        views: The checkpoints that can be answered from, by id.
        newest: The newest of them, None if there is none yet.
    """

    views: dict[int, CheckpointView] = field(default_factory=dict)
    newest: CheckpointView | None = None


class Replica:
    """The checkpoints of one job. Thread-safe; readers take no lock.

    Args:
        job_id: The job.
        clock: Says when a checkpoint need not be held any more.
    """

    def __init__(self, job_id: str, clock: Clock | None = None) -> None:
        self.job_id = job_id
        self._clock = clock or SystemClock()
        self._held: dict[int, float] = {}
        self._content = Content()
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []

    @property
    def content(self) -> Content:
        """What it has now."""
        return self._content

    @property
    def newest(self) -> CheckpointView | None:
        """The newest checkpoint, None if there is none yet."""
        return self._content.newest

    def publish(self, views: Iterable[CheckpointView]) -> None:
        """Let readers see these checkpoints from now on, and those that are held; wakes who has waited for one."""
        by_id = {view.checkpoint_id: view for view in views}
        latest = by_id[max(by_id)] if by_id else None
        with self._lock:
            self._let_go()
            by_id = {number: view for number, view in self._content.views.items() if number in self._held} | by_id
            self._content = Content(by_id, latest)
            reached = latest.checkpoint_id if latest is not None else 0
            woken = [waiting for waiting in self._waiting if waiting.checkpoint_id <= reached]
            self._waiting = [waiting for waiting in self._waiting if waiting.checkpoint_id > reached]
        for waiting in woken:
            waiting.wake()

    def view(self, consistency: Consistency, *, waits: bool = False) -> CheckpointView | None:
        """Return the checkpoint to answer from, None if it has not completed yet.

        Args:
            consistency: Which one.
            waits: Whether `exactly` may wait for a checkpoint that has not completed yet.

        Raises:
            CheckpointNotAvailableError: It is not retained any more, or is none of this job.
        """
        content = self._content
        latest = content.newest
        if consistency.kind is ConsistencyKind.NEWEST:
            return latest
        reached = latest.checkpoint_id if latest is not None else 0
        if consistency.kind is ConsistencyKind.AT_LEAST:
            return latest if reached >= consistency.checkpoint_id else None
        found = content.views.get(consistency.checkpoint_id)
        if found is None and (consistency.checkpoint_id <= reached or not waits):
            raise self._not_available(consistency.checkpoint_id, content)
        return found

    def _not_available(self, checkpoint_id: int, content: Content) -> CheckpointNotAvailableError:
        return CheckpointNotAvailableError(
            f"Checkpoint {checkpoint_id} of job {self.job_id} is not available; these are: {sorted(content.views)}. "
            "Retain more of them (execution.checkpointing.num-retained), or read a newer one."
        )

    def hold(self, checkpoint_id: int, seconds: float) -> None:
        """Let a checkpoint be read for some time, whether the job retains it or not.

        Its files are open here, so it can be read even when they are deleted.

        Raises:
            LimitExceededError: Too many are held.
            CheckpointNotAvailableError: It has just gone.
        """
        with self._lock:
            self._let_go()
            if checkpoint_id not in self._content.views:
                raise self._not_available(checkpoint_id, self._content)
            if checkpoint_id not in self._held and len(self._held) >= MAX_HELD:
                raise LimitExceededError(f"The server holds {MAX_HELD} checkpoints of job {self.job_id} already.")
            until = self._clock.monotonic() + seconds
            self._held[checkpoint_id] = max(until, self._held.get(checkpoint_id, until))

    def _let_go(self) -> None:
        now = self._clock.monotonic()
        self._held = {number: until for number, until in self._held.items() if until > now}

    def when(self, checkpoint_id: int, wake: Callable[[], None]) -> Waiting | None:
        """Call back once a checkpoint of at least this id is there; None if it is there already."""
        with self._lock:
            latest = self._content.newest
            if latest is not None and latest.checkpoint_id >= checkpoint_id:
                return None
            waiting = Waiting(checkpoint_id, wake)
            self._waiting.append(waiting)
            return waiting

    def wake_all(self) -> None:
        """Call all back who wait: nothing will come any more."""
        with self._lock:
            woken, self._waiting = self._waiting, []
        for waiting in woken:
            waiting.wake()

    def cancel(self, waiting: Waiting) -> None:
        """Call nobody back."""
        with self._lock:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
