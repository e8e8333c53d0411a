"""The follower of a job's completed checkpoints, and the checkpoints that a server can answer from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from holdfast.checkpoint.completed_checkpoint import read_by_pointer
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.errors import HoldfastError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.secret import get_logger
from holdfast.queryable.replica.checkpoint_view import CheckpointView, Share, ViewBuilder, compacted
from holdfast.queryable.wire.errors import CheckpointNotAvailableError, LimitExceededError
from holdfast.queryable.wire.request import Consistency, ConsistencyKind
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import CheckpointPointer, FencedRegister, RegisterState

logger = get_logger(__name__)

MAX_HELD: Final = 1000
DEFAULT_POLL: Final = 0.05
_LOG_SECONDS: Final = 30.0  # between two log messages about the same problem
_IDLE_SECONDS: Final = 600.0
_IDLE_POLL: Final = 1.0


@dataclass
class Waiter:
    """A request that waits for a checkpoint; `wake` is called once, from any thread."""

    checkpoint_id: int
    wake: Callable[[], None]


@dataclass(frozen=True)
class PublishedCheckpoints:
    """The checkpoints of a replica at one moment; replaced as a whole, so readers need no lock.

    Attributes:
        views: The checkpoints that can be read, by id.
        newest: The newest of them, None if there is none yet.
    """

    views: dict[int, CheckpointView] = field(default_factory=dict)
    newest: CheckpointView | None = None


class Replica:
    """The checkpoints of one job that a server can answer from. Thread-safe; readers take no lock.

    Args:
        job_id: The job.
        clock: Decides when a held checkpoint expires.

    Attributes:
        published: The checkpoints at this moment.
    """

    def __init__(self, job_id: str, clock: Clock | None = None) -> None:
        self.job_id = job_id
        self._clock = clock or SystemClock()
        self._held: dict[int, float] = {}
        self.published = PublishedCheckpoints()
        self._lock = threading.Lock()
        self._waiting: list[Waiter] = []

    @property
    def newest(self) -> CheckpointView | None:
        return self.published.newest

    def publish(self, views: Iterable[CheckpointView]) -> None:
        """Replace the readable checkpoints by these and the held ones, and wake requests that have waited for one."""
        by_id = {view.checkpoint_id: view for view in views}
        latest = by_id[max(by_id)] if by_id else None
        with self._lock:
            self._drop_expired_holds()
            by_id = {number: view for number, view in self.published.views.items() if number in self._held} | by_id
            self.published = PublishedCheckpoints(by_id, latest)
            reached = latest.checkpoint_id if latest is not None else 0
            woken = [waiting for waiting in self._waiting if waiting.checkpoint_id <= reached]
            self._waiting = [waiting for waiting in self._waiting if waiting.checkpoint_id > reached]
        for waiting in woken:
            waiting.wake()

    def view(self, consistency: Consistency, *, waits: bool = False) -> CheckpointView | None:
        """Return the checkpoint to answer from, None if it has not completed yet.

        Args:
            consistency: Selects the checkpoint.
            waits: Whether `exactly` may wait for a checkpoint that has not completed yet.

        Raises:
            CheckpointNotAvailableError: The checkpoint is not retained any more, or not one of this job.
        """
        published = self.published
        latest = published.newest
        if consistency.kind is ConsistencyKind.NEWEST:
            return latest
        reached = latest.checkpoint_id if latest is not None else 0
        if consistency.kind is ConsistencyKind.AT_LEAST:
            return latest if reached >= consistency.checkpoint_id else None
        found = published.views.get(consistency.checkpoint_id)
        if found is None and (consistency.checkpoint_id <= reached or not waits):
            raise self._not_available(consistency.checkpoint_id, published)
        return found

    def _not_available(self, checkpoint_id: int, published: PublishedCheckpoints) -> CheckpointNotAvailableError:
        return CheckpointNotAvailableError(
            f"Checkpoint {checkpoint_id} of job {self.job_id} is not available. Available are: "
            f"{sorted(published.views)}. Retain more of them (execution.checkpointing.num-retained), or read a newer "
            "one."
        )

    def hold(self, checkpoint_id: int, seconds: float) -> None:
        """Keep a checkpoint readable for some time, whether the job retains it or not.

        Its files are open in this process, so it can be read even after they are deleted.

        Raises:
            LimitExceededError: Too many checkpoints are held.
            CheckpointNotAvailableError: The checkpoint was dropped a moment ago.
        """
        with self._lock:
            self._drop_expired_holds()
            if checkpoint_id not in self.published.views:
                raise self._not_available(checkpoint_id, self.published)
            if checkpoint_id not in self._held and len(self._held) >= MAX_HELD:
                raise LimitExceededError(f"The server holds {MAX_HELD} checkpoints of job {self.job_id} already.")
            until = self._clock.monotonic() + seconds
            self._held[checkpoint_id] = max(until, self._held.get(checkpoint_id, until))

    def _drop_expired_holds(self) -> None:
        now = self._clock.monotonic()
        self._held = {number: until for number, until in self._held.items() if until > now}

    def wake_at(self, checkpoint_id: int, wake: Callable[[], None]) -> Waiter | None:
        """Call `wake` when a checkpoint of at least this id is published; return None if one already is."""
        with self._lock:
            latest = self.published.newest
            if latest is not None and latest.checkpoint_id >= checkpoint_id:
                return None
            waiting = Waiter(checkpoint_id, wake)
            self._waiting.append(waiting)
            return waiting

    def wake_all(self) -> None:
        """Wake all waiting requests: the job is not served any more."""
        with self._lock:
            woken, self._waiting = self._waiting, []
        for waiting in woken:
            waiting.wake()

    def cancel(self, waiting: Waiter) -> None:
        with self._lock:
            if waiting in self._waiting:
                self._waiting.remove(waiting)


class CheckpointFollower:
    """Follows one job and publishes its retained checkpoints in a replica.

    It reads the job's register after a notification, and otherwise at intervals. A checkpoint becomes visible as soon
    as its new runs are mapped; merging follows. If a file is damaged or cannot be read, readers stay at the checkpoint
    before, and the error is logged: they never see a part of a checkpoint.

    Args:
        directory: The job's directory.
        register: The job's register.
        share: The key groups to serve.
        poll: Seconds between two reads of the register without a notification.
        on_change: Called in the follower's thread after the published checkpoints have changed.
        clock: For waiting.
    """

    def __init__(
        self,
        directory: JobDirectory,
        register: FencedRegister,
        share: Share,
        *,
        poll: float = DEFAULT_POLL,
        on_change: Callable[[CheckpointFollower], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.job_id = str(directory.job_id)
        self.share = share
        self.replica = Replica(self.job_id, clock)
        self._directory = directory
        self._register = register
        self._poll = poll
        self._on_change = on_change or (lambda follower: None)
        self._clock = clock or SystemClock()
        self._builder = ViewBuilder(directory, share)
        self._documents: dict[CheckpointPointer, CheckpointMetadata] = {}
        self._seen: RegisterState | None = None
        self._wake = threading.Event()
        self._ended = False
        self._last_logged: tuple[str, float] = ("", 0.0)
        self._changed = self._clock.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"holdfast-follow-{self.job_id[:8]}", daemon=True)

    def start(self) -> None:
        """Publish the present checkpoints, then follow the job in a thread."""
        self._refresh_and_merge()
        self._thread.start()

    def notify(self) -> None:
        """Read the register at once, as a checkpoint has completed. Thread-safe; does not block."""
        self._wake.set()

    def stop(self) -> None:
        """Stop following; published checkpoints stay readable."""
        self._ended = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._ended:
            self._clock.sleep(self.poll_seconds, self._wake)
            self._wake.clear()
            if not self._ended:
                self._refresh_and_merge()

    @property
    def poll_seconds(self) -> float:
        """Seconds until the next read of the register.

        A job whose register has not changed for long has probably ended. A server may follow hundreds of these, and
        twenty reads a second for each would keep it busy.
        """
        is_idle = self._clock.monotonic() - self._changed > _IDLE_SECONDS
        return max(self._poll, _IDLE_POLL) if is_idle else self._poll

    def _refresh_and_merge(self) -> None:
        try:
            if self.refresh():
                self._on_change(self)
                self.merge()
        except HoldfastError as error:
            self._log_problem(error)
        except Exception:  # the thread must not end unnoticed
            logger.exception("Following the checkpoints of job %s failed; it is retried.", self.job_id)

    def refresh(self) -> bool:
        """Publish the checkpoints that the register names, and return whether they have changed. Blocks.

        Raises:
            HoldfastError: The register, a document or a run cannot be read; the published checkpoints stay.
        """
        state = self._register.read()
        if self._seen is not None and state.version == self._seen.version:
            return False
        self._changed = self._clock.monotonic()
        known = self._documents
        if self._seen is not None and state.checkpoints == self._seen.checkpoints:
            self._seen = state
            return False
        published = self.replica.published
        documents: dict[CheckpointPointer, CheckpointMetadata] = {}
        views: list[CheckpointView] = []
        before = published.newest
        pointers = sorted(state.checkpoints, key=lambda pointer: pointer.checkpoint_id)
        for pointer in pointers:
            view = published.views.get(pointer.checkpoint_id) if pointer in known else None
            try:
                metadata = known.get(pointer) or read_by_pointer(self._directory, state, pointer).metadata
                view = view or self._builder.build(metadata, views[-1] if views else before)
            except HoldfastError as error:
                if pointer is pointers[-1]:
                    raise
                logger.warning("Checkpoint %d cannot be queried: %s", pointer.checkpoint_id, error)
                continue
            documents[pointer] = metadata
            views.append(view)
        self.replica.publish(views)
        self._documents, self._seen = documents, state
        self._builder.forget(documents.values())
        return True

    def merge(self) -> None:
        """Merge the newest layers of the newest checkpoint where there are many. Readers see the same rows."""
        latest = self.replica.newest
        for view in latest.states.values() if latest is not None else ():
            view.layers = compacted(view.description.kind, view.layers)

    def _log_problem(self, error: HoldfastError) -> None:
        text, at = self._last_logged
        now = self._clock.monotonic()
        if text != str(error) or now - at > _LOG_SECONDS:
            self._last_logged = (str(error), now)
            logger.error("Queries of job %s are still answered from the checkpoint before: %s", self.job_id, error)
