"""One subtask of one operator for one epoch: elements in, elements out, state changed on the way.

This is the hot path. A call handles a whole batch; for each element there is the user's function, one slot assignment
and nothing else.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from holdfast.errors import HoldfastError, UserFunctionError
from holdfast.runtime.function.user_function import CheckpointedFunction, CheckpointListener, OutputTag, TimeDomain
from holdfast.runtime.operator.async_operation import CallsInFlight
from holdfast.runtime.operator.context import (
    BroadcastElementContext,
    BroadcastStates,
    ElementContext,
    InitializationContext,
    NonBroadcastContext,
    RawState,
    SnapshotContext,
    SubtaskContext,
    SubtaskInfo,
    notify_listener,
)
from holdfast.runtime.operator.operator_instance import OperatorInstance, method_of_input, user_error
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.state.timer_service import DueTimers
from holdfast.types.arrow import (
    Timestamps,
    concat_timestamps,
    iterate_timestamps,
    no_timestamps,
    timestamp_column,
    timestamps_of_outputs,
)
from holdfast.types.row import CHANGES, Emission, originals

REDUCE_STATE = "_reduce"


class OperatorSubtask:
    """Passes the elements of one epoch to one operator.

    Args:
        instance: The operator, opened in this process.
        info: The subtask and the epoch.
        backend: Its keyed state, with the version of the epoch; None for operators without keys.
        operator_state: Its operator state, restored; None for operators without.

    Raises:
        UserFunctionError: `initialize_state` raised.
    """

    def __init__(
        self,
        instance: OperatorInstance,
        info: SubtaskInfo,
        backend: AbstractKeyedStateBackend | None = None,
        operator_state: OperatorStateBackend | None = None,
    ) -> None:
        self.info = info
        self.backend = backend
        self.operator_state = operator_state
        self._spec = instance.spec
        self.context = ElementContext(info, backend)
        if self._spec.broadcast is not None:
            assert operator_state is not None
            states = BroadcastStates(info.uid, self._spec.broadcast, operator_state)
            self.context = NonBroadcastContext(info, backend, states)
            self._broadcast_side = BroadcastElementContext(info, backend, states, self.context)
        context = SubtaskContext(info, backend)
        self.metrics = context.metrics
        self.function, self._call = instance.bind(context, backend)
        self._shape: str = self._spec.shape
        self.in_flight: CallsInFlight | None = None
        self._is_generator = inspect.isgeneratorfunction(self._call)
        if self._spec.second_type is not None:
            self._call_of_second = method_of_input(self.function, self._spec.shape, 2)
            self._shape = "flat_map" if self._shape == "map" else self._shape
        self._raw = None if operator_state is None else RawState(info.uid, operator_state, backend)
        if isinstance(self.function, CheckpointedFunction):
            assert operator_state is not None and self._raw is not None
            initialization = InitializationContext(info, context, operator_state, self._raw)
            self._guard("initializing its state", lambda: self.function.initialize_state(initialization))
        if isinstance(self.function, CheckpointListener):
            completed, aborted = info.completed_checkpoint_id, info.aborted_checkpoint_ids
            self._guard("being notified of a checkpoint", lambda: notify_listener(self.function, completed, aborted))
        self._keyed_loops = {
            "map": self._map,
            "flat_map": self._flat_map,
            "filter": self._filter,
            "process": self._process,
            "reduce": self._reduce,
        }

    @property
    def side_outputs(self) -> dict[str, list[Any]]:
        """Elements of each tag since the last call of `take_side_outputs`."""
        return self.context.side_outputs

    def take_side_outputs(self) -> dict[str, list[Any]]:
        """Return and forget the side outputs."""
        taken, self.context.side_outputs = self.context.side_outputs, {}
        return {tag: originals(values) for tag, values in taken.items()} if CHANGES else taken

    def take_timestamps(self) -> Timestamps | None:
        """Return and forget the timestamps of the output; None without event time."""
        return None

    def take_side_timestamps(self) -> dict[str, Timestamps]:
        """Return and forget the timestamps of side outputs, by tag."""
        return {}

    def process(
        self,
        elements: Sequence[Any],
        dict_keys: Sequence[Any] | None = None,
        hashes: Any = None,
        timestamps: Timestamps | None = None,
    ) -> list[Any]:
        """Process a batch, and return its output in order.

        Args:
            elements: The batch.
            dict_keys: Canonical key of each element (see `holdfast.types.key_codec`); None for operators without keys.
            hashes: Hash of each key, a uint64 array.
            timestamps: Event time of each element; for a `TimestampedSubtask`.

        Raises:
            UserFunctionError: The function raised; names operator, key and epoch and ends with the user's traceback.
        """
        out: list[Any] = []
        emission = Emission(out)
        try:
            if self.backend is None:
                self._run_narrow(elements, out)
            else:
                self.backend.release()
                slots = self.backend.prepare(dict_keys, hashes)  # type: ignore[arg-type]
                self._keyed_loops[self._shape](elements, slots, out)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing an element") from error
        emission.end()
        return self._without_tagged(out) if self._spec.side_outputs else out

    def process_second(self, *batch: Any) -> list[Any]:
        """Process a batch of the second input; see `process`.

        Raises:
            UserFunctionError: The function raised.
        """
        call_of_first, self._call = self._call, self._call_of_second
        try:
            return self.process(*batch)
        finally:
            self._call = call_of_first

    def process_broadcast(self, elements: Sequence[Any]) -> list[Any]:
        """Process broadcast elements, and return the output in order.

        Raises:
            UserFunctionError: The function raised.
        """
        out: list[Any] = []
        emission = Emission(out)
        context, call = self._broadcast_side, self.function.process_broadcast_element

        def process() -> None:
            context.begin()
            emitted: Any = None
            for element in elements:
                emitted = call(element, context)
                if emitted is not None:
                    out.extend(emitted)
            _check_collection(emitted)

        self._guard("processing a broadcast element", process)
        emission.end()
        return self._without_tagged(out) if self._spec.side_outputs else out

    def keep_calls_in_flight(self, wake: Callable[[], object]) -> CallsInFlight | None:
        """Let `process` of an asynchronous function return before its calls have; None for other functions.

        Args:
            wake: Called by another thread when `take_results` has something.
        """
        if self._shape == "async":
            self.in_flight = CallsInFlight(self.function, wake)
        return self.in_flight

    def take_results(self, *, finish: bool) -> list[Any]:
        """Return the output of calls that were in flight.

        Args:
            finish: Whether to wait for all of them.

        Raises:
            UserFunctionError: A call failed.
        """
        assert self.in_flight is not None
        try:
            return self._of_calls(self.in_flight.finish() if finish else self.in_flight.take())
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing an element") from error

    def _of_calls(self, done: Iterable[tuple[Any, list[Any]]]) -> list[Any]:
        """Return the output of asynchronous calls, by the event time of their elements."""
        return [result for _, results in done for result in results]

    @property
    def fires_timers(self) -> bool:
        """Whether a function of this shape can have timers of its own."""
        return self._spec.shape in ("process", "groups", "batches")

    def snapshot_state(self, checkpoint_id: int | None = None) -> None:
        """Call `snapshot_state` of the function at the end of the epoch, before state is written.

        Args:
            checkpoint_id: The checkpoint; None for the one that was expected when the epoch began.

        Raises:
            UserFunctionError: The function raised.
        """
        if isinstance(self.function, CheckpointedFunction):
            assert self._raw is not None
            context = SnapshotContext(self.info, checkpoint_id, self._raw)
            self._raw.begin_snapshot()
            self._guard("saving its state", lambda: self.function.snapshot_state(context))
            self._raw.end_snapshot()

    def _guard(self, doing: str, call: Callable[[], None]) -> None:
        try:
            call()
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.info.uid, None, self.info.epoch, doing) from error

    def set_times(self, processing_time: int, watermark: int) -> None:
        """Set the times that functions see from now on, in a real-time task."""
        self.info.processing_time, self.info.watermark = processing_time, watermark
        self.context.set_watermark(watermark)
        if self.backend is not None:
            self.backend.set_processing_time(processing_time)

    def advance_watermark(self, watermark: int) -> list[Any]:
        """Fire the event-time timers up to `watermark`, and return their output."""
        self.context.set_watermark(watermark)
        if self.backend is None:
            return []
        return self._fire(TimeDomain.EVENT_TIME, lambda fire: self.backend.timers.advance_watermark(watermark, fire))  # type: ignore[union-attr]

    def fire_processing_time(self, now: int) -> list[Any]:
        """Fire the processing-time timers that are due at `now`, and return their output."""
        if self.backend is None:
            return []
        return self._fire(TimeDomain.PROCESSING_TIME, lambda fire: self.backend.timers.fire_processing(now, fire))  # type: ignore[union-attr]

    def end_input(self) -> list[Any]:
        """Return the output of the end of the input, before timers fire."""
        return []

    def _fire(self, domain: TimeDomain, run: Callable[[Callable[[int], None]], None]) -> list[Any]:
        out: list[Any] = []
        self._fire_all(domain, run, self._firing(out), out)
        return self._without_tagged(out) if self._spec.side_outputs else out

    def _firing(self, out: list[Any]) -> Callable[[int], None]:
        """Return a function that calls `on_timer` for a time and the current key."""
        # A function without `on_timer` may register timers, too: they are removed when due, or would be due for ever.
        handler, context = getattr(self.function, "on_timer", _ignore), self.context

        def fire(timestamp: int) -> None:
            context.element_timestamp = timestamp
            emitted = handler(timestamp, context)
            if emitted is not None:
                out.extend(emitted)
                if emitted.__class__ in _NO_COLLECTIONS:  # a call would cost a tenth of a timer
                    _check_collection(emitted)

        return fire

    def _fire_all(
        self, domain: TimeDomain, run: Callable[..., None], fire: Callable[[int], None], out: list[Any]
    ) -> None:
        if not self.fires_timers:
            return
        context = self.context
        context.domain = domain
        emission = Emission(out)
        try:
            run(fire)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "firing a timer") from error
        finally:
            context.element_timestamp = context.domain = None
        emission.end()

    def _without_tagged(self, emitted: list[Any]) -> list[Any]:
        """Return the main output; PyFlink's `yield tag, value` goes to the side outputs."""
        out: list[Any] = []
        for element in emitted:
            if is_tagged(element):
                self.context.output(*element)
            else:
                out.append(element)
        return out

    def _run_narrow(self, elements: Iterable[Any], out: list[Any]) -> None:
        call, shape = self._call, self._shape
        source = iter(elements)  # its position names the element of a function that raises
        if shape == "map":
            out.extend(map(call, source))
        elif shape == "filter":
            out.extend(filter(call, source))
        elif shape == "flat_map":
            for emitted in map(call, source):
                if emitted is not None:
                    out.extend(emitted)
        elif shape == "async":
            if self.in_flight is None:
                done = [(None, results) for _, results in call(elements)]
            else:
                several = list(elements)
                done = self.in_flight.add(several, [None] * len(several))
            out.extend(self._of_calls(done))
        else:
            context = self.context
            emitted = None
            for element in elements:
                emitted = call(element, context)
                if emitted is not None:
                    out.extend(emitted)
            _check_collection(emitted)

    def _process(self, elements: Iterable[Any], slots: Iterable[Any], out: list[Any]) -> None:
        backend, call, context, extend = self.backend, self._call, self.context, out.extend
        assert backend is not None
        if self._is_generator:  # it always returns an iterable
            for element, slot in zip(elements, slots, strict=True):
                backend.slot = slot
                extend(call(element, context))
            return
        emitted: Any = None
        for element, slot in zip(elements, slots, strict=True):
            backend.slot = slot
            emitted = call(element, context)
            if emitted is not None:
                extend(emitted)
        _check_collection(emitted)

    def _map(self, elements: Iterable[Any], slots: Iterable[Any], out: list[Any]) -> None:
        backend, call, append = self.backend, self._call, out.append
        assert backend is not None
        for element, slot in zip(elements, slots, strict=True):
            backend.slot = slot
            append(call(element))

    def _flat_map(self, elements: Iterable[Any], slots: Iterable[Any], out: list[Any]) -> None:
        backend, call, extend = self.backend, self._call, out.extend
        assert backend is not None
        for element, slot in zip(elements, slots, strict=True):
            backend.slot = slot
            emitted = call(element)
            if emitted is not None:
                extend(emitted)

    def _filter(self, elements: Iterable[Any], slots: Iterable[Any], out: list[Any]) -> None:
        backend, call, append = self.backend, self._call, out.append
        assert backend is not None
        for element, slot in zip(elements, slots, strict=True):
            backend.slot = slot
            if call(element):
                append(element)

    def _reduce(self, elements: Iterable[Any], slots: Iterable[Any], out: list[Any]) -> None:
        backend, call, append = self.backend, self._call, out.append
        assert backend is not None
        state = backend.get_partitioned_state(None, None, ValueStateDescriptor(REDUCE_STATE, self._spec.input_type))
        value, update = state.value, state.update
        for element, slot in zip(elements, slots, strict=True):
            backend.slot = slot
            before = value()
            after = element if before is None else call(before, element)
            update(after)
            append(after)

    def _user_error(self, error: Exception, doing: str) -> UserFunctionError:
        key = None
        if self.backend is not None:
            try:
                key = self.backend.get_current_key()
            except HoldfastError:
                key = None
        return user_error(error, self.info.uid, key, self.info.epoch, doing)


_NO_COLLECTIONS: Final = frozenset((str, bytes, dict))


def _check_collection(returned: Any) -> None:
    """Raise for a text or a dict: its characters or keys are not meant as elements.

    For `process`, only the last result of a batch is checked: a check of each would cost a call for each element.
    `flat_map` accepts a text and emits its letters, as in Flink.
    """
    if returned.__class__ in _NO_COLLECTIONS:
        raise TypeError("one element was returned for a collection of elements")


def is_tagged(element: Any) -> bool:
    """Return whether it is the output of PyFlink's `yield tag, value`."""
    return element.__class__ is tuple and len(element) == 2 and isinstance(element[0], OutputTag)


def _ignore(timestamp: int, context: Any) -> None: ...


class GroupedSubtask(OperatorSubtask):
    """Collects the elements of an epoch, and calls the function once for each key at the end of the input.

    Its output has no timestamps, as it belongs to many elements.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._groups: defaultdict[int, list[Any]] = defaultdict(list)
        assert self.backend is not None
        for name in self.function.dropped_states:
            self.backend.remove_state(name)

    def process(
        self,
        elements: Sequence[Any],
        dict_keys: Sequence[Any] | None = None,
        hashes: Any = None,
        timestamps: Timestamps | None = None,
    ) -> list[Any]:
        """Collect elements. Their slots stay in use, so the backend releases none before the end."""
        assert self.backend is not None
        groups = self._groups
        for element, slot in zip(elements, self.backend.prepare(dict_keys, hashes), strict=True):  # type: ignore[arg-type]
            groups[slot].append(element)
        return []

    def end_input(self) -> list[Any]:
        assert self.backend is not None
        out: list[Any] = []
        emission = Emission(out)
        backend, call, context = self.backend, self._call, self.context
        groups, self._groups = self._groups, defaultdict(list)
        emitted: Any = None
        try:
            for slot, elements in groups.items():
                backend.slot = slot
                emitted = call(elements, context)
                if emitted is not None:
                    out.extend(emitted)
            _check_collection(emitted)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing the elements of a key") from error
        backend.release()
        emission.end()
        return self._without_tagged(out) if self._spec.side_outputs else out

    def advance_watermark(self, watermark: int) -> list[Any]:
        self.context.set_watermark(watermark)
        assert self.backend is not None
        timers = self.backend.timers
        due = timers.take_due_event_time(watermark)
        timers.register_event_time_timers(due.slots, due.times)
        return self._fire(TimeDomain.EVENT_TIME, lambda fire: self._fire_due(due, fire, timers.delete_event_time_timer))

    def fire_processing_time(self, now: int) -> list[Any]:
        assert self.backend is not None
        timers = self.backend.timers
        due = timers.take_due_processing_time(now)
        timers.register_processing_time_timers(due.slots, due.times)
        return self._fire(
            TimeDomain.PROCESSING_TIME, lambda fire: self._fire_due(due, fire, timers.delete_processing_time_timer)
        )

    def _fire_due(self, due: DueTimers, fire: Callable[[int], None], delete: Callable[[int], None]) -> None:
        """Fire timers one by one. Each exists until it has fired; those that are registered meanwhile wait."""
        assert self.backend is not None
        for slot, time in zip(due.slots.tolist(), due.times.tolist(), strict=True):
            self.backend.slot = slot
            fire(time)
            delete(time)


class TimestampedSubtask(OperatorSubtask):
    """A subtask of elements with event times: output has the time of the element that it was emitted for.

    Only operators after `assign_timestamps_and_watermarks` run in this way. Functions are called element by element,
    with its time in the context; the times of the output are computed batch by batch.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._timestamps: list[Timestamps] = []
        self.context.side_timestamps = {}

    def take_timestamps(self) -> Timestamps | None:
        """Return and forget the timestamps of the output since the last call."""
        taken, self._timestamps = self._timestamps, []
        return concat_timestamps(taken)

    def take_side_timestamps(self) -> dict[str, Timestamps]:
        """Return and forget the timestamps of side outputs."""
        taken, self.context.side_timestamps = self.context.side_timestamps or {}, {}
        return {tag: timestamp_column(times) for tag, times in taken.items()}

    def process(
        self,
        elements: Sequence[Any],
        dict_keys: Sequence[Any] | None = None,
        hashes: Any = None,
        timestamps: Timestamps | None = None,
    ) -> list[Any]:
        out: list[Any] = []
        ends: list[int] = []
        emission = Emission(out)
        try:
            if self._shape == "async":
                return self._process_async(elements, timestamps)
            times = iterate_timestamps(timestamps)
            if self.backend is None:
                self._run_narrow(self._following(elements, times, out, ends), out)
            else:
                self.backend.release()
                slots = self.backend.prepare(dict_keys, hashes)  # type: ignore[arg-type]
                if self._shape == "process":
                    self._process_timed(elements, slots, times, out, ends)
                else:
                    self._keyed_loops[self._shape](self._following(elements, times, out, ends), slots, out)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing an element") from error
        finally:
            self.context.element_timestamp = None
        emission.end()
        return self._record_timestamps(out, timestamps_of_outputs(timestamps, ends))

    def process_broadcast(self, elements: Sequence[Any]) -> list[Any]:
        out = super().process_broadcast(elements)
        self._timestamps.append(no_timestamps(len(out)))
        return out

    def _process_async(self, elements: Sequence[Any], timestamps: Timestamps | None) -> list[Any]:
        """Process all elements at once; one after the other, they would not wait beside each other."""
        times = [None] * len(elements) if timestamps is None else timestamps.to_pylist()
        if self.in_flight is None:
            return self._of_calls((times[place], results) for place, results in self._call(elements))
        return self._of_calls(self.in_flight.add(elements, times))

    def _of_calls(self, done: Iterable[tuple[Any, list[Any]]]) -> list[Any]:
        out: list[Any] = []
        times: list[int | None] = []
        for time, results in done:
            out += results
            times += [time] * len(results)
        self._timestamps.append(timestamp_column(times))
        return out

    def _following(
        self, elements: Sequence[Any], times: Iterable[int | None], out: list[Any], ends: list[int]
    ) -> Iterator[Any]:
        """Yield the elements, each after all before it were processed, and record how much those have emitted."""
        context, record = self.context, ends.append
        for element, time in zip(elements, times, strict=False):
            context.element_timestamp = time
            yield element
            record(len(out))

    def _process_timed(
        self,
        elements: Sequence[Any],
        slots: Sequence[Any],
        times: Iterable[int | None],
        out: list[Any],
        ends: list[int],
    ) -> None:
        """The common case of `_following`, inlined: without a generator a row costs a tenth less."""
        backend, call, context, extend, record = self.backend, self._call, self.context, out.extend, ends.append
        assert backend is not None
        emitted: Any = None
        for element, slot, time in zip(elements, slots, times, strict=False):
            backend.slot = slot
            context.element_timestamp = time
            emitted = call(element, context)
            if emitted is not None:
                extend(emitted)
            record(len(out))
        _check_collection(emitted)

    def _run_narrow(self, elements: Iterable[Any], out: list[Any]) -> None:
        if self._shape not in ("map", "filter"):
            super()._run_narrow(elements, out)
            return
        # Not `extend`: `_following` reads the length of the list, which is undefined during `extend`.
        for emitted in (map if self._shape == "map" else filter)(self._call, elements):
            out.append(emitted)

    def _record_timestamps(self, emitted: list[Any], timestamps: Timestamps) -> list[Any]:
        """Return the main output, and record its timestamps, or those that the function assigns itself."""
        if self._spec.side_outputs:
            emitted, timestamps = self._part_tagged(emitted, timestamps)
        if self._spec.emits_timestamps:
            timestamps = timestamp_column([time for time, _ in emitted])
            emitted = [element for _, element in emitted]
        self._timestamps.append(timestamps)
        return emitted

    def _part_tagged(self, emitted: list[Any], timestamps: Timestamps) -> tuple[list[Any], Timestamps]:
        """Send tagged output to its side output, and return the rest."""
        out: list[Any] = []
        times: list[int | None] = []
        for element, time in zip(emitted, iterate_timestamps(timestamps), strict=True):
            if is_tagged(element):
                self.context.element_timestamp = time
                self.context.output(*element)
            else:
                out.append(element)
                times.append(time)
        self.context.element_timestamp = None
        return out, timestamp_column(times)

    def _fire(self, domain: TimeDomain, run: Callable[[Callable[[int], None]], None]) -> list[Any]:
        out: list[Any] = []
        fired: list[int] = []
        ends: list[int] = []
        fire = self._firing(out)

        def noted(timestamp: int) -> None:
            fire(timestamp)
            fired.append(timestamp)
            ends.append(len(out))

        self._fire_all(domain, run, noted, out)
        times = timestamp_column(fired) if domain is TimeDomain.EVENT_TIME else None
        return self._record_timestamps(out, timestamps_of_outputs(times, ends))
