"""Frames between the tasks of a real-time job, and the gate through which a task reads them.

A frame is one binary value for the engine::

    frame      = kind (1 byte), 0 (1), number of clocks (2), producer (4), attempt (8), sequence (8), watermarks, body
    watermarks = for each clock of the job the watermark behind the frame, 8 bytes; `IDLE` for one that is ignored
    body       = of a data frame a message of `MessageLayout`, of a part a piece of one, of a barrier its number (8)
                 and when the driver triggered it (8), of a latency marker its source (2) and time (8)

All numbers are big endian. Sequence numbers are without gaps from one producer to one consumer, so a frame that was
lost or repeated fails the attempt. Frames of another attempt are ignored. A message that is longer than a network
buffer of the engine goes in parts.

**Credits.** A consumer grants each producer the sequence number up to which it may send elements. Without credit a
producer processes no more input, so that little is under way and a barrier, which needs no credit, soon passes. The
driver hands the grants on.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.exchange.layout import TARGET, contents_of, message_batch

IDLE: Final = MIN_WATERMARK + 1
"""The watermark of a clock that nobody waits for; no real watermark is so early."""
FRAME_BYTES: Final = 24 * 1024
"""Bytes of a frame, if the engine has no other size. A frame and what the engine adds fit into one network buffer."""

_HEAD: Final = struct.Struct(">BxHIQQ")
_BARRIER: Final = struct.Struct(">QQ")
_LATENCY: Final = struct.Struct(">HQ")
_DATA, _PART, _BARRIER_KIND, _WATERMARK, _LATENCY_KIND = b"dpbwl"
FIRST_CREDIT: Final = 8
"""Frames that a producer may send before the first grant."""


class LostFrameError(HoldfastError):
    """Frames of a real-time job were lost, repeated or damaged on their way to a task."""


class LatencyMarker(NamedTuple):
    """Goes from a source through all tasks, in order with the elements.

    Attributes:
        source: Number of the source in the job.
        time: When it began, in microseconds since 1970.
    """

    source: int
    time: int


class Barrier(NamedTuple):
    """Goes from the sources through all tasks, in order with the elements.

    Attributes:
        number: The epoch that ends with it.
        time: When the driver triggered it, in microseconds since 1970.
    """

    number: int
    time: int = 0

    def delay(self) -> float:
        """Return the seconds since the driver triggered it, by the clocks of two hosts."""
        return max(0.0, time.time_ns() / 1e9 - self.time / 1e6)


class FrameWriter:
    """Makes the frames that one task sends.

    Args:
        attempt: Number of this launch of the tasks.
        producer: Index of the task.
        consumers: Number of tasks that read.
        clocks: Number of clocks of the job.
        frame_bytes: The most bytes of a frame.
    """

    def __init__(
        self, attempt: int, producer: int, consumers: int, clocks: int, frame_bytes: int = FRAME_BYTES
    ) -> None:
        self._attempt = attempt
        self._producer = producer
        self._sequences = [0] * consumers
        self._clocks = clocks
        self._pack_watermarks = struct.Struct(f">{clocks}q").pack
        self._watermarks = self._pack_watermarks(*[MIN_WATERMARK] * clocks)
        self._heads: list[bytes] = []
        self._marks: list[bytes] = []
        self._bodies: list[bytes] = []
        self._targets: list[int] = []
        self._turn = 0
        self._grants = [FIRST_CREDIT] * consumers
        self._body_bytes = frame_bytes - _HEAD.size - 8 * clocks

    def advance(self, watermarks: Sequence[int]) -> None:
        """Set the watermark of each clock behind the frames that were added: the last one to each consumer has it."""
        self._watermarks = self._pack_watermarks(*watermarks)
        last = {target: at for at, target in enumerate(self._targets)}
        for at in last.values():
            self._marks[at] = self._watermarks

    def add_messages(self, batch: pa.RecordBatch) -> None:
        """Add messages to their targets, in the columns of `MessageLayout`."""
        targets = batch.column(batch.schema.get_field_index(TARGET)).to_pylist()
        contents = batch.column(0).to_pylist()
        for target, content in zip(targets, contents, strict=True):
            if content:  # batches have empty values where they were made for an epoch
                self.add_message(target, content)

    def add_message(self, target: int, message: bytes) -> None:
        """Add a message to its target, in parts if it is longer than a frame."""
        size = self._body_bytes
        end = len(message) - size
        at = 0
        while at < end:
            self._add(_PART, target, message[at : at + size])
            at += size
        self._add(_DATA, target, message[at:] if at else message)

    def add_barrier(self, barrier: Barrier) -> None:
        """Add a barrier for every consumer."""
        for target in range(len(self._sequences)):
            self._add(_BARRIER_KIND, target, _BARRIER.pack(*barrier))

    def add_watermarks(self) -> None:
        """Add the watermarks for every consumer."""
        for target in range(len(self._sequences)):
            self._add(_WATERMARK, target, b"")

    def add_latency_marker(self, marker: LatencyMarker) -> None:
        """Add a latency marker for one of the consumers, which have turns."""
        self._turn = (self._turn + 1) % len(self._sequences)
        self._add(_LATENCY_KIND, self._turn, _LATENCY.pack(*marker))

    def grant(self, consumer: int, sequence: int) -> None:
        """Record that a consumer takes frames up to this sequence number."""
        self._grants[consumer] = max(self._grants[consumer], sequence)

    @property
    def has_credit(self) -> bool:
        """Whether each consumer takes another frame."""
        return all(sent < granted for sent, granted in zip(self._sequences, self._grants, strict=True))

    @property
    def excess(self) -> int:
        """The most frames that were sent to a consumer beyond its grant."""
        return max((sent - granted for sent, granted in zip(self._sequences, self._grants, strict=True)), default=0)

    @property
    def sent(self) -> int:
        """Number of frames that were added since the task began."""
        return sum(self._sequences)

    @property
    def is_empty(self) -> bool:
        """Whether there is no frame to send."""
        return not self._heads

    def take(self) -> pa.RecordBatch:
        """Return the frames that were added."""
        contents = [b"".join(parts) for parts in zip(self._heads, self._marks, self._bodies, strict=True)]
        targets = self._targets
        self._heads, self._marks, self._bodies, self._targets = [], [], [], []
        return message_batch(contents, targets)

    def _add(self, kind: int, target: int, body: bytes) -> None:
        sequence = self._sequences[target]
        self._sequences[target] = sequence + 1
        self._heads.append(_HEAD.pack(kind, self._clocks, self._producer, self._attempt, sequence))
        self._marks.append(self._watermarks)
        self._bodies.append(body)
        self._targets.append(target)


class _Channel:
    """The frames of one producer."""

    def __init__(self, clocks: int) -> None:
        self.sequence = 0
        self.consumed = 0
        self.watermarks: tuple[int, ...] = (MIN_WATERMARK,) * clocks
        self.arrived = self.watermarks
        self.parts: list[bytes] = []
        self.barrier: int | None = None
        self.held: deque[tuple[int, tuple[int, ...], pa.Buffer]] = deque()


class InputGate:
    """Reads the frames of all producers, aligns their barriers, and knows the watermarks.

    Args:
        attempt: Number of this launch of the tasks.
        producers: Number of tasks that send.
        clocks: Number of clocks of the job.
        is_aligned: Whether frames behind a barrier wait until all producers have sent it.
        alignment_limit: The most bytes that wait behind a barrier; None for no limit.

    Attributes:
        barrier: The barrier that all producers have sent; None while none has come from all.
        alignment_seconds: Time from the first to the last arrival of the newest barrier.
        start_delay_seconds: Time from its trigger to its first arrival.
        markers: Latency markers that `take_messages` has passed.
    """

    def __init__(
        self,
        attempt: int,
        producers: int,
        clocks: int,
        *,
        is_aligned: bool = True,
        alignment_limit: int | None = None,
    ) -> None:
        self._attempt = attempt
        self._clocks = clocks
        self._unpack_watermarks = struct.Struct(f">{clocks}q").unpack_from
        self._body = _HEAD.size + 8 * clocks
        self._channels = [_Channel(clocks) for _ in range(producers)]
        self._latest = [MIN_WATERMARK] * clocks
        self._is_aligned = is_aligned
        self._alignment_limit = alignment_limit
        self._held_bytes = 0
        self._aligning: int | None = None
        self._released = -1
        self._abandoned: set[int] = set()
        self._messages: deque[tuple[_Channel, tuple[int, ...], pa.Buffer | LatencyMarker | None]] = deque()
        self.barrier: Barrier | None = None
        self.markers: list[LatencyMarker] = []
        self.alignment_seconds = self.start_delay_seconds = 0.0
        self._aligning_since = 0.0
        self._waiting: deque[pa.Buffer] = deque()

    def receive(self, batch: pa.RecordBatch) -> None:
        """Read a batch that crossed the exchange. Call `take_messages`, and then `barrier`, for what it brings.

        Raises:
            LostFrameError: A frame is missing, came twice or is damaged.
        """
        self._waiting.extend(contents_of(batch))
        self._read()

    def take_messages(self, limit: int) -> list[pa.Buffer]:
        """Return the next messages in their order, at most so many; none of them is behind the barrier.

        `watermarks` are those behind them from now on.
        """
        taken: list[pa.Buffer] = []
        while self._messages and len(taken) < limit:
            channel, watermarks, body = self._messages.popleft()
            if MAX_WATERMARK in watermarks:
                self._keep_latest(channel)
            channel.watermarks = watermarks
            channel.consumed += 1
            if isinstance(body, LatencyMarker):
                self.markers.append(body)
            elif body is not None:
                taken.append(body)
        return taken

    @property
    def has_messages(self) -> bool:
        """Whether `take_messages` has something to return, or watermarks to advance."""
        return bool(self._messages)

    def consumed(self) -> list[int]:
        """Return how many frames of each producer were consumed."""
        return [channel.consumed for channel in self._channels]

    @property
    def exceeded(self) -> int | None:
        """The barrier that is not aligned yet and behind which more waits than the limit; None if there is none."""
        is_beyond = self._alignment_limit is not None and self._held_bytes > self._alignment_limit
        return self._aligning if is_beyond and self.barrier is None else None

    def release(self, number: int) -> None:
        """Continue behind a barrier, and ignore it and earlier ones where they still arrive."""
        self._unblock(number)
        self._accept_held()
        self._read()

    def abandon(self, number: int) -> None:
        """Continue without a barrier, whether it has arrived or not. Others that are under way stay."""
        if self._aligning == number:
            self.release(number)
        elif number > self._released:
            self._abandoned.add(number)

    def _unblock(self, number: int) -> None:
        self._released = max(self._released, number)
        self._abandoned = {abandoned for abandoned in self._abandoned if abandoned > self._released}
        if self._aligning is None or self._aligning > number:
            return
        self._aligning = self.barrier = None
        for channel in self._channels:
            channel.barrier = None

    def _accept_held(self) -> None:
        while waiting := [channel for channel in self._channels if channel.held and channel.barrier is None]:
            for channel in waiting:
                while channel.held and channel.barrier is None:
                    kind, watermarks, body = channel.held.popleft()
                    self._held_bytes -= body.size
                    if not self._is_aligned:  # the frames behind a barrier that waited have overtaken it
                        watermarks = channel.arrived
                    self._accept(channel, kind, watermarks, body)

    def watermarks(self) -> list[int]:
        """Return the watermark of each clock: the least of the producers, as `least_watermark` has it."""
        return [
            least_watermark([channel.watermarks[number] for channel in self._channels])
            for number in range(self._clocks)
        ]

    def latest(self, clock: int) -> int:
        """Return the greatest watermark of the producers before the end of time, by the number of the clock."""
        for channel in self._channels:
            self._keep_latest(channel)
        return self._latest[clock]

    def _keep_latest(self, channel: _Channel) -> None:
        for clock, watermark in enumerate(channel.watermarks):
            if self._latest[clock] < watermark < MAX_WATERMARK:
                self._latest[clock] = watermark

    def _read(self) -> None:
        while self._waiting and self.barrier is None:
            self._receive(self._waiting.popleft())

    def _receive(self, content: pa.Buffer) -> None:
        if content.size < self._body:
            raise LostFrameError(f"a frame of {content.size} bytes is too short")
        kind, clocks, producer, attempt, sequence = _HEAD.unpack_from(content)
        if attempt != self._attempt:
            return
        if clocks != self._clocks or producer >= len(self._channels):
            raise LostFrameError(f"a frame of producer {producer} with {clocks} clocks is not of this job")
        channel = self._channels[producer]
        if sequence != channel.sequence:
            raise LostFrameError(f"frame {sequence} of task {producer} arrived instead of frame {channel.sequence}")
        channel.sequence += 1
        watermarks, body = self._unpack_watermarks(content, _HEAD.size), content.slice(self._body)
        channel.arrived = watermarks
        if channel.barrier is not None and (self._is_aligned or kind == _BARRIER_KIND):
            channel.held.append((kind, watermarks, body))
            self._held_bytes += body.size
        else:
            self._accept(channel, kind, watermarks, body)
            if kind == _BARRIER_KIND:
                self._accept_held()

    def _accept(self, channel: _Channel, kind: int, watermarks: tuple[int, ...], body: pa.Buffer) -> None:
        if kind == _DATA:
            if channel.parts:
                body = pa.py_buffer(b"".join([*channel.parts, body.to_pybytes()]))
                channel.parts = []
            self._messages.append((channel, watermarks, body))
        elif kind == _WATERMARK:
            self._messages.append((channel, watermarks, None))
        elif kind == _LATENCY_KIND:
            self._messages.append((channel, watermarks, LatencyMarker(*_LATENCY.unpack_from(body))))
        elif kind == _PART:
            channel.consumed += 1
            channel.parts.append(body.to_pybytes())
        elif kind == _BARRIER_KIND:
            self._messages.append((channel, watermarks, None))
            self._align(channel, Barrier(*_BARRIER.unpack_from(body)))
        else:
            raise LostFrameError(f"a frame is of the unknown kind {kind}")

    def _align(self, channel: _Channel, barrier: Barrier) -> None:
        number = barrier.number
        if number <= self._released or number in self._abandoned:
            return
        self._unblock(number - 1)  # and so were all before this one
        if self._aligning is None:
            self._aligning_since = time.monotonic()
            self.start_delay_seconds = barrier.delay()
        channel.barrier = self._aligning = number
        if all(other.barrier == number for other in self._channels):
            self.barrier = barrier
            self.alignment_seconds = time.monotonic() - self._aligning_since


def least_watermark(watermarks: Collection[int]) -> int:
    """Return the least watermark of those that are not idle; `IDLE` if there is none.

    Those at the end of time do not end it while another one is idle, which may get elements again.
    """
    least = min((watermark for watermark in watermarks if watermark != IDLE), default=IDLE)
    return IDLE if least == MAX_WATERMARK and IDLE in watermarks else least
