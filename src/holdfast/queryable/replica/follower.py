"""Following the completed checkpoints of a job.

A follower reads the job's register when somebody tells it that a checkpoint has completed, and otherwise once in a
while. A checkpoint becomes visible as soon as its new runs are mapped; merging comes afterwards. What is damaged or
cannot be read leaves the readers with the checkpoint before, and an error in the log: they never see a half.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.recovery import recover
from holdfast.errors import HoldfastError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.secret import get_logger
from holdfast.queryable.replica.checkpoint_view import CheckpointView, Share, ViewBuilder, compacted
from holdfast.queryable.wire.errors import CheckpointNotAvailableError, LimitExceededError
from holdfast.queryable.wire.request import Consistency, ConsistencyKind
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import CheckpointPointer, FencedRegister, RegisterState

# The checkpoints of one job that a server can answer from, and who waits for the next.

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


_log = get_logger(__name__)
DEFAULT_POLL: Final = 0.05
_PATIENCE: Final = 30.0  # seconds between two complaints about the same trouble
_IDLE_SECONDS: Final = 600.0
_IDLE_POLL: Final = 1.0


class CheckpointFollower:
    """Follows one job and publishes its retained checkpoints in a replica.

    Args:
        directory: The job's directory.
        register: The job's register.
        share: Which key groups to hold.
        poll: Seconds between two looks at the register without a notification.
        on_change: Called, in the follower's thread, after other checkpoints were published.
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
        self._complained: tuple[str, float] = ("", 0.0)
        self._changed = self._clock.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"holdfast-follow-{self.job_id[:8]}", daemon=True)

    def start(self) -> None:
        """Publish what is there now, then follow in a thread of its own."""
        self._step()
        self._thread.start()

    def notify(self) -> None:
        """A checkpoint has completed: look at once. May be called from any thread; does not block."""
        self._wake.set()

    def stop(self) -> None:
        """Stop following; what was published stays."""
        self._ended = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._ended:
            self._clock.sleep(self.pause, self._wake)
            self._wake.clear()
            if not self._ended:
                self._step()

    @property
    def pause(self) -> float:
        """Seconds until the next look. A job whose register has not changed for long has probably ended.

        A server may follow hundreds of these, and twenty looks a second at each would keep it busy.
        """
        is_idle = self._clock.monotonic() - self._changed > _IDLE_SECONDS
        return max(self._poll, _IDLE_POLL) if is_idle else self._poll

    def _step(self) -> None:
        try:
            if self.follow():
                self._on_change(self)
                self.merge()
        except HoldfastError as error:
            self._complain(error)
        except Exception:  # a follower must not die in silence
            _log.exception("Following the checkpoints of job %s failed; it is tried again.", self.job_id)

    def follow(self) -> bool:
        """Publish what the register names; returns whether that is something else than before. Blocks.

        Raises:
            HoldfastError: The register, a document or a run cannot be read; what was published stays.
        """
        state = self._register.read()
        if self._seen is not None and state.version == self._seen.version:
            return False
        self._changed = self._clock.monotonic()
        known = self._documents
        if self._seen is not None and state.checkpoints == self._seen.checkpoints:
            self._seen = state
            return False
        content = self.replica.content
        documents: dict[CheckpointPointer, CheckpointMetadata] = {}
        views: list[CheckpointView] = []
        before = content.newest
        pointers = sorted(state.checkpoints, key=lambda pointer: pointer.checkpoint_id)
        for pointer in pointers:
            view = content.views.get(pointer.checkpoint_id) if pointer in known else None
            try:
                metadata = known.get(pointer) or recover(self._directory, state, pointer).metadata
                view = view or self._builder.build(metadata, views[-1] if views else before)
            except HoldfastError as error:
                if pointer is pointers[-1]:
                    raise
                _log.warning("Checkpoint %d cannot be queried: %s", pointer.checkpoint_id, error)
                continue
            documents[pointer] = metadata
            views.append(view)
        self.replica.publish(views)
        self._documents, self._seen = documents, state
        self._builder.forget(documents.values())
        return True

    def merge(self) -> None:
        """Merge the newest layers of the newest checkpoint where there are many; readers see the same as before."""
        latest = self.replica.newest
        for view in latest.states.values() if latest is not None else ():
            view.layers = compacted(view.description.kind, view.layers)

    def _complain(self, error: HoldfastError) -> None:
        text, at = self._complained
        now = self._clock.monotonic()
        if text != str(error) or now - at > _PATIENCE:
            self._complained = (str(error), now)
            _log.error("Readers of job %s stay at the checkpoint before: %s", self.job_id, error)
