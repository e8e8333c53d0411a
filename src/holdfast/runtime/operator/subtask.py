"""One subtask of one operator for one epoch: elements in, elements out, state changed on the way.

This is the hot path. A call handles a whole batch; per element there is the user's function, one slot assignment and
nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.errors import HoldfastError, UserFunctionError
from holdfast.runtime.function.user_function import CheckpointedFunction, CheckpointListener, OutputTag, TimeDomain
from holdfast.runtime.operator.context import ElementContext, SubtaskContext, SubtaskInfo
from holdfast.runtime.operator.failure import user_error
from holdfast.runtime.operator.operator_instance import OperatorInstance, method_of_input
from holdfast.runtime.operator.raw_state import RawState
from holdfast.runtime.operator.state_context import (
    BroadcastSideContext,
    BroadcastStates,
    InitializationContext,
    ReaderContext,
    SnapshotContext,
    notify,
)
from holdfast.state.backend import AbstractKeyedStateBackend, OperatorStateBackend
from holdfast.state.declaration.descriptor import ValueStateDescriptor
from holdfast.types.changed_row import CHANGES, Emission, originals
from holdfast.types.conversion.stamps import Stamps

REDUCE_STATE = "_reduce"


class OperatorSubtask:
    """Runs the elements of one epoch through one operator.

    Args:
        instance: The operator, opened in this process.
        info: Who and when this subtask is.
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
            self.context = ReaderContext(info, backend, states)
            self._broadcast_side = BroadcastSideContext(info, backend, states, self.context)
        context = SubtaskContext(info, backend)
        self.metrics = context.metrics
        self.function, self._call = instance.bind(context, backend)
        self._shape: str = self._spec.shape
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
            self._guard("being told of a checkpoint", lambda: notify(self.function, completed, aborted))
        self._keyed_runs = {
            "map": self._map,
            "flat_map": self._flat_map,
            "filter": self._filter,
            "process": self._process,
            "reduce": self._reduce,
        }

    @property
    def side_outputs(self) -> dict[str, list[Any]]:
        """What was sent to each tag since the last call of `take_side_outputs`."""
        return self.context.side_outputs

    def take_side_outputs(self) -> dict[str, list[Any]]:
        """Returns and forgets the side outputs."""
        taken, self.context.side_outputs = self.context.side_outputs, {}
        return {tag: originals(values) for tag, values in taken.items()} if CHANGES else taken

    def take_stamps(self) -> Stamps | None:
        """The timestamps of what was emitted since the last call; None where elements have none."""
        return None

    def take_side_stamps(self) -> dict[str, Stamps]:
        """The same for side outputs, by tag."""
        return {}

    def process(
        self,
        elements: Sequence[Any],
        dict_keys: Sequence[Any] | None = None,
        hashes: Any = None,
        timestamps: Stamps | None = None,
    ) -> list[Any]:
        """Processes a batch and returns what came out, in order.

        Args:
            elements: The batch.
            dict_keys: Canonical key of each element (see `holdfast.types.key.key_codec`); None for operators without
                keys.
            hashes: Hash of each key, a uint64 array.
            timestamps: Event time of each element; for a `StampedSubtask`.

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
                self._keyed_runs[self._shape](elements, slots, out)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing an element") from error
        emission.end()
        return self._without_tagged(out) if self._spec.side_outputs else out

    def process_second(self, *batch: Any) -> list[Any]:
        """Processes a batch of the second input; see `process`.

        Raises:
            UserFunctionError: The function raised.
        """
        call_of_first, self._call = self._call, self._call_of_second
        try:
            return self.process(*batch)
        finally:
            self._call = call_of_first

    def process_broadcast(self, elements: Sequence[Any]) -> list[Any]:
        """Processes broadcast elements and returns what came out, in order.

        Raises:
            UserFunctionError: The function raised.
        """
        out: list[Any] = []
        emission = Emission(out)
        context, call = self._broadcast_side, self.function.process_broadcast_element

        def process() -> None:
            context.begin()
            for element in elements:
                emitted = call(element, context)
                if emitted is not None:
                    out.extend(emitted)

        self._guard("processing a broadcast element", process)
        emission.end()
        return self._without_tagged(out) if self._spec.side_outputs else out

    def snapshot_state(self, checkpoint_id: int | None = None) -> None:
        """Lets the function put what it holds into state, at the end of the epoch, before state is written.

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

    def advance_watermark(self, watermark: int) -> list[Any]:
        """Fires the event-time timers up to `watermark` and returns what they emitted."""
        self.context.watermark_has_reached(watermark)
        if self.backend is None:
            return []
        return self._fire(TimeDomain.EVENT_TIME, lambda fire: self.backend.timers.advance_watermark(watermark, fire))  # type: ignore[union-attr]

    def fire_processing_time(self, now: int) -> list[Any]:
        """Fires the processing-time timers that are due at `now` and returns what they emitted."""
        if self.backend is None:
            return []
        return self._fire(TimeDomain.PROCESSING_TIME, lambda fire: self.backend.timers.fire_processing(now, fire))  # type: ignore[union-attr]

    def end_input(self) -> list[Any]:
        """All elements of the epoch have been processed, timers have not fired yet; returns what that emits."""
        return []

    def _fire(self, domain: TimeDomain, run: Callable[[Callable[[int], None]], None]) -> list[Any]:
        out: list[Any] = []
        self._fire_all(domain, run, self._firing(out), out)
        return self._without_tagged(out) if self._spec.side_outputs else out

    def _firing(self, out: list[Any]) -> Callable[[int], None]:
        """What is called with the time of each timer, the key being the current one."""
        # A plain function may register timers too; they go when they are due, and would be due for ever otherwise.
        handler, context = getattr(self.function, "on_timer", _ignore), self.context

        def fire(timestamp: int) -> None:
            context.element_timestamp = timestamp
            emitted = handler(timestamp, context)
            if emitted is not None:
                out.extend(emitted)

        return fire

    def _fire_all(
        self, domain: TimeDomain, run: Callable[..., None], fire: Callable[[int], None], out: list[Any]
    ) -> None:
        if self._spec.shape not in ("process", "groups"):
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
        """The main output; what PyFlink's `yield tag, value` emitted goes to the side outputs."""
        out: list[Any] = []
        for element in emitted:
            if is_tagged(element):
                self.context.output(*element)
            else:
                out.append(element)
        return out

    def _run_narrow(self, elements: Iterable[Any], out: list[Any]) -> None:
        call, shape = self._call, self._shape
        if shape == "map":
            out.extend(map(call, elements))
        elif shape == "filter":
            out.extend(filter(call, elements))
        elif shape == "flat_map":
            for emitted in map(call, elements):
                if emitted is not None:
                    out.extend(emitted)
        elif shape == "async":
            for _, results in call(elements):
                out.extend(results)
        else:
            context = self.context
            for element in elements:
                emitted = call(element, context)
                if emitted is not None:
                    out.extend(emitted)

    def _process(self, elements: Iterable[Any], slots: Iterable[Any], out: list[Any]) -> None:
        backend, call, context, extend = self.backend, self._call, self.context, out.extend
        assert backend is not None
        if inspect.isgeneratorfunction(call):
            for element, slot in zip(elements, slots, strict=True):
                backend.slot = slot
                extend(call(element, context))
            return
        for element, slot in zip(elements, slots, strict=True):
            backend.slot = slot
            emitted = call(element, context)
            if emitted is not None:
                extend(emitted)

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


def is_tagged(element: Any) -> bool:
    """Whether it is what PyFlink's `yield tag, value` emits."""
    return element.__class__ is tuple and len(element) == 2 and isinstance(element[0], OutputTag)


def _ignore(timestamp: int, context: Any) -> None:
    """What a function without `on_timer` does when a timer fires."""
