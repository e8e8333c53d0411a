"""Timer services of keyed operators.

A timer is a time of a key (and a namespace). It fires once, when the watermark or the processing time reaches it, with
its key as the current one. Timers of the same time fire in no promised order. Timers are state: they are written with
the run of the epoch, and the subtask that owns the key's group fires them. The watermark itself is not restored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import StateError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.secret import get_logger
from holdfast.state.descriptor import RESERVED_PREFIX
from holdfast.state.environment import Environment
from holdfast.state.layout import VOID, Op, VoidNamespaceSerializer
from holdfast.state.run_file import RunReader, SegmentData
from holdfast.state.timers import MAX_TIME, MIN_TIME, FiringRule, Timer, TimerQueue, TimerRows
from holdfast.types.key_codec import KeyCodec, LazyKeys
from holdfast.types.serializer import TypeSerializer

TIMER_PREFIX: Final = RESERVED_PREFIX
USER_TIMERS: Final = "user-timers"
EVENT: Final = "event"
PROCESSING: Final = "processing"

Slots = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]

logger = get_logger(__name__)


def warn_of_waiting(operator: str, waiting: Collection[int]) -> None:
    """Log that timers wait which were set at the final watermark."""
    logger.warning(
        "operator %r: event time has ended, and timers that were set since then have fired once; %d timers that they "
        "have set, the earliest for %d, do not fire and stay in state",
        operator,
        len(waiting),
        min(waiting),
    )


class KeyContext(Protocol):
    """The part of a keyed state backend that timers use.

    Attributes:
        slot: Slot of the current key.
        processing_time: The current processing time, in milliseconds since 1970.
        latest_event_time: The greatest event time of the input; known when event time ends.
        event_time_has_ended: Whether it had ended before: timers that were set since then do not fire.
    """

    slot: int
    processing_time: int
    latest_event_time: int
    event_time_has_ended: bool

    @property
    def env(self) -> Environment: ...

    @property
    def key_codec(self) -> KeyCodec: ...

    def get_current_dict_key(self) -> Any: ...

    def keys_of(self, slots: Slots) -> tuple[pa.Array, npt.NDArray[np.uint64]]: ...

    def prepare(self, dict_keys: Sequence[Any], hashes: npt.NDArray[np.uint64]) -> Sequence[int]: ...


class InternalTimer(NamedTuple):
    """A timer that fires.

    Attributes:
        timestamp: Its time in milliseconds.
        key: The key in its user form.
        namespace: The namespace.
    """

    timestamp: int
    key: Any
    namespace: Any


class DueTimers(NamedTuple):
    """Timers that fire, sorted by time.

    Attributes:
        slots: Slots of their keys, whose state is loaded.
        namespaces: Encoded namespaces; None for a service without.
        times: Their times in milliseconds.
    """

    slots: Slots
    namespaces: pa.DictionaryArray | None
    times: Times


class InternalTimerService:
    """The timers of one service of an operator, such as those of its windows.

    Args:
        backend: The keyed state of the operator, which has the current key.
        name: Name of the service.
        namespace_serializer: Serializer of the namespaces.
    """

    def __init__(self, backend: KeyContext, name: str, namespace_serializer: TypeSerializer[Any]) -> None:
        self.name = name
        self.namespace_serializer = namespace_serializer
        self.watermark = MIN_TIME
        self._backend = backend
        self._is_void = isinstance(namespace_serializer, VoidNamespaceSerializer)
        schema = None if self._is_void else namespace_serializer.snapshot().to_json()
        codec = backend.key_codec
        self._event = TimerQueue(f"{TIMER_PREFIX}event_{name}", codec, schema)
        self._processing = TimerQueue(f"{TIMER_PREFIX}processing_{name}", codec, schema)

    def current_watermark(self) -> int:
        """Return the argument of the last `advance_watermark`, the minimum of 64-bit integers before the first."""
        return self.watermark

    def current_processing_time(self) -> int:
        """Return the processing time: of the epoch, or in a real-time task the current one."""
        return self._backend.processing_time

    def register_event_time_timer(self, namespace: Any, time: int) -> None:
        """Add a timer of the current key that fires when the watermark reaches a time."""
        self._event.register(self._timer(namespace, time))

    def register_processing_time_timer(self, namespace: Any, time: int) -> None:
        """Add a timer of the current key that fires when the processing time reaches a time."""
        self._processing.register(self._timer(namespace, time))

    def delete_event_time_timer(self, namespace: Any, time: int) -> None:
        """Delete a timer of the current key. Deleting a missing timer is not an error."""
        self._event.delete(self._timer(namespace, time))

    def delete_processing_time_timer(self, namespace: Any, time: int) -> None:
        """Delete a timer of the current key. Deleting a missing timer is not an error."""
        self._processing.delete(self._timer(namespace, time))

    def register_event_time_timers(self, slots: Slots, namespaces: pa.Array | None, times: Times) -> None:
        """Add timers that fire when the watermark reaches their times; see `register_processing_time_timers`."""
        self._add(self._event, slots, namespaces, times, Op.PUT)

    def register_processing_time_timers(self, slots: Slots, namespaces: pa.Array | None, times: Times) -> None:
        """Add timers that fire when the processing time reaches their times. Adding an existing timer is not an error.

        Args:
            slots: Slots of their keys.
            namespaces: Encoded namespaces, preferably as a dictionary; None for a service without.
            times: Times in milliseconds.

        Raises:
            StateError: The times are not 64-bit integers, or not one per slot.
        """
        self._add(self._processing, slots, namespaces, times, Op.PUT)

    def delete_event_time_timers(self, slots: Slots, namespaces: pa.Array | None, times: Times) -> None:
        """Delete timers. Deleting a missing timer is not an error. See `register_processing_time_timers`."""
        self._add(self._event, slots, namespaces, times, Op.DELETE)

    def delete_processing_time_timers(self, slots: Slots, namespaces: pa.Array | None, times: Times) -> None:
        """Delete timers. Deleting a missing timer is not an error. See `register_processing_time_timers`."""
        self._add(self._processing, slots, namespaces, times, Op.DELETE)

    def event_time_timers(self, namespace: Any) -> list[int]:
        """Return the times of the current key's event-time timers, in order."""
        return self._event.times_of(
            self._backend.get_current_dict_key(), self.namespace_serializer.serialize(namespace)
        )

    def processing_time_timers(self, namespace: Any) -> list[int]:
        """Return the times of the current key's processing-time timers, in order."""
        encoded = self.namespace_serializer.serialize(namespace)
        return self._processing.times_of(self._backend.get_current_dict_key(), encoded)

    def advance_watermark(self, watermark: int, fire: Callable[[InternalTimer], None]) -> None:
        """Set the watermark and fire all due timers, including timers that callbacks register."""
        for time, namespace in self.each_due_event_time(watermark):
            fire(self._for_users(time, namespace))

    def fire_processing(self, now: int, fire: Callable[[InternalTimer], None]) -> None:
        """Fire the due processing-time timers; see `each_due_processing_time`."""
        for time, namespace in self.each_due_processing_time(now):
            fire(self._for_users(time, namespace))

    def each_due_event_time(self, watermark: int) -> Iterator[tuple[int, bytes]]:
        """Set the watermark, and yield the due timers, each with its key as the current one.

        Yields:
            The time and the encoded namespace of a timer.
        """
        self.watermark = watermark
        latest = self._backend.latest_event_time if watermark == MAX_TIME else None
        return self._each_due(self._event, self._due_through(watermark), FiringRule(goes_back=True, latest=latest))

    def _due_through(self, watermark: int) -> int:
        return MIN_TIME if self._backend.event_time_has_ended else watermark

    def each_due_processing_time(self, now: int) -> Iterator[tuple[int, bytes]]:
        """Yield the due processing-time timers, each with its key as the current one.

        A due timer that a callback registers fires as well if it is later than the one that fires. Otherwise it fires
        the next time: Flink's clock would have advanced by then, but the processing time of an epoch does not.
        """
        return self._each_due(self._processing, now, FiringRule(goes_back=False))

    def take_due_event_time(self, watermark: int) -> DueTimers:
        """Set the watermark, and remove and return the due timers. Timers that are registered later wait."""
        self.watermark = watermark
        return self._take_due(self._event, self._due_through(watermark))

    def take_due_processing_time(self, now: int) -> DueTimers:
        """Remove and return the due processing-time timers."""
        return self._take_due(self._processing, now)

    def least_event_time(self) -> int | None:
        """Return the time of the earliest event-time timer, None if there is none."""
        return self._event.least()

    def least_processing_time(self) -> int | None:
        """Return the time of the earliest processing-time timer, None if there is none."""
        return self._processing.least()

    def processing_time_bound(self) -> int | None:
        """Return a time before which no processing-time timer is due, None if there is none; see `TimerQueue.bound`."""
        return self._processing.bound()

    def num_event_time_timers(self) -> int:
        """Return the number of event-time timers. Reads all of them."""
        return len(self._event)

    def num_processing_time_timers(self) -> int:
        """Return the number of processing-time timers. Reads all of them."""
        return len(self._processing)

    def open(self, runs: Sequence[RunReader], key_groups: KeyGroupRange) -> None:
        """Start from the runs of a version, newest first."""
        for queue in (self._event, self._processing):
            queue.open(runs, key_groups)

    def segments(self, max_parallelism: int) -> dict[str, SegmentData]:
        """Return the changes by the names of segments."""
        found = {queue.name: queue.segment(max_parallelism) for queue in (self._event, self._processing)}
        return {name: segment for name, segment in found.items() if segment is not None}

    def fired_through(self) -> dict[str, int]:
        """Return the time up to which all timers have fired, by the names of segments."""
        queues = (self._event, self._processing)
        return {queue.name: queue.fired_through for queue in queues if queue.fired_through is not None}

    def _timer(self, namespace: Any, time: int) -> Timer:
        if isinstance(time, bool) or not isinstance(time, int) or not MIN_TIME < time <= MAX_TIME:
            raise StateError(f"The time of a timer must be a 64-bit integer of milliseconds, not {time!r}.")
        encoded = self.namespace_serializer.serialize(namespace)
        return Timer(time, self._backend.get_current_dict_key(), encoded)

    def _add(self, queue: TimerQueue, slots: Slots, namespaces: pa.Array | None, times: Times, op: Op) -> None:
        numbers = np.asarray(times)
        if not len(slots) and not len(numbers):
            return
        if not len(slots) == len(numbers) == len(numbers if namespaces is None else namespaces):
            raise StateError(f"{len(slots)} keys cannot have {len(numbers)} timers: pass one time per key.")
        if numbers.dtype.kind != "i" or numbers.min() <= MIN_TIME:
            raise StateError(f"The times of timers must be 64-bit integers of milliseconds, not {times!r:.200}.")
        keys, hashes = self._backend.keys_of(np.asarray(slots, np.int64))
        queue.add(keys, hashes, namespaces, numbers.astype(np.int64), op)

    def _take_due(self, queue: TimerQueue, through: int) -> DueTimers:
        rows = queue.take_due(through)
        slots = np.asarray(self._prepare(rows), np.int64)
        return DueTimers(slots, None if self._is_void else queue.namespaces_of(rows), rows.times)

    def _prepare(self, rows: TimerRows) -> Sequence[int]:
        """Load the state of the keys of some timers at once, and return their slots."""
        if not len(rows):
            return []
        codec = self._backend.key_codec
        stored = codec.canonical_stored(rows.keys)
        return self._backend.prepare(
            codec.from_storage(rows.keys) if stored is None else LazyKeys(codec, stored), rows.hashes
        )

    def _each_due(self, queue: TimerQueue, through: int, rule: FiringRule) -> Iterator[tuple[int, bytes]]:
        backend = self._backend
        # Load the state of all due keys at once; timers that callbacks add are loaded one by one.
        rows = queue.take_due(through)
        if not len(rows):
            return
        slots = self._prepare(rows)
        names = [b""] * len(rows) if self._is_void else queue.names_of(rows)
        slots_by_key: dict[Any, int] = {}
        with queue.firing(rows, through, rule) as firing:
            for time, which in firing:
                if isinstance(which, int):
                    backend.slot = slots[which]
                    yield time, names[which]
                    continue
                if not slots_by_key:
                    slots_by_key.update(zip((timer.key for timer in firing.timers), slots, strict=True))
                key = which.key
                if key not in slots_by_key:
                    slots_by_key[key] = backend.prepare([key], backend.key_codec.hashes([key]))[0]
                backend.slot = slots_by_key[key]
                yield time, which.namespace
        if rule.latest is not None and firing.waiting:
            warn_of_waiting(backend.env.operator, [timer.timestamp for timer in firing.waiting])

    def _for_users(self, time: int, namespace: bytes) -> InternalTimer:
        key = self._backend.key_codec.user_key(self._backend.get_current_dict_key())
        return InternalTimer(time, key, self.namespace_serializer.deserialize(namespace))


class SimpleTimerService:
    """The timers of user functions, which have no namespaces; see `InternalTimerService`."""

    def __init__(self, service: InternalTimerService) -> None:
        self._service = service

    def current_watermark(self) -> int:
        return self._service.current_watermark()

    def current_processing_time(self) -> int:
        return self._service.current_processing_time()

    def register_event_time_timer(self, timestamp: int) -> None:
        self._service.register_event_time_timer(VOID, timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._service.register_processing_time_timer(VOID, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._service.delete_event_time_timer(VOID, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._service.delete_processing_time_timer(VOID, timestamp)

    def register_event_time_timers(self, slots: Slots, times: Times) -> None:
        self._service.register_event_time_timers(slots, None, times)

    def register_processing_time_timers(self, slots: Slots, times: Times) -> None:
        self._service.register_processing_time_timers(slots, None, times)

    def delete_event_time_timers(self, slots: Slots, times: Times) -> None:
        self._service.delete_event_time_timers(slots, None, times)

    def delete_processing_time_timers(self, slots: Slots, times: Times) -> None:
        self._service.delete_processing_time_timers(slots, None, times)

    def event_time_timers(self) -> list[int]:
        return self._service.event_time_timers(VOID)

    def processing_time_timers(self) -> list[int]:
        return self._service.processing_time_timers(VOID)

    def advance_watermark(self, watermark: int, fire: Callable[[int], None]) -> None:
        """Set the watermark and call `fire` with the time of each due timer, its key being the current one."""
        for time, _ in self._service.each_due_event_time(watermark):
            fire(time)

    def fire_processing(self, now: int, fire: Callable[[int], None]) -> None:
        """Call `fire` with the time of each due processing-time timer, its key being the current one."""
        for time, _ in self._service.each_due_processing_time(now):
            fire(time)

    def take_due_event_time(self, watermark: int) -> DueTimers:
        return self._service.take_due_event_time(watermark)

    def take_due_processing_time(self, now: int) -> DueTimers:
        return self._service.take_due_processing_time(now)

    def least_event_time(self) -> int | None:
        return self._service.least_event_time()

    def least_processing_time(self) -> int | None:
        return self._service.least_processing_time()

    def processing_time_bound(self) -> int | None:
        return self._service.processing_time_bound()

    def least(self) -> dict[str, int | None]:
        """Return the time of the earliest timer of each domain."""
        return {EVENT: self.least_event_time(), PROCESSING: self.least_processing_time()}
