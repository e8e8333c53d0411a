"""A subtask whose function gets all elements that a key has in an epoch at once, when the epoch's input has ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.function.user_function import TimeDomain
from holdfast.runtime.operator.subtask import OperatorSubtask
from holdfast.state.timer.timer_service import DueTimers
from holdfast.types.changed_row import Emission
from holdfast.types.conversion.stamps import Stamps


class GroupedSubtask(OperatorSubtask):
    """An operator that keeps the elements of an epoch until there are no more, and then goes from key to key.

    What it emits has no timestamps: it belongs to many elements.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._groups: defaultdict[int, list[Any]] = defaultdict(list)
        assert self.backend is not None
        for name in self.function.given_up:
            self.backend.remove_state(name)

    def process(
        self,
        elements: Sequence[Any],
        dict_keys: Sequence[Any] | None = None,
        hashes: Any = None,
        timestamps: Stamps | None = None,
    ) -> list[Any]:
        """Keeps the elements. Their slots stay in use, so the backend is not asked to release any before the end."""
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
        try:
            for slot, elements in groups.items():
                backend.slot = slot
                emitted = call(elements, context)
                if emitted is not None:
                    out.extend(emitted)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing the elements of a key") from error
        backend.release()
        emission.end()
        return self._without_tagged(out) if self._spec.side_outputs else out

    def advance_watermark(self, watermark: int) -> list[Any]:
        self.context.watermark_has_reached(watermark)
        assert self.backend is not None
        timers = self.backend.timers
        due = timers.take_due_event_time(watermark)
        timers.register_event_time_timers(due.slots, due.times)
        return self._fire(TimeDomain.EVENT_TIME, lambda fire: self._go(due, fire, timers.delete_event_time_timer))

    def fire_processing_time(self, now: int) -> list[Any]:
        assert self.backend is not None
        timers = self.backend.timers
        due = timers.take_due_processing_time(now)
        timers.register_processing_time_timers(due.slots, due.times)
        return self._fire(
            TimeDomain.PROCESSING_TIME, lambda fire: self._go(due, fire, timers.delete_processing_time_timer)
        )

    def _go(self, due: DueTimers, fire: Callable[[int], None], delete: Callable[[int], None]) -> None:
        """From timer to timer. Each is there until it has been told of; those that are set meanwhile wait."""
        assert self.backend is not None
        for slot, time in zip(due.slots.tolist(), due.times.tolist(), strict=True):
            self.backend.slot = slot
            fire(time)
            delete(time)
