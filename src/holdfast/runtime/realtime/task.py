"""A task of a real-time job: it lives until it is stopped, and takes a snapshot at each barrier.

Between two barriers it is a `StageTask`, the same that runs an epoch in a job by epochs; so operators, state, sinks and
reports are the same in both. At a barrier the `StageTask` reports, and the next one begins with the state that it left,
in the memory of this process.

A *round* is the messages that are processed together, before timers fire and output is sent. *Credit* is the number of
frames that a task lets each of its producers send; it grants so much that a barrier waits for at most
`_WINDOW_SECONDS` of work. Neighbouring tasks can share a thread: then they take *turns*.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from holdfast.errors import (
    CheckpointDeclinedError,
    CheckpointFailureReason,
    EngineUnavailableError,
    HoldfastError,
    StorageError,
    error_to_json,
)
from holdfast.kernel.clock import Clock, ForwardTime
from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.exchange.layout import MessageLayout, arriving_layout, message_batch
from holdfast.runtime.exchange.stage_message import EpochDescriptor
from holdfast.runtime.exchange.task_report import BarrierTimes, TaskReport
from holdfast.runtime.function.source import SourceReader, SourceSplit
from holdfast.runtime.graph.event_time import EventTime, Observed, WatermarkClock
from holdfast.runtime.job.options import LATENCY_HISTORY, LATENCY_INTERVAL
from holdfast.runtime.operator.async_operation import CallsInFlight
from holdfast.runtime.realtime.control import ControlAddress, DriverConnection, Heartbeat, lost_driver_error
from holdfast.runtime.realtime.message import (
    FIRST_CREDIT,
    FRAME_BYTES,
    IDLE,
    Barrier,
    FrameWriter,
    InputGate,
    LatencyMarker,
    least_watermark,
)
from holdfast.runtime.realtime.source_readers import SourceReaders
from holdfast.runtime.realtime.task_meter import FlushInterval, TaskMeter
from holdfast.runtime.task.stage_task import StageTask, TaskIdentity
from holdfast.runtime.task.steps import KeyedStepExecutor, OperatorExecutor, TimestampExecutor
from holdfast.runtime.task.worker_process import (
    LoadedJob,
    collect_between_barriers,
    collect_young,
    paused_garbage_collection,
)
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion

logger = get_logger(__name__)

_WATERMARK_SECONDS: Final = 0.2
"""Seconds between two watermarks to consumers that get no elements; Flink's auto-watermark interval."""
_IDLE_SECONDS: Final = 0.5
_LONGEST_ROUND: Final = 64
"""Messages that are processed at once: timers and output wait for them."""
_WINDOW_SECONDS: Final = 0.2
"""Seconds of work that may be under way to a task, for which a barrier waits."""
_ROUND_SECONDS: Final = 0.02
_EXCESS: Final = 2
_FIRST_AT_ONCE: Final = 32
_FEWEST_AT_ONCE: Final = 8
_MOST_AT_ONCE: Final = 4096
_RECENT: Final = 0.2
_HEAD_BYTES: Final = 1024
"""Bytes that a frame needs in addition to its message."""
_FIRST_MESSAGE: Final = 2048
_SMALLEST_MESSAGE: Final = 512
_SMALLEST_WINDOW: Final = 2
_LARGEST_WINDOW: Final = 1024
_GRANT_SECONDS: Final = 0.05
_SOURCE_PAUSE: Final = 0.002
_LONGEST_CREDIT_WAIT: Final = 0.05
"""Seconds for which a task waits for credit, which comes as a message, before it does what is due."""
_SILENT_SECONDS: Final = 0.1
"""Seconds after which a source without elements is polled less often."""
_SILENT_WAIT: Final = 0.05
_SILENT_PAUSE: Final = 0.01
_COLLECTION_SECONDS: Final = 0.5
_SHORTEST_REPORT: Final = 0.01
"""Seconds between two reports of the watermarks of aligned sources, if the update interval is shorter."""
_PAUSED_REPORT: Final = 0.1
"""The same while a source is paused, if the update interval is longer: it may wait for a report of its own."""
_END: Final = object()
_RESULTS: Final = object()
"""Asynchronous calls have results."""
_NO_FRAMES: Final = message_batch([], [])


@dataclass(frozen=True)
class RealTimeStage:
    """What a task of a real-time job needs to begin, beside the job.

    Attributes:
        stage: Index of the stage.
        producers: Number of tasks of the stage before; 0 for one that reads sources.
        consumers: Number of tasks of the stage behind; 0 for the last one.
        attempt: Number of this launch of the tasks; a rescale has another one.
        address: The driver.
        is_aligned: Whether elements behind a barrier wait.
        flush_seconds: Seconds for which elements may wait to be processed, and to be sent, with others; more on a busy
            host.
        alignment_limit: The most bytes that wait behind a barrier; None for no limit.
        frame_bytes: The most bytes of a frame.
    """

    stage: int
    producers: int
    consumers: int
    attempt: int
    address: ControlAddress
    is_aligned: bool = True
    flush_seconds: float = 0.002
    alignment_limit: int | None = None
    frame_bytes: int = FRAME_BYTES


class _Snapshot(NamedTuple):
    """The snapshot of a task at a barrier.

    Attributes:
        number: The barrier.
        reports: The report of the task, behind those for barriers before it that the driver may not have accepted.
        positions: The positions of its sources.
        files: What must be durable before the driver gets the report.
        start_delay: Seconds from the trigger of the barrier to its first arrival.
        alignment: Seconds of the alignment.
        sync: Seconds for which elements waited for the snapshot.
    """

    number: int
    reports: Sequence[tuple[int, TaskReport]]
    positions: Mapping[str, Any]
    files: Sequence[str]
    start_delay: float
    alignment: float
    sync: float


class StreamEventTime(EventTime):
    """Event time within a real-time task: watermarks come with the elements.

    Attributes:
        current: The watermark of each clock.
        last: The watermark of each clock before it reached the end of time.
    """

    current: Mapping[str, int]
    last: Mapping[str, int]

    def __init__(
        self,
        begun: EventTime,
        watermarks: Mapping[str, int],
        current: Mapping[str, int] | None = None,
        last: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(begun.clocks, watermarks, is_over=begun.is_over)
        object.__setattr__(self, "current", current or {})
        object.__setattr__(self, "last", last or {})

    def after(self, uid: str, clocks: Collection[str], observed: Observed) -> int:
        if self.is_over:
            return MAX_WATERMARK
        watermark = least_watermark([self.current.get(clock, MIN_WATERMARK) for clock in clocks])
        return max(self.before(uid), MIN_WATERMARK if watermark == IDLE else watermark)

    def latest(self, clocks: Iterable[str], observed: Observed) -> int:
        known = [(clock, self.last.get(clock, self.current.get(clock, MIN_WATERMARK))) for clock in clocks]
        times = [
            at + 1 + (self.clocks[uid].out_of_orderness or 0) for uid, at in known if at not in (IDLE, MIN_WATERMARK)
        ]
        return max(times, default=MIN_WATERMARK)


class _Inbox:
    """Input and messages of the driver for one task.

    The inboxes of tasks that share a thread have one queue: a wait of one task ends when a task behind it gets an item.

    Args:
        before: The inbox of the task before in the same thread; None for the first one.
    """

    def __init__(self, before: _Inbox | None) -> None:
        self._arrived: queue.SimpleQueue[tuple[_Inbox, Any]] = (
            queue.SimpleQueue() if before is None else before._arrived
        )
        self._items: deque[Any] = deque()
        self._behind: _Inbox | None = None
        if before is not None:
            before._behind = self

    def put(self, item: Any) -> None:
        """Add an item. Any thread may call this."""
        self._arrived.put((self, item))

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item.

        Args:
            timeout: Seconds to wait; None to wait for ever, whatever arrives for other tasks.

        Raises:
            queue.Empty: There is none, or a task behind this one has one.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._items:
            is_interrupted = until is not None and self.is_interrupted
            if self._items:
                break
            if is_interrupted:
                raise queue.Empty
            self._add(self._arrived.get(timeout=None if until is None else max(0.0, until - time.monotonic())))
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """Return the next item.

        Raises:
            queue.Empty: There is none.
        """
        if self.is_empty:
            raise queue.Empty
        return self._items.popleft()

    @property
    def is_empty(self) -> bool:
        """Whether there is no item."""
        self._sort()
        return not self._items

    @property
    def is_interrupted(self) -> bool:
        """Whether a task behind this one has an item."""
        behind = self._behind
        if behind is not None:
            self._sort()
        while behind is not None:
            if behind._items:
                return True
            behind = behind._behind
        return False

    def _sort(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._add(self._arrived.get_nowait())

    def _add(self, arrived: tuple[_Inbox, Any]) -> None:
        owner, item = arrived
        owner._items.append(item)


class _HeldWatermarks:
    """Watermarks that pass the asynchronous operators of a task, one after the other.

    Args:
        watermarks: The watermarks.
        calls: The calls of the operators, in the order in which elements pass them.
    """

    def __init__(self, watermarks: list[int], calls: Sequence[CallsInFlight]) -> None:
        self.watermarks = watermarks
        self._calls = calls
        self._at, self._begun = 0, calls[0].begun

    def have_passed(self) -> bool:
        """Return whether all elements that were called before the watermarks came have left each operator."""
        while self._calls[self._at].oldest >= self._begun:
            if self._at == len(self._calls) - 1:
                return True
            self._at += 1
            self._begun = self._calls[self._at].begun
        return False


class RealTimeTask:
    """Runs one stage for one partition until the driver stops it.

    Args:
        job: The job attempt as loaded in this process.
        stage: The stage and its neighbours.
        identity: This execution of the task.
        clock: Processing time.
        before: The task of the stage before, if it shares the thread: it runs while this one waits.
    """

    _task: StageTask
    """Runs from one barrier to the next; there is none before the driver starts the task."""

    def __init__(
        self,
        job: LoadedJob,
        stage: RealTimeStage,
        identity: TaskIdentity,
        clock: Clock,
        before: RealTimeTask | None = None,
    ) -> None:
        self._job, self._files = job.delaying_writes()
        self._stage = stage
        self._identity = identity
        self._clock, self._time = clock, ForwardTime(clock)
        plan = job.descriptor.plan
        # Messages.
        self._clocks = tuple(sorted(plan.clocks))
        self._plan = job.stage(identity.stage)
        self._frames = FrameWriter(
            stage.attempt, identity.partition, stage.consumers, len(self._clocks), stage.frame_bytes
        )
        self._gate = (
            InputGate(
                stage.attempt,
                stage.producers,
                len(self._clocks),
                is_aligned=stage.is_aligned,
                alignment_limit=stage.alignment_limit,
            )
            if stage.producers
            else None
        )
        self._inbox: _Inbox = _Inbox(None if before is None else before._inbox)
        # The task before, if it shares the thread, and what it sends.
        self._before, self._turn_until = before, math.inf
        self._input: Generator[pa.RecordBatch] | None = None
        self._snapshots: queue.SimpleQueue[_Snapshot | None] = queue.SimpleQueue()
        # Sources and their watermarks.
        sources = plan.epoch_jobs[0].sources
        self._sources = {source.uid: source for source in sources}
        self._at_once = _FIRST_AT_ONCE
        self._sources_of_clocks = plan.sources_of_clocks
        per_split = [uid for uid, clock in plan.clocks.items() if clock.follows_partitions]
        separated = {source for uid in per_split for source in self._sources_of_clocks[uid]}
        self._readers = SourceReaders(
            sources, job.descriptor.split_sources, identity.partition, self._at_once, separated
        )
        self._splits = 0
        self._splits_of: dict[str, list[str]] = {}
        self._drained: int | None = None
        self._own_clocks: dict[str, _OwnClock] = {}
        self._writers: dict[str, Any] = {}
        self._watermarks: dict[str, int] = {}
        self._sent: Sequence[int] = ()
        self._sent_at = self._flushed_at = self._collected_at = self._found_at = self._polled_at = time.monotonic()
        # Rounds and credit, from the measured time of a frame and of a byte.
        self._frame_seconds = self._byte_seconds = 0.0
        self._message_bytes = [_FIRST_MESSAGE] * stage.consumers
        self._granted: list[int] = [FIRST_CREDIT] * stage.producers
        self._granted_at = 0.0
        self._is_stopped = self._has_waiting = self._has_worked = False
        self._fired_at: list[int] | None = None
        self._flush_interval = FlushInterval(stage.flush_seconds, time.monotonic())
        # Asynchronous calls in flight, and the watermarks that wait for them.
        self._calls: dict[OperatorExecutor, CallsInFlight] = {}
        self._has_results = False
        self._passed: list[int] = []
        self._held: _HeldWatermarks | None = None
        # State as the driver has accepted it, and what this task has written since.
        self._accepted: EpochDescriptor | None = None
        self._triggered: list[Barrier] = []
        self._begun: dict[int, EpochDescriptor] = {}
        self._unaccepted: list[tuple[int, TaskReport]] = []
        self._meter = TaskMeter(job.configuration.get(LATENCY_HISTORY))
        self._source_uids = sorted(self._sources)
        self._no_more_splits: frozenset[str] = frozenset()
        self._ended: set[str] = set()
        # Watermark alignment.
        self._aligned = {} if stage.producers else plan.aligned
        intervals = [one.alignment.interval / 1000 for one in plan.aligned.values()]
        self._report_seconds = max(min(intervals, default=math.inf), _SHORTEST_REPORT)
        self._reported_at = -math.inf
        self._reported: Mapping[str, int | None] = dict.fromkeys(self._aligned)
        self._limits: Mapping[str, int] = {}
        self._latency_seconds = job.configuration.get(LATENCY_INTERVAL) / 1000
        self._marked_at = time.monotonic()
        self._markers: list[LatencyMarker] = []

    def run(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """Yield frames for the tasks of the next stage, until the driver stops the task or the input ends.

        Args:
            batches: Input of this task, or of the first one in its thread.

        Raises:
            HoldfastError: The task failed, or the driver is lost.
        """
        hello = {
            "stage": self._identity.stage,
            "partition": self._identity.partition,
            "attempt": self._stage.attempt,
            "execution": self._identity.attempt,
        }
        heartbeat = Heartbeat.from_options(self._job.configuration)
        self._driver = DriverConnection(
            self._stage.address, self._job.descriptor.control_secret, hello, self._inbox.put, heartbeat
        )
        threading.Thread(target=self._acknowledge_snapshots, name="holdfast-snapshots", daemon=True).start()
        if self._before is not None:
            self._input, self._left_at = self._before.run(batches), time.monotonic()
        has_failed = True
        try:
            with paused_garbage_collection():
                yield from self._run(batches)
            has_failed = False
        except EngineUnavailableError:
            raise  # nobody hears it
        except HoldfastError as error:
            # Spark would run the task again first, or learn of the connection to the worker that ends.
            with suppress(EngineUnavailableError):
                self._driver.send("failed", error=error_to_json(error))
            raise
        finally:
            if self._input is not None:
                with suppress(Exception):  # the error of this task counts
                    self._input.close()
            self._snapshots.put(None)
            self._driver.close()
            self._readers.close()
            task = getattr(self, "_task", None)
            if task is not None:
                task.abort()
            for writer in self._writers.values():
                with suppress(Exception):  # what it has written since the last barrier is written again
                    writer.abort() if has_failed else writer.close()

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._gate is None:
            yield from self._wait_for_start()
            for _ in batches:
                pass
            yield from self._read_sources()
        else:
            if self._input is None:
                threading.Thread(target=self._receive, args=(batches,), name="holdfast-input", daemon=True).start()
            yield from self._wait_for_start()
            yield from self._read_exchange(self._gate)

    # The tasks of one thread

    def _wait_for_item(self, seconds: float, *, is_back_pressured: bool = False) -> None:
        """Handle the next item. Wait for it at most so long, and not while a task behind this one has one.

        Raises:
            queue.Empty: There was none.
        """
        began = time.monotonic()
        try:
            item = self._inbox.get(timeout=max(0.0, seconds))
        finally:
            self._meter.add_wait(time.monotonic() - began, is_back_pressured=is_back_pressured)
        self._handle(item)

    def _let_run(self, before: RealTimeTask, seconds: float) -> None:
        """Let the task before run until it has output, something arrives for this task, or for so long."""
        began = time.monotonic()
        # While this task processes what the one before has sent, that one waits for it.
        before._meter.add_wait(began - self._left_at, is_back_pressured=True)
        before._turn_until = min(began + seconds, self._turn_until)
        assert self._input is not None
        item = next(self._input, _END)
        self._left_at = time.monotonic()
        self._meter.add_wait(self._left_at - began, is_back_pressured=not self._frames.has_credit)
        self._handle(item)

    def _end_turn(self) -> Iterator[pa.RecordBatch]:
        """Let the task behind this one run, if it shares the thread and has something to do."""
        if self._inbox.is_interrupted or time.monotonic() >= self._turn_until:
            yield _NO_FRAMES

    # Begin and snapshot

    def _wait_for_start(self) -> Iterator[pa.RecordBatch]:
        while self._accepted is None:
            has_ended = self._is_stopped  # the task before: the driver stopped it, and will stop this one
            if self._before is not None and not has_ended and self._inbox.is_empty:
                self._let_run(self._before, _IDLE_SECONDS)
            else:
                with suppress(queue.Empty):
                    self._wait_for_item(min(_IDLE_SECONDS, self._turn_until - time.monotonic()))
            yield from self._end_turn()
        first = self._accepted
        self._time = ForwardTime(self._clock, first.processing_time)
        # Its functions hear of these checkpoints when they open, and not at its barrier again.
        quiet = replace(first.notifications, completed=None, aborted=())
        self._begun[first.epoch] = replace(first, notifications=quiet)
        self._begin(first)

    def _begin(self, epoch: EpochDescriptor) -> None:
        """Begin the time up to the next barrier, with the state of the task."""
        self._epoch = epoch
        if hasattr(self, "_task"):
            del self._task
        self._meter.leave()
        for own in self._own_clocks.values():
            own.leave()
        collect_between_barriers()
        # The driver does not know the watermarks: of partitions without elements it has heard nothing.
        times = StreamEventTime(epoch.event_time, self._watermarks)
        self._task = StageTask(
            self._job,
            replace(epoch, event_time=times),
            self._identity,
            self._stage.consumers,
            min(self._message_bytes, default=None),
            self._writers,
        )
        self._meter.follow(self._task.executors)
        self._calls = {}
        for executor in self._task.executors:
            if isinstance(executor, OperatorExecutor):
                calls = executor.keep_calls_in_flight(lambda: self._inbox.put(_RESULTS))
                if calls is not None:
                    self._calls[executor] = calls
            if isinstance(executor, TimestampExecutor) and executor.step.is_clock:
                uid = executor.step.uid
                sources = self._sources_of_clocks[uid]
                clock = epoch.event_time.clocks[uid]
                if self._gate is not None:  # it reads no partitions
                    clock = replace(clock, is_per_partition=False)
                self._own_clocks.setdefault(uid, _OwnClock(clock, sources)).follow(executor)
        self._passed, self._held = self._arrived(), None
        self._fired_at = None
        self._set_time()

    def _following_epoch(self, epoch: EpochDescriptor) -> EpochDescriptor:
        """Return the state behind a barrier: what the driver has accepted, and what this task has written since.

        Args:
            epoch: The epoch of the barrier.
        """
        accepted = self._accepted
        assert accepted is not None
        versions = dict(accepted.versions)
        states = {uid: dict(_by_subtask(state)) for uid, state in accepted.operator_states.items()}
        generators = {uid: dict(held) for uid, held in accepted.generators.items()}
        for step in (step for _, report in self._unaccepted for step in report.steps):
            if step.runs:
                runs = [RunHandle.from_json(run) for run in step.runs]
                versions[step.uid] = versions.get(step.uid, StateVersion()).plus(runs)
            if step.operator_state is not None:
                states.setdefault(step.uid, {})[step.subtask] = OperatorSnapshot.from_json(step.operator_state)
            if step.generator is not None:
                generators.setdefault(step.uid, {})[step.subtask] = step.generator
        return replace(
            epoch,
            epoch=epoch.epoch + 1,
            try_number=0,
            processing_time=self._time.now_ms(),
            event_time=replace(epoch.event_time, is_over=False),
            versions=versions,
            operator_states=states,
            generators=generators,
            is_last=False,
            follows=True,
        )

    def _pass_barrier(self, barrier: Barrier) -> Iterator[pa.RecordBatch]:
        """Send a barrier on, and take a snapshot."""
        number, gate = barrier.number, self._gate
        alignment, start_delay = (
            (0.0, barrier.delay()) if gate is None else (gate.alignment_seconds, gate.start_delay_seconds)
        )
        epoch = self._epoch_of(number)
        for executor in self._calls:  # what they return is before the barrier, and before the end of time
            self._task.finish_calls(executor)
        is_over = epoch.event_time.is_over
        # Known only now: whether the job ends here, and the id of the checkpoint.
        self._epoch = replace(
            self._epoch,
            event_time=replace(self._epoch.event_time, is_over=is_over),
            is_last=epoch.is_last,
            notifications=epoch.notifications,
        )
        self._fire()
        positions = self._readers.snapshot(number)
        for uid, states in positions.items():
            ended = [split_id for split_id, state in states.items() if state is None]
            for own in self._own_clocks.values():
                own.end_partitions(uid, ended)
        if self._stage.consumers:
            self._add_output()
            self._frames.advance([MAX_WATERMARK] * len(self._clocks) if is_over else self._current())
            self._frames.add_barrier(barrier)
            yield self._flush()
        began = time.monotonic()
        try:
            self._task.flush_sinks()
        except CheckpointDeclinedError as error:
            self._begun[number] = epoch  # the next barrier has its notifications too
            self._decline(number, CheckpointFailureReason.CHECKPOINT_DECLINED, str(error))
            return
        self._unaccepted.append((number, self._task.acknowledge()))
        if is_over:
            self._watermarks = {}
        self._begin(self._following_epoch(epoch))
        reports, files, sync = tuple(self._unaccepted), self._files.kept(), time.monotonic() - began
        self._snapshots.put(_Snapshot(number, reports, positions, files, start_delay, alignment, sync))

    def _decline(self, number: int, reason: CheckpointFailureReason, message: str) -> None:
        self._driver.send("decline", epoch=number, reason=reason.name, message=message)

    def _acknowledge_snapshots(self) -> None:
        """Make snapshots durable, one after the other, beside the records that follow."""
        try:
            while (snapshot := self._snapshots.get()) is not None:
                began = time.monotonic()
                try:
                    self._files.make_all_durable(snapshot.files)
                except StorageError as error:
                    self._decline(snapshot.number, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION, str(error))
                    continue
                seconds = snapshot.start_delay, snapshot.alignment, snapshot.sync, time.monotonic() - began
                times = BarrierTimes(*(round(1e6 * one) for one in seconds))
                reports = [(number, replace(report, barrier=times).to_json()) for number, report in snapshot.reports]
                self._driver.send("acknowledge", epoch=snapshot.number, reports=reports, positions=snapshot.positions)
        except BaseException as error:  # noqa: BLE001 - the thread of the task raises it
            self._inbox.put(error)

    def _epoch_of(self, number: int) -> EpochDescriptor:
        """Return the epoch of a barrier, with the news of those before it whose barriers did not arrive."""
        while number not in self._begun:  # it is sent before the barrier
            self._handle(self._inbox.get())
        epochs = [self._begun.pop(one) for one in sorted(self._begun) if one <= number]
        notifications = epochs[0].notifications
        for epoch in epochs[1:]:
            notifications = epoch.notifications.after(notifications)
        return replace(epochs[-1], notifications=notifications)

    # Time

    def _current(self) -> list[int]:
        """Return the watermark of each clock as the next tasks will know it."""
        return self._behind_calls() if self._calls else self._arrived()

    def _behind_calls(self) -> list[int]:
        """Return the watermarks that have passed all asynchronous calls.

        A watermark passes an operator when the calls for all elements before it have returned. So it is never ahead of
        their results.
        """
        while True:
            if self._held is None:
                arrived = self._arrived()
                if arrived == self._passed:
                    return arrived
                self._held = _HeldWatermarks(arrived, list(self._calls.values()))
            if not self._held.have_passed():
                return self._passed
            self._passed, self._held = self._held.watermarks, None

    def _arrived(self) -> list[int]:
        """Return the watermark of each clock in front of the operators."""
        known = self._gate.watermarks() if self._gate is not None else [MIN_WATERMARK] * len(self._clocks)
        for at, uid in enumerate(self._clocks):
            own = self._own_clocks.get(uid)
            if uid in self._ended:
                known[at] = MAX_WATERMARK
            elif own is not None:
                known[at] = own.watermark(self._time.now_ms())
        return known

    def _last(self, current: Mapping[str, int]) -> dict[str, int]:
        """Return the last watermark of each clock that has reached the end of time."""
        found = {}
        for at, uid in enumerate(self._clocks):
            if current[uid] == MAX_WATERMARK:
                own = self._own_clocks.get(uid)
                if own is not None:
                    found[uid] = own.progress(self._time.now_ms())
                elif self._gate is not None:
                    found[uid] = self._gate.latest(at)
        return found

    def _end_clocks(self) -> None:
        """Move clocks that get no more elements to the end of time, when the tasks behind know their last watermarks.

        Those of later stages whose sources have ended move too: the tasks that have them learn of the end from this.
        """
        if self._gate is None:
            over = {uid for uid in self._no_more_splits if not self._readers.has_splits_of(uid)}
            ended = {uid for uid, sources in self._sources_of_clocks.items() if sources <= over} if over else set()
        elif not self._own_clocks:
            return
        else:
            arrived = self._gate.watermarks()
            ended = {uid for at, uid in enumerate(self._clocks) if arrived[at] == MAX_WATERMARK} & {*self._own_clocks}
        if ended == self._ended:
            return
        current, sent = self._current(), self._sent
        known = zip(self._clocks, current, sent or current, strict=True) if sent or not self._stage.consumers else ()
        self._ended |= {uid for uid, now, before in known if uid in ended and now == before}

    def _set_time(self) -> None:
        """Let the steps see the current time, and the watermarks of the round before."""
        times = StreamEventTime(self._epoch.event_time, self._watermarks)
        now = self._epoch.at(self._time.now_ms(), times)
        for executor in self._task.executors:
            executor.set_time(now)

    def _fire_if_due(self, *, has_elements: bool) -> None:
        """Fire if something may be due: behind elements, at other watermarks, or at the time of a timer."""
        self._has_worked |= has_elements
        if has_elements or self._has_results or self._current() != self._fired_at or self._next_timer() == 0:
            self._fire()

    def _fire(self) -> None:
        """Fire what is due in each step, one after the other: what a step emits may be due in the next."""
        self._has_results = False
        self._fired_at = self._current()
        for executor in self._task.executors:
            current = dict(zip(self._clocks, self._current(), strict=True))
            times = StreamEventTime(self._epoch.event_time, self._watermarks, current, self._last(current))
            executor.set_time(self._epoch.at(self._time.now_ms(), times))
            self._task.end_of_input(executor, {})
            step = executor.step
            self._watermarks[step.uid] = times.after(step.uid, step.clocks, {})

    def _next_timer(self) -> float | None:
        """Return the seconds until a processing-time timer may be due."""
        times = [executor.timer_bound() for executor in self._task.executors if isinstance(executor, KeyedStepExecutor)]
        least = min((at for at in times if at is not None), default=None)
        return None if least is None else max(0.0, (least - self._time.now_ms()) / 1000)

    # Output

    def _add_output(self) -> None:
        for batch in self._task.writer.drain():
            self._frames.add_messages(batch)
        for target, message in self._task.writer.flush_messages():
            self._frames.add_message(target, message)
        markers, self._markers = self._markers, []
        for marker in markers:
            self._frames.add_latency_marker(marker)

    def _flush(self) -> pa.RecordBatch:
        self._flushed_at = time.monotonic()
        return self._frames.take()

    def _seconds_to_flush(self, now: float) -> float:
        return self._flushed_at + self._flush_interval.seconds - now

    def _output(self) -> Iterator[pa.RecordBatch]:
        """Yield the frames that are due."""
        now = time.monotonic()
        self._flush_interval.adapt(now)
        if self._clocks:
            self._end_clocks()
        if not self._stage.consumers:
            return
        self._has_waiting = self._seconds_to_flush(now) > 0
        if self._has_waiting:
            return
        self._add_output()
        if self._clocks:
            current = self._current()
            self._frames.advance(current)
            if current != self._sent and now - self._sent_at >= _WATERMARK_SECONDS:
                self._frames.add_watermarks()
                self._sent, self._sent_at = current, now
        if not self._frames.is_empty:
            yield self._flush()

    # Metrics

    def _due_markers(self) -> list[LatencyMarker]:
        """Return a latency marker of each source, if the interval has passed."""
        now = time.monotonic()
        if not self._latency_seconds or now - self._marked_at < self._latency_seconds:
            return []
        self._marked_at = now
        begun = time.time_ns() // 1000
        return [LatencyMarker(source, begun) for source in range(len(self._source_uids))]

    def _pass_on(self, markers: list[LatencyMarker]) -> None:
        """Record the latency of markers behind whose elements this task is, and send them on."""
        now = time.time_ns() // 1000
        for marker in markers:
            self._meter.add_latency(self._source_uids[marker.source], (now - marker.time) / 1000)
        if self._stage.consumers:
            self._markers += markers

    def _send_metrics(self) -> None:
        if self._meter.is_due:
            pending = {} if self._gate is not None else {uid: self._readers.pending(uid) for uid in self._sources}
            metrics = self._meter.report(self._watermarks, pending, self._frames.sent)
            self._driver.send("metrics", metrics=metrics.to_json())

    def _collect(self) -> None:
        now = time.monotonic()
        if self._has_worked and now - self._collected_at > _COLLECTION_SECONDS:
            self._has_worked, self._collected_at = False, now
            collect_young()

    # Input of an exchange

    def _receive(self, batches: Iterable[pa.RecordBatch]) -> None:
        try:
            for batch in batches:
                self._inbox.put(batch)
            self._inbox.put(_END)
        except BaseException as error:  # noqa: BLE001 - the thread of the task raises it
            self._inbox.put(error)

    def _read_exchange(self, gate: InputGate) -> Iterator[pa.RecordBatch]:
        layout = arriving_layout(self._plan)
        assert isinstance(layout, MessageLayout)
        begun_at = time.monotonic()
        while not self._is_stopped:
            self._send_metrics()
            self._receive_some(is_waiting=not gate.has_messages)
            if gate.has_messages and self._before is None:  # which sends nothing while this task waits
                self._wait_for_more(gate, begun_at + self._flush_interval.seconds)
                begun_at = time.monotonic()
            self._limit_alignment(gate)
            is_at_barrier = gate.barrier is not None and not gate.has_messages
            if not self._frames.has_credit and not is_at_barrier:
                yield from self._output()
                self._wait_for_credit()
                yield from self._end_turn()
                continue
            messages = gate.take_messages(self._round())
            if messages:
                self._set_time()
                began = time.perf_counter()
                for arrival in layout.arrivals(messages):
                    self._task.take_arrival(arrival)
                self._measure(messages, time.perf_counter() - began)
            markers, gate.markers = gate.markers, []
            self._pass_on(markers)
            if gate.barrier is not None and not gate.has_messages:
                barrier = gate.barrier
                yield from self._pass_barrier(barrier)
                gate.release(barrier.number)
            self._fire_if_due(has_elements=bool(messages))
            yield from self._output()
            self._grant(gate)
            self._collect()
            yield from self._end_turn()

    def _limit_alignment(self, gate: InputGate) -> None:
        """Decline a barrier behind which too much waits, and go on without it."""
        number = gate.exceeded
        if number is not None:
            gate.release(number)
            self._decline(
                number,
                CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED,
                f"Task {self._identity.partition} of stage {self._identity.stage} held back more than "
                f"{self._stage.alignment_limit} bytes.",
            )

    def _round(self) -> int:
        """Return the number of messages to process at once."""
        if not self._frame_seconds:
            return 1
        return min(max(int(_ROUND_SECONDS / self._frame_seconds), 1), _LONGEST_ROUND)

    def _measure(self, messages: Sequence[pa.Buffer], seconds: float) -> None:
        """Keep what a message and a byte of it take, on average over the last ones."""
        size = sum(message.size for message in messages)
        weight = _RECENT if self._frame_seconds else 1.0  # an average with zero would grant five times too much
        self._frame_seconds += weight * (seconds / len(messages) - self._frame_seconds)
        self._byte_seconds += weight * (seconds / size - self._byte_seconds)

    def _wait_for_credit(self) -> None:
        seconds = self._seconds_to_flush(time.monotonic()) if self._has_waiting else _LONGEST_CREDIT_WAIT
        timer = self._next_timer()
        waits = [seconds, self._turn_until - time.monotonic(), *([] if timer is None else [timer])]
        with suppress(queue.Empty):
            self._wait_for_item(min(waits), is_back_pressured=True)

    def _grant(self, gate: InputGate) -> None:
        """Grant producers what this task processes in a fifth of a second, when half of that is used or it is time."""
        window = FIRST_CREDIT
        if self._frame_seconds:
            share = _WINDOW_SECONDS / self._frame_seconds / self._stage.producers
            window = min(max(int(share), _SMALLEST_WINDOW), _LARGEST_WINDOW)
        consumed, now = gate.consumed(), time.monotonic()
        left = min(granted - number for granted, number in zip(self._granted, consumed, strict=True))
        is_time = now - self._granted_at >= _GRANT_SECONDS
        if left <= window // 2 or (is_time and left <= window * 3 // 4):
            self._granted = [max(before, n + window) for before, n in zip(self._granted, consumed, strict=True)]
            self._granted_at = now
            most = self._stage.frame_bytes - _HEAD_BYTES
            size = int(_ROUND_SECONDS / self._byte_seconds) if self._byte_seconds else most
            size = min(max(size, _SMALLEST_MESSAGE), most)
            self._driver.send("granted", frames=self._granted, bytes=size)

    def _receive_some(self, *, is_waiting: bool) -> None:
        """Wait for input, a message of the driver, or until something is due."""
        waits = [_IDLE_SECONDS if is_waiting else 0.0]
        if self._has_waiting:
            waits.append(self._seconds_to_flush(time.monotonic()))
        timer = self._next_timer()
        if timer is not None:
            waits.append(timer)
        if self._before is not None and is_waiting and self._inbox.is_empty:
            self._let_run(self._before, max(0.0, min(waits)))
            return
        waits.append(self._turn_until - time.monotonic())
        with suppress(queue.Empty):
            self._wait_for_item(min(waits), is_back_pressured=not self._frames.has_credit)
            for _ in range(_LONGEST_ROUND):
                self._handle(self._inbox.get_nowait())

    def _wait_for_more(self, gate: InputGate, until: float) -> None:
        """Wait for messages that can be processed with those that are here: a round costs more than its elements.

        Behind a barrier of all producers nothing follows, and a checkpoint waits for it.
        """
        until = min(until, self._turn_until)
        while (
            not self._is_stopped
            and gate.barrier is None
            and not self._inbox.is_interrupted
            and (seconds := until - time.monotonic()) > 0
        ):
            with suppress(queue.Empty):
                self._wait_for_item(seconds)

    # Input of sources

    def _read_sources(self) -> Iterator[pa.RecordBatch]:
        while not self._is_stopped:
            self._send_metrics()
            self._handle_all()
            has_credit = not self._stage.consumers or self._frames.has_credit
            self._begin_partitions()
            if self._aligned:
                self._align()
            markers = self._due_markers() if has_credit else []
            self._polled_at = now = time.monotonic()
            self._readers.wait_seconds = self._longest_poll(now)
            found = self._meter.poll(self._readers.poll) if has_credit else None
            clocks = [own for own in self._own_clocks.values() if own.follows_partitions]
            if found is not None:
                uid, elements = found
                self._found_at = time.monotonic()
                self._set_time()
                self._meter.count_read(uid, elements.num_rows)
                for own in clocks:
                    own.begin()
                for _ in self._task.take_source(self._sources[uid], elements):
                    yield from self._output()
                for own in clocks:
                    own.observe((uid, self._readers.polled_split), self._time.now_ms())
            for own in clocks:
                for uid in own.sources:
                    own.end_partitions(uid, self._readers.ended_splits(uid))
            self._pass_on(markers)
            self._fire_if_due(has_elements=found is not None)
            yield from self._output()
            self._limit_polls(found is not None)
            while self._triggered:
                yield from self._pass_barrier(self._triggered.pop(0))
            self._collect()
            if not has_credit:
                self._wait_for_credit()
            elif found is None:
                self._wait_for_driver()
            elif found[1].num_rows < self._at_once and not self._readers.has_more():
                self._wait_for_flush()
            yield from self._end_turn()

    def _begin_partitions(self) -> None:
        """Let clocks wait for the splits that were assigned."""
        if self._splits_of:
            for own in self._own_clocks.values():
                for uid, assigned in self._splits_of.items():
                    own.begin_partitions(uid, assigned, self._time.now_ms())
            self._splits_of = {}

    def _align(self) -> None:
        """Pause the sources that are above their limits, and report watermarks that have changed, if it is time."""
        now = self._time.now_ms()
        paused: set[str] = set()
        for uid, limit in self._limits.items():
            if self._own_clocks[uid].progress(now) > limit:
                paused |= self._own_clocks[uid].sources
        if paused != self._readers.paused:
            logger.debug("the sources %s are paused: the limits are %s", sorted(paused), self._limits)
            self._readers.paused = paused
            for own in self._own_clocks.values():
                own.set_paused(bool(own.sources) and own.sources <= paused, now)
        if self._seconds_to_report(seconds := time.monotonic()) <= 0:
            watermarks = {uid: self._counted_watermark(uid, now) for uid in self._aligned}
            if watermarks != self._reported:
                self._reported, self._reported_at = watermarks, seconds
                self._driver.send("watermarks", watermarks=watermarks)

    def _seconds_to_report(self, now: float) -> float:
        """Return the seconds until changed watermarks may be reported; 0 or less if they may."""
        seconds = min(self._report_seconds, _PAUSED_REPORT) if self._readers.paused else self._report_seconds
        return self._reported_at + seconds - now

    def _counted_watermark(self, uid: str, now: int) -> int | None:
        """Return the watermark for which other sources wait; None if they do not wait for this one."""
        own = self._own_clocks[uid]
        watermark = own.watermark(now)
        return None if uid in self._ended or watermark in (IDLE, MIN_WATERMARK) else watermark

    def _limit_polls(self, has_read: bool) -> None:
        """Read less at once while that is more than later stages take, and slowly more while it is not."""
        if self._frames.excess > _EXCESS:
            self._at_once = max(self._at_once // 2, _FEWEST_AT_ONCE)
        elif has_read and self._at_once < _MOST_AT_ONCE:
            self._at_once = min(self._at_once + max(self._at_once // 16, 1), _MOST_AT_ONCE)
        else:
            return
        self._readers.limit(self._at_once)

    def _wait_for_driver(self) -> None:
        if not self._readers.has_splits and self._drained != self._splits:
            self._drained = self._splits
            self._driver.send("drained", splits=self._splits)
        now = time.monotonic()
        waits = [_IDLE_SECONDS, self._seconds_to_poll(now), self._turn_until - now]
        if self._has_waiting:
            waits.append(self._seconds_to_flush(now))
        if self._latency_seconds:
            waits.append(self._latency_seconds)
        if self._aligned and (seconds := self._seconds_to_report(now)) > 0:
            waits.append(seconds)
        timer = self._next_timer()
        if timer is not None:
            waits.append(timer)
        with suppress(queue.Empty):
            self._wait_for_item(min(waits))

    def _is_silent(self, now: float) -> bool:
        return now - self._found_at > _SILENT_SECONDS

    def _longest_poll(self, now: float) -> float:
        """Return for how long a poll may wait for elements."""
        seconds = _SILENT_WAIT if self._is_silent(now) else SourceReader.wait_seconds
        return max(0.0, min(seconds, self._turn_until - now))

    def _seconds_to_poll(self, now: float) -> float:
        """Return for how long the sources need not be polled: as long as they know, or less."""
        seconds = self._readers.seconds_to_next()
        if seconds is not None:
            return seconds
        if not self._is_silent(now):
            return _SOURCE_PAUSE
        has_waited = now - self._polled_at > self._readers.wait_seconds / 2
        return 0.0 if has_waited else _SILENT_PAUSE

    def _wait_for_flush(self) -> None:
        """Wait for the next flush: elements that are read before it would wait for it too."""
        seconds = self._seconds_to_flush(time.monotonic())
        if self._stage.consumers and seconds > 0:
            with suppress(queue.Empty):
                self._wait_for_item(seconds)

    def _handle_all(self) -> None:
        try:
            while True:
                self._handle(self._inbox.get_nowait())
        except queue.Empty:
            return

    # Messages of the driver

    def _handle(self, item: Any) -> None:
        if isinstance(item, pa.RecordBatch):
            assert self._gate is not None
            self._gate.receive(item)
        elif item is _END:
            self._is_stopped = True
        elif item is _RESULTS:
            self._has_results = True
        elif item is None:
            raise lost_driver_error()
        elif isinstance(item, BaseException):
            raise item
        else:
            self._handle_message(item)

    def _handle_message(self, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind in ("start", "epoch"):
            self._record_epoch(message["epoch"], message["accepted"], message["decided"])
        if kind in ("start", "splits"):
            splits: Mapping[str, Sequence[SourceSplit]] = message["splits"]
            self._splits += sum(map(len, splits.values()))
            self._readers.add(splits)
            self._no_more_splits = message["no_more_splits"]
            for uid, assigned in splits.items():
                self._splits_of.setdefault(uid, []).extend(split.split_id for split in assigned)
        elif kind == "grant":
            self._frames.grant(message["consumer"], message["frames"])
            self._message_bytes[message["consumer"]] = message["bytes"]
            self._task.writer.set_message_bytes(min(self._message_bytes))
        elif kind == "trigger":
            self._triggered.append(Barrier(message["epoch"], message["time"]))
        elif kind == "limits":
            self._limits = message["limits"]
        elif kind == "abort":
            self._abandon(message["epoch"])
        elif kind == "stop":
            self._is_stopped = True
        elif kind != "epoch":
            raise HoldfastError(f"the driver sent a message of the unknown kind {kind!r}")

    def _record_epoch(self, epoch: EpochDescriptor, accepted: int, decided: int) -> None:
        """Record the next epoch, and the state that is accepted.

        Args:
            epoch: The epoch.
            accepted: The last epoch whose barrier the driver has accepted.
            decided: The last epoch such that this barrier and those before it are accepted or abandoned.
        """
        self._accepted = self._begun[epoch.epoch] = epoch
        self._readers.barrier_accepted(accepted)
        merged: TaskReport | None = None
        following: list[tuple[int, TaskReport]] = []
        for number, report in self._unaccepted:
            if accepted < number <= decided:  # abandoned: the next one has it too
                merged = report if merged is None else report.after(merged, epoch.event_time.clocks)
            elif number > decided:
                following.append((number, report))
        self._unaccepted = [*([] if merged is None else [(decided, merged)]), *following]

    def _abandon(self, number: int) -> None:
        """Go on without the snapshot of a barrier. What was written for it is reported with the next one."""
        self._triggered = [triggered for triggered in self._triggered if triggered.number != number]
        if self._gate is not None:
            self._gate.abandon(number)


def run_stages(
    job: LoadedJob, stages: Sequence[RealTimeStage], partition: int, clock: Clock, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the tasks of a worker in one thread: frames go from one to the next without an exchange.

    Args:
        job: The job attempt as loaded in this process.
        stages: Consecutive stages: several if they have one task each.
        partition: Number of the task in them.
        clock: Processing time.
        batches: Input of the first stage.

    Returns:
        Output of the last stage.
    """
    task: RealTimeTask | None = None
    for stage in stages:
        task = RealTimeTask(job, stage, TaskIdentity.fresh(stage.stage, partition), clock, task)
    assert task is not None
    return task.run(batches)


class _OwnClock:
    """A step of the task that assigns timestamps: its watermark, over all barriers.

    That of a source whose partitions are ordered follows the slowest partition that is not idle. While its sources are
    paused, no idle time-out runs, and the clock is not idle: they may have unread elements, which would be late.
    """

    def __init__(self, clock: WatermarkClock, sources: frozenset[str]) -> None:
        self._clock = clock
        self.sources = sources
        self.follows_partitions = clock.follows_partitions
        self._partitions: dict[tuple[str, str], tuple[int | None, int]] = {}
        self._reached: int | None = None
        self._heard: int | None = None
        self._paused_at: int | None = None
        self._is_marked_idle = False

    def follow(self, executor: TimestampExecutor) -> None:
        """Follow the executor of the time up to the next barrier."""
        self._executor, self._rows = executor, 0

    def leave(self) -> None:
        """Forget the executor that was followed."""
        del self._executor

    def begin(self) -> None:
        """Begin the elements of one partition."""
        self._executor.latest = None

    def begin_partitions(self, uid: str, splits: Iterable[str], now: int) -> None:
        """Wait for the elements of these splits of a source, if the clock has its elements."""
        if uid in self.sources:
            self._partitions.update({(uid, split_id): (None, now) for split_id in splits})

    def end_partitions(self, uid: str, splits: Iterable[str]) -> None:
        """Wait no more for splits that were read to their ends."""
        for split_id in splits:
            self._partitions.pop((uid, split_id), None)

    def observe(self, partition: tuple[str, str], now: int) -> None:
        """End the elements of one partition."""
        latest = self._executor.latest
        if latest is not None and partition in self._partitions:
            before = self._partitions[partition][0]
            self._partitions[partition] = latest if before is None else max(before, latest), now

    def _slowest(self, now: int) -> int | None:
        """Return the time of the slowest partition that is not idle; None if one has had no elements."""
        idle = self._clock.idleness
        active = [at for at, heard in self._partitions.values() if idle is None or now - heard < idle]
        known = [at for at in active if at is not None]
        return min(known, default=None) if len(known) == len(active) else None

    def set_paused(self, is_paused: bool, now: int) -> None:
        """Stop the idle time-outs while the sources are not read."""
        if is_paused:
            self._paused_at = now if self._paused_at is None else self._paused_at
        elif self._paused_at is not None:
            passed, self._paused_at = max(0, now - self._paused_at), None
            for partition, (at, heard) in self._partitions.items():
                self._partitions[partition] = at, min(heard + passed, now)
            self._heard = now

    def progress(self, now: int) -> int:
        """Return the watermark, also of an idle clock."""
        if self.follows_partitions:
            reached = self._slowest(now if self._paused_at is None else self._paused_at)
        else:
            reached = self._executor.reached(now)
            if (is_idle := self._executor.is_marked_idle) is not None:
                self._is_marked_idle = is_idle
        if reached is not None and (self._reached is None or reached > self._reached):
            self._reached = reached
        return self._clock.watermark(self._reached)

    def watermark(self, now: int) -> int:
        """Return the watermark; `IDLE` if there were no elements for the idle time-out."""
        watermark, executor = self.progress(now), self._executor
        if self._heard is None or executor.records_in != self._rows:
            self._rows, self._heard = executor.records_in, now
        if self._paused_at is not None:
            return watermark
        idleness = self._clock.idleness
        is_silent = idleness is not None and now - self._heard >= idleness
        return IDLE if is_silent or self._is_marked_idle else watermark


def _by_subtask(states: Any) -> Iterator[tuple[int, OperatorSnapshot]]:
    pairs: Iterable[Any] = states.items() if isinstance(states, Mapping) else enumerate(states)
    return ((subtask, state) for subtask, state in pairs if state is not None)
